"""Raw rows and images go through a run alike: as in training, by predict, and by exported files."""

import contextlib
import csv
import json
import math
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import fedpart as command
from command_line import refused
from documents import DOCS, blocks
from people import OPTIONS, people, written
from PIL import Image
from safetensors import safe_open

import fedpart
from fedpart.data import load_splits, preprocessing_of
from fedpart.data.preprocessing.rows import levels_of
from fedpart.data.table_files import columns_of
from simulations.building.data import load_data
from simulations.config.load import ExperimentConfig
from simulations.folders.run_directory import read_summary
from simulations.running.export import export_run
from simulations.running.run import run_experiment

FEW = {
    "rounds": 2,
    "clients": 3,
    "cohort": 2,
    "chunks": [0.5, 0.5],
    "samples": 1,
    "split": {"recipe": "iid"},
    "evaluate_every": 2,
}
GUIDE = "elsewhere.md"


def read(path):
    with path.open(newline="") as opened:
        return list(csv.DictReader(opened))


def experiment(name, file, **changes):
    """A run of a table."""
    config = {"data": "table", "data_dir": file, "data_options": OPTIONS, "model": "mlp", **FEW}
    run_experiment(
        ExperimentConfig.from_dict({**config, "hyperparameters": {"dropout": {}}, **changes}), name
    )
    return Path(name)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("people")
    with contextlib.chdir(folder):
        written(folder / "people.csv", people())
        experiment("run", "people.csv")
    return folder


@pytest.fixture
def run(finished, monkeypatch):
    monkeypatch.chdir(finished)
    return Path("run")


@pytest.fixture(scope="module")
def onnx(finished):
    """The file of the run, which is read without fedpart."""
    pytest.importorskip("onnxruntime")
    with contextlib.chdir(finished):
        return finished / export_run(Path("run"), "onnx")[0]


def near(found, wanted):
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_four_ways_agree_on_raw_rows(run, onnx):
    onnxruntime = pytest.importorskip("onnxruntime")
    loaded = fedpart.load(run)
    splits = load_data(loaded.config and ExperimentConfig.from_dict(loaded.config))
    trained = torch.cat(list(loaded.state.predict(splits.train.inputs)))
    rows = loaded.preprocessing.encode(*columns_of("people.csv", {}))
    places = load_places()
    near(loaded.predict("people.csv")[places], trained)
    with torch.no_grad():
        near(loaded.with_preprocessing()(rows)[places], trained)
        file, _ = export_run(run, "torch-export")
        about = {"preprocessing": "", "classes": ""}
        near(torch.export.load(file, extra_files=about).module()(rows)[places], trained)
    assert preprocessing_of(json.loads(about["preprocessing"])).state == loaded.preprocessing.state
    session = onnxruntime.InferenceSession(str(onnx))
    (outputs,) = session.run(None, {session.get_inputs()[0].name: rows.numpy()})
    near(outputs[places], trained)
    assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == ["no", "yes"]


def load_places():
    """The rows of ``people.csv`` that are trained on, by a column that tells them apart."""
    rows = [{"row": str(place), **row} for place, row in enumerate(people())]
    again = load_splits("table", written(Path("numbered.csv"), rows), **{**OPTIONS, "standardise": False})
    return again.train.inputs[:, 0].long()


def test_new_rows_are_treated_as_in_training(run):
    new = [{"extra": "1", **dict(reversed(row.items()))} for row in people(6, seed=1)]
    for row in new:
        del row["ill"]
    new[0] |= {"ward": "elsewhere", "age": "NA"}
    written(Path("new.csv"), new)
    done = command("predict", run, "new.csv", "--out", "out/scored.csv")
    assert done.exit_code == 0, done.output
    scored = read(Path("out/scored.csv"))
    assert [{key: row[key] for key in new[0]} for row in scored] == new
    p = torch.softmax(fedpart.load(run).predict("new.csv"), 1)
    near([[float(row["p(no)"]), float(row["p(yes)"])] for row in scored], p)
    assert [row["predicted"] for row in scored] == [("no", "yes")[place] for place in p.argmax(1)]
    unknown = {key: [row[key] for row in new[:2]] for key in new[0]}
    features = fedpart.load(run).preprocessing.inputs({**unknown, "ward": ["elsewhere", "q"]})
    assert features[0, -4:].tolist() == features[1, -4:].tolist() == [0, 0, 0, 1], "rare and unknown are one"
    gap = features[0]
    assert gap[0].abs() < 1e-6 and gap[3] == 1 and features[1, 3] == 0, "the mean, and a feature says so"
    written(Path("less.csv"), [{"age": "3"}])
    refused(command("predict", run, "less.csv"), "less.csv has no column 'ward'")
    told = "2 rows have a level of 'ward' that training rows hardly have, or not at all."
    assert done.output.splitlines() == ["out/scored.csv: 6 predictions", told]
    refused(command("predict", run, "nowhere.csv"), "There is no file nowhere.csv; name a CSV")
    Path("old.csv").write_bytes("ward,name\nnorth,J\u00f6rg\n".encode("cp1252"))
    refused(command("predict", run, "old.csv"), "save it as UTF-8 (Excel: CSV UTF-8)")
    Path("people.xls").write_text("")
    for other in ("people.xls", "."):
        refused(command("predict", run, other), f"{other} is no CSV or Parquet file by its name; name one")
    written(Path("text.csv"), [{**row, "age": "old"} for row in new])
    refused(command("predict", run, "text.csv"), "column 'age'", "such as 'old': write numbers there")
    loaded = fedpart.load(run)
    for given, says in (([new[1], [1]], "others are not"), (np.array(3.0), r"got an array \[1, 1\]")):
        with pytest.raises(ValueError, match=says):
            loaded.predict(given)
    refused(command("predict", run, "new.csv", "--out", "new.csv"), "would overwrite")


