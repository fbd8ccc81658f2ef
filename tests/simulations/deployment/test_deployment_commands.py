"""What an operator is told, without a federation: a stand-in takes the place of the SuperLink."""

from dataclasses import replace

import pytest
from command_line import fedpart
from fake_runs import small_config, write_run
from killed import EXPERIMENT
from tiny import unnamed

from fedpart.flower.workarounds.control import SubmittedRun
from simulations.cli import federations as commands
from simulations.config.load import ExperimentConfig
from simulations.deployment.control import Unreachable
from simulations.folders.run_directory import CHECKPOINT, SUMMARY, RunDirectory
from simulations.running.run import run_experiment

CONFIG = {**EXPERIMENT, "rounds": 1, "evaluate_every": 1, "engine": "local"}
WHY = "ServerApp failed with exception: the reason."


def test_of_the_log_of_a_run_what_flower_says_of_itself_is_left_out(capsys):
    told = ["round 1/3: loss 2.29", "WARNING : Node 1 is refused.", "    a panel"]
    flower = ["\x1b[92mINFO \x1b[0m:   [ROUND 1/3]", "INFO : done", "Successfully installed fedpart to x"]
    commands._show_ours("".join(f"{flowers}\n{ours}\n" for flowers, ours in zip(flower, told, strict=True)))
    assert capsys.readouterr().out.splitlines() == told


class Link:
    """Knows nodes and runs, and keeps what was started."""

    def __init__(self, nodes=(), run=None, after=()):
        self.names, self.last, self.started = dict.fromkeys(nodes, "online"), run, []
        self.after, self.ended = list(after), True  # runs that go on in the place of the last

    def nodes(self):
        return self.names

    def runs(self):
        return [self.last]

    def run(self, id):
        return self.last if self.ended else replace(self.last, status="running")

    def follow(self, id, show):
        return self.last

    def again(self, run):
        self.last = self.after.pop(0) if self.after else self.last
        return None if self.last is run else self.last.id

    def start(self, run_config):
        self.started.append(run_config)
        return 1


@pytest.fixture
def told(monkeypatch):
    """Run a command against a link: its exit status, and what it shows as one line."""

    def tell(link, *arguments):
        monkeypatch.setattr(commands, "Control", lambda address, keys: link)
        shown = fedpart(*map(str, arguments), "--link", "here:1", "--keys", "keys")
        return shown.exit_code, " ".join(shown.output.split())

    return tell


def clients(*numbers):
    return [f"client-{number}" for number in numbers]


