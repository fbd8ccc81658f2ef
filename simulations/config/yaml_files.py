"""Reading a YAML file, a shipped one by its name, and those it extends; settings given as ``key=value``."""

import copy
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from fedpart.checks import require
from simulations.errors import ConfigError

LARGEST = 100_000  # values of a document
DEEPEST = 100  # lists and mappings inside of each other; libyaml's recursion has no end but a crash
_Safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, where PyYAML has it, is faster


class _Loader(_Safe):  # type: ignore[misc]
    """YAML in which a key must not appear twice, and a number is what it looks like."""

    def get_single_node(self) -> yaml.Node | None:
        """The document, where it is not too large with every alias (``*``) in full, as readers see it."""
        document: yaml.Node | None = super().get_single_node()
        if document is not None and _size(document, {}) > LARGEST:
            raise yaml.constructor.ConstructorError(
                None, None, f"with every alias in full it has more than {LARGEST:,} values"
            )
        return document

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Put what merge keys (``<<``) bring under a mapping's own keys."""
        merged = any(key.tag == _MERGE for key, _ in node.value)
        keys = [self._key(key) for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for place, key in enumerate(keys):
            if key in keys[:place]:
                again = [pair[0] for pair in node.value if isinstance(pair[0], yaml.ScalarNode)][place]
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {again.value!r} appears twice", again.start_mark
                )
        super().flatten_mapping(node)
        if merged:  # the last one is the mapping's own
            node.value = list({(key.tag, key.value): (key, value) for key, value in node.value}.values())

    def _key(self, node: yaml.ScalarNode) -> Any:
        return _MERGE if node.tag == _MERGE else self.construct_object(node)


class _Dumper(yaml.SafeDumper):
    """Writes what :class:`_Loader` reads: text that it would take for a number has quotes."""


def _whole(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node)).lower()
    base = 0 if text.lstrip("+-")[:2] in ("0x", "0o", "0b") else 10
    if len(text) > 100 or (number := int(text, base)).bit_length() > 64:
        raise yaml.constructor.ConstructorError(
            None, None, "a whole number is beyond 64 bits", node.start_mark
        )
    return number


def _size(node: yaml.Node, known: dict[yaml.Node, float]) -> float:
    """How many values a node has with every alias in full; infinitely many where one is inside of itself."""
    if node not in known:
        known[node] = math.inf  # until it is known
        below = node.value if isinstance(node, yaml.CollectionNode) else ()
        nodes = [each for item in below for each in (item if isinstance(item, tuple) else (item,))]
        known[node] = 1 + sum(_size(each, known) for each in nodes)
    return known[node]


_MERGE = "tag:yaml.org,2002:merge"
# YAML 1.1 takes 010 for 8, 1:30 for 90 and 1e-3 for text; 1.2, and people, for 10, text and a number.
_NUMBERS = {
    "tag:yaml.org,2002:int": r"[-+]?(?:0[xX][0-9a-fA-F]+|0[oO][0-7]+|0[bB][01]+|[0-9]+(?:_[0-9]+)*)$",
    "tag:yaml.org,2002:float": (
        r"[-+]?(?:(?:[0-9]+(?:_[0-9]+)*\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF))$"
        r"|\.(?:nan|NaN|NAN)$"
    ),
}
for _kind in (_Loader, _Dumper):
    _kind.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in known if tag not in _NUMBERS]
        for first, known in _kind.yaml_implicit_resolvers.items()
    }
    for _tag, _pattern in _NUMBERS.items():
        _kind.add_implicit_resolver(_tag, re.compile(_pattern), list("-+.0123456789"))
_Loader.add_constructor("tag:yaml.org,2002:int", _whole)


def as_yaml(data: Any, width: int = 80, flow: bool | None = False) -> str:
    """Plain data as YAML that :func:`read_yaml` reads as they are."""
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=width, default_flow_style=flow))


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; an empty file is an empty mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        remedy = "check the path, or take a name from fedpart configs"
        raise ConfigError(f"There is no configuration file {path}; {remedy}.") from None
    except (OSError, ValueError) as error:
        text = isinstance(error, UnicodeDecodeError)
        reason = "it is not text" if text else getattr(error, "strerror", error)
        raise ConfigError(f"The configuration file {path} cannot be read: {reason}.") from None
    if (data := _parse(text, str(path))) is None:
        return {}
    remedy = "a configuration is a list of `key: value` lines"
    require(isinstance(data, dict), f"{path} holds a {type(data).__name__}; {remedy}.", ConfigError)
    return data


