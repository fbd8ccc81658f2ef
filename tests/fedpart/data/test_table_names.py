"""Cells that name a class, a client or a column: one meaning is one name, and what is missing is none."""

import csv
import re
from functools import partial

import pytest
import refusals
from leaf import write_leaf

from fedpart.data import load_splits
from fedpart.data.cells import numbered
from simulations.config.yaml_files import parsed

COMPOSED, DECOMPOSED = "Z\u00fcrich", "Zu\u0308rich"
LEFT_OUT = r"has a column without a name \({}\).*; name it .*\{{ignore: \[{}\]\}}"


def table(path, header, rows, **options):
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return load_splits("table", str(path), **{"target": "ill", "test": 0, "validation": 0, **options})


YORK = "New York"
SPELLINGS = [(COMPOSED, DECOMPOSED), (YORK, "New\u00a0York"), (YORK, " New  York "), ("2", "2.0")]
SPELLINGS += [("n", "n\u200b")]


@pytest.mark.parametrize("one, other", SPELLINGS)
def test_two_spellings_are_one_class_and_one_client(one, other, tmp_path):
    rows = [f"{i},{(one, other)[i % 2] if i < 6 else 'south'},{i % 3}" for i in range(12)]
    for options, clients in (({"target": "a"}, None), ({"client": "a"}, 2)):
        splits = table(tmp_path / "a.csv", "x,a,ill", rows, **options)
        owners = splits.train.targets if clients is None else splits.train.clients
        assert owners.unique().tolist() == [0, 1] and owners.bincount().tolist() == [6, 6]


def test_a_column_is_found_however_its_letters_are_written_and_names_that_yaml_reads_as_a_truth(tmp_path):
    rows = [f"{i},{i % 2},{i % 3}" for i in range(12)]
    for header, client in ((DECOMPOSED, COMPOSED), (COMPOSED, DECOMPOSED), (" ward ", "ward")):
        splits = table(tmp_path / "a.csv", f"x,{header},ill", rows, client=client)
        assert splits.train.clients.unique().tolist() == [0, 1] and splits.train.input_shape == (1,)
    rows = [f"{i},{i % 3},{i % 2}" for i in range(12)]
    for options in ({"ignore": [False]}, {"target": True}, {"client": False}):
        with pytest.raises(ValueError, match=r"has no column '(True|False)': quote a name such as no or on"):
            table(tmp_path / "a.csv", "x,no,ill", rows, **options)
    for header, name in (("x,no,ill", "no"), ("x,1,ill", 1), ("x,True,ill", True)):
        assert table(tmp_path / "b.csv", header, rows, ignore=[name]).train.inputs.shape[1] == 1


def test_whole_numbers_stay_exact_and_letters_stay_themselves():
    ids = ["12345678901234567890", "12345678901234567891", "007", "7"]
    assert len(numbered({"a.csv": ids}, "id")[1]) == 4
    assert numbered({"a.csv": ["a", "A", "Co", "CO"]}, "id")[1] == ("A", "CO", "Co", "a")
    assert numbered({"a.json": [True, False]}, "id")[1] == ("False", "True")


def test_names_that_mean_the_same_or_nothing():
    same = [[True, 1, 0], ["true", "1"], ["TRUE", "true"], ["100000", "1e+05"], ["+1", "1"], ["Yes", "yes"]]
    same += [["\u00b5g", "\u03bcg"], ["\uff11", "1"], ["\ufb01n", "fin"]]
    same += [["a\u00adb", "ab"], ["ab\u200e", "ab"]]
    rows = [
        (f"{cells}", partial(numbered, {"a.json": cells}, "ill"), "'ill' of a.json .* mean the same; write")
        for cells in same
    ]
    halves = {"train.csv": ["False", "x"], "test.csv": ["0", "x"]}
    rows.append(("two files", partial(numbered, halves, "ill"), "of train.csv, test.csv .* mean the same"))
    empty = "Row 2 of a.csv: the column 'ill' is .* stands"
    words = "Null NONE #N/A_N/A -1.#IND 1.#QNAN Na nil NIL -1.#QNAN 1.#ind nAn -NaN n/A #na <na> none NaT"
    words = [word.replace("_", " ") for word in words.split()]
    words += ["NA", " NA ", "N/A", "#N/A", "NaN", "null", "None", "?", r"\N", "<NA>", "#DIV/0!"]
    rows += [(word, partial(numbered, {"a.csv": ["x", word]}, "ill"), empty) for word in words]
    refusals.check(rows)


