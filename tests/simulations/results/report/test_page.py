"""Who reads the page: without eyes, on paper-white or black, in a hurry; and of every command's folder."""

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from fake_runs import learned, small_config, write_run
from interruptions import Died, DiesAfter
from sizes import TWO
from tiny import tiny, tiny_training

from simulations.config.load import ConfigError, TrainingConfig
from simulations.results.comparison import collect, headline
from simulations.results.curves import Run
from simulations.results.pictures.figures import COLOURS, DARK, GREY, THEMES
from simulations.results.report.page import write_report
from simulations.results.report.sections import PageTable
from simulations.results.scores import digits
from simulations.results.search import Found
from simulations.results.selection import Selection
from simulations.running.run import run_experiment
from simulations.sweeps.search.search import run_search
from simulations.sweeps.select import run_selection


def contrast(one, other):
    """WCAG 2.2: (L1 + 0.05) / (L2 + 0.05) of relative luminances."""
    found = []
    for colour in (one, other):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        found.append(sum(w * x for w, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True)))
    return (max(found) + 0.05) / (min(found) + 0.05)


@pytest.mark.parametrize("theme", THEMES)
def test_text_and_graphics_stand_out(theme):
    colours = THEMES[theme]
    drawn = [*(DARK if theme == "dark" else COLOURS), GREY]
    for back in (colours["page"], colours["card"]):
        assert min(contrast(colours[text], back) for text in ("ink", "soft")) >= 4.5
        assert min(contrast(colour, back) for colour in drawn) >= 3


class Outline(HTMLParser):
    """Levels of headings, what images and drawings are called, and the parts of tables and choices."""

    def __init__(self, html):
        super().__init__()
        self.levels, self.names, self.tables, self.inputs, self.labels, self.tags = [], [], [], [], set(), []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags.append(tag)
        if re.fullmatch(r"h\d", tag):
            self.levels.append(int(tag[1]))
        if tag == "img":
            self.names.append(given.get("alt"))
        if tag == "svg":
            self.names.append(given.get("aria-label") if given.get("role") == "img" else None)
        if tag == "table":
            self.tables.append([])
        if tag == "caption" or (tag == "th" and given.get("scope") in ("col", "row")):
            self.tables[-1].append(given.get("scope", tag))
        if tag == "input":
            self.inputs.append(given["id"])
        if tag == "label":
            self.labels.add(given["for"])


def assert_accessible(html):
    page = Outline(html)
    assert page.levels[0] == 1 and page.levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(page.levels, page.levels[1:], strict=False))
    assert page.names and all(page.names)
    assert page.tables and all({"caption", "col", "row"} <= set(parts) for parts in page.tables)
    assert set(page.inputs) == page.labels and page.tags.count("main") == 1 and 'lang="en"' in html


def fake(folder, scores, **summary):
    """Runs of methods, an accuracy for each seed; their comparison."""
    runs = {}
    for method, own in scores.items():
        for seed, accuracy in enumerate(own):
            out = folder / method / f"seed{seed}"
            physical = learned(12, -60, 60) if method == "partitioned" else None
            config = small_config(method=method, seed=seed)
            write_run(out, config, [accuracy] * 12, physical=physical, **summary)
            runs.setdefault(method, []).append(Run.load(out))
    return collect(small_config(), {seed for own in scores.values() for seed in range(len(own))}, runs)


@pytest.mark.slow
def test_it_can_be_read_without_eyes(tmp_path):
    fake(tmp_path, {"fedavg": [0.4, 0.5], "partitioned": [0.6, 0.7]})
    assert_accessible(write_report(tmp_path).read_text())


def test_the_headline_says_who_leads_and_by_how_much(tmp_path):
    scores = {"fedavg": [0.5, 0.5], "partitioned": [0.7, 0.7], "augerino": [0.1, 0.1]}
    found = headline(fake(tmp_path / "apart", scores), 10)
    lead = "partitioned leads with a validation accuracy of 70.00 ± 0.00%, 20.00 points ahead of fedavg"
    assert found.startswith(lead)
    assert "do not overlap" in found and "Guessing among 10 classes gives 10%" in found
    assert "Not better than that: augerino." in found
    close = headline(fake(tmp_path / "close", {"fedavg": [0.5, 0.7], "partitioned": [0.6, 0.7]}))
    assert "overlap: more" in close and "Guessing" not in close
    one = headline(fake(tmp_path / "one", {"fedavg": [0.05], "partitioned": [0.05]}), 10)
    assert "level" in one and "With one seed" in one and "No method is better" in one
    alone = fake(tmp_path / "alone", {"fedavg": [0.5]})
    own = "fedavg has a validation accuracy of 50.00% (1 seed)."
    chance = "Guessing among 2 classes gives 50%. No method is better than that."
    assert headline(alone, 2) == f"{own} {chance}"
    assert headline(replace(alone, seeds=[0, 1])).startswith("Some runs are not finished; so far: fedavg")
    assert headline(replace(alone, rows=[])) == "No run is finished yet."


