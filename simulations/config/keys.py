"""Keys and sections of a configuration, made for pydantic from the library's settings."""

import dataclasses
import inspect
from collections.abc import Collection, Mapping
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator
from pydantic.fields import FieldInfo

from fedpart.training.settings import Decides, Settings


def entry(default: Any, description: str, *, decides: Decides = "numbers", **bounds: Any) -> Any:
    """A key of a section, as :func:`.setting` is a field of settings."""
    return Field(default=default, description=description, json_schema_extra={"decides": decides}, **bounds)


class Section(BaseModel):
    """A group of keys; unknown ones are refused, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _over_the_default(cls, data: Any) -> Any:
        """Settings that are given in part take the rest from the default that they have here."""
        if not isinstance(data, dict):
            return data
        defaults = {name: field.default for name, field in cls.model_fields.items()}
        return data | {
            name: dataclasses.asdict(defaults[name]) | value
            for name, value in data.items()
            if isinstance(value, dict) and isinstance(defaults.get(name), Settings)
        }


def keys_of(section: type) -> dict[str, FieldInfo]:
    """The keys of a :class:`Section`, or of settings of the library, by name."""
    if not issubclass(section, BaseModel):
        section = section_of(section, **{field.name: field.name for field in dataclasses.fields(section)})
    return section.model_fields


def section_of(
    settings: type[Settings], *, leave_out: Collection[str] = (), null: Mapping[str, str] | None = None,
    **renamed: str,
) -> type[Section]:  # fmt: skip
    """A section whose keys are fields of settings, or those ``renamed``; ``null``: keys that may be null."""
    hints, null = get_type_hints(settings), null or {}
    fields = {field.name: field for field in dataclasses.fields(settings)}
    kept = {name: name for name in inspect.get_annotations(settings) if name not in leave_out}
    keys: dict[str, Any] = {}
    for name, field in (renamed or kept).items():
        hint, meaning = hints[field], null.get(name)
        keys[name] = (hint if meaning is None else hint | None, _entry_of(fields[field], meaning))
    return create_model(f"{settings.__name__}Section", __base__=Section, **keys)


def _entry_of(field: dataclasses.Field[Any], null: str | None = None) -> Any:
    if null is not None:
        text = f"{field.metadata['description']}; null: {null}"
        return entry(None, **{**field.metadata, "description": text})
    if field.default_factory is not dataclasses.MISSING:
        return entry(field.default_factory(), **field.metadata)
    return entry(... if field.default is dataclasses.MISSING else field.default, **field.metadata)
