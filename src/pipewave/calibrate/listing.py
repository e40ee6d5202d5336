"""What calibrations there are, as rows: one a net and protocol of each file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pipewave.errors import BadFile
from pipewave.nets.calibration.file import load


def rows(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """GPU, net, protocol, rows and file of every correction; a file that cannot be used says why."""
    return [row for path in paths for row in _rows(path)]


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        saved = load(path)
    except BadFile as problem:
        yield {"GPU": "?", "net": "", "protocol": "", "rows": 0, "file": str(path), "state": problem.message}
        return
    for (net, protocol), correction in sorted(saved.corrections.items()):
        about = {"GPU": saved.gpu, "net": net, "protocol": protocol, "rows": correction.rows}
        yield about | {"file": str(path), "state": "in use"}