def test_no_more_digits_than_the_data_hold(tmp_path):
    assert [digits(n) for n in (12, 100, 101, 1000, 1001, 10_000, 10**6, None)] == [0, 0, 1, 1, 2, 2, 2, 2]
    third = fake(tmp_path, {"fedavg": [1 / 3]}, validation_examples=12, test_examples=1000)
    head, (row,) = third.cells()
    texts = dict(zip(head, row, strict=True))
    assert texts["validation\naccuracy [%]"] == "33" and texts["test\naccuracy [%]"] == "33.3"
    summary = run_experiment(tiny(), tmp_path / "run")
    assert (summary["validation_examples"], summary["test_examples"]) == (30, 40)


@pytest.mark.slow
def test_times_of_runs_side_by_side_are_marked(tmp_path):
    alone = fake(tmp_path / "alone", {"fedavg": [0.5]})
    beside = fake(tmp_path / "beside", {"fedavg": [0.5]}, runs_at_a_time=2)
    assert "6.0*" in beside.markdown() and "while 2 runs shared the machine" in beside.markdown()
    assert "6.0*" not in alone.markdown() and not alone.remarks
    text = write_report(tmp_path / "beside").read_text()
    assert "6.0 s*" in text and "Time was measured while several runs" in text
    with pytest.raises(Died):
        run_experiment(tiny(rounds=4), tmp_path / "run", progress=DiesAfter(3), at_a_time=2)
    assert run_experiment(tiny(rounds=4), tmp_path / "run", resume=True)["runs_at_a_time"] == 2


def test_columns_that_say_the_same_are_told_once():
    head = ["method", "validation\naccuracy", "held out\n[%]", "psi", "upload"]
    rows = [["a", "50", "0.0", "—", "1"], ["b", "50", "0.0", "—", "2"]]
    table = PageTable.of("c", head, rows)
    assert table.head == ["method", "validation\naccuracy", "upload"] and table.rows[1] == ["b", "50", "2"]
    assert table.alike == "In every row: held out [%]: 0.0."
    single = PageTable.of("c", head, rows[:1])
    assert single.head == [name for name in head if name != "psi"] and not single.alike


@pytest.mark.slow
def test_a_training_run_a_selection_and_a_search(tmp_path):
    run_experiment(tiny_training(), tmp_path / "train")
    page = write_report(tmp_path / "train").read_text()
    assert "test accuracy" in page and "Learned mask" in page and "Learning curve" in page
    assert_accessible(page)

    select = {"key": "hyperparameters.mask.kept", "values": [5, 15], "seeds": 1}
    changed = tiny_training().resolved() | {"select": select}
    changed["hyperparameters"] = {"affine": None, "dropout": None, "mask": {"kept": 5}}
    found = run_selection(TrainingConfig.from_dict(changed), tmp_path / "select")
    assert Selection.load(tmp_path / "select") == found
    page = write_report(tmp_path / "select").read_text()
    assert f"L_ML is largest at {found.columns[0].best}" in page
    assert "Scores over hyperparameters.mask.kept" in page
    assert_accessible(page)

    config = tiny(search={"space": {"local.learning_rate": {"choice": [0.01, 0.1]}}, "trials": 2}, rounds=2)
    tried = run_search(config, tmp_path / "search")
    again = Found.load(tmp_path / "search")
    assert again.best.values == tried.best.values and again.spent == tried.spent
    page = write_report(tmp_path / "search").read_text()
    assert f"Trial {tried.best.number} is best" in page and "What would be deployed" in page
    assert_accessible(page)
    (tmp_path / "search" / "search.json").unlink()
    with pytest.raises(ConfigError, match="has not ended"):
        write_report(tmp_path / "search")
    (tmp_path / "select" / "summary.json").write_text(json.dumps({"best_k": 1}))
    with pytest.raises(ConfigError, match="cannot be read"):
        write_report(tmp_path / "select")


CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Of a run with psi, pictures, clients' scores and sizes; of a comparison; of runs that hardly began."""
    folder = tmp_path_factory.mktemp("pages")
    run_experiment(tiny(architectures=TWO, evaluation="clients", evaluate_every=1), folder / "run")
    for method, accuracy in (("fedavg", 0.4), ("partitioned", 0.6)):
        config = small_config(method=method)
        write_run(folder / "compared" / method / "seed0", config, [accuracy] * 12)
        write_run(folder / "begun" / method / "seed0", config, None, finished=False)
    return [write_report(folder / name) for name in ("run", "compared", "begun")]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="axe takes a Chromium; test_page.py checks without one")
@pytest.mark.parametrize(("theme", "width"), [("light", 400), ("dark", 1280)])
def test_axe_finds_nothing_and_nothing_is_wider_than_the_window(pages, theme, width):
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import sync_playwright

    alone = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as programs:
        browser = programs.chromium.launch(executable_path=CHROMIUM, args=alone)
        view = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
        for page in pages:
            view.goto(page.as_uri())
            found = Axe().run(view).response["violations"]
            assert not found, [(one["id"], one["nodes"][0]["html"]) for one in found]
            assert view.evaluate("document.documentElement.scrollWidth") == width
        browser.close()
