"""JSON in and out: objects read from files, and answers as text, which refuses NaN and infinity."""

from __future__ import annotations

import json
import math
from typing import Any

from pipewave.errors import BadFile, NotFinite


def parsed(text: str, name: object, field: str, *, constants: bool = False) -> dict[str, Any]:
    """The JSON object in a file of that name, or BadFile for `field`. `constants`: NaN and Infinity are numbers."""
    try:
        found = json.loads(text, parse_constant=float if constants else _no_number)
    except (ValueError, RecursionError) as problem:
        raise BadFile(f"{name}: not valid JSON ({problem})", field=field) from problem
    if not isinstance(found, dict):
        raise BadFile(f"{name}: must hold a JSON object", field=field)
    return found


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a number")


def dumps(value: Any, indent: int | None = None) -> str:
    """A value as JSON. Raises NotFinite, naming the first field that holds NaN or infinity."""
    try:
        return json.dumps(value, allow_nan=False, indent=indent)
    except ValueError as problem:
        place = _not_finite(value, "")
        raise NotFinite(f"{place or 'the answer'} is not a finite number: nothing is answered", field=None) from problem


def _not_finite(value: Any, place: str) -> str:
    """Where the first number is that JSON has not; empty where there is none."""
    if isinstance(value, float):
        return "" if math.isfinite(value) else place or "the answer"
    if isinstance(value, dict):
        inner = ((f"{place}.{name}" if place else str(name), one) for name, one in value.items())
    elif isinstance(value, (list, tuple)):
        inner = ((f"{place}[{i}]", one) for i, one in enumerate(value))
    else:
        return ""
    return next((found for name, one in inner if (found := _not_finite(one, name))), "")
