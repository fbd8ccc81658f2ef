"""Raw examples in any form become the same inputs, or are refused in a sentence."""

import numpy as np
import pytest
import torch

from fedpart.data import load_splits, load_table
from fedpart.data.columns import floats_of
from fedpart.data.preprocessing import Pictures

OPTIONS = {"target": "y", "standardise": True, "categorical": "auto", "missing": "mean"}
ROWS = [[str(place), ("north", "south")[place % 3 > 0], 0.5 * place] for place in range(20)]


def table(tmp_path, text="", name="a.csv"):
    lines = [f"{age},{ward},{dose},{place % 2}" for place, (age, ward, dose) in enumerate(ROWS)]
    path = tmp_path / name
    path.write_text(text or "age,ward,dose,y\n" + "\n".join(lines))
    return str(path)


@pytest.fixture
def made(tmp_path):
    return load_splits("table", table(tmp_path), **OPTIONS).preprocessing


def test_rows_are_raw_however_they_are_given(made):
    wanted = made.inputs([dict(zip(("age", "ward", "dose"), row, strict=True)) for row in ROWS])
    assert wanted[:, 0].mean().abs() < 0.2 and wanted[:, 0].std() > 0.9, "standardised"
    named = dict(zip(("dose", "age", "ward"), np.array(ROWS, object).T[[2, 0, 1]], strict=True))
    for given in (ROWS, tuple(ROWS), np.array(ROWS), np.array(ROWS, dtype=object), named):
        assert made.inputs(given).equal(wanted)
    assert made.inputs(ROWS[4]).equal(wanted[4:5])
    for given, says in (
        (wanted, "A tensor may hold raw rows, or inputs"),
        ([[1.0, 2.0]], r"cell for each of the 3 columns .* got an array \[1, 2\]; .*\(age, ward, dose\)"),
        ([[1.0], [1.0, 2.0]], "cell for each of the 3"),
        (7, "Rows of a table are a CSV .* got the int; give one"),
    ):
        with pytest.raises(ValueError, match=says):
            made.inputs(given)


def test_a_tensor_that_can_be_told_apart_from_nothing_is_taken(tmp_path):
    numbers = "a,b,y\n" + "".join(f"{place},{place**2},{place % 2}\n" for place in range(20))
    made = load_splits("table", table(tmp_path, numbers), target="y").preprocessing
    assert made.inputs(torch.tensor([[3.0, 4.0]])).tolist() == [[3.0, 4.0]] == made.inputs([3, 4]).tolist()


def test_signs_that_training_recognised_are_those_of_new_files(tmp_path):
    lines = "".join(f"{place};{place},5;{place % 2}\n" for place in range(20))
    made = load_splits("table", table(tmp_path, f"a;b;y\n{lines}"), target="y").preprocessing
    assert made.state["read"] == {"delimiter": ";", "decimal": ","}
    new = table(tmp_path, "a;b\n1000;1,234\n2;2,500\n", "new.csv")  # thousands, or decimals, if it were alone
    assert made.inputs(new).tolist() == [[1000, pytest.approx(1.234)], [2, 2.5]]
    with pytest.raises(ValueError, match=r"divided by ',', and not ';' as data_options.delimiter"):
        made.inputs(table(tmp_path, "a,b\n1,2\n", "other.csv"))
    whole = load_splits("table", table(tmp_path, f"a;b;y\n{lines.replace(',5', '')}"), target="y")
    with pytest.raises(ValueError, match=r"Row 1 .* 'b' is '1,5', which is no finite number"):
        whole.preprocessing.inputs(table(tmp_path, "a;b\n1;1,5\n2;3\n", "other.csv"))


def test_dates_of_other_zones(tmp_path):
    lines = "".join(f"2024-03-{place + 1:02} 12:00:00,{place % 2}\n" for place in range(20))
    options = {"target": "y", "categorical": "auto"}
    made = load_splits("table", table(tmp_path, f"seen,y\n{lines}"), **options).preprocessing
    same = ["2024-03-05 12:00", "2024-03-05T12:00:00Z", "2024-03-05 12:00 UTC", "2024-03-05T14:00+02:00"]
    same += ["2024-03-05 06:30:00.000000-0530", "2024-03-05T13:00:00.0+01"]
    days = (np.datetime64(same[0]) - np.datetime64("1970-01-01")) / np.timedelta64(1, "D")
    assert made.inputs({"seen": same}).flatten().tolist() == [days] * len(same)
    pandas = pytest.importorskip("pandas")
    stamps = pandas.to_datetime([same[0]] * 2).tz_localize("UTC").tz_convert("Asia/Tokyo")
    assert made.inputs(pandas.DataFrame({"seen": stamps})).flatten().tolist() == [days] * 2
    with pytest.raises(ValueError, match=r"Row 2 .* 'seen' is '2024-03-05-05', which is no date"):
        made.inputs({"seen": [same[0], "2024-03-05-05"]})


