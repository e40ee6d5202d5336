"""One short file for each figure that the documentation quotes; `results` holds what they found."""

from __future__ import annotations

from typing import Any


def rounded(value: Any, digits: int | None = 4, places: int = 4) -> Any:
    """Numbers of nested dicts and lists to so many significant digits, or `places` after the point where `digits` is
    None; none for NaN.
    """
    if isinstance(value, float):
        number = round(value, places) if digits is None else float(f"{value:.{digits}g}")
        return number if number == number else None
    if isinstance(value, dict):
        return {name: rounded(part, digits, places) for name, part in value.items()}
    return [rounded(part, digits, places) for part in value] if isinstance(value, (list, tuple)) else value
