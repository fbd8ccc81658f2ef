"""Extras: libraries that some features need, and not every installation has."""

from importlib import import_module
from typing import Any


class MissingExtra(ImportError):
    """A library is not installed; the message is one sentence with the line to type."""


def need(module: str, what: str, extra: str) -> Any:
    """Import a module that the extra ``fedpart[extra]`` brings.

    Args:
        module: its dotted name.
        what: who needs it, as the sentence begins, for instance ``fedpart search``.
        extra: one of ``[project.optional-dependencies]``.

    Raises:
        MissingExtra: the module, or one that it needs, is not installed, or cannot be imported here.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or module).partition(".")[0]
        raise MissingExtra(f'{what} needs {missing}: pip install "fedpart[{extra}]".') from error
    except ImportError as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise MissingExtra(
            f'{what} cannot use {module} as it is here ({reason}): pip install --upgrade "fedpart[{extra}]".'
        ) from error
