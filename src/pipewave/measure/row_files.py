"""Rows for reading: from a store, or from the compact files a data set ships as.

A packed file is gzipped JSON with one list a column, so that repeated values compress; `kernels`, names included,
survive the round trip.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipewave.errors import BadFile
from pipewave.files import packaged, store

Row = dict[str, Any]
FORMAT = "pipewave-rows-1"
# Of a spin kernel beside its clocks, as `lab.microbench` finds it (`spin_overhead_us`); the first for other GPUs.
SPIN_LAUNCH_US = {"NVIDIA H200": 0.613, "NVIDIA H100 80GB HBM3": 0.870}
OTHER_SPIN_LAUNCH_US = SPIN_LAUNCH_US["NVIDIA H200"]
# Fastest over slowest rank below which one of them started late, unless they are no further apart than a barrier lets
# its ranks go: up to 8 µs where no host was late.
WAITED, SPREAD_US = 0.75, 10.0
KERNEL_FIELDS = ("name", "us", "grid", "block", "smem", "regs")


def rows(path: str | Path, *, statuses: Sequence[str] = ("ok",)) -> list[Row]:
    """Rows of a store, of a packed file, or of every packed file in a folder; the last row of a key wins. `kernels`:
    dicts of name, us, grid, block, smem, regs; `gpu`: what the environment says. BadFile for a damaged packed file.
    """
    found = (row for file in _files(path) for row in _rows_of(file))
    return [row for row in {row["key"]: row for row in found}.values() if row["status"] in statuses]


def environments(path: str | Path) -> dict[str, Row]:
    """Environments by the key that rows carry in `env`."""
    found: dict[str, Row] = {}
    for file in _files(path):
        source = unpack(file)["environments"] if file.suffix == ".gz" else store.read(file).of("env")
        found |= {environment["id"]: dict(environment) for environment in source}
    return found


def _files(path: str | Path) -> list[Path]:
    path = Path(path)
    if not path.exists():
        raise BadFile(f"no rows at {path}", field="store")
    return sorted(path.glob("*.json.gz")) if path.is_dir() else [path]


def _rows_of(file: Path) -> Iterator[Row]:
    if file.suffix == ".gz":
        packed = unpack(file)
        names, source, known = packed["names"], from_columns(packed["rows"]), packed["environments"]
    else:
        contents = store.read(file)
        names = {record["id"]: record["name"] for record in contents.of("name")}
        source, known = iter(contents.of("row")), contents.of("env")
    gpus = {environment["id"]: environment["gpu"] for environment in known if "gpu" in environment}
    for stored in source:
        row = {name: value for name, value in stored.items() if name != "t"}
        if row.get("env") in gpus:
            row["gpu"] = gpus[row["env"]]
        if "kernels" in row:
            kernels = [dict(zip(KERNEL_FIELDS, kernel, strict=True)) for kernel in row["kernels"]]
            row["kernels"] = [kernel | {"name": names.get(kernel["name"], kernel["name"])} for kernel in kernels]
        yield row


def unpack(file: Path) -> Row:
    """The document in a packed file. BadFile."""
    try:
        packed = json.loads(gzip.decompress(packaged.content(file)))
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise BadFile(f"{file}: not a packed row file ({error})") from error
    if not isinstance(packed, dict) or packed.get("format") != FORMAT:
        raise BadFile(f"{file}: not in format {FORMAT}")
    return packed


def from_columns(columns: Mapping[str, Sequence[Any]]) -> Iterator[Row]:
    """Rows of a packed table; columns `case.*` are fields of the case."""
    for values in zip(*columns.values(), strict=True):
        row = {name: value for name, value in zip(columns, values, strict=True) if value is not None}
        case = {name[5:]: row.pop(name) for name in [name for name in row if name.startswith("case.")]}
        yield {**row, "case": case}


def clock_mhz(row: Mapping[str, Any]) -> float | None:
    """SM clock right after the call, from a spin of a known number of clocks; None where the row has no spin."""
    spin_us, launch_us = row.get("spin_us"), SPIN_LAUNCH_US.get(row.get("gpu", ""), OTHER_SPIN_LAUNCH_US)
    return row["spin_clocks"] / (spin_us - launch_us) if spin_us else None


def started_together(row: Mapping[str, Any]) -> bool:
    """False for a collective of which some rank was waited for: its time is mostly the wait for the last to arrive."""
    slowest = row["latency_us"]
    fastest = row.get("fastest_rank_us", slowest)
    return bool(fastest >= WAITED * slowest or slowest - fastest < SPREAD_US)