def test_numbers_that_are_levels_have_one_name_in_a_table_and_in_the_guide(tmp_path):
    (source,) = re.findall(r"def level.*?\n\n\n", python_with("csv.DictReader"), re.DOTALL)
    cells = ["2009", "2009.0", "-3.00", "007", "1,5", "2009,0", "1.50", "a,0", "1.0.0", "north"]
    for decimal in ".,":
        file, found = tmp_path / "a.csv", {"re": re, "read": {"decimal": decimal}}
        file.write_text("year;x\n" + "".join(f"{cell};1\n" for cell in cells))
        columns, _ = columns_of(file, {"delimiter": ";", "decimal": decimal})
        exec(source, found)
        assert [found["level"](cell) for cell in cells] == levels_of(columns["year"])


def test_columns_that_are_no_inputs_come_back_as_they_were_and_no_file_of_the_run_is_lost(run, tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns, _ = columns_of("people.csv")
    ids = [2**53 + 1, None, *range(2**53 + 3, 2**53 + 1 + len(columns["age"]))]
    texts = [None, "1.0", *["u"] * (len(ids) - 2)]
    typed = {**columns, "age": [float(cell) if cell else None for cell in columns["age"]]}
    parquet.write_table(pyarrow.table({**typed, "id": ids, "text": texts}), tmp_path / "a.parquet")
    assert command("predict", "run", tmp_path / "a.parquet", "--out", tmp_path / "a.csv").exit_code == 0
    rows = read(tmp_path / "a.csv")
    assert [row["id"] for row in rows] == ["" if each is None else str(each) for each in ids]
    assert [row["text"] for row in rows] == [each or "" for each in texts]
    (run / "mine.csv").write_text("precious,1\n")
    for name in ("state.safetensors", "config.yaml", "mine.csv"):
        before = (run / name).read_bytes()
        refused(
            command("predict", "run", "people.csv", "--out", run / name),
            "a file that holds no earlier predict",
        )
        assert (run / name).read_bytes() == before


def test_only_earlier_predictions_are_overwritten_and_no_answer_is_made_up(run, tmp_path):
    new = tmp_path / "new.csv"
    written(new, people(3))
    (tmp_path / "empty.csv").touch()
    for _ in range(2):
        for out in (tmp_path / "out.csv", tmp_path / "out.txt", tmp_path / "empty.csv"):
            assert command("predict", run, new, "--out", out).exit_code == 0
    (tmp_path / "predicted.png").write_bytes(b"an image that is predicted")
    (tmp_path / "notes.csv").write_text("note,predicted_sales\n1,2\n")
    for precious in (Path("people.csv"), tmp_path / "predicted.png", tmp_path / "notes.csv"):
        before = precious.read_bytes()
        refused(command("predict", run, new, "--out", precious), "holds no earlier predictions; name another")
        assert precious.read_bytes() == before
    for number in ("1.7e308", "-1.7e308"):
        written(new, [people(1)[0], {**people(1)[0], "age": number}])
        refused(command("predict", run, new, "--out", tmp_path / "out.csv"), "Row 2 of", "no finite number")


@pytest.mark.slow
def test_a_file_with_decimal_commas_comes_back_as_it_was_and_can_be_read_without_fedpart(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    written(Path("people.csv"), people(60), ";", ",")
    experiment("run", "people.csv")
    assert command("predict", "run", "people.csv", "--out", "scored.csv").exit_code == 0
    before, after = (Path(name).read_text().splitlines() for name in ("people.csv", "scored.csv"))
    assert [line.rsplit(";", 3)[0] for line in after] == before
    more = [f"{line};{'law' if number == 0 else '1.10'}" for number, line in enumerate(before)]
    Path("more.csv").write_text("\n".join(more), encoding="utf-8")
    assert command("predict", "run", "more.csv", "--out", "more-scored.csv").exit_code == 0
    as_they_were = Path("more-scored.csv").read_text().splitlines()
    assert [line.rsplit(";", 3)[0] for line in as_they_were] == more
    written(Path("thousands.csv"), [{**people(1)[0], "age": "1;234"}], "|", ",")
    Path("thousands.csv").write_text(Path("thousands.csv").read_text().replace(";", ".").replace("|", ";"))
    refused(
        command("predict", "run", "thousands.csv"),
        "The column 'age' of thousands.csv holds no numbers, but such as '1.234' where numbers have decimal",
    )
    p = [float(line.rsplit(";", 1)[1].replace(",", ".")) for line in after[1:]]
    near(p, torch.softmax(fedpart.load("run").predict("people.csv"), 1)[:, 1])
    with safe_open(export_run(Path("run"), "safetensors")[0], "pt") as file:
        recipe = json.loads(file.metadata()["preprocessing"])
    assert recipe["read"] == {"delimiter": ";", "decimal": ","}


@pytest.mark.slow
def test_images_in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    for place in range(40):
        folder = Path("pictures") / ("cat", "owl")[place % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (20, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{place:02}.png")
    config = {"data": "image_folder", "data_dir": "pictures", "data_options": {"size": 8}, "model": "mlp"}
    moments = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}
    run_experiment(ExperimentConfig.from_dict({**config, **FEW, "normalise": moments}), "run")
    done = command("predict", "run", "pictures", "--out", "scored.csv")
    assert done.exit_code == 0, done.output
    scored = read(Path("scored.csv"))
    assert len(scored) == 40 and scored[0]["file"] == "pictures/cat/00.png"
    assert all(math.isclose(float(row["p(cat)"]) + float(row["p(owl)"]), 1, abs_tol=1e-5) for row in scored)
    loaded = fedpart.load("run")
    assert loaded.preprocessing.state == read_summary("run")["preprocessing"]
    pixels = loaded.preprocessing.example(5)
    file, _ = export_run(Path("run"), "torch-export")
    with torch.no_grad():
        wanted = loaded.module()((pixels / 255 - torch.tensor(moments["mean"]).view(3, 1, 1)) /
                                 torch.tensor(moments["std"]).view(3, 1, 1))  # fmt: skip
        near(torch.export.load(file).module()(pixels), wanted)
    near(loaded.predict("pictures/cat/00.png"), loaded.predict("pictures")[:1])
    pytest.importorskip("onnxruntime")
    Path("new_pictures").mkdir()
    for place, (mode, bands) in enumerate([("L", ()), ("RGBA", (4,)), ("RGB", (3,))]):
        drawn = random.integers(0, 256, (9 + 20 * place, 31, *bands), dtype=np.uint8)
        Image.fromarray(drawn).convert(mode).save(f"new_pictures/{mode}.png")
    export_run(Path("run"), "onnx")
    exec(python_with("ImageOps.fit").replace("runs/pictures-partitioned-seed0", "run"), found := {})
    with torch.no_grad():
        near(found["outputs"], loaded.module()(loaded.preprocessing.inputs("new_pictures")))
    assert [file.name for file in found["files"]] == ["L.png", "RGB.png", "RGBA.png"]
    assert set(found["labels"]) <= {"cat", "owl"}


def python_with(text):
    """The block of the guide in which a text is."""
    (code,) = [block.text for block in blocks(DOCS / "guides" / GUIDE) if text in block.text]
    return code


@pytest.mark.slow
def test_the_guide(onnx, tmp_path, monkeypatch):
    """Its commands, and its Python on a run and rows of its own."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(onnx.parent, "runs/patients-partitioned-seed0")
    new = [
        {**row, "seen": str(np.datetime64(19_900 + place, "D"))}
        for place, row in enumerate(people(9, seed=3))
    ]
    new[0] |= {"ward": "N/A", "age": "?"}
    new[1] |= {"ward": "null", "seen": "NaT"}
    written(Path("new.csv"), new)
    found = {}
    exec(python_with("csv.DictReader"), found)
    assert "fedpart predict" in (DOCS / "guides" / GUIDE).read_text()
    near(found["outputs"], fedpart.load("runs/patients-partitioned-seed0").predict("new.csv"))


def prices(rows=240, mean=250.0):
    """Rows whose price, around ``mean``, follows from their size."""
    drawn = random.Random(0)
    sizes = [drawn.gauss(0, 1) for _ in range(rows)]
    return [{"size": f"{size:.4f}", "price": f"{mean + 40 * size + drawn.gauss(0, 4):.4f}"} for size in sizes]


@pytest.mark.slow
def test_a_number_is_learned_in_deviations_and_predicted_in_its_own_units(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(Path("prices.csv"), prices())
    options, psi = {"target": "price", "standardise": True}, {"variance": 0.5, "learned": True}
    number = {"likelihood": "gaussian", "likelihood_options": psi, "hyperparameters": {}}
    experiment("run", "prices.csv", **number, rounds=12, data_options=options)
    plain = {**options, "standardise_target": False}
    experiment("plain", "prices.csv", **number, rounds=1, data_options=plain)
    scores, run = read_summary("run"), fedpart.load("run")
    unit = scores["preprocessing"]["target"]
    assert abs(unit["mean"] - 250) < 10 and 35 < unit["deviation"] < 45
    assert scores["test_rmse"] < scores["guess"]["rmse"] < 50, "in units of the price"
    (start,) = scores["psi_initial"].values()
    assert start == pytest.approx(unit["deviation"] * 0.5**0.5), "the noise's, too"
    assert "target" not in read_summary("plain")["preprocessing"]
    test = load_data(ExperimentConfig.from_dict(run.config)).test
    with torch.no_grad():
        here = run.with_preprocessing()(run.preprocessing.encode(*columns_of("prices.csv", {})))
        near(here, run.predict("prices.csv"))
        file, _ = export_run(Path("run"), "torch-export")
        near(torch.export.load(file).module()(torch.zeros(1, 1).double()), run.predict({"size": 0}))
        errors = torch.cat(list(run.state.predict(test.inputs))) - test.targets[:, None]
    assert errors.square().mean().sqrt().item() == pytest.approx(scores["test_rmse"], rel=1e-4)
    done = command("predict", "run", "prices.csv", "--out", "scored.csv")
    assert done.exit_code == 0, done.output
    near([[float(row["predicted"])] for row in read(Path("scored.csv"))], run.predict("prices.csv"))
    counts = {"data": "table", "data_dir": "prices.csv", "data_options": options, "likelihood": "poisson"}
    made = load_data(ExperimentConfig.from_dict(counts | {"model": "mlp"} | FEW)).preprocessing
    assert "target" not in made.state, "a rate has no deviations from a mean"


PLAIN = """
import sys
outputs = np.exp(outputs - outputs.max(1, keepdims=True))
json.dump((outputs / outputs.sum(1, keepdims=True)).tolist(), sys.stdout)
assert not {"fedpart", "torch"} & sys.modules.keys()
"""


@pytest.mark.slow
def test_new_texts_are_predicted_with_the_words_of_the_run_also_in_plain_python(tmp_path, monkeypatch):
    """The vocabulary is in the run and in the exported file: neither needs the texts it is made of."""
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    assert command("new", "text", "app").exit_code == 0
    monkeypatch.chdir("app")
    run = "runs/text-partitioned-seed0"
    done = command("run", "text.yaml", "--set", "rounds=3", "--out", run)
    assert done.exit_code == 0, done.output
    texts = Path("texts.csv").read_text()
    for change, says in (
        ("praise", "the column 'label' is empty; fill it in, or remove the row"),
        ("praise\n", "texts.csv has 1 cells, but the first line names 2 columns"),
        ("label", "no columns text and label"),
    ):
        Path("texts.csv").write_text(texts.replace(f",{change}", "\n" * change.endswith("\n") or ",", 1))
        refused(command("run", "text.yaml", "--out", "refused"), says)
    Path("texts.csv").unlink()
    news = ["The waiter was slow, and LATE again", "Grüße: unheard-of words", "", "great " * 40]
    Path("new.csv").write_text("id,text\n" + "".join(f'{i},"{text}"\n' for i, text in enumerate(news)))
    predicted = command("predict", run, "new.csv", "--trust-code", "--out", "scored.csv")
    assert predicted.exit_code == 0, predicted.output
    exported = command("export", run, "--format", "onnx", "--trust-code")
    assert exported.exit_code == 0, exported.output
    code = re.sub("(?m)^texts = .*$", f"texts = {news!r}", python_with("re.findall")) + PLAIN
    plain = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    with open("scored.csv", newline="") as opened:
        scored = list(csv.DictReader(opened))
    assert [row["text"] for row in scored] == news
    told = [[float(row["p(complaint)"]), float(row["p(praise)"])] for row in scored]
    assert np.abs(np.array(told) - np.array(json.loads(plain.stdout))).max() < 1e-5
    assert told[1] == pytest.approx(told[2], abs=1e-6), "words of which training has none say nothing"
    assert len({tuple(np.round(row, 5)) for row in told}) == len(news) - 1
    loaded = fedpart.load(run, trust_code=True)
    assert str(loaded).startswith("partitioned, 3 rounds, texts:load_texts: accuracy ")
    assert loaded.predict(news).softmax(1).numpy() == pytest.approx(np.array(told), abs=1e-5)
