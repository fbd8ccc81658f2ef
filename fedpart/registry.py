"""Names for things that a user may swap: methods, models, data sets, transforms."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_FEW = 12  # names that are not too many to list


def nearest(name: str, known: Iterable[str]) -> str:
    """``did you mean 'x'? Known: x, y.``: all known names are listed if they are few, or none is near.

    Near is what is spelled alike, or has ``name`` for its initials (``lr`` of ``learning_rate``).
    """
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    near = near or [other for other in known if name == "".join(word[:1] for word in other.split("_"))]
    if near and len(known) > _FEW:
        return f"did you mean {near[0]!r}?"
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}Known: {', '.join(known) or 'none'}."


class Registry(Mapping[str, T], Generic[T]):
    """A mapping from names to objects of one kind, open to ``package.module:attribute``.

    Example:
        >>> MODELS = Registry("model")
        >>> @MODELS.register("mlp")
        ... def mlp(num_classes): ...
    """

    def __init__(self, kind: str, items: Mapping[str, T] | None = None) -> None:
        self.kind = kind
        self._items: dict[str, T] = dict(items or {})

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator: make the decorated object known as ``name``."""

        def add(item: T) -> T:
            if name in self._items and self._items[name] is not item:
                raise ValueError(f"A {self.kind} named {name!r} is already registered; choose another name.")
            self._items[name] = item
            return item

        return add

    def resolve(self, name: str) -> T:
        """The object called ``name``, or imported from ``"package.module:attribute"``.

        Raises:
            ValueError: the name is unknown, or the import fails; the message says which and what is near.
        """
        if name in self._items:
            return self._items[name]
        if ":" not in name:
            raise ValueError(
                f"Unknown {self.kind} {name!r}: {nearest(name, self._items)} "
                f"Your own is given as 'package.module:name'."
            )
        module, _, attribute = name.partition(":")
        try:
            found: Any = importlib.import_module(module)
            for part in attribute.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            raise ValueError(
                f"The {self.kind} {name!r} cannot be imported ({error}); check the spelling, and that the "
                f"module's folder is the configuration's or the current one, installed, or on PYTHONPATH."
            ) from error
        return found  # type: ignore[no-any-return]

    def make(self, name: str, options: Mapping[str, Any]) -> Any:
        """What the class or function called ``name``, see :meth:`resolve`, makes of its options.

        Raises:
            ValueError: an unknown name, or options that it does not take.
        """
        build: Any = self.resolve(name)
        try:
            inspect.signature(build).bind(**options)
        except TypeError as error:
            raise ValueError(
                f"The {self.kind} {name!r} does not take the options {dict(options)} "
                f"({error}); its options are {inspect.signature(build)}."
            ) from error
        try:
            return build(**options)
        except TypeError as error:
            raise ValueError(
                f"The {self.kind} {name!r} cannot be made with the options {dict(options)}: {error}."
            ) from error

    def names(self) -> list[str]:
        """Registered names, sorted."""
        return sorted(self._items)

    def __getitem__(self, name: str) -> T:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)
