"""The committed figures: read, written, and compared with what the code gives today."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from pipewave.errors import BadFile
from pipewave.evaluate.score import Figures, Key
from pipewave.files import packaged

SCHEMA = 1
POINTS = 0.3  # drift that is not rounding
WATCHED = ("mape", "median", "bias", "coverage", "slower")
COUNTED = ("rows", "below_floor", "failed")

Cells = Mapping[Key, Figures]


def read(path: Path) -> dict[str, dict[Key, Figures]]:
    """Cells by part (`own`, `public`); BadFile when the file is not one of ours. No file holds no figures."""
    if not path.exists():
        return {}
    try:
        content = json.loads(packaged.content(path))
        if content["schema"] != SCHEMA:
            raise ValueError(f"schema {content['schema']}, this version reads {SCHEMA}")
        return {part: dict(map(_cell, cells)) for part, cells in content["parts"].items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadFile(f"{path}: not accuracy figures ({error})", field="figures") from error


def _cell(given: Mapping[str, object]) -> tuple[Key, Figures]:
    names = {"family", "gpu", "dtype", "stack", "impl", "protocol"}
    key = Key(**{name: str(value) for name, value in given.items() if name in names})
    return key, Figures(**{name: value for name, value in given.items() if name not in names})  # type: ignore[arg-type]


def write(path: Path, parts: Mapping[str, Cells]) -> None:
    """Write parts as JSON, one cell a line so that a change shows in a diff."""
    body = ",\n".join(
        f' "{part}": [\n  ' + ",\n  ".join(json.dumps(row) for row in table(cells)) + "\n ]"
        for part, cells in sorted(parts.items())
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{{"schema": {SCHEMA}, "parts": {{\n{body}\n}}}}\n', encoding="utf-8")


def table(cells: Cells) -> list[dict[str, object]]:
    """One flat row a cell; figures that cannot be had are null."""
    return [asdict(key) | {name: _finite(v) for name, v in asdict(found).items()} for key, found in cells.items()]


def _finite(value: float) -> float | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def drifts(committed: Cells, today: Cells) -> list[str]:
    """A line for every watched figure that moved by more than POINTS, every count that changed, every cell missing."""
    lines = [f"{_name(key)}: gone" for key in committed if key not in today]
    lines += [f"{_name(key)}: new" for key in today if key not in committed]
    shared = [key for key in committed if key in today]
    return lines + [f"{_name(key)}: {line}" for key in shared for line in _moved(committed[key], today[key])]


def _moved(old: Figures, new: Figures) -> Iterator[str]:
    for name in (*WATCHED, *COUNTED):
        before, after = getattr(old, name), getattr(new, name)
        if before is None or after is None or math.isnan(after):
            continue
        if abs(after - before) > (POINTS if name in WATCHED else 0):
            yield f"{name} {before} became {after}"


def _name(key: Key) -> str:
    return " · ".join(asdict(key).values())