def read_extended(path: Path) -> tuple[dict[str, Any], list[Path]]:
    """A YAML file's mapping over those it ``extends``, sections key by key; the files, its own first.

    Of several each lies over those before it. A name that is not beside the file may be a shipped one's.
    """
    paths, data, waiting = list[Path](), dict[str, Any](), [[path]]
    while waiting:
        chain = waiting.pop()
        paths.append(last := chain[-1])
        if last.resolve() in [earlier.resolve() for earlier in chain[:-1]]:
            raise ConfigError(f"Configurations extend each other in a circle: {told(chain)}.")
        here = read_yaml(last)
        names = here.pop("extends", None)
        for each in names if isinstance(names, list) else [] if names is None else [names]:
            wanted = "it should be the name of a YAML file, or a list of such"
            require(isinstance(each, str), f"{last}: extends cannot be {names!r}; {wanted}.", ConfigError)
            base = last.parent / each
            places = [folder / name for name in (each, f"{each}.yaml") for folder in (last.parent, CONFIGS)]
            file = next((p for p in places if p.is_file() and (p == base or not p.samefile(last))), None)
            if file is None:
                remedy = "the name is relative to the file that has it, or that of a shipped one"
                raise ConfigError(f"{last} extends {base}, but there is no such file; {remedy}.")
            waiting.append([*chain, file])
        data = _laid_over(here, data)
    return data, paths


def told(paths: Sequence[Path]) -> str:
    """Files that extend each other, for messages."""
    return " extends ".join(map(str, paths))


def _laid_over(base: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in data.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            value = _laid_over(merged[key], value)
        merged[key] = value
    return merged


def key_of(override: str) -> str:
    """The key that ``a.b=value`` sets, with its sections: ``a.b``."""
    return override.partition("=")[0].strip()


def parsed(override: str) -> tuple[str, Any]:
    """The key and the value, which is YAML, of ``a.b=value``."""
    key, equals, text = override.partition("=")
    if not equals or not all(key.strip().split(".")):
        raise ConfigError(
            f"--set {override}: write key=value, for instance --set rounds=20 or --set split.alpha=1."
        )
    return key.strip(), _parse(text, f"--set {override}")


def put(data: dict[str, Any], key: str, value: Any, said: str) -> None:
    """Set the key ``a.b`` in nested ``data``, in place; ``said`` is for messages."""
    *sections, name = key.strip().split(".")
    for depth, section in enumerate(sections, start=1):
        if data.get(section) is None:
            data[section] = {}
        data = data[section]
        if not isinstance(data, dict):
            fault = f"{said}: {'.'.join(sections[:depth])} has no keys of its own"
            raise ConfigError(f"{fault}; set it as a whole.")
    data[name] = copy.deepcopy(value)


def _parse(text: str, source: str) -> Any:
    try:
        depth = 0
        for event in yaml.parse(text, _Loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise RecursionError
        return yaml.load(text, _Loader)  # a SafeLoader
    except RecursionError:
        raise ConfigError(f"{source} is not valid YAML: values are nested too deeply.") from None
    except (ValueError, KeyError, AttributeError) as error:  # of PyYAML, for instance at a 13th month
        raise ConfigError(f"{source} is not valid YAML: a value does not fit its type ({error}).") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{source} is not valid YAML{place}: {problem}.") from None


CONFIGS = Path(__file__).parents[1] / "configs"


def shipped() -> dict[str, Path]:
    """The files by name, which is their place in the folder without `.yaml`; parts of others are left out."""
    files = sorted(path for path in CONFIGS.rglob("*.yaml") if path.parent.name != "shared")
    return {path.relative_to(CONFIGS).with_suffix("").as_posix(): path for path in files}


def file_of(text: str) -> str:
    """The path of a file that is there; of a shipped one, if ``text`` is its name; else ``text`` itself."""
    return text if Path(text).is_file() else str(shipped().get(text, text))


def purpose(file: Path) -> str:
    """The first sentence of the comment that a shipped file begins with."""
    lines = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines += [line.lstrip("# ")] * ("$schema=" not in line)  # a line for editors says nothing of it
    return re.split(r"(?<!App\.)(?<=\.) ", " ".join(lines), maxsplit=1)[0]
