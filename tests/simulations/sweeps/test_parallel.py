"""Cells: real runs compared, and in processes of their own; what one that fails does to the others."""

import io
import multiprocessing
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from command_line import begun, fedpart, succeeds
from fake_runs import small_config
from interruptions import Died, DiesAfter
from places import importing
from rich.console import Console
from tiny import same_run, tiny, tiny_file

from fedpart.methods.plain import FedAvg
from simulations.building.experiment import build
from simulations.config.load import ConfigError
from simulations.errors import DiskFull
from simulations.folders.cell import Cell
from simulations.folders.run_directory import RunDirectory, holds_run, read_metrics, read_summary
from simulations.running.recorder import Interrupted
from simulations.running.run import run_experiment
from simulations.sweeps.cell_runner import CellRunner
from simulations.sweeps.compare import plan
from simulations.sweeps.parallel import WATCH

pytestmark = pytest.mark.slow


def deadly(data_dir=None):
    """A data set that ends its process, as the system does where memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def unportable(data_dir=None):
    """A data set that fails in a way which no other process can be told of."""

    class Odd(Exception):
        pass

    raise Odd("odd data")


def absent(data_dir=None):
    raise FileNotFoundError("There are no data.")


def cells(folder, *changes):
    """Runs of two rounds of a small network, or what ``changes`` say."""
    few = {"rounds": 2, "model": "mlp", "model_options": {"hidden": [8]}, "samples": 1}
    configs = [tiny(seed=seed, **{**few, **own}) for seed, own in enumerate(changes)]
    return [Cell(f"seed {config.seed}", config, folder / str(config.seed)) for config in configs]


def run(own, jobs):
    """All cells; what was said, and those that failed."""
    stream = io.StringIO()
    failed = CellRunner(jobs, console=Console(file=stream, width=200)).complete(own)
    return stream.getvalue(), failed


def states(own):
    return [cell.state() for cell in own]


def test_what_fails_is_named_and_the_others_finish(tmp_path):
    name = f"{__name__}:"
    bad = {"method": "augerino", "method_options": {"augerino": {"initial": 1e30}}}
    own = cells(tmp_path, {}, {"data": name + "deadly"}, bad, {"data": name + "unportable"})
    said, failed = run(own, 2)
    assert states(own) == ["finished", "new", "started", "new"]
    errors = {cell.name: error for cell, error, _ in failed}
    assert errors["seed 1"] == "Its process was ended by SIGKILL, perhaps for lack of memory."
    assert "is nan" in errors["seed 2"] and errors["seed 3"] == "Odd: odd data"
    assert "4 runs to do, 2 at a time." in said and "Finished 1 of 4: seed 0: validation accuracy" in said
    assert said.count("Failed: ") == 3
    assert {cell.name for cell, _, traceback in failed if "Traceback" in traceback} == {"seed 2", "seed 3"}


def test_a_run_waits_for_the_one_whose_psi_it_takes(tmp_path):
    found = {"psi_from": str(tmp_path / "0")}
    own = cells(tmp_path, {"rounds": 20}, found, {}, found | {"psi_from": str(tmp_path / "1")})
    said, failed = run(own, 4)
    assert failed == [] and states(own) == ["finished"] * 4
    order = [line.split(": ")[1] for line in said.splitlines() if line.startswith("Finished ")]
    assert sorted(order) == ["seed 0", "seed 1", "seed 2", "seed 3"]
    assert order.index("seed 0") < order.index("seed 1") < order.index("seed 3")


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_full_disk_ends_all(tmp_path, jobs):
    """Simulated: the summary of the first run is written to a device that is always full."""
    own = cells(tmp_path, {"rounds": 1}, {"rounds": 400}, *[{}] * 3)
    own[0].folder.mkdir()
    (own[0].folder / "summary.json.tmp").symlink_to("/dev/full")
    with pytest.raises(DiskFull, match=r"The disk of .*0 is full .*room"):
        run(own, jobs)
    assert "finished" not in states(own) and states(own)[2:] == ["new"] * 3


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_first_run_of_all_cannot_be_set_up(tmp_path, jobs):
    bad = {"data": f"{__name__}:absent"}
    own = cells(tmp_path, bad, bad, {})
    with pytest.raises(ConfigError, match="There are no data"):
        run(own, jobs)
    assert not any(holds_run(cell.folder) for cell in own)
    run(own[2:], jobs)
    _, failed = run(own, jobs)  # not the first: one is finished
    assert {cell.name for cell, *_ in failed} == {"seed 0", "seed 1"}  # in the order of their ends


def test_started_runs_go_on_to_the_same_bits(tmp_path):
    own = cells(tmp_path, {"rounds": 5}, {"rounds": 4})
    with pytest.raises(Died):
        run_experiment(own[0].config, own[0].folder, progress=DiesAfter(3))
    run_experiment(own[0].config, tmp_path / "undisturbed")
    assert run(own, 2)[1] == []
    same_run(own[0].folder, tmp_path / "undisturbed")


def test_a_person_stops_all(tmp_path):
    own = cells(tmp_path, {"rounds": 1}, {"rounds": 1_000_000, "checkpoint_every": 1_000_000}, {}, {})

    class Stops(io.StringIO):
        done = False

        def write(self, text):
            if text.startswith("Finished 1") and not self.done:
                self.done = True  # once: what is said of the stop is written together with this line
                deadline = time.monotonic() + 600
                while not read_metrics(own[1].folder) and time.monotonic() < deadline:
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGINT)
            return super().write(text)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted, match="SIGINT after 1 of 4 runs"):
        CellRunner(2, console=Console(file=Stops(), width=200)).complete(own)
    assert states(own) == ["finished", "started", "new", "new"]
    assert (own[1].folder / "checkpoint.pt").exists()  # out of turn: it ended its round and saved it
    assert signal.getsignal(signal.SIGINT) == before


def test_a_run_that_waits_for_an_answer_ends_with_all(tmp_path):
    own = cells(tmp_path, {"rounds": 1_000_000, "evaluate_every": 1})
    waiting = list(own)

    def watch(cell, line):
        raise ZeroDivisionError

    runner = CellRunner(2, console=Console(file=io.StringIO()))
    with pytest.raises(ZeroDivisionError):
        runner.each(lambda _: waiting.pop() if waiting else None, 2, lambda *_: None, watch)
    assert states(own) == ["started"] and (own[0].folder / "checkpoint.pt").exists()


class Deserted(FedAvg):
    """Kills the main process in its third round, where a file asks for it, and goes on once it is noticed."""

    def plan(self, client):
        if client.round == 3 and Path("desert").exists():
            with suppress(ProcessLookupError):  # the other cell was faster
                os.kill(multiprocessing.parent_process().pid, signal.SIGKILL)
            for thread in threading.enumerate():
                if thread.name == WATCH:
                    thread.join()
        return super().plan(client)


def test_cells_end_with_a_main_process_that_is_killed(tmp_path, monkeypatch):
    """In order, with a checkpoint; the same command finishes them, to the bits of undisturbed runs."""
    monkeypatch.chdir(tmp_path)
    file = str(tiny_file(tmp_path, rounds=6, checkpoint_every=100))
    arguments = ["compare", file, "--methods", f"{__name__}:Deserted", "--seeds", "2"]
    (tmp_path / "desert").touch()
    several = ["--jobs", "2", "--out", "out"]
    main = begun(*arguments, *several, paths=importing(__file__), env={"OMP_NUM_THREADS": "1"})
    said, _ = main.communicate(timeout=600)  # which every process that it has started has to close
    assert main.returncode == -signal.SIGKILL and "Traceback" not in said, said
    cells = sorted(Path("out").glob("*/seed*"))
    started = [cell for cell in cells if read_metrics(cell)]  # the other may not have got that far
    assert started and all((cell / "checkpoint.pt").exists() for cell in started)
    assert not any((cell / "summary.json").exists() for cell in cells)

    (tmp_path / "desert").unlink()
    for more in (several, ["--out", "undisturbed"]):
        succeeds(*arguments, *more)
    for seed in ("seed0", "seed1"):
        (own,), (other,) = (list(Path(out).glob(f"*/{seed}")) for out in ("out", "undisturbed"))
        same_run(own, other)


def test_what_another_process_has_finished_meanwhile_is_taken_as_finished(tmp_path, monkeypatch):
    own = cells(tmp_path, {}, {})
    for cell in own:
        run_experiment(cell.config, cell.folder)
    with monkeypatch.context() as earlier:
        earlier.setattr(Cell, "state", lambda *_: "new")
        said, failed = run(own, 2)
    assert failed == [] and said.count("Finished ") == 2


def test_a_cell_in_which_another_process_runs_is_one_sentence(tmp_path):
    own = cells(tmp_path, {}, {})
    folder = RunDirectory.create(own[0].folder, own[0].config)
    with pytest.raises(FileExistsError, match=r"^Another process is running in .*0; wait for it, or .*\.$"):
        run(own, 2)
    folder.close()


def test_methods_of_a_seed_meet_the_same_data_clients_and_cohorts():
    config = small_config(seed=1, training_points=200, clients=10, cohort=4)
    cells = plan(config, ["fedavg", "augerino", "partitioned"], 2, Path("x"))
    methods = ["fedavg", "augerino", "partitioned"]
    assert [(c.config.method, c.config.seed) for c in cells] == [
        (m, seed) for seed in (1, 2) for m in methods
    ]
    built = [build(cell.config) for cell in cells[:4]]
    cohorts = [[b.protocol.cohort(round) for round in range(1, 30)] for b in built]
    assert cohorts[0] == cohorts[1] == cohorts[2] != cohorts[3]
    for other in built[1:]:
        assert all(
            a.inputs.equal(b.inputs) and a.targets.equal(b.targets)
            for a, b in zip(built[0].shards, other.shards, strict=True)
        )


def test_the_command_compares_real_runs_and_its_status_tells_of_a_bad_one(tmp_path):
    bad = {"augerino": {"initial": 1e30}}
    config = tiny_file(tmp_path, rounds=2, samples=1, evaluate_every=1, method_options=bad)
    arguments = ["compare", str(config), "--seeds", "1", "--out", str(tmp_path / "out")]
    failed = fedpart(*arguments, "--methods", "augerino,fedavg,partitioned")
    assert failed.exit_code == 1 and "1 of 3 runs failed" in failed.output
    lines = failed.output.splitlines()
    assert lines[1].startswith("Failed: augerino, seed 0: ")
    accuracy = read_metrics(tmp_path / "out" / "fedavg" / "seed0")[-1]["val_accuracy"]
    told = f"Finished 1 of 3: fedavg, seed 0: validation accuracy {accuracy:.1%} at the last evaluation, "
    assert lines[2].startswith(told)
    assert lines[3].startswith("Finished 2 of 3: partitioned, seed 0: ")
    good = fedpart(*arguments, "--methods", "fedavg,partitioned")
    assert good.exit_code == 0 and "2 of 2 runs were finished before" in good.output
    for method in ("fedavg", "partitioned"):
        folder = tmp_path / "out" / method / "seed0"
        assert read_summary(folder)["method"] == method and len(read_metrics(folder)) == 2
    page = (tmp_path / "out" / "comparison.md").read_text()
    assert "| partitioned | " in page and "rotation" in page
