"""Pages that are generated: the Python API from its rooms, the configuration from its fields."""

from __future__ import annotations

import inspect
import json
import pkgutil
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import typer.main
from docutils import nodes

import fedpart
from simulations.cli.main import app as command_line
from simulations.config.load import ExperimentConfig, TrainingConfig

command = typer.main.get_command(command_line)  # what sphinx-click documents

CONFIGURATIONS = {"federated": ExperimentConfig, "centralised": TrainingConfig}


def write(folder: Path) -> None:
    """Writes all generated pages into ``folder``, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("python", "configuration"):
        (folder / name).mkdir(parents=True)
    rooms = sorted(info.name for info in pkgutil.iter_modules(fedpart.__path__) if info.ispkg)
    for room in rooms:
        (folder / "python" / f"{room}.rst").write_text(room_page(f"fedpart.{room}"))
    (folder / "python" / "fedpart.rst").write_text(public_names())
    for name, config in CONFIGURATIONS.items():
        (folder / "configuration" / f"{name}.md").write_text(keys_page(name, config))


def heading(text: str, line: str) -> str:
    """A heading in reStructuredText."""
    return f"{text}\n{line * len(text)}\n\n"


def room_page(room: str) -> str:
    """A room's own sentence, and everything public in its files."""
    package = import_module(room)
    page = heading(room, "=") + f".. automodule:: {room}\n\n"
    for info in pkgutil.walk_packages(package.__path__, room + "."):
        if info.ispkg:
            page += f".. automodule:: {info.name}\n\n"
        elif not info.name.rpartition(".")[2].startswith("_"):
            page += file_section(info.name)
    return page


def public_names() -> str:
    """What can be imported from ``fedpart`` itself, with first sentences; and the files beside rooms."""
    page = heading("fedpart", "=") + "These names are imported from ``fedpart`` itself.\n\n"
    for name in fedpart.__all__:
        thing = getattr(fedpart, name)
        text = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
        if isinstance(thing, type) or inspect.isfunction(thing):
            role = "class" if isinstance(thing, type) else "func"
            name = f":{role}:`{name} <{thing.__module__}.{thing.__qualname__}>`"
        page += f"{name}\n   {text}\n\n"
    for info in pkgutil.iter_modules(fedpart.__path__, "fedpart."):
        page += "" if info.ispkg else file_section(info.name)
    return page


def file_section(module: str) -> str:
    """All that is public in a file."""
    name = module.partition(".")[2]
    return heading(name, "-") + f".. automodule:: {module}\n   :members:\n   :ignore-module-all:\n\n"


def keys_page(name: str, config: type) -> str:
    """A table of all keys of a kind of configuration, and one of each section."""
    schema = config.model_json_schema()
    sections: dict[str, dict[str, Any]] = {}
    page = f"# {name.capitalize()} experiments\n\n" + table(schema, schema.get("$defs", {}), "", sections)
    done: set[str] = set()
    while left := [path for path in sections if path not in done]:
        path = left[0]
        done.add(path)
        text = sections[path].get("description", "").split("\n\n")[0].replace("``", "`")
        page += f"\n## {path}\n\n{text}\n\n" + table(sections[path], schema["$defs"], path + ".", sections)
    return page


def table(section: dict, definitions: dict, prefix: str, sections: dict) -> str:
    """A row for each key; sections that it meets are added to ``sections`` by their path."""
    rows = ["| key | meaning | type | default |", "|---|---|---|---|"]
    for key, field in section["properties"].items():
        for name in references(field):
            sections.setdefault(prefix + key, definitions[name])
        default = "required"
        if "default" in field:
            value = field["default"]
            found = [definitions[name] for name in references(field)]
            default = "its section's" if value and found else f"`{plain(value)}`"
            if found and isinstance(value, dict) and (written := apart(value, found[0], definitions)):
                default = f"`{written}`"
        text = field.get("description", "").replace("|", "\\|").replace("``", "`")
        if (decides := field.get("decides", "numbers")) != "numbers":
            text += f" (decides {'the course' if decides == 'course' else decides})"
        rows.append(f"| `{prefix}{key}` | {text} | {kind(field)} | {default} |")
    return "\n".join(rows) + "\n"


def apart(value: dict, section: dict, definitions: dict) -> str:
    """What a section's default sets apart from its keys' own defaults, as YAML; empty: nothing."""
    written = []
    for key, field in section["properties"].items():
        if value[key] != field.get("default"):
            inner = references(field)
            text = (
                apart(value[key], definitions[inner[0]], definitions) or "{}" if inner else plain(value[key])
            )
            written.append(f"{key}: {text}")
    return f"{{{', '.join(written)}}}" if written else ""


def references(field: dict) -> list[str]:
    """Names of the sections that a field may hold."""
    found = [field["$ref"].rpartition("/")[2]] if "$ref" in field else []
    for part in (*field.get("anyOf", ()), *([field["items"]] if "items" in field else [])):
        found += references(part)
    return found


def plain(value: Any) -> str:
    """A default as YAML has it."""
    return value if isinstance(value, str) else json.dumps(value)


def kind(field: dict) -> str:
    """The type of a field with its range, in words."""
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(kind(part) for part in field["anyOf"]))
    if "$ref" in field:
        return "section"
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if field.get("type") == "array":
        parts = field.get("prefixItems") or [field.get("items", {})]
        return "list of " + " and ".join(dict.fromkeys(kind(part) for part in parts))
    word = {"string": "text", "object": "mapping", "boolean": "true or false", "null": "null"}.get(
        field.get("type", ""), field.get("type", "any")
    )
    signs = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}
    limits = [f"{sign} {field[name]}" for name, sign in signs.items() if name in field]
    return " ".join([word, ", ".join(limits)]).strip()


def resolve(app: Any, environment: Any, node: Any, contents: Any) -> Any:
    """Finds a name wherever in fedpart it is; types of other libraries in signatures get no link.

    Neither do names without a docstring of their own, constants for instance; but they have to exist.
    """
    if node.get("refdomain") != "py":
        return None
    target, kind = node["reftarget"], node["reftype"]
    foreign = "." in target and not target.startswith("fedpart.")
    if foreign or not isinstance(contents, nodes.literal):
        return contents
    name = target.rpartition(".")[2]
    module = import_module(node.get("py:module") or "fedpart")
    owner = getattr(module, node.get("py:class") or "", module)
    if kind in ("attr", "data", "meth") and not node.get("refspecific"):
        return contents if kind == "attr" or hasattr(owner, name) or hasattr(module, name) else None
    if name.startswith("_") and hasattr(module, name):
        return contents
    node["refspecific"] = True
    python = environment.domains["py"]
    return python.resolve_xref(environment, node["refdoc"], app.builder, kind, name, node, contents)
