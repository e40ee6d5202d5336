"""Predictions beside our own measured rows, family by family."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def compare(folder: Path) -> list[dict[str, Any]]:
    """One row a family and protocol: how many rows, median measured and predicted time, error, interval coverage."""
    raise NotImplementedError(folder)
