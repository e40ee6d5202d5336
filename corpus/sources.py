"""Every table of every source, and where the public corpus lies."""

from __future__ import annotations

import os
from pathlib import Path

from corpus import aiconfigurator, collectives, llmservingsim, measured, pipeweave, vidur
from corpus.frame import Table, repository

TABLES: tuple[Table, ...] = (
    *aiconfigurator.TABLES,
    *pipeweave.TABLES,
    *vidur.TABLES,
    *llmservingsim.TABLES,
    *collectives.TABLES,
    *measured.TABLES,
)


def data_dir(given: str | Path | None = None) -> Path:
    """The corpus folder: `given`, else `PIPEWAVE_DATA`, else `../shared/data` beside this repository."""
    return Path(given or os.environ.get("PIPEWAVE_DATA") or repository() / "../shared/data").resolve()


def tables(family: str) -> list[Table]:
    """The tables holding rows of one family."""
    return [table for table in TABLES if table.family == family]
