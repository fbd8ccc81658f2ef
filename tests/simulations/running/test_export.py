"""Exported networks answer as the run's module does, read back without fedpart."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from command_line import fedpart as command
from command_line import refused
from onnx.reference import ReferenceEvaluator
from tiny import tiny, tiny_training
from torch import nn

import fedpart
from fedpart.data import load_splits
from simulations.running import export
from simulations.running.run import run_experiment

NAMES = tuple("abcdefghij")


def named(data_dir=None):
    """Digits whose classes have names."""
    return replace(load_splits("digits"), classes=NAMES)


class Parts(nn.Module):
    """A network that takes a dict of two parts."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(3, 2), nn.Embedding(4, 2)

    def forward(self, x, token):
        return self.left(x) * 2 + self.right(token)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "run"
    run_experiment(tiny_training(iterations=10), folder)
    return folder


@pytest.fixture
def run(finished, in_a_folder_of_its_own):
    return Path(shutil.copytree(finished, "run"))


@pytest.mark.parametrize(
    "kind", ["safetensors", "torch-export", pytest.param("onnx", marks=pytest.mark.slow)]
)
def test_the_file_answers_as_the_module(run, kind):
    done = command("export", run, "--format", kind)
    assert done.exit_code == 0 and "checked against the run's module; without" in done.output, done.output
    assert "without mask, which fedpart predict applies" in done.output
    module, x = fedpart.load(run).module(), torch.randn(5, 30)
    if kind == "safetensors":
        again = fedpart.load(run).module()
        nn.init.zeros_(next(again.parameters()))
        safetensors.torch.load_model(again, run / "model.safetensors")
        found = again(x)
    elif kind == "torch-export":
        found = torch.export.load(run / "model.pt2").module()(x)
    else:
        reader = ReferenceEvaluator(str(run / "model.onnx"))
        found = torch.as_tensor(reader.run(None, {reader.input_names[0]: x.numpy()})[0])
        assert reader.output_names == ["outputs"]
    torch.testing.assert_close(found, module(x), rtol=1e-4, atol=1e-5)
    assert not list(run.glob(".*")), "no draft is left"
    rights = {file.name: file.stat().st_mode for file in run.glob("model.*")}
    assert set(rights.values()) == {(run / "config.yaml").stat().st_mode}


def test_names_of_classes_go_with_the_network(tmp_path):
    run = tmp_path / "run"
    run_experiment(tiny(rounds=1, data=f"{__name__}:named"), run)
    assert fedpart.load(run, trust_code=True).classes == NAMES
    path, _ = export.export_run(run, "safetensors")
    with safetensors.safe_open(path, "pt") as file:
        assert json.loads(file.metadata()["classes"]) == list(NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("way", export._WAYS.values(), ids=export._WAYS)
def test_inputs_of_several_parts_keep_their_names(way, tmp_path):
    def rows(n):
        return {"token": torch.arange(n) % 4, "x": torch.rand(n, 3)}  # not in forward's order

    module, checked = Parts().eval(), rows(7)
    with torch.no_grad():
        found = way(module, rows(4), checked, tmp_path / "file")
        torch.testing.assert_close(found, module(**checked))


def test_a_file_with_other_outputs_is_not_left(run, monkeypatch):
    honest = export._WAYS["safetensors"]
    monkeypatch.setitem(export._WAYS, "safetensors", lambda *given: honest(*given) + 0.01)
    refused(command("export", run), "other outputs than the run's module", status=1)
    assert not list(run.glob("*model*"))


def test_what_cannot_be_exported_gets_one_sentence(run, monkeypatch):
    assert "fedpart[onnx]" in command("export", "--help").output
    refused(command("export", run, "--format", "pickle"), "one of safetensors, torch-export, onnx, not")
    refused(command("export", "nowhere"), "nowhere holds no run")

    def fails(*given):
        raise NotImplementedError("no such operator\nand a long trace")

    monkeypatch.setitem(export._WAYS, "torch-export", fails)
    refused(command("export", run, "--format", "torch-export"), "no such operator); safetensors", status=1)


def test_a_name_that_is_of_another_format_or_a_file_of_another_kind_is_refused(run):
    before = (run / "config.yaml").read_bytes()
    mine = Path("mine.safetensors")
    mine.write_bytes(b"precious")
    script = Path("ship.sh")
    script.write_text("fedpart export run --out model.safetensors")
    kept = run / "config.yaml", run / "state.safetensors", mine, script
    lost = [(path, "would overwrite") for path in kept]
    for out, said in ((Path("m.onnx"), "a name for --format onnx"), *lost):
        done = command("export", run, "--out", out)
        assert done.exit_code == 2 and said in done.output, done.output
    assert not Path("m.onnx").exists() and (run / "config.yaml").read_bytes() == before
