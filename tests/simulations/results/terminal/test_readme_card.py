"""The README's card is what the panel of its first command's run prints."""

import pytest
from command_line import fedpart
from documents import blocks
from places import ROOT

from simulations.folders.run_directory import read_summary
from simulations.results.terminal.panel import rows

(CARD,) = [block.text for block in blocks(ROOT / "README.md") if block.text.startswith("settled ")]
TOLD = ("settled", "moving", "swinging", "not moved", "accuracy", "beside it")


def words(text):
    return " ".join(text.split())


def test_the_card_has_rows_of_the_panel_in_their_order():
    heads = [line.split("  ")[0] for line in CARD.splitlines() if line[:1].strip()]
    assert [name for name in TOLD if name in heads] == heads


@pytest.mark.slow
def test_the_first_command_ends_with_it(tmp_path):
    """About ten minutes of one core; engine local has the bits of engine ray."""
    done = fedpart("run", "quickstart", "--engine", "local", "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    table, name = [], ""
    for head, text in rows(read_summary(tmp_path / "run"), tmp_path / "run"):
        name = head or name
        table += [f"{head} {text}"] if name in TOLD else []
    assert words(" ".join(table)) == words(CARD)