@pytest.fixture
def config_file(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("data: digits\nclients: 4\ncohort: 2\nrounds: 1\n")
    return file


@pytest.mark.parametrize(
    ("nodes", "fits", "says"),
    [
        ((), False, "No SuperNode is registered; register their keys with fedpart register."),
        (clients(0, 2, 3), False, "for 1 of them (such as client-1): add --set clients=3"),
        (clients(0, 1, 2, 3), True, ""),
        (clients(0, 1, 2, 3, 4), True, "5 SuperNodes are registered; the run takes client-0 to client-3, "),
        (["", "somebody"], True, ""),  # a SuperLink that takes nodes without keys
    ],
)
def test_a_run_is_started_if_all_its_clients_have_keys(told, config_file, nodes, fits, says):
    link = Link(nodes)
    status, text = told(link, "submit", config_file, "--out", "/runs/there")
    assert says in text and (status, len(link.started)) == ((0, 1) if fits else (2, 0))
    assert text.endswith("Run 1: 4 clients, 1 round; results in /runs/there.") == fits


def test_a_run_is_not_started_into_the_folder_of_another(told, config_file, tmp_path):
    out, link = tmp_path / "out", Link(clients(0, 1, 2, 3))
    RunDirectory.create(out, ExperimentConfig.from_dict(CONFIG)).close()
    status, text = told(link, "submit", config_file, "--out", out)
    assert status == 2 and "already holds a run" in text and not link.started


@pytest.mark.slow
def test_results_are_copied_with_their_pictures_or_say_which_is_missing_where_the_data_are(told, tmp_path):
    out, to = tmp_path / "out", tmp_path / "to"
    run_experiment(ExperimentConfig.from_dict(CONFIG), out)
    link = Link(run=SubmittedRun(7, "finished:completed", "", str(out)))
    assert told(link, "results", to) == (0, f"Results are in {to / 'out'}.")
    kept = {file.name for file in out.iterdir()}
    pictures = {file.name for file in (to / "out").iterdir()} - kept
    assert SUMMARY in kept and not any(name.endswith(".png") for name in kept)
    assert {"learning_curve.png", "transforms.png"} <= pictures

    file = unnamed(out) / "config.yaml"
    text = file.read_text().replace("data: digits", "data: mnist")
    file.write_text(text.replace("data_dir: null", f"data_dir: {tmp_path / 'no'}"))
    status, text = told(link, "results", there := tmp_path / "there")
    assert status == 0 and "A picture is missing" in text
    drawn = {file.name for file in (there / "out").glob("*.png")}
    assert "learning_curve.png" in drawn and "transforms.png" not in drawn


def test_what_a_failed_run_has_left_is_not_called_results(told, tmp_path):
    out, to = tmp_path / "out", tmp_path / "to"
    RunDirectory.create(out, ExperimentConfig.from_dict(CONFIG)).close()
    run = SubmittedRun(7, "finished:failed", WHY, str(out))
    why = f"Run 7 has finished and failed: {WHY[:-1]};"

    status, text = told(Link(run=run), "results", to)
    assert status == 1 and f"{why} it has no checkpoint: submit it anew, with another --out." in text
    assert f"What there is of it is in {to / 'out'}." in text and "Results are" not in text

    (out / CHECKPOINT).touch()
    status, text = told(Link(run=run), "results")
    assert status == 1 and f"{why} continue it with fedpart submit --resume {out}." in text

    elsewhere = replace(run, out="/somewhere/else")
    status, text = told(Link(run=elsewhere), "results", to)
    assert status == 1 and "continue it with fedpart submit --resume /somewhere/else." in text
    assert "It is not copied: The results of run 7 cannot be read here" in text


@pytest.mark.parametrize("ended", [False, True])
def test_a_run_that_dies_while_it_is_watched_is_followed_to_its_end(told, tmp_path, ended):
    """Not one that had ended before: somebody may have given it up."""
    out = tmp_path / "out"
    RunDirectory.create(out, ExperimentConfig.from_dict(CONFIG)).close()
    died = SubmittedRun(7, "finished:failed", "No heartbeat received from the task", str(out))
    link = Link(run=died, after=[replace(died, id=8), replace(died, id=9, status="finished:completed")])
    link.ended = ended
    status, text = told(link, "results")
    assert status == int(ended)
    died = "The ServerApp of run {} has died; run {} goes on from its checkpoint."
    goes_on = f"{died.format(7, 8)} {died.format(8, 9)}"
    assert text == goes_on if not ended else "No heartbeat received" in text


@pytest.fixture
def fetched(tmp_path, told):
    """What ``fedpart results`` says about the run in ``out``, of that status; its copies go to ``copies``."""
    out, to = tmp_path / "out", tmp_path / "copies"
    return lambda status, why="": told(Link(run=SubmittedRun(1, status, why, str(out))), "results", to)


def test_a_failed_run_that_was_resumed_is_fetched_over_its_copy(tmp_path, fetched):
    out, copy = tmp_path / "out", tmp_path / "copies" / "out"
    write_run(out, small_config(rounds=3), None, finished=False)
    status, text = fetched("finished:failed", "it was killed")
    assert status == 1 and "it was killed" in text
    assert len((copy / "metrics.jsonl").read_text().splitlines()) == 3
    (copy / "notes.txt").write_text("mine")
    write_run(out, small_config(rounds=5), None)
    for _ in range(2):
        assert fetched("finished:completed")[0] == 0
        kept = [file for file in copy.iterdir() if file.name != "notes.txt" and file.suffix != ".png"]
        whole, copied = ({file.name: file.read_bytes() for file in each} for each in (out.iterdir(), kept))
        assert whole == copied and (copy / "learning_curve.png").exists()
    assert (copy / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("other", [small_config(seed=1), small_config(rounds=13)])
def test_another_run_is_not_written_over(tmp_path, fetched, other):
    write_run(tmp_path / "out", small_config(), None)
    write_run(tmp_path / "copies" / "out", other, None)
    before = {file: file.read_bytes() for file in (tmp_path / "copies" / "out").iterdir()}
    status, text = fetched("finished:completed")
    assert status == 2 and "holds another run than run 1; give another folder" in text
    assert {file: file.read_bytes() for file in before} == before


def test_a_copy_that_has_been_completed_elsewhere_stays(tmp_path, fetched):
    status, text = fetched("finished:failed", "clients is 0")  # before it made its folder
    assert status == 1 and "clients is 0" in text
    status, text = fetched("finished:completed")
    assert status == 1 and "cannot be read here" in text
    write_run(tmp_path / "out", small_config(), None, finished=False)
    write_run(tmp_path / "copies" / "out", small_config(), None)
    status, text = fetched("finished:failed", "it was killed")
    assert status == 1 and "it was killed" in text
    assert (tmp_path / "copies" / "out" / "summary.json").exists()


def test_results_that_are_there_already_are_left_alone(tmp_path, fetched):
    write_run(tmp_path / "copies" / "out", small_config(), None)
    (tmp_path / "out").symlink_to(tmp_path / "copies" / "out")
    assert fetched("finished:completed")[0] == 0


class Watched(Link):
    """Changes twice, is away for a while, and then somebody presses Ctrl-C."""

    def __init__(self):
        super().__init__(run=SubmittedRun(3, "running", "", "/runs/there"))
        away = Unreachable("nobody answers")
        self.looks = ["registered", "registered", away, "online", KeyboardInterrupt()]

    def nodes(self):
        look = self.looks.pop(0)
        if isinstance(look, BaseException):
            raise look
        return {"client-0": look}


def test_status_is_watched_until_it_is_interrupted(told, monkeypatch):
    monkeypatch.setattr(commands, "WATCH_SECONDS", 0)
    run = "run 3: running; /runs/there"
    status, text = told(watched := Watched(), "status", "--watch")
    assert status != 0 and not watched.looks
    assert text.startswith(f"client-0: registered {run} nobody answers client-0: online {run}")
    status, text = told(watched := Watched(), "status")
    assert (status, text, len(watched.looks)) == (0, f"client-0: registered {run}", 4)
