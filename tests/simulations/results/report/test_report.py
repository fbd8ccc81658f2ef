"""The report: complete, self-contained, and never at a loss where something is missing."""

import base64
import json
import re
import shlex
from html.parser import HTMLParser
from pathlib import Path

import pytest
from command_line import fedpart, refused, succeeds
from fake_runs import learned, small_config, write_run
from places import ROOT
from tiny import tiny, tiny_file

from simulations.building.data import load_data, split_among_clients
from simulations.config.load import ConfigError
from simulations.results.report.data import Data, clients_section
from simulations.results.report.folder import find, versions
from simulations.results.report.page import write_report
from simulations.running.run import run_experiment

pytestmark = pytest.mark.slow

SECTIONS = [
    "Results", "Learning curves", "Hyperparameters over rounds", "Learned augmentation", "Clients", "Cost",
    "Settings and versions",
]  # fmt: skip
VOID = {"meta", "img", "br", "path", "use", "input"}
VIEWS = ["rounds", "upload", "download", "upload + download", "measured time"]


class Page(HTMLParser):
    """Headings, charts (their titles and texts), attributes by name, and whether every tag is closed."""

    def __init__(self, path):
        super().__init__()
        self.html, self.open = Path(path).read_text(), []
        self.headings, self.charts, self.attributes, self.texts = [], [], [], []
        self.titles = re.findall(r"<h\d class=.title.>(.*?)</h", self.html)
        self.feed(self.html)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        if tag not in VOID:
            self.open.append(tag)
        self.attributes += attributes
        self.section = tag == "h2" or "id" in dict(attributes)  # those of charts and pictures have none
        if tag == "svg":
            self.charts.append([])

    def handle_startendtag(self, tag, attributes):
        self.attributes += attributes

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        text = data.strip()
        if text and self.open and self.open[-1] in ("h2", "h3") and self.section:
            self.headings.append(text)
        if text and "svg" in self.open and self.open[-1] == "text":
            self.charts[-1].append(text)
        if text and self.open and self.open[-1] not in ("style", "pre"):
            self.texts.append(text)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A real comparison and its report, by the command line."""
    folder = tmp_path_factory.mktemp("compared")
    changes = {"rotated": True, "rounds": 3, "evaluate_every": 1, "published": "rotmnist-1.25k", "samples": 1}
    file = tiny_file(folder, **changes, server_psi={"learning_rate": 0.1})
    out = folder / "out"
    for arguments in (["compare", str(file), "--seeds", "1", "--out", str(out)], ["report", str(out)]):
        succeeds(*arguments)
    return Page(out / "report.html")


def test_every_section_is_there(compared):
    assert compared.headings == [*SECTIONS[:2], "Without held-out data", *SECTIONS[2:]]
    titles = compared.titles
    assert titles[0] == "Validation accuracy"
    assert re.findall(r'<label for="x1-\d">(.*?)</label>', compared.html) == VIEWS
    assert compared.text.count("Moving average of up to 10 evaluations. One seed.") == 1
    assert {"Rotation range", "Scale range", "Shift range", "Dropout rate"} <= set(titles)
    assert len(titles) == len(compared.charts) - (len(VIEWS) - 1)


def test_clients_evaluate_or_nobody(tmp_path):
    found = {}
    for evaluation in ("clients", "none"):
        out = tmp_path / evaluation
        config = tiny(evaluation=evaluation, clients=12, cohort=6, evaluate_every=1, rounds=2)
        summary = run_experiment(config, out)
        found[evaluation] = Page(write_report(out))
        assert (summary["client_accuracy"] is not None) if evaluation == "clients" else True
    clients, none = found["clients"], found["none"]
    new = ["Evaluation on the clients", "Without held-out data"]
    assert clients.headings == [*SECTIONS[:2], *new, *SECTIONS[2:]]
    assert {"partitioned, all", "partitioned, worst tenth"} <= set(clients.charts[5])
    assert none.headings == [SECTIONS[0], new[1], *SECTIONS[2:]]
    assert "No run has been evaluated yet." in none.text
    assert not any(text.endswith("validation") for text in none.charts[0])


def test_every_chart_has_axes_with_units_and_a_legend(compared):
    first = compared.charts[0]
    assert {"round", "validation accuracy [%]", "fedavg", "augerino", "partitioned"} <= set(first)
    traffic = ("upload", "download", r"upload \+ download")
    for texts, what in zip(compared.charts[1:4], traffic, strict=True):
        assert any(re.fullmatch(rf"{what}, all clients \[[kM]B\]", text) for text in texts)
    axes = {
        "Rotation range": "rotation [degrees]",
        "Scale range": "scale [factor]",
        "Shear range": "shear [factor]",
        "Shift range": "shift [% of the image]",
        "Stretch range": "stretch [log factor]",
        "Dropout rate": "drop rate [%]",
    }
    assert compared.titles[1] == "L_ML per example over rounds"
    assert {"round", "log-likelihood", "[nats per example]"} <= set(compared.charts[5])
    assert [text for text in compared.charts[5] if text.endswith("validation")] == ["partitioned, validation"]
    learned = dict(zip(compared.titles[2:], compared.charts[6:], strict=True))
    assert learned.keys() <= axes.keys()
    for title, texts in learned.items():
        assert {"round", axes[title]} <= set(texts) and {"augerino", "partitioned"} & set(texts)


def test_it_needs_no_network_and_no_other_file(compared):
    """And what it refers to within itself is there, once."""
    assert not re.search(r"https?:|<link|<script|@import|<iframe|<object", compared.html)
    references = [value for name, value in compared.attributes if name in ("src", "href", "xlink:href")]
    assert references and all(value.startswith(("#", "data:image/png;base64,")) for value in references)
    targets = re.findall(r"url\(([^)]*)\)", compared.html)
    targets += [v for name, v in compared.attributes if name.endswith("href") and v.startswith("#")]
    ids = [f"#{value}" for name, value in compared.attributes if name == "id"]
    assert len(ids) == len(set(ids)) and targets and set(targets) <= set(ids)


def test_numbers_and_the_learned_augmentation_are_there(compared):
    assert "85.7 ± 0.9" in compared.text and "difference [std. err.]" not in compared.text  # of one seed
    assert "The paper trains for 2,000 rounds, these runs for 3." in compared.text
    assert "All finished runs: python" in compared.text and "recipe: per_label" in compared.html
    images = [v for name, v in compared.attributes if name == "src"]
    assert len(images) == 2 * 3  # augerino and partitioned: image, at the start, as learned
    assert base64.b64decode(images[0].partition(",")[2])[:4] == b"\x89PNG"


def test_the_guide_leads_to_a_report_in_three_commands(tmp_path, monkeypatch):
    text = (ROOT / "docs" / "guides" / "reports.md").read_text()
    block = re.search(r"## A comparison and its report.*?```sh[^\n]*\n(.*?)```", text, re.S)
    install, compare, report = block.group(1).strip().splitlines()
    assert "pip install" in install
    monkeypatch.chdir(tmp_path)
    (tmp_path / "simulations").symlink_to(ROOT / "simulations")
    small = "rounds=1 training_points=80 validation_points=20 test_points=20 clients=6 cohort=2 samples=1"
    extra = ["--set", *small.split(), "--seeds", "1", "--jobs", "1"]
    for command, more in ((compare, extra), (report, [])):
        arguments = shlex.split(command.removeprefix(".uv/bin/uv run fedpart "))
        succeeds(*arguments, *more)
    page = Page(tmp_path / "runs" / "compare-quickstart" / "report.html")
    assert page.headings == [*SECTIONS[:2], *SECTIONS[3:]]  # one round is no course of a hyperparameter
    assert "`runs/compare-quickstart/report.html`" in text


def fake(
    folder, methods=("fedavg", "partitioned"), seeds=(0, 1), finished=True, accuracies=(0.5,) * 12, **changes
):
    for method in methods:
        for seed in seeds:
            config = small_config(method=method, seed=seed, **{"training_points": 100, **changes})
            physical = learned(12, -60, 60) if method == "partitioned" else None
            out = folder / method / f"seed{seed}"
            write_run(out, config, accuracies, physical=physical, finished=finished)


def test_runs_in_progress(tmp_path):
    fake(tmp_path)
    (tmp_path / "partitioned" / "seed1" / "summary.json").unlink()
    fake(tmp_path, ["augerino"], [0], finished=False)
    (tmp_path / "augerino" / "seed0" / "metrics.jsonl").write_text("")
    (tmp_path / "comparison.json").write_text('{"rows": [')  # being written
    page = Page(write_report(tmp_path))
    assert page.headings == [name for name in SECTIONS if name != "Learned augmentation"]
    assert "partitioned, seed 1: not finished; left out of the curves." in page.text
    assert "augerino, seed 0: not finished; drawn as far as it is." in page.text
    assert "round 0 of 12" in page.text and "(1/2 seeds)" in page.text
    assert "partitioned, seed 0 cannot be drawn" in page.text  # its state is missing


def test_costs_are_those_of_whole_runs(tmp_path):
    fake(tmp_path)
    (tmp_path / "fedavg" / "seed1" / "summary.json").unlink()
    fake(tmp_path, ["augerino"], [0], finished=False)
    for file in tmp_path.glob("*/*/summary.json"):
        charge = {"held_out_share": 0.2, "upload_bytes_psi": 48, "examples": 960}
        file.write_text(json.dumps(json.loads(file.read_text()) | charge))
    (cost,) = re.findall(r'<section id="cost">.*?</section>', write_report(tmp_path).read_text(), re.DOTALL)
    for column, wanted in (
        ("held out [%]", ["—", "20.0", "20.0"]),
        ("upload", ["—", "9.6 kB", "9.6 kB"]),
        ("of it psi", ["—", "48 B", "48 B"]),
        ("examples", ["—", "960", "960"]),
        ("measured time", ["—", "6.0 s", "6.0 s"]),
    ):
        assert re.findall(rf'data-label="{re.escape(column)}">(.*?)<', cost) == wanted


def test_nothing_yet(tmp_path):
    fake(tmp_path, ["partitioned"], [0], finished=False)
    (tmp_path / "partitioned" / "seed0" / "metrics.jsonl").unlink()
    page = Page(write_report(tmp_path))
    assert page.headings == ["Results", *SECTIONS[4:]]
    assert "No run has been evaluated yet." in page.text and "No run is finished yet." in page.text


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"data": "mnist", "data_dir": "/nowhere/at/all"}, "(there is no /nowhere/at/all)."),
        ({"training_points": 5000}, "(training_points is 5000, but the training set of 'digits' has 1297"),
    ],
)
def test_the_data_are_elsewhere_or_others(tmp_path, changes, says):
    fake(tmp_path, ["partitioned"], [0], **changes)
    page = Page(write_report(tmp_path))
    assert page.text.count(f"The data cannot be read here {says}") == 1
    assert page.headings == [*SECTIONS[:3], *SECTIONS[5:]]
    assert len(page.charts) == len(VIEWS) + 1  # the accuracy, and rotation


@pytest.mark.parametrize("data", ["mnist", "cifar10", "fashion_mnist"])
def test_a_report_downloads_nothing(tmp_path, monkeypatch, data):
    def fetch(*arguments):
        raise AssertionError("a report downloads")

    for module in ("digits", "torchvision_sets"):
        monkeypatch.setattr(f"fedpart.data.sets.{module}.download_files", fetch)
    (tmp_path / "data").mkdir()
    fake(tmp_path / "runs", ["partitioned"], [0], data=data, data_dir=str(tmp_path / "data"))
    page = Page(write_report(tmp_path / "runs"))
    assert page.text.count("The data cannot be read here (") == 1
    assert not list((tmp_path / "data").iterdir())


def test_a_single_run_one_seed_and_no_accuracy(tmp_path):
    fake(tmp_path, ["fedavg"], [0], accuracies=None)
    path = write_report(tmp_path / "fedavg" / "seed0", tmp_path / "page.html")
    page = Page(path)
    assert path == tmp_path / "page.html" and page.headings == [*SECTIONS[:2], *SECTIONS[4:]]
    assert {"validation loss", "[nats per example]"} <= {*page.charts[0]} and "One seed." in page.text


def test_runs_with_other_settings_are_left_out(tmp_path):
    fake(tmp_path, seeds=(0, 1, 2))
    fake(tmp_path, ["fedavg"], [0], rounds=2)
    fake(tmp_path, ["fedavg"], [2], checkpoint_every=3)  # which changes no number
    fake(tmp_path, ["partitioned"], [1], method_options={"partitioned": {}})  # the same as none
    fake(tmp_path, ["augerino"], [0])
    fake(tmp_path, ["augerino"], [1], method_options={"augerino": {"safe": False}})
    found = find(tmp_path)
    kept = {"augerino": [0], "fedavg": [1, 2], "partitioned": [0, 1, 2]}
    assert [run.name for run in found.runs] == [f"{name}, seed {i}" for name in kept for i in kept[name]]
    short, optional = found.notes
    assert re.search(r"fedavg/seed0 has other settings than .*seed\d \(rounds: 2 there, 12 here\)", short)
    assert "augerino/seed1 has other settings than" in optional and "safe" in optional


def test_damaged_runs_are_left_out(tmp_path):
    damages = [
        ("summary.json", "{", "summary.json is damaged"),
        ("config.yaml", "{rounds: 3, moon: full}", "unknown key 'moon'"),  # of another version
        ("metrics.jsonl", '{"round": 1}\n\x00\n{"round": 3}\n', "Line 2 of .*metrics.jsonl is damaged"),
        ("metrics.jsonl", "", "metrics.jsonl ends before the finished run does"),
    ]
    fake(tmp_path, seeds=range(5))
    for seed, (file, content, _) in enumerate(damages):
        (tmp_path / "fedavg" / f"seed{seed}" / file).write_text(content)
    (tmp_path / "comparison.json").write_text("[]")
    page = Page(write_report(tmp_path))
    assert page.text.count("A run is left out: ") == len(damages) and "fedavg (1/5 seeds)" in page.text
    for seed, (_, _, says) in enumerate(damages):
        assert re.search(rf"A run is left out: .*{says}", page.text)
        with pytest.raises(ConfigError, match=says):
            find(tmp_path / "fedavg" / f"seed{seed}")


def test_methods_stand_as_they_were_compared_and_names_are_escaped(tmp_path):
    fake(tmp_path)
    failure = {"method": "augerino", "seed": 0, "error": "a < b & c"}
    written = {"rows": [{"method": "partitioned"}, {"method": "fedavg"}], "failures": [failure]}
    (tmp_path / "comparison.json").write_text(json.dumps(written))
    found = find(tmp_path)
    assert found.methods == ["partitioned", "fedavg"]
    assert "Failed: augerino, seed 0: a &lt; b &amp; c" in write_report(tmp_path).read_text()


def test_the_commits_of_runs_are_told(tmp_path):
    for seed, more in enumerate(["", "+changes"]):
        commit = {"git_commit": f"0123456789abcdef{more}"}
        write_run(tmp_path / "own" / f"seed{seed}", small_config(seed=seed), [0.5] * 12, **commit)
    told = "partitioned, seed {}: commit 0123456789ab{}."
    assert versions(find(tmp_path).runs) == [told.format(0, ""), told.format(1, "+changes")]


def test_what_cannot_be_reported_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(ConfigError, match="There is no folder"):
        find(tmp_path / "nowhere")
    refused(fedpart("report", tmp_path), "no federated run and no comparison")


def test_clients_are_counted_by_chunk():
    config = tiny()
    splits = load_data(config)
    shards = split_among_clients(config, splits.train)
    (table,) = clients_section(config, Data(splits, shards)).tables
    assert table.head == ["chunk", "clients", "examples of each", "labels of each"]
    assert [row[:2] for row in table.rows] == [["1", "3"], ["2", "2"], ["3", "1"]]
    held = {(len(shard), len(shard.targets.unique())) for shard in shards}
    assert tuple(int(text.partition(" ")[0]) for text in table.rows[2][2:]) in held


def test_a_run_is_shown_with_the_one_beside_it(tmp_path):
    run_experiment(tiny(rounds=2), tmp_path / "run")
    alone = Page(write_report(tmp_path / "run"))
    assert "fedavg" not in alone.charts[0]
    run_experiment(tiny(method="fedavg", rounds=2), tmp_path / "run" / "beside")
    both = Page(write_report(tmp_path / "run"))
    assert {"fedavg", "partitioned"} <= set(both.charts[0])


def test_a_copy_of_a_run_is_no_further_seed(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / "partitioned" / f"seed{seed}", small_config(seed=seed), [0.5] * 12)
    write_run(tmp_path / "partitioned" / "seed1.bak", small_config(seed=1), [0.5] * 12)
    write_run(tmp_path / "old" / "seed0", small_config(seed=0), [0.5] * 12)
    begun = tmp_path / "old" / "seed0" / "metrics.jsonl"  # sorts before, and is not finished
    begun.write_text("".join(begun.read_text().splitlines(keepends=True)[:3]))
    (begun.parent / "summary.json").unlink()
    found = find(tmp_path)
    mine = tmp_path / "partitioned"
    assert [run.folder for run in found.runs] == [mine / "seed0", mine / "seed1"]
    assert [note.partition(" is left out: it is ")[2] for note in found.notes] == [
        "partitioned, seed 0, again.",
        "partitioned, seed 1, again.",
    ]


def test_a_page_takes_the_place_of_pages_alone(tmp_path):
    write_run(tmp_path / "run", small_config(), [0.5] * 12)
    out = write_report(tmp_path / "run", tmp_path / "page.html")
    assert write_report(tmp_path / "run", out) == out
    (tmp_path / "mine.csv").write_text("precious,1")
    (tmp_path / "page.htm").write_text("<!doctype html><title>Mine</title>")
    for file in (tmp_path / "run" / "config.yaml", tmp_path / "mine.csv", tmp_path / "page.htm"):
        before = file.read_bytes()
        with pytest.raises(ConfigError, match="would overwrite what is no report"):
            write_report(tmp_path / "run", file)
        assert file.read_bytes() == before
