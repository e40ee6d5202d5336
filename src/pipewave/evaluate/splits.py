"""Held-out tables of a checkout: errors of members trained without the shapes, GPU or family they are scored on.

They come from `make train` and lie in train/tables as `<net>.<protocol>.json`: kind of split → `GPU · dtype` → figures.
`.reduced.json` beside one holds kinds that only a smaller run was scored on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipewave.errors import MissingExtra

TABLES = Path(__file__).resolve().parents[3] / "train" / "tables"
PROTOCOLS = ("graph", "cold", "profiler_warm")
KINDS = {
    "fold": "unseen shapes",
    "logo": "unseen GPU",
    "lofo": "unseen family",
    "few": "100 rows in training",
    "corrected": "corrected by 100 rows",
    "averaged": "both averaged",
}
FIGURES = ("rows", "mape", "median", "bias", "coverage", "width")
ALL = "macro mean"
Cell = Mapping[str, float | None]


def held_out(net: str, protocol: str, folder: Path = TABLES) -> dict[str, dict[str, Cell]]:
    """Kind of split → cell → figures; kinds that only a smaller run was scored on come from that."""
    full, small = (read(folder / f"{net}.{protocol}{suffix}.json") for suffix in ("", ".reduced"))
    return {kind: cells for kind, cells in small.items() if kind not in full} | full


def read(path: Path) -> dict[str, Any]:
    """A table, or nothing where there is none."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def nets(folder: Path = TABLES) -> list[str]:
    """Nets with tables. MissingExtra outside a checkout."""
    if not folder.is_dir():
        raise MissingExtra("the held-out tables lie in train/tables of a checkout of the repository")
    return sorted({path.name.partition(".")[0] for path in folder.glob("*.json")})


def table(folder: Path = TABLES) -> Iterator[dict[str, object]]:
    """One row a net, protocol, split and cell."""
    for net in nets(folder):
        for protocol in PROTOCOLS:
            for kind, cells in held_out(net, protocol, folder).items():
                for name, cell in cells.items():
                    labels = {"net": net, "protocol": protocol, "split": KINDS.get(kind, kind), "cell": name}
                    yield labels | {figure: cell.get(figure) for figure in FIGURES}
