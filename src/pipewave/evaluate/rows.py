"""Measured rows that shipped weights never saw: those in the package, and how they are cut from the whole data set."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from pipewave.measure.row_files import clock_mhz
from pipewave.measure.row_files import rows as measured_rows

Row = dict[str, Any]
GPU = "H200"
KEPT = ("key", "case", "impl", "protocol", "stack", "status", "latency_us", "config", "env", "spin_us", "spin_clocks")


def shipped_folder() -> Path:
    """Where the package keeps its rows and figures."""
    return Path(str(resources.files("pipewave") / "data" / "accuracy"))


def shipped() -> list[Row]:
    """The package's own held-out H200 rows."""
    return measured_rows(shipped_folder() / GPU.lower())


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