def test_types_of_columns_are_one_table(made, tmp_path):
    pandas = pytest.importorskip("pandas")
    plain = pandas.read_csv(table(tmp_path))
    wanted = load_table(plain, **OPTIONS)
    for types in (
        {"age": "Int64", "dose": "Float64", "ward": "string", "y": "Int8"},
        {"ward": "category", "age": "category", "y": "boolean"},
        dict.fromkeys(plain.columns, "object"),
        {"age": "int16", "dose": "float32"},
    ):
        frame = plain.astype(types)
        assert load_table(frame, **OPTIONS).train.inputs.equal(wanted.train.inputs), types
        assert made.inputs(frame).equal(made.inputs(plain)), types
    gaps = plain.astype({"age": "Int64", "ward": "category"})
    gaps.loc[3, ["age", "ward"]] = pandas.NA
    means = made.inputs({"age": [None, "5"], "ward": ["", "north"], "dose": ["1.5", "2.5"]})
    assert made.inputs(gaps)[3].equal(means[0])


def test_pixels_are_raw_however_they_are_given():
    grey = Pictures.of(None, "grey").completed((1, 2, 2))
    uint8 = np.array([[[[0, 51], [102, 255]]]], dtype=np.uint8)
    wanted = torch.tensor([[[[0, 0.2], [0.4, 1]]]])
    for given in (uint8, torch.from_numpy(uint8), uint8[0], wanted, wanted.numpy(), wanted.tolist()):
        torch.testing.assert_close(grey.inputs(given), wanted)
    normal = grey.completed((1, 2, 2), type("Moments", (), {"mean": [0.5], "std": [0.5]}))
    torch.testing.assert_close(normal.inputs(uint8), 2 * wanted - 1)
    for made, given, says in (
        (normal, wanted, "may be pixels in .*, or normalised ones; give uint8 .* or inputs as a Dataset"),
        (grey, 255 * wanted, r"got the Tensor \[1, 1, 2, 2\] of float32"),
        (grey, {"file": ["a.png"]}, "Images are a file, a folder, or pixels .* got the dict"),
        (grey, ["a.png"], "got the list"),
        (grey, uint8.reshape(1, 2, 2, 1), r"The pixels are \[2, 2, 1\], but the network was trained on"),
    ):
        with pytest.raises(ValueError, match=says):
            made.inputs(given)


def test_levels_are_known_however_they_are_spelled_and_unknown_ones_are_told(tmp_path):
    rows = [f"{('TRUE', 'FALSE')[i % 2]},{i},{i % 2}" for i in range(40)]
    file = tmp_path / "truths.csv"
    file.write_text("\n".join(["member,x,y", *rows]))
    made = load_splits("table", str(file), target="y", categorical="auto").preprocessing
    wanted = made.inputs({"member": ["TRUE", "FALSE"], "x": [1.0, 2.0]})
    for true, false in ((True, False), ("true", "false"), ("True", "False")):
        assert torch.equal(made.inputs({"member": [true, false], "x": [1.0, 2.0]}), wanted)
    with pytest.warns(
        RuntimeWarning, match="10 of 10 rows have a level of 'member' that training rows hardly"
    ):
        made.inputs({"member": ["T", "F"] * 5, "x": [1.0] * 10})
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "train.csv").write_text(file.read_text())
    (tmp_path / "two" / "test.csv").write_text("member,x,y\n" + "M,1,1\nN,2,0\n" * 5)
    with pytest.warns(RuntimeWarning, match="10 of 10 rows of the test data have a level of 'member'"):
        load_splits("table", str(tmp_path / "two"), target="y", categorical="auto")
    file.write_text("\n".join(["member,x,y", *rows, *(row.replace("TRUE", "True") for row in rows)]))
    with pytest.raises(ValueError, match="'member' has 'TRUE' and 'True', which mean the same"):
        load_splits("table", str(file), target="y", categorical="auto")


def test_text_with_underscores_is_no_number(tmp_path):
    file = tmp_path / "ages.csv"
    file.write_text(
        "\n".join(["age,y", *(f"{('18_25', '26_35', '36_50')[i % 3]},{i % 2}" for i in range(60))])
    )
    made = load_splits("table", str(file), target="y", categorical="auto").preprocessing
    assert [column["kind"] for column in made.columns] == ["category"] and len(made.columns[0]["levels"]) == 3
    with pytest.raises(ValueError, match=r"'age' .* holds no numbers, but such as '18_25'"):
        load_splits("table", str(file), target="y")
    for cells in ([1j] * 20, [[1, 2]] * 20):  # whose real parts, or firsts, would be numbers
        with pytest.raises(ValueError, match=r"'x' .* holds no numbers, but such as"):
            load_splits("table", {"x": cells, "y": list("ab") * 10}, target="y")
    with pytest.raises(
        ValueError, match=r"Row 2 .* the column 'x' is 'n', which is no finite number; repair"
    ):
        load_splits("table", {"x": np.array(["1.5", "n"] * 10), "y": list("ab") * 10}, target="y")
    assert np.isnan(floats_of(["1_10", "2"])[0]) and np.isnan(floats_of(np.array(["1_10", "x"]))).all()


def test_versions_are_names_of_their_own(tmp_path):
    file = tmp_path / "versions.csv"
    file.write_text("\n".join(["c,y", *(f"{('1.1', '1.10', '1.2')[i % 3]},{i % 2}" for i in range(60))]))
    made = load_splits("table", str(file), target="y", categorical=["c"]).preprocessing
    assert len(made.columns[0]["levels"]) == 3
    assert made.encode({"c": ["1.1", "1.10", "1.20"]}, "new").flatten().tolist() == [0, 1, 3]
