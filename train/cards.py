"""Cards of weights that ship and tables beside the code: where they are, how they are read and written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipewave.nets.weights_metadata import Interval

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / ".cache" / "runs"
WEIGHTS = ROOT / "src" / "pipewave" / "data" / "weights"
TABLES = Path(__file__).with_name("tables")


def read(path: Path) -> dict[str, Any]:
    """A JSON object."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def write(path: Path, content: Any) -> Path:
    """Write JSON as cards and tables have it; the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def put(path: Path, found: Mapping[str, Interval]) -> str:
    """Put intervals into a card beside its others; what they are."""
    card = read(path)
    card["intervals"] |= {name: one.given() for name, one in found.items()}
    write(path, card)
    return f"{path.stem}: " + ", ".join(f"{k} {v}" for k, v in found.items())