def test_targets_and_columns(tmp_path):
    def of(name, header, cells, **options):
        return lambda: table(tmp_path / f"{name}.csv", header, cells, **options)

    rows = [f"{i},{i / 7},{i % 2}" for i in range(9)]
    same = "Every row of .* has '{}' as its '{}', so there is nothing to learn; name another target"
    text = r"ignore is a list of columns, got the text 'xy'; write ignore: \[xy\]"
    everyone = of("one", "x,y,ill", [f"{i},1,yes" for i in range(9)])
    constant = of("real", "x,y,ill", rows, target="y", real_targets=True)
    fixed = of("fixed", "x,y,ill", [f"{i},2.5,1" for i in range(9)], target="y", real_targets=True)
    assert constant().num_classes == 1
    checked = [
        ("an index of pandas or R", of("a", ",b,ill", rows), LEFT_OUT.format("''", '""')),
        ("a blank", of("b", "  ,b,ill", rows), LEFT_OUT.format("''", '""')),
        ("an index read again", of("c", "Unnamed: 0,b,ill", rows), LEFT_OUT.format("'U.*0'", '"U.*0"')),
        ("an index of an index", of("k", "Unnamed: 0.1,b,ill", rows), LEFT_OUT.format("'U.*1'", '"U.*1"')),
        ("in the middle", of("d", "a,,ill", rows), LEFT_OUT.format("''", '""')),
        ("pyarrow's index", of("e", "__index_level_0__,b,ill", rows), '"__index_level_0__"'),
        *(
            (f"{name} of others", of(f"u{i}", f"{name},b,ill", rows), LEFT_OUT.format(".*", ".*"))
            for i, name in enumerate(["...1", "...12", "unnamed: 0", "Unnamed..0", "Unnamed: 0.2.1"])
        ),
        ("written twice", of("v", "Unnamed: 0,Unnamed: 0.1,ill", rows), LEFT_OUT.format("'U.*0'", '"U.*0"')),
        ("in between", of("w", "x,_duplicated_0,ill", rows), LEFT_OUT.format("'_d.*0'", '"_d.*0"')),
        *(
            (f"{kind!r} to ignore", of(f"t{i}", "x,xy,ill", rows, ignore=kind), "ignore is a list of columns")
            for i, kind in enumerate([{"x": 1}, 5, True, {"x"}, 1.5])
        ),
        ("a mapping as target", of("y", "x,xy,ill", rows, target={"ill": 1}), "target is the name of a col"),
        ("a list as client", of("z", "x,xy,ill", rows, client=["x"]), "client is the name of a column"),
        ("text to ignore", of("f", "x,xy,ill", rows, ignore="xy"), text),
        ("one class", everyone, same.format("yes", "ill")),
        ("one number", fixed, same.format("2.5", "y")),
        ("NA as a class", of("g", "x,y,ill", [*rows, "1,2,NA"]), "Row 10 .* 'ill' is 'NA', which stands for"),
        ("NA as a client", of("h", "x,y,ill", [*rows, "1,NA,0"], client="y"), "Row 10 .* 'y' is 'NA'"),
        ("two columns of one name", of("i", f"{COMPOSED},{DECOMPOSED},ill", rows), "two columns 'Z.rich'"),
    ]
    refusals.check(checked)
    for options, inputs in (({"ignore": [""]}, 1), ({"client": ""}, 1), ({"ignore": None, "client": ""}, 1)):
        assert of("j", ",b,ill", rows, **options)().train.input_shape == (inputs,)


def test_users_and_targets_of_leaf(tmp_path):
    def leaf(ys, users=("f1", "f2")):
        folder, x = tmp_path / f"{len(list(tmp_path.iterdir()))}", [[float(i)] for i in range(len(ys))]
        data = write_leaf(folder, dict.fromkeys(users, (x, ys)))
        return partial(load_splits, "leaf", data, test=0, validation=0)

    one = leaf([0, 1], (COMPOSED, DECOMPOSED))().train
    assert one.clients.tolist() == [0] * 4
    refusals.check(
        [
            ("true and 1", leaf([True, 1, 0]), "'True' and '1', which mean the same|'1' and 'True'"),
            ("one class", leaf([3, 3]), "has '3' as its 'y', so there is nothing"),
            ("NA", leaf([3, "NA"]), "Row 2 .* 'y' is 'NA'"),
        ]
    )


WORDS = "no on Yes null ~ y 1 010 1e3 .5 1:30 2024-01-02 = << _ - [x] {x} it's back\\slash *a &a !a % @"
NAMES = [*WORDS.split(), "a b", "Größe", "x.y", "x-y", "no ", "true", "\U0001f600", "#"]
NAMES += ["name, first", "a: b", "a #b", 'say "no"']


@pytest.mark.parametrize("name", NAMES)
def test_the_remedy_for_a_column_can_be_followed(name, tmp_path):
    """What a message says to write into the configuration is read by it, and leaves this column out."""
    file = tmp_path / "a.csv"
    with file.open("w", newline="", encoding="utf-8") as rows:
        csv.writer(rows).writerows([["x", name, "ill"], *([i, "word", i % 2] for i in range(12))])
    with pytest.raises(ValueError) as raised:
        load_splits("table", str(file), target="ill")
    [written] = re.findall(r"\{(ignore: \[.*\])\} to leave it out", str(raised.value))
    _, options = parsed(f"data_options={{{written}}}")
    splits = load_splits("table", str(file), target="ill", **options)
    assert splits.train.inputs.shape[1] == 1
