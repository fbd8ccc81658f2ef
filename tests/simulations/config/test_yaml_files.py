"""Numbers, merge keys and texts of a YAML file."""

from functools import partial
from pathlib import Path

import pytest
import refusals

from simulations.config.load import load_config
from simulations.config.yaml_files import apply_override, as_yaml, read_yaml
from simulations.errors import ConfigError

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


def test_what_no_reader_can_take_is_refused(tmp_path: Path) -> None:
    """Aliases that multiply are counted in full before anything is made of them."""
    ten = ", ".join(["*a{}"] * 10)
    bomb = "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [{ten.replace('{}', str(n - 1))}]\n" for n in range(1, 9))
    many, deep = "more than 100,000 values", "nested too deeply"
    texts = {
        "eight levels of ten": (bomb, many),
        "merge keys that multiply": (bomb.replace("[1]", "{b: 1}") + "c: {<<: *a8}\n", many),
        "an alias in itself": ("a: &a [*a]\n", many),
        "a merge key in itself": ("a: &a\n  <<: *a\n", many),
        "deep lists": (f"a: {'[' * 200_000}{']' * 200_000}\n", deep),
        "deep mappings": (f"a: {'{b: ' * 1000}1{'}' * 1000}\n", deep),
        "5,000 digits": (f"seed: {'9' * 5000}\n", "beyond 64 bits"),
        "30 digits": (f"seed: {'9' * 30}\n", "beyond 64 bits"),
        "many bits": (f"seed: 0b{'1' * 65}\n", "beyond 64 bits"),
        "no month": ("a: 2001-13-01\n", "does not fit its type .*month"),
        "no time": ("a: !!timestamp x\n", "does not fit its type"),
        "no truth value": ("a: !!bool x\n", "does not fit its type"),
        "no number": ("a: !!int x\n", "does not fit its type"),
    }
    rows: list[refusals.Row] = []
    for name, (text, says) in texts.items():
        file = tmp_path / f"{name}.yaml"
        file.write_text(text)
        rows.append((name, partial(read_yaml, file), ConfigError, f"is not valid YAML.*{says}"))
    call = partial(apply_override, {}, f"seed={'9' * 5000}")
    rows.append(("a setting", call, ConfigError, "--set seed=9+ is not valid YAML.*beyond 64 bits"))
    rows.append(("NUL", partial(read_yaml, Path("a\0b")), ConfigError, "cannot be read: embedded null"))
    refusals.check(rows)


def test_aliases_of_usual_size_are_taken(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("a: &a {b: 1}\nc: {<<: *a, d: *a}\n")
    assert read_yaml(file) == {"a": {"b": 1}, "c": {"b": 1, "d": {"b": 1}}}
