"""Measured rows that shipped weights never saw: those in the package, and how they are cut from the whole data set."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from pipewave.calls.families import CLASSES
from pipewave.evaluate.folds import held_out
from pipewave.files.store import Store
from pipewave.measure.pack import clock_mhz, environments, pack, started_together
from pipewave.measure.pack import rows as measured_rows

Row = dict[str, Any]
GPU = "H200"
KEPT = ("key", "case", "impl", "protocol", "stack", "status", "latency_us", "config", "env", "spin_us", "spin_clocks")


def shipped_folder() -> Path:
    """Where the package keeps its rows and figures."""
    return Path(str(resources.files("pipewave") / "data" / "accuracy"))


def shipped() -> list[Row]:
    """The package's own held-out H200 rows."""
    return measured_rows(shipped_folder() / GPU.lower())


def cut(source: Path, target: Path) -> int:
    """Write the held-out rows of a data set into a folder of packed files; how many there are.

    Left out: kernels that the contract does not name, rows flushed by reading, and collectives of which one rank was
    waited for, which say nothing about ranks that start together.
    """
    kept = [row for row in measured_rows(source) if _counts(row)]
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "rows") as store:
        store.extend({"t": "env"} | environment for environment in environments(source).values())
        store.extend({"t": "row"} | {name: row[name] for name in KEPT if name in row} for row in kept)
        pack(store.path, target)
    return len(kept)


def _counts(row: Mapping[str, Any]) -> bool:
    known = row["case"]["kernel"] in CLASSES and row.get("flush", "write") == "write"
    return bool(known and started_together(row) and held_out(row["case"]))


def cases(rows: list[Row]) -> Iterator[Row]:
    """A case of the contract for each row, with its software.

    What was known of the run makes a second one: a Triton configuration, the SM clock of a GEMM.
    """
    for row in rows:
        case = row["case"] | {"stack": row["stack"], "impl": row["impl"]}
        shown = {"case": case, "protocol": row["protocol"], "latency_us": row["latency_us"], "gpu": GPU}
        yield shown | {"impl": row["impl"]}
        if row["case"]["kernel"] == "gemm" and row["protocol"] == "cold" and (clock := clock_mhz(row)):
            yield shown | {"case": case | {"sm_clock_mhz": clock}, "impl": f"{row['impl']}, clock known"}
        if row.get("config"):
            known = case | {"config": dict(row["config"])}
            yield shown | {"case": known, "impl": f"{row['impl']}, config known"}
