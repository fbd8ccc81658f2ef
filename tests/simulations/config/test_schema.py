"""The JSON Schema of a configuration takes what the program takes, and tells wrong keys."""

import json

import jsonschema
import pytest
import yaml
from command_line import fedpart, refused

from simulations.config.load import kind_of
from simulations.config.yaml_files import read_extended, shipped


@pytest.fixture(scope="module")
def schemas():
    return {command: json.loads(fedpart("schema", command).stdout) for command in ("run", "train")}


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
    jsonschema.validate({"extends": "base.yaml", "rounds": 3}, schemas["run"])
    refused(fedpart("schema", "select"), "got 'select'; name one")
