"""Tables and folders of images as people have them, before a run: what is read, and what is refused."""

import json

import pytest
import torch
from people import OPTIONS, people, written

from fedpart.data import load_splits, load_table, preprocessing_of
from fedpart.data.preprocessing.pictures import files_of
from fedpart.data.table_files import read_csv


def test_images_that_are_refused_in_training_are_not_left_out_of_predictions(tmp_path):
    folder = tmp_path / "new"
    (folder / "deep").mkdir(parents=True)
    for name in ("b.png", "a.JPG", "notes.txt", ".DS_Store", "deep/c.bmp"):
        (folder / name).write_bytes(b"")
    assert files_of(folder) == [folder / name for name in ("a.JPG", "b.png", "deep/c.bmp")]
    (folder / "deep" / "phone.HEIC").write_bytes(b"")
    (tmp_path / "new.zip").write_bytes(b"")
    for place, says in (
        (folder, r"phone.HEIC is in a format not read .*; save it as PNG, or remove it"),
        (tmp_path / "new.zip", "is no image by its name .*unpack an archive first"),
        (tmp_path / "nowhere", "There is no file or folder .*nowhere; name one of images"),
    ):
        with pytest.raises(ValueError, match=says):
            files_of(place)


def test_what_is_refused_without_being_asked_for(tmp_path):
    file = written(tmp_path / "a.csv", people())
    for changed, says in (
        ({"missing": "refuse"}, "'ward' is empty"),
        ({"missing": "refuse", "ignore": ["ward"]}, "'age' is empty; .*set missing: mean"),
        ({"categorical": None}, "'ward' is '.*', which is no finite number"),
        ({"categorical": ["wards"]}, "did you mean 'ward'"),
        ({"missing": "zero"}, "refuse, mean or indicator"),
    ):
        with pytest.raises(ValueError, match=says):
            load_splits("table", file, **{**OPTIONS, **changed})
    (tmp_path / "b.csv").write_text("price\ty\n" + "1,234\t1\n15,000\t0\n" * 10)
    with pytest.raises(ValueError, match=r"'1,234' may be a number of thousands .* set data_options.decimal"):
        load_splits("table", str(tmp_path / "b.csv"), target="y")
    (tmp_path / "m.csv").write_text("dose;people;y\n" + "3,0;1.100;1\n0,5;2.300;0\n" * 10)
    both = r"commas \(\['3,0'\]\) and points \(\['1.100'\]\); set data_options.decimal"
    options = {"target": "y", "categorical": "auto"}
    with pytest.raises(ValueError, match=both):
        load_splits("table", str(tmp_path / "m.csv"), **options)
    chosen = load_splits("table", str(tmp_path / "m.csv"), decimal=",", **options)
    assert chosen.preprocessing.state["columns"][0]["kind"] != "category"
    (tmp_path / "c.csv").write_text("since,y\n" + "2024-02-28,1\n" * 9 + "2024-02-30,0\n" * 9)
    with pytest.raises(ValueError, match=r"Row 10 .* 'since' is '2024-02-30', which is no date"):
        load_splits("table", str(tmp_path / "c.csv"), target="y", categorical="auto")


def test_lines_within_quotes_do_not_hide_how_cells_are_divided(tmp_path):
    (tmp_path / "a.csv").write_text("a;note;y\n" + "".join(f'{n};"one\ntwo, three\n";0\n' for n in range(30)))
    columns, signs = read_csv(tmp_path / "a.csv")
    assert signs["delimiter"] == ";" and columns["note"][7] == "one\ntwo, three\n"


def test_one_row_alone_is_a_dict_of_cells(tmp_path):
    splits = load_splits("table", written(tmp_path / "a.csv", people(40)), **OPTIONS)
    row = people(40)[3]
    many = {key: [cell] for key, cell in row.items()}
    assert splits.preprocessing.inputs(row).equal(splits.preprocessing.inputs(many))


def test_levels_and_means_are_of_training_rows(tmp_path):
    for part, rows in (("train", people(60)), ("test", people(30, seed=2))):
        if part == "test":
            rows = [{**row, "ward": "new", "dose": "9.5"} for row in rows]
        written(tmp_path / f"{part}.csv", rows)
    splits = load_splits("table", str(tmp_path), **OPTIONS, validation=0)
    (ward,) = [one for one in splits.preprocessing.state["columns"] if one["name"] == "ward"]
    assert ward["levels"] == ["", "north", "south"] and ward["rare"]
    doses = torch.tensor([float(row["dose"]) for row in people(60)])
    assert (splits.test.inputs[:, 2] - (9.5 - doses.mean()) / doses.std(correction=0)).abs().max() < 1e-3
    again = preprocessing_of(json.loads(json.dumps(splits.preprocessing.state)))
    assert again.inputs(str(tmp_path / "train.csv")).equal(splits.train.inputs)


@pytest.mark.filterwarnings("error")
def test_a_table_of_categories_alone_and_a_text_that_should_be_a_number(tmp_path):
    file = written(tmp_path / "a.csv", [{"ward": row["ward"], "ill": row["ill"]} for row in people(40)])
    assert load_splits("table", file, **OPTIONS).train.inputs.unique().tolist() == [0, 1]
    with pytest.raises(ValueError, match=r"'ill' .* holds no numbers.*: name another target, or leave"):
        load_splits("table", file, **OPTIONS, real_targets=True)


@pytest.mark.parametrize("delimiter, decimal", [(";", ","), ("\t", ","), ("|", "."), (",", ".")])
def test_delimiters_decimals_and_frames_are_one_table(delimiter, decimal, tmp_path):
    file = written(tmp_path / "a.csv", people(40), delimiter, decimal)
    plain = written(tmp_path / "b.csv", people(40))
    found, wanted = (load_splits("table", path, **OPTIONS) for path in (file, plain))
    assert found.train.inputs.equal(wanted.train.inputs)
    frame = pytest.importorskip("pandas").read_csv(plain)
    assert load_table(frame, **OPTIONS).train.inputs.equal(wanted.train.inputs)
