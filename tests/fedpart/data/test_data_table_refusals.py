"""What the loaders of tables and of LEAF's files refuse."""

import json
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import refusals

from fedpart.data import load_splits
from fedpart.data.columns import matrix
from fedpart.data.sets.table import table_files

PEOPLE = "\ufeffage,height,ill,ward,id\n" + "".join(
    f"{20 + i},{1.5 + i / 100},{'yes' if i % 3 else 'no'},{10 if i % 2 else 9},x{i}\n" for i in range(40)
)


@pytest.fixture
def new(tmp_path):
    """Makes an empty folder at every call."""
    return lambda: Path(tempfile.mkdtemp(dir=tmp_path))


def written(file, text):
    """The folder of a file with this text."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file.parent


def table(path, **options):
    return load_splits("table", str(path), **{"target": "ill", "ignore": ["id"], **options})


def test_tables(new):
    def people(before="", after=""):
        text = PEOPLE.replace(before, after, 1) if before else PEOPLE
        return written(new() / "people.csv", text) / "people.csv"

    unused = {"ignore": ["age", "height", "ward", "id"]}
    heights = {"target": "height", "ignore": ["id", "ill"]}
    words = written(new() / "people.csv", "hospital,age,ill\nnorth,1,no\nsouth,2,yes\n")
    unseen = written(new() / "train.csv", "a,ill\n1,no\n2,yes\n")
    written(unseen / "test.csv", "a,ill\n1,no\n2,maybe\n")
    two = written(new() / "a.csv", "a,ill\n1,2\n")
    written(two / "b.csv", "a,ill\n1,2\n")
    text = written(new() / "c.txt", "") / "c.txt"
    tables = [
        ("another target", people(), {"target": "sick"}, "has no column 'sick'"),
        ("another client", people(), {"client": "wards"}, "did you mean 'ward'"),
        (
            "a word",
            people("22,", "old,"),
            {},
            "Row 3 of .*people.csv: .* 'age' is 'old', which is no finite number",
        ),
        ("an empty cell", people("22,", ","), {}, "Row 3 .* 'age' is empty"),
        ("no client", people(",9,x2\n", ",,x2\n"), {"client": "ward"}, "Row 3 .* 'ward' is empty"),
        ("a cell more", people("22,", "22,22,"), {}, "Line 4 .* has 6 cells, but the first line names 5"),
        ("a column twice", people("height", "age"), {}, "two columns 'age'"),
        ("no inputs", people(), unused, "no column for the inputs"),
        ("another delimiter", people(), {"delimiter": ";"}, "has no column 'ill'"),
        ("numbers as classes", people(), heights, r"Row 1 .*'1.5' as its 'height'.*set likelihood: gaussian"),
        ("words", words, {"ignore": []}, r"'hospital' .* holds no numbers.*'north': .*\{client: hospital\}"),
        ("a new class", unseen, {"ignore": []}, "Row 2 of .*test.csv has .* 'maybe', which no training"),
        ("two tables", two, {}, "None of the 2 tables"),
        ("a text", text, {}, "neither a CSV nor a Parquet file"),
    ]
    refusals.check(
        (what, partial(table, path, **options), rf"^(?!(.*\. ){{2}}).*{says}")
        for what, path, options, says in tables
    )
    again = written(new() / "test.csv", PEOPLE)
    written(again / "train.csv", PEOPLE)
    assert table_files(again).keys() == {"train", "test"}
    written(again / "Testing.csv", PEOPLE)
    dates = {"when": np.array(["2020-01-01", "2020-01-02"], dtype="datetime64[D]")}
    no_date = "'when' .* no numbers, but such as '2020-01-01'"
    twice = "has Testing.csv and test.csv for one part, test; move one of them"
    refusals.check(
        [
            ("no table", partial(table, new()), FileNotFoundError, "There is no table at"),
            ("two files for a part", lambda: table_files(again), twice),
            ("dates", lambda: matrix(dates, ["when"], "a.parquet"), no_date),
        ]
    )


def test_files_that_are_not_as_leafs(new):
    def leaf(x, y):
        """Of one user."""
        content = {"users": ["f1"], "user_data": {"f1": {"x": x, "y": y}}}
        return written(new() / "train" / "all.json", json.dumps(content)).parent

    unfilled = r"4 numbers, which do not fill the shape \[1, 3, 3\]"
    nobody = written(new() / "train" / "all.json", "{}").parent
    refusals.check(
        (what, partial(load_splits, "leaf", str(folder), **options), error, says)
        for what, folder, options, error, says in [
            ("a user without examples", leaf([], []), {}, ValueError, "user 'f1' has no examples"),
            ("more y than x", leaf([[1.0]], [1, 2]), {}, ValueError, "1 x and 2 y"),
            ("words", leaf(["a word"], [1]), {}, ValueError, "x are no numbers in one shape"),
            ("a shape", leaf([[0.1] * 4], [4]), {"shape": [1, 3, 3]}, ValueError, unfilled),
            ("no users", nobody, {}, ValueError, "there is no 'users'"),
            ("no files", new(), {}, FileNotFoundError, "no files of LEAF"),
        ]
    )
