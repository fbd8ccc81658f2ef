"""The configuration's reference, which is made from the fields that the program reads: every key is in it."""

import sys
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
from pydantic import BaseModel

from simulations.config.load import ExperimentConfig, TrainingConfig

DOCS = Path(__file__).parents[2] / "docs"


def sections(annotation: typing.Any) -> Iterator[type]:
    """What has keys of its own: sections, and the library's settings, which are dataclasses."""
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or is_dataclass(annotation)):
        yield annotation
    for part in typing.get_args(annotation):
        yield from sections(part)


def keys(config: type, prefix: str = "") -> Iterator[str]:
    if issubclass(config, BaseModel):
        known = {name: field.annotation for name, field in config.model_fields.items()}
    else:
        hints = typing.get_type_hints(config)
        known = {field.name: hints[field.name] for field in fields(config)}
    for name, annotation in known.items():
        yield prefix + name
        for section in sections(annotation):
            yield from keys(section, f"{prefix}{name}.")


@pytest.mark.parametrize("config", [ExperimentConfig, TrainingConfig])
def test_every_key_has_a_row_with_a_meaning_a_type_and_a_default(
    config: type[BaseModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("docutils")  # of the group docs
    monkeypatch.setattr(sys, "path", [str(DOCS), *sys.path])
    import generated

    rows = [line.split(" | ") for line in generated.keys_page("some", config).splitlines()]
    found = {row[0].strip("| `"): [cell.strip(" |") for cell in row[1:]] for row in rows if len(row) > 3}
    wanted = set(keys(config))
    assert len(wanted) > len(config.model_fields) and found.keys() - {"key"} == wanted
    assert all(all(cells) for cells in found.values())


def test_there_are_no_more_keys_than_people_can_look_through() -> None:
    assert len({*keys(ExperimentConfig), *keys(TrainingConfig)}) <= 150
