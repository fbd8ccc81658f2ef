"""Names for things that a user may swap: methods, models, data sets, transforms."""

import difflib
import functools
import importlib
import inspect
import os
import pkgutil
import re
import site
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
_FEW = 12  # names that are not too many to list
_FOREIGN = re.compile(r"(?!hf:)[^\W\d][\w.-]*:[^\W\d][\w.]*")  # package.module:attribute
FOLDERS: list[str] = []
"""Where modules that are named so are looked for first; not before one is named and may be imported."""
_LIBRARY = os.path.dirname(os.__file__)
_HOMES = ("__module__", "__self__")  # of a callable
_OURS = ("fedpart", "simulations")


def import_files(package: str, path: Iterable[str]) -> None:
    """Import every file of a package, where each registers itself."""
    for file in pkgutil.iter_modules(path):
        importlib.import_module(f"{package}.{file.name}")


class _All:
    def __contains__(self, name: object) -> bool:
        return True


_ALL = _All()
_named: set[str] = set()  # by the user of this process
_allowed: ContextVar[Container[str] | None] = ContextVar("allowed", default=None)  # None: the user names them


@contextmanager
def trusting(code: bool | None) -> Iterator[None]:
    """Within this context names of the form ``package.module:attribute`` come from a folder of results.

    Args:
        code: whether they may be imported. None: as before; where nothing was said, those alone that the user
            of this process has named as well.
    """
    allowed = (_ALL if code else frozenset[str]()) if code is not None else _allowed.get()
    token = _allowed.set(_named if allowed is None else allowed)
    try:
        yield
    finally:
        _allowed.reset(token)


def reading() -> bool:
    """Whether names come from a folder of results, see :func:`trusting`."""
    return _allowed.get() is not None


def vouch(data: Any) -> None:
    """Note that this user has run the names in plain data, as if a configuration named them."""
    _named.update(foreign(data))


def home(module: str) -> str | None:
    """The folder from which a module's package was imported, without links; None: not from a file."""
    top = sys.modules.get(module.partition(".")[0])
    place = next(iter(getattr(top, "__path__", ())), None) or getattr(top, "__file__", None)
    return None if place is None else os.path.dirname(os.path.realpath(place))


def installed(module: str) -> bool:
    """Whether a module, by name, is of an installed package, this one included, or of the interpreter."""
    places = {os.path.realpath(place) for place in (*site.getsitepackages(), site.getusersitepackages())}
    return module.partition(".")[0] in _OURS or home(module) in {None, *places}


def admit(data: Any, folder: str | None = None) -> None:
    """Refuse plain data in which there is a name, as a text or a key, that may not be imported.

    Args:
        folder: in which modules are looked for first, if all may be imported.

    Raises:
        ValueError: names it.
    """
    allowed, names = _allowed.get(), [*foreign(data)]
    for name in names:
        if allowed is None:
            _named.add(name)
        elif name not in allowed:
            unasked = f"{name!r} is code, and code that a folder names is not run unasked"
            trust = "if you trust who has made the folder, add --trust-code (in Python trust_code=True)."
            raise ValueError(f"{unasked}; {trust}")
    if allowed is None or allowed is _ALL:
        for place in (*(FOLDERS if names else ()), folder):
            if place is not None and place not in sys.path:
                sys.path.insert(0, place)


def foreign(data: Any) -> Iterator[str]:
    """The texts in plain data, keys among them, that have the form ``package.module:attribute``."""
    if isinstance(data, str):
        yield from filter(_FOREIGN.fullmatch, data.split("+"))  # as in method: fedavg+mine:Way
    elif isinstance(data, Mapping | list | tuple):
        for part in (*data, *data.values()) if isinstance(data, Mapping) else data:
            yield from foreign(part)


def nearest(name: str, known: Iterable[str]) -> str:
    """``did you mean 'x'? Known: x, y.``: all known names are listed if they are few, or none is near.

    Near is what ``name`` ends in (``rounds`` of ``num_rounds``), what is spelled alike, or has ``name`` for
    its initials (``lr`` of ``learning_rate``)."""
    known = sorted(known)
    near = [other for other in known if name.endswith(f"_{other}")]
    near = near or difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    near = near or [other for other in known if name == initials(other)]
    if near and len(known) > _FEW:
        return f"did you mean {near[0]!r}?"
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}Known: {', '.join(known) or 'none'}."


def initials(name: str) -> str:
    """``lr`` of ``learning_rate``."""
    return "".join(word[:1] for word in name.split("_"))


