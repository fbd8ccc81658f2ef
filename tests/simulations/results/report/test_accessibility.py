"""The report page by axe, in Chromium, at two widths, light and dark."""

import shutil

import pytest
from fake_runs import small_config, write_run
from sizes import TWO
from tiny import tiny

from simulations.results.report.page import write_report
from simulations.running.run import run_experiment

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
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
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
