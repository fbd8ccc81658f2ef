"""Every test that the threat model or the docstring of a workaround names is there."""

import re

import pytest
from places import ROOT

NAME = re.compile(r"`(?:tests/[\w/]*)?(?:(test_\w+)\.py)?(?:::)?(test_\w+)?`")
PAGES = [ROOT / "docs" / "guides" / "deployment.md", ROOT / "docs" / "measurements" / "deployment.md"]
PAGES += sorted((ROOT / "fedpart" / "flower" / "workarounds").glob("*.py"))
FILES = {path.stem: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_tests_that_a_page_names_are_there(page):
    for file, test in NAME.findall(page.read_text()):
        assert not file or file in FILES, f"{page.name} names {file}.py"
        within = [FILES[file]] if file else FILES.values()
        assert not test or any(f"def {test}(" in text for text in within), f"{page.name} names {test}"


def test_names_are_found():
    named = [name for page in PAGES for name in NAME.findall(page.read_text())]
    assert sum(bool(file) for file, _ in named) > 10 and sum(bool(test) for _, test in named) > 10
