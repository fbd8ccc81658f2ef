"""The JSON Schema of a configuration takes what the program takes, and tells wrong keys."""

import json
import re

import jsonschema
import pytest
import yaml
from command_line import fedpart, refused, succeeds

from simulations.config.load import kind_of
from simulations.config.yaml_files import CONFIGS, purpose, read_extended, shipped

LINE = re.compile(r"# yaml-language-server: \$schema=(\S+)")


@pytest.fixture(scope="module")
def schemas():
    return {command: json.loads(fedpart("schema", command).stdout) for command in ("run", "train")}


@pytest.mark.parametrize("command", ["run", "train"])
def test_the_files_that_editors_read_are_what_the_command_prints(schemas, command):
    file = CONFIGS / f"{command}.schema.json"
    again = f"make it anew: fedpart schema {command} > simulations/configs/{file.name}"
    assert json.loads(file.read_text()) == schemas[command], again


@pytest.mark.parametrize("name", [name for name in shipped() if not name.startswith("tables/")])
def test_the_first_line_of_a_shipped_configuration_names_the_schema_of_its_kind(name):
    file = shipped()[name]
    found = LINE.fullmatch(file.read_text().splitlines()[0])
    command = kind_of(read_extended(file)[0]).clock.command
    assert (file.parent / found[1]).resolve() == (CONFIGS / f"{command}.schema.json").resolve()
    assert "schema" not in purpose(file)


def test_a_new_folder_has_the_schema_that_its_configuration_names(schemas, tmp_path):
    for kind in ("table", "images", "text", "signals", "model"):
        succeeds("new", kind, tmp_path / kind)
        file = tmp_path / kind / f"{kind}.yaml"
        schema = json.loads((file.parent / LINE.match(file.read_text())[1]).read_text())
        assert schema == schemas["run"]
        jsonschema.validate(yaml.safe_load(file.read_text()), schema)


@pytest.mark.slow
def test_every_shipped_configuration_fits(schemas):
    for name, file in shipped().items():
        data = yaml.safe_load(file.read_text())
        if "rows" not in data:
            command = kind_of(read_extended(file)[0]).clock.command
            jsonschema.validate(data, schemas[command]), name


def test_it_tells_keys_and_kinds(schemas):
    described = schemas["run"]["properties"]["rounds"]
    assert described["type"] == "integer" and described["description"]
    for wrong in ({"round": 3}, {"rounds": "many"}, {"local": {"learning_rat": 0.1}}, {"extends": 3}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schemas["run"])
    for files in ("base.yaml", ["base.yaml", "more.yaml"]):
        jsonschema.validate({"extends": files, "rounds": 3}, schemas["run"])
    refused(fedpart("schema", "select"), "got 'select'; name one")
