"""Every error a user can meet, as one tree.

`BadInput` is a value that no answer exists for; its kinds say which. The others are of files, extras and predictions.
Messages name the field, the value and what would work. `code` is stable and meant for programs.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from importlib import import_module
from typing import Any


class PipewaveError(Exception):
    """Base of all errors raised on purpose.

    Args:
        message: names the field, the value and what would work.
        field: the offending field, None where no field is at fault.

    Attributes:
        code: stable word for programs, such as `unknown_gpu`.
    """

    code = "error"

    def __init_subclass__(cls) -> None:
        """The word of a kind is its name: `UnknownGPU` is `unknown_gpu`."""
        cls.code = vars(cls).get("code") or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field

    def to_dict(self) -> dict[str, str | None]:
        """The error for programs.

        Returns:
            `code`, `field` and `message` by name.
        """
        return {"code": self.code, "field": self.field, "message": self.message}


class BadInput(PipewaveError):
    """A value outside what can be answered."""

    code = "bad_value"


class UnknownField(BadInput):
    """A field name that does not exist."""


class MissingField(BadInput):
    """A needed field is absent."""


class UnknownGPU(BadInput):
    """No GPU of that name is known and no spec file lies there."""


class UnknownArchitecture(BadInput):
    """A compute capability whose traits nobody gave."""


class UnknownKernel(BadInput):
    """No kernel family of that name."""


class UnknownModel(BadInput):
    """No built-in model of that name and no config file lies there."""


class UnsupportedDtype(BadInput):
    """The GPU or the software stack has no kernel for this operand type."""


class UnsupportedModel(BadInput):
    """A model configuration holds something that changes the computation and is not modelled."""


class CannotShard(BadInput):
    """A tensor, pipeline or expert split does not divide the model."""


class DoesNotFit(BadInput):
    """More memory is needed than the GPUs have."""


class BadFile(PipewaveError):
    """A file that cannot be read, is truncated, or is not what it should be."""


class MissingExtra(PipewaveError):
    """A feature needs an optional dependency."""


class NotFinite(PipewaveError):
    """A prediction came out as NaN or infinity: it is refused instead of given."""


def extra(name: str, what: str, package: str) -> Any:
    """A module of an optional dependency. Raises MissingExtra, which says what needs it and what to install."""
    missing = name.partition(".")[0]
    try:
        import_module(missing)
        return import_module(name)
    except ImportError as problem:
        raise MissingExtra(f"{what} needs {missing}: pip install {package}", field=missing) from problem


def did_you_mean(word: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """Return ' did you mean X?' for the closest known word, or an empty string; likeness 1 is the word itself."""
    lowered = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=likeness)
    return f" did you mean {lowered[close[0]]}?" if close else ""


def meant_or_known(word: str, known: Iterable[str]) -> str:
    """The same, or all known words where none is close."""
    words = list(known)
    return did_you_mean(word, words) or " known: " + ", ".join(sorted(words))


def cause(problem: Exception) -> str:
    """Why a file could not be read or written, without its name, which the message begins with."""
    return getattr(problem, "strerror", None) or str(problem)
