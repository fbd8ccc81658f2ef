"""Records: finished runs of tables as small files, which outlast their folders and other machines."""

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fedpart.training.files import replace
from simulations.config.search import OBJECTIVES
from simulations.folders.cell import Cell, folder_name
from simulations.folders.contents import read_metrics, read_summary

HOME = Path(__file__).resolve().parents[2] / "docs" / "measurements" / "raw"
POINTS = 100  # lines of metrics that a record keeps, at most; those with scores, where there are any
_PATHS = ("data_dir", "code_dir", "psi_from", "devices")  # where things are on a machine


def record_name(table: str, scale: str | None, row: str, seed: int) -> str:
    """The name of a run's file."""
    return "--".join(filter(None, (table, scale, folder_name(row).lower(), f"seed{seed}"))) + ".json"


def write_record(folder: Path, cell: Cell, of: Mapping[str, Any]) -> Path:
    """Write the record of a finished run; ``of``: its table, scale, row and seed."""
    lines, summary = read_metrics(cell.folder), read_summary(cell.folder) or {}
    scored = [line for line in lines if any(line.get(key) is not None for key in OBJECTIVES)] or lines
    hidden = ("cohort", "skipped", "seal", "psi")  # neither who was asked, nor psi's raw values
    points = [
        {**{key: value for key, value in line.items() if key not in hidden}, "psi": line["psi"]["physical"]}
        for line in scored[:: -len(scored) // POINTS or -1][::-1]
    ]
    settings = {key: value for key, value in cell.config.resolved().items() if key not in _PATHS}
    told = {"seconds": summary.get("seconds"), "commit": summary.get("git_commit")}
    device = settings.get("device", "cpu")
    machine = torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.machine()
    told |= {"machine": machine, "length": cell.config.length}
    content = {**of, **told, "settings": settings, "metrics": points, "summary": summary}
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / record_name(**of)
    text = json.dumps(content, ensure_ascii=False).replace('{"round"', '\n{"round"') + "\n"
    replace(file, lambda out: out.write(text.encode()))
    return file


def read_records(table: str, scale: str | None, folder: Path = HOME) -> dict[str, list[dict[str, Any]]]:
    """Records of a table's runs by row, ascending by seed.

    Raises:
        ValueError: a file is no record.
    """
    records: dict[str, list[dict[str, Any]]] = {}
    for file in sorted(folder.glob(f"{table}--*.json")):
        try:
            record = json.loads(file.read_text(encoding="utf-8"))
            if (record["table"], record["scale"]) == (table, scale):
                records.setdefault(record["row"], []).append(record)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file} is no record of a run ({error!r}); delete it.") from None
    return {row: sorted(runs, key=lambda record: record["seed"]) for row, runs in records.items()}
