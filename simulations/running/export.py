"""Exporting: the network of a finished run in a file that needs no fedpart, checked before it is left."""

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from fedpart.data.cells import GAPS
from fedpart.data.preprocessing import Rows
from fedpart.extras import MissingExtra, need
from fedpart.nn.layers.copying import copied
from fedpart.task.calling import outputs_of
from fedpart.trees import Tree, leaves, map_leaves, with_floats
from simulations.building.reading import example_inputs, read_run
from simulations.config.load import ConfigError
from simulations.errors import RunError, one_sentence

SUFFIXES = {"safetensors": ".safetensors", "torch-export": ".pt2", "onnx": ".onnx"}
Metadata = Mapping[str, str]
_MADE = b"fedpart.export/1"
TRACED, CHECKED = 4, 7  # rows: a file that takes these numbers takes any


def export_run(run: Path, kind: str, out: Path | None = None) -> tuple[Path, list[str]]:
    """Write the network of a run; the file, and what the run has learned that is not in it: input transforms
    by name, and numbers of the likelihood."""
    if kind not in SUFFIXES:
        raise ConfigError(f"--format is one of {', '.join(SUFFIXES)}, not {kind}.")
    path = out or run / f"model{SUFFIXES[kind]}"
    if (other := {suffix: name for name, suffix in SUFFIXES.items()}.get(path.suffix, kind)) != kind:
        raise ConfigError(f"--out {path} is a name for --format {other}, not {kind}; change one of the two.")
    if out is not None and path.is_file() and not (path.stat().st_size == 0 or _MADE in path.read_bytes()):
        raise ConfigError(f"--out {path} would overwrite what export has not written; name another file.")
    loaded = read_run(run)
    task, made = loaded.state.task, loaded.preprocessing
    whole = made is not None and kind != "safetensors"  # weights alone hold no graph
    with one_sentence():
        module = loaded.with_preprocessing() if whole else loaded.module()
    traced, checked = (
        made.example(rows)
        if made is not None and whole
        else with_floats(example_inputs(run, rows), task.dtype)
        for rows in (TRACED, CHECKED)
    )
    gaps = sorted(GAPS) if isinstance(made, Rows) else None
    known = {"classes": loaded.classes, "preprocessing": made and made.state, "gaps": gaps}
    metadata = {name: json.dumps(value) for name, value in known.items() if value}
    metadata["made_by"] = _MADE.decode()
    new = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}")  # until it is checked
    try:
        with torch.no_grad():
            outputs = _WAYS[kind](module, traced, checked, draft, metadata)
            args, kwargs = _arguments(checked)
            wanted = outputs_of(module(*args, **kwargs))
        if outputs.shape != wanted.shape or not torch.allclose(outputs, wanted, rtol=1e-4, atol=1e-5):
            fault = f"The network in the {kind} file has other outputs than the run's module"
            raise RunError(f"{fault}, so it is not left in {path}; choose another format.")
        os.replace(draft, path)
    except (ConfigError, RunError, OSError, MissingExtra):
        raise
    except Exception as error:  # whatever the exporters raise
        reason = str(error).strip().split("\n")[0].rstrip(".")
        fault = f"The network cannot be exported as {kind} ({type(error).__name__}: {reason})"
        full = "No space left" in reason
        raise RunError(f"{fault}; {'make room' if full else 'safetensors takes any network'}.") from error
    finally:
        draft.unlink(missing_ok=True)
        for folder in new if not path.exists() else ():
            folder.rmdir()
    with task.likelihood_at(loaded.state.psi) as likelihood:
        values = likelihood.physical() if likelihood.answers(outputs.detach())[1] is not None else {}
        learned = [f"{name} {value:.4g}" for name, value in values.items()]  # of a mean nothing would differ
    return path, [*task.transforms, *learned]


def _safetensors(
    module: nn.Module, traced: Tree, checked: Tree, file: Path, metadata: Metadata = MappingProxyType({})
) -> Tensor:
    safetensors.torch.save_model(module, str(file), dict(metadata) or None)
    if len(metadata) > 1:
        _sort_metadata(file)
    other = file.with_name(f"{file.name}.rights")  # those that any new file has; safetensors keeps its own
    other.touch()
    file.chmod(other.stat().st_mode)
    other.unlink()
    empty = copied(module)
    for tensor in (*empty.parameters(), *empty.buffers()):
        tensor.zero_()
    safetensors.torch.load_model(empty, file)
    args, kwargs = _arguments(checked)
    return outputs_of(empty(*args, **kwargs))


def _sort_metadata(file: Path) -> None:
    """Bring the metadata of a safetensors file to one order; they are written in another by each process."""
    with file.open("r+b") as opened:
        size = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(size))
        about = {"__metadata__": dict(sorted(header.pop("__metadata__", {}).items()))}
        text = json.dumps({**about, **header}, ensure_ascii=False, separators=(",", ":")).encode()
        opened.seek(8)
        opened.write(text.ljust(size) if len(text) <= size else b"")


def _torch_export(
    module: nn.Module, traced: Tree, checked: Tree, file: Path, metadata: Metadata = MappingProxyType({})
) -> Tensor:
    args, kwargs = _arguments(traced)
    program = torch.export.export(module, args, kwargs, dynamic_shapes=_any_number(args, kwargs))
    with file.open("wb") as opened:
        torch.export.save(program, opened, extra_files=dict(metadata))
    args, kwargs = _arguments(checked)
    with file.open("rb") as opened:
        return outputs_of(torch.export.load(opened).module()(*args, **kwargs))


def _onnx(
    module: nn.Module, traced: Tree, checked: Tree, file: Path, metadata: Metadata = MappingProxyType({})
) -> Tensor:
    need("onnxscript", "The format onnx", "onnx")
    onnx = need("onnx.reference", "The format onnx", "onnx")
    args, kwargs = _arguments(traced)
    options = {"output_names": ["outputs"], "dynamo": True, "verbose": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter, about itself
        shapes = _any_number(args, kwargs)
        program = torch.onnx.export(module, args, kwargs=kwargs, dynamic_shapes=shapes, **options)
    program.model.metadata_props.update(metadata)
    program.save(file, external_data=False)
    reader = onnx.ReferenceEvaluator(str(file))
    args, kwargs = _arguments(checked)
    flat = {name: leaf.numpy() for name, leaf in zip(reader.input_names, _flat(args), strict=False)}
    flat |= {name: leaf.numpy() for name, leaf in kwargs.items()}
    return torch.as_tensor(reader.run(None, flat)[0])


_WAYS = {"safetensors": _safetensors, "torch-export": _torch_export, "onnx": _onnx}


def _arguments(inputs: Tree) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How the network is called: by the names of a dict, or the places of a tuple."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)), {}


def _any_number(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    rows = torch.export.Dim("rows", min=1)
    return map_leaves(lambda leaf: {0: rows}, kwargs or args)


def _flat(args: Tree) -> list[Tensor]:
    return [leaf for _, leaf in leaves(args)]
