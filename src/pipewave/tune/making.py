"""From a recording to a table: fit the laws, work out the short lists, keep ten anchors for the canary."""

from __future__ import annotations

from pathlib import Path

from pipewave.tune import cells, fitted
from pipewave.tune.check import canary
from pipewave.tune.recording import Recording
from pipewave.tune.table import Table, make, slug, write


def table_of(recording: Recording) -> Table:
    """Make the table of one recording (seconds, no GPU)."""
    made = fitted.fit(recording)
    return make(made, cells.build(made), recording.meta, canary(recording))


def write_table(recording: Recording, folder: Path) -> Path:
    """Make a table and write it as `folder / GPU / kernel.safetensors`; returns the path."""
    table = table_of(recording)
    path = folder / slug(table.meta["env"]["gpu"]) / f"{table.kernel}.safetensors"
    write(table, path)
    return path