class Registry(dict[str, T]):
    """A mapping from names to objects of one kind, open to ``package.module:attribute``.

    Example:
        >>> MODELS = Registry("model")
        >>> @MODELS.register("mlp")
        ... def mlp(num_classes): ...
    """

    def __init__(
        self, kind: str, items: Mapping[str, T] | None = None, makes: tuple[type, ...] = (object,)
    ) -> None:
        super().__init__(items or {})
        self.kind, self.makes = kind, makes  # of a user's own, the classes, and what functions return

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator: make the decorated object known as ``name``."""

        def add(item: T) -> T:
            if self.setdefault(name, item) is not item:
                raise ValueError(f"A {self.kind} named {name!r} is already registered; choose another name.")
            return item

        return add

    def resolve(self, name: str) -> T:
        """The object called ``name``, or imported from ``"package.module:attribute"``.

        Raises:
            ValueError: the name is unknown, or the import fails; the message says which and what is near.
        """
        if not isinstance(name, str):
            raise ValueError(f"The {self.kind} is a name, got {name!r}: {nearest('', self)}")
        if name in self:
            return self[name]
        if ":" not in name:
            form = "Your own is given as 'package.module:name'."
            raise ValueError(f"Unknown {self.kind} {name!r}: {nearest(name, self)} {form}")
        module, _, attribute = name.partition(":")
        try:
            if not _FOREIGN.fullmatch(name):
                raise ImportError("it is not of the form package.module:name")
            admit(name)
            found: Any = importlib.import_module(module)
            for part in attribute.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            raise ValueError(
                f"The {self.kind} {name!r} cannot be imported ({error}); check the spelling, and that the "
                f"module's folder is the configuration's or the current one, installed, or on PYTHONPATH."
            ) from error
        if (what := self._misfit(module, found, reading() and name not in _named)) is not None:
            raise ValueError(f"{name!r} is {what}, and no {self.kind}; give the name of one.")
        return found  # type: ignore[no-any-return]

    def _misfit(self, module: str, found: Any, strict: bool) -> str | None:
        """What is found in place of one of this kind, before anything calls it; None: it may be one.

        What a folder names (``strict``) in an installed package must tell that it is."""
        if not callable(found):
            return f"a {type(found).__name__}"
        while isinstance(found, functools.partial):
            found = found.func
        if any(map(_is_standard, (module, *(getattr(found, name, None) for name in _HOMES)))):
            return "a part of Python"
        strict &= any(map(installed, (module, str(getattr(found, "__module__", None)))))
        if strict and self.makes == (object,):
            return "of an installed package"
        if isinstance(found, type):
            return None if issubclass(found, self.makes) else f"the class {found.__name__}"
        makes = tuple(kind for kind in self.makes if kind is not type(None)) if strict else self.makes
        try:
            hint = get_type_hints(found)["return"]
            union = get_origin(hint) in (Union, UnionType)
            kinds = [get_origin(kind) or kind for kind in (get_args(hint) if union else [hint])]
            fits = any(kind is not Any and issubclass(kind, makes) for kind in kinds)
            fits |= not strict and (Any in kinds or any(issubclass(makes[0], kind) for kind in kinds))
        except Exception:  # it does not tell, or in words that are no classes
            return "a function of an installed package that does not say what it returns" if strict else None
        return None if fits else f"a function that returns {inspect.formatannotation(hint)}"

    def make(self, name: str, options: Mapping[str, Any]) -> Any:
        """What the class or function called ``name``, see :meth:`resolve`, makes of its options.

        Raises:
            ValueError: an unknown name, or options that it does not take.
        """
        build: Any = self.resolve(name)
        try:
            inspect.signature(build).bind(**options)
        except TypeError as error:
            what, takes = f"The {self.kind} {name!r} does not take the options", inspect.signature(build)
            raise ValueError(f"{what} {dict(options)} ({error}); its options are {takes}.") from error
        try:
            return build(**options)
        except TypeError as error:
            what = f"The {self.kind} {name!r} cannot be made with the options {dict(options)}"
            raise ValueError(f"{what}: {error}.") from error

    def names(self) -> list[str]:
        """Registered names, sorted."""
        return sorted(self)


def _is_standard(home: Any) -> bool:
    """Whether a module, by name, or what a method is of, is of Python's standard library."""
    module = home if isinstance(home, str) else str(getattr(home, "__module__", ""))
    file = getattr(sys.modules.get(module), "__file__", None) or os.__file__
    return module.partition(".")[0] in sys.stdlib_module_names and file.startswith(_LIBRARY)
