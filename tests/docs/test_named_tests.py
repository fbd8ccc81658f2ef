"""Every test that the threat model or the docstring of a workaround names is there."""

import re

from places import ROOT

NAME = re.compile(r"`(?:tests/[\w/]*)?(?:(test_\w+)\.py)?(?:::)?(test_\w+)?`")
PAGES = [ROOT / "docs" / "guides" / "deployment.md", ROOT / "docs" / "measurements" / "deployment.md"]
PAGES += sorted((ROOT / "fedpart" / "flower" / "workarounds").glob("*.py"))
FILES = {path.stem: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}


def missing(page):
    """The files and tests that a page names in vain."""
    for file, test in NAME.findall(page.read_text()):
        if file and file not in FILES:
            yield f"{page.name}: {file}.py"
        elif test:
            within = [FILES[file]] if file else FILES.values()
            if not any(f"def {test}(" in text for text in within):
                yield f"{page.name}: {test}"


def test_the_tests_that_a_page_names_are_there():
    assert not [name for page in PAGES for name in missing(page)]


def test_names_are_found():
    named = [name for page in PAGES for name in NAME.findall(page.read_text())]
    assert sum(bool(file) for file, _ in named) > 10 and sum(bool(test) for _, test in named) > 10
