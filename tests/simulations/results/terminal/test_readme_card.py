"""The README's card is what the panel of its first command's run prints."""

import re

import pytest
from command_line import succeeds
from documents import blocks
from places import ROOT

from simulations.folders.run_directory import read_summary
from simulations.results.terminal.panel import rows

(CARD,) = [block.text for block in blocks(ROOT / "README.md") if block.text.startswith("settled ")]
TOLD = ("settled", "moving", "swinging", "unclear", "not moved", "accuracy", "beside it")
NAMES = ("rotation", "shift x", "shift y", "scale x", "scale y", "shear", "dropout")
NUMBER = re.compile(r"[-+]?\d[\d,.]*")


def words(text):
    return " ".join(text.split())


def test_the_card_has_rows_of_the_panel_in_their_order():
    heads = [line.split("  ")[0] for line in CARD.splitlines() if line[:1].strip()]
    assert [name for name in TOLD if name in heads] == heads


@pytest.mark.slow
def test_the_first_command_ends_with_it(tmp_path):
    """About ten minutes of one core; engine local has the bits of engine ray. Processors round differently,
    so numbers may differ, and what has settled; not what is told, and in which words."""
    succeeds("run", "quickstart", "--engine", "local", "--out", tmp_path / "run")
    card, head, told = words(CARD), "", []
    for name, text in rows(read_summary(tmp_path / "run"), tmp_path / "run"):
        head = name or head
        told += [(head, words(text))] if head in TOLD else []
    of_psi = " ".join(text for head, text in told if head not in ("accuracy", "beside it"))
    for name in NAMES:
        assert (name in of_psi) == (name in card), name
    for head, text in told:
        if head in ("accuracy", "beside it"):
            assert NUMBER.sub("#", text) in NUMBER.sub("#", card)
        elif not NUMBER.search(text) and head in card:
            assert text in card
    summary = read_summary(tmp_path / "run")
    said = float(re.search(r"accuracy ([\d.]+)%", card)[1]) / 100
    assert abs(summary["test_accuracy"] - said) < 0.08  # about the noise of 250 examples
