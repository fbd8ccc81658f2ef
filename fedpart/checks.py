"""Numbers, lists and options that people hand over, refused in one sentence where they are something else."""

from collections.abc import Callable, Iterable, Mapping, Set
from numbers import Integral, Real
from os import PathLike
from typing import Any, TypeGuard


class NetworkError(ValueError):
    """What a network, its hooks or a loss does cannot be trained, whatever the data are."""


class Misfit(ValueError):
    """Data that do not fit the network, whose IndexError ``error`` is; ``of``: whose they are."""

    def __init__(self, error: object, of: str = "") -> None:
        self.error = error
        super().__init__(
            f"The data{of} do not fit the network ({error}); every label must be below its number of "
            f"outputs, and every token below the size of its vocabulary."
        )


def require(holds: Any, otherwise: str, kind: type[Exception] = ValueError) -> None:
    """Raise an error, ``otherwise``, unless something holds."""
    if not holds:
        raise kind(otherwise)


def check_whole(name: str, value: Any, least: int, what: str = "a whole number") -> None:
    """Refuse what is no whole number of ``least`` or more, True and False among it."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) < 2**64:
        raise ValueError(f"{name} is {what}, at least {least}, got {value!r}.")


def is_number(value: Any) -> TypeGuard[float]:
    """Whether it is a real number, True and False excepted."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_list(value: Any) -> bool:
    """Whether it holds values in an order: a list, a tuple, an array, but no text, mapping or set."""
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping, Set))


def check_list(name: str, value: Any, of: str, such: str) -> None:
    """Refuse what is no list ``of`` something, ``such`` as an example."""
    if not is_list(value):
        raise ValueError(f"{name} is a list of {of}, such as {such}, got {value!r}; write a list.")


def check_texts(name: str, value: Any, of: str, such: str) -> None:
    """Refuse what is no list of texts."""
    check_list(name, value, of, such)
    for text in value:
        if not isinstance(text, str):
            raise ValueError(f"{name} is a list of {of}, such as {such}, got {text!r} in it; name it.")


_OPTIONS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("on_round", "on_report", "sizes"), ("a function", callable)),
    **dict.fromkeys(("average", "precision"), ("a text", lambda value: isinstance(value, str))),
    **dict.fromkeys(
        ("progress", "resume", "share_dropout_mask", "stratified", "channels_last", "learn_dropout"),
        ("True or False", lambda value: isinstance(value, bool)),
    ),
    "checkpoint": ("the path of a file", lambda value: isinstance(value, (str, PathLike))),
    "stacked": ("a mapping of layers", lambda value: isinstance(value, Mapping)),
}
_OR_NONE = ("on_round", "on_report", "sizes", "checkpoint", "stacked")


def shown(text: str) -> str:
    """Text with names from files or other machines for a terminal: what does not print there is ``?``."""
    return "".join(sign if sign.isprintable() or sign == "\n" else "?" for sign in text)


def check_options(**options: Any) -> None:
    """Refuse arguments of a call that are of another kind than their names say; others are left to others."""
    for name, value in options.items():
        what, fits = _OPTIONS.get(name, ("", lambda value: True))
        if not fits(value) and not (value is None and name in _OR_NONE):
            raise ValueError(f"{name} is {what}, got {value!r}.")
        if name == "samples":
            check_whole(name, value, 1, "a number of augmentation samples")
        if name == "hyperparameters":
            check_texts(name, value, "names of parameters", "[net.log_scale]")
