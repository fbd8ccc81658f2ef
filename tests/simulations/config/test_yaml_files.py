"""Numbers, merge keys and texts of a YAML file."""

from pathlib import Path

import pytest

from simulations.config.load import load_config
from simulations.config.yaml_files import apply_override, as_yaml, read_yaml

NUMBERS = {
    "010": 10,
    "-007": -7,
    "08": 8,
    "0o10": 8,
    "0x1F": 31,
    "0b101": 5,
    "1_000": 1000,
    "010.5": 10.5,
    "010e1": 100.0,
    "+.5": 0.5,
    "-.5e1": -5.0,
    "1_000.5": 1000.5,
    "2.E+1": 20.0,
}
TEXTS = ["1:30", "190:20:30", "1:30.5", "1__0", "1_", "0x_f", "0o8", "1e", "._5", "10-20", "."]


@pytest.mark.parametrize(("text", "number"), NUMBERS.items())
def test_a_number_is_what_it_looks_like(text: str, number: float, tmp_path: Path) -> None:
    data: dict[str, object] = {}
    apply_override(data, f"a={text}")
    (tmp_path / "a.yaml").write_text(f"a: {text}\nb: [{text}]\n")
    read = read_yaml(tmp_path / "a.yaml")
    for found in (data["a"], read["a"], read["b"][0]):
        assert found == number and type(found) is type(number)


@pytest.mark.parametrize("text", TEXTS)
def test_all_else_is_text(text: str) -> None:
    data: dict[str, object] = {}
    apply_override(data, f"a={text}")
    assert data == {"a": text}


def test_a_loop_over_padded_numbers_gives_as_many_seeds(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("")
    found = [load_config(tmp_path / "a.yaml", [f"seed={seed:03}"]).seed for seed in range(1, 121)]
    assert found == list(range(1, 121))


def test_what_is_written_is_read_as_it_was(tmp_path: Path) -> None:
    texts = [
        *TEXTS,
        *NUMBERS,
        "1e3",
        "1E-3",
        ".5",
        "no",
        "~",
        "<<",
        "name, first",
        "2026-11-27",
        "",
        " a",
        "#",
    ]
    data = {"texts": texts, "numbers": [1e-7, 1e16, 10, -0.5, True, None], "keys": dict.fromkeys(texts, 1)}
    for flow in (None, True, False):
        (tmp_path / "a.yaml").write_text(as_yaml(data, flow=flow))
        assert read_yaml(tmp_path / "a.yaml") == data


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{<<: *a, x: 3}", {"x": 3, "y": 2}),
        ("{x: 3, <<: *a}", {"x": 3, "y": 2}),
        ("{<<: [*a, {x: 4, z: 5}], y: 6}", {"x": 1, "y": 6, "z": 5}),  # of several, the first wins
        ("{<<: {<<: *a, x: 7}, y: 8}", {"x": 7, "y": 8}),
        ("{<<: *a}", {"x": 1, "y": 2}),
        ("[{<<: *a, x: 3}, *a]", [{"x": 3, "y": 2}, {"x": 1, "y": 2}]),
    ],
)
def test_a_key_overrides_what_a_merge_key_brings(text: str, found: object, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"a: &a {{x: 1, y: 2}}\nb: {text}\n")
    assert read_yaml(tmp_path / "a.yaml") == {"a": {"x": 1, "y": 2}, "b": found}
