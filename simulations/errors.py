"""Errors that several rooms raise; the message of each is one sentence for the user."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


class ConfigError(ValueError):
    """A configuration does not fit."""


class RunError(RuntimeError):
    """An experiment cannot go on, for a reason outside of its clients."""


class DiskFull(RunError):
    """There is no room for what the experiment has found."""


@contextmanager
def one_sentence(
    becomes: Callable[[str], Exception] = ConfigError,
    expected: tuple[type[Exception], ...] = (ValueError, TypeError, OSError, ImportError),
) -> Iterator[None]:
    """What does not fit in the user's configuration, data or files becomes an error of one sentence."""
    try:
        yield
    except expected as error:
        raise becomes(str(error) or type(error).__name__) from error


@contextmanager
def as_written(folder: Path) -> Iterator[None]:
    """What the files of a folder hold, and no run writes, becomes a ConfigError, whatever it breaks."""
    try:
        yield
    except (ConfigError, UnicodeEncodeError):
        raise
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ConfigError(
            f"The files in {folder} hold what no run writes ({reason}); put them back as they were."
        ) from error
