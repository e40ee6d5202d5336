"""Words of the shell commands that give the numbers of an answer."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any


def line(words: Sequence[str], options: Mapping[str, Any]) -> str:
    """A command of words and of options that are given, quoted for a shell."""
    flags = [word for name, value in options.items() if value is not None for word in (_flag(name), _text(value))]
    return shlex.join([*words, *flags])


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
