"""Predicting: a table or a folder of images goes through a finished run, and its answers into a CSV file."""

import csv
import re
from pathlib import Path
from typing import Any

import torch

from fedpart.data.cells import is_missing
from fedpart.data.preprocessing import Pictures, Rows
from fedpart.data.preprocessing.pictures import files_of
from fedpart.data.table_files import columns_of
from fedpart.data.trained_on import counted
from simulations.building.reading import read_run
from simulations.config.load import ConfigError
from simulations.errors import one_sentence

PREDICTED = "predicted"
_LINE = 1 << 20  # letters of a table's first line, at most
POINT = re.compile(r"^(\s*[+-]?\d*)\.(\d+(?:[eE][+-]?\d+)?\s*)$")  # of a number


def predict_run(run: Path, source: Path, out: Path) -> tuple[int, list[str]]:
    """Write what the network of a run says of each row of a table, or of each image in a folder and below it;
    how many there were, and remarks. The file has the table's columns, or ``file``; then ``predicted``, and
    of classes ``p(CLASS)``."""
    loaded = read_run(run)
    with one_sentence():
        state = loaded.usable()
    made: Any = loaded.preprocessing
    if made is None:
        raise ConfigError(
            f"The run in {run} does not know how its inputs are made of files; runs on a table, on images in "
            f"files (data: table, image_folder or hf:...) and with a preprocessing of their own do."
        )
    if out.is_file() and out.stat().st_size:
        with out.open(encoding="utf-8", errors="replace", newline="") as opened:
            cells = re.split("[,;|\t]", opened.readline(_LINE).strip())
        earlier = not {PREDICTED, f"{PREDICTED}[0]"}.isdisjoint(cell.strip('"') for cell in cells)
        if not earlier or (source.exists() and out.samefile(source)):
            lost = "what is predicted from" if earlier else "a file that holds no earlier predictions"
            raise ConfigError(f"--out {out} would overwrite {lost}; name another file.")
    remarks, signs = [], made.state.get("read", {})
    with one_sentence():
        if isinstance(made, Pictures):
            inputs = made.inputs(source)
            written = {"file": [str(file) for file in files_of(source)]}
        else:
            columns, name = columns_of(source, signs)
            encoded = made.encode(columns, name)
            inputs = made(encoded)
            for column, count in made.unknown(encoded).items() if isinstance(made, Rows) else ():
                rows = f"{counted(count, 'row')} {'has' if count == 1 else 'have'}"
                remarks.append(f"{rows} a level of {column!r} that training rows hardly have, or not at all.")
            # commas have become points in these
            if source.suffix.casefold() == ".csv" and signs.get("decimal") != ".":
                columns, _ = columns_of(source, {**signs, "decimal": "."})
            written = {label: [_text(cell, signs) for cell in cells] for label, cells in columns.items()}
    answers, p = state.answers(inputs)
    finite = torch.isfinite(answers if p is None else p).reshape(len(answers), -1).all(1).tolist()
    if False in finite:
        what = f"Row {finite.index(False) + 1} of {source}: the network's answer is no finite number"
        raise ConfigError(f"{what}; repair values that are far from those of the training data.")
    if p is None:
        flat = answers.reshape(len(answers), -1)
        many = [f"{PREDICTED}[{place}]" for place in range(flat.shape[1])]
        added = dict(zip(many if len(many) > 1 else [PREDICTED], flat.T.tolist(), strict=True))
    else:
        names = loaded.classes or [str(number) for number in range(p.shape[1])]
        added = {PREDICTED: [names[answer] for answer in answers.tolist()]}
        added |= {f"p({name})": column for name, column in zip(names, p.T.tolist(), strict=True)}
    twice = next((name for name in added if name in written), None)
    if twice is not None:
        raise ConfigError(f"{source} has a column {twice!r}, which would be written; rename it there.")
    out.parent.mkdir(parents=True, exist_ok=True)
    added = {name: [_text(cell, signs) for cell in cells] for name, cells in added.items()}
    with out.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened, delimiter=signs.get("delimiter") or ",")
        writer.writerow([*written, *added])
        writer.writerows(zip(*written.values(), *added.values(), strict=True))
    return len(answers), remarks


def _text(cell: Any, signs: dict[str, Any]) -> str:
    """A text as it is, a number with the decimal sign of the training file; empty: there is none."""
    if isinstance(cell, str):
        return cell
    text = "" if is_missing(cell) else str(cell)
    return POINT.sub(r"\1,\2", text) if signs.get("decimal") == "," else text
