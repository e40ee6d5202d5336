"""Measured watts of kernels: steady rows of AIConfigurator, and loops of our own by a board's counter.

A row of the corpus is steady where its loop filled the second over which NVML averages: watts are written as a mean of
readings ten a second, whose number shows in the decimals. Our loops (`lab.board_energy`) have random operands and the
board's own counter: at the power limit their time says what the work costs. Work of products costs less at the lower
clocks there: their time is that of the first 30 ms after a rest, and says what they draw at least at full clocks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from corpus.cases import case_row
from corpus.frame import finish, gpu_name, repository
from corpus.sources import data_dir, tables
from pipewave.gpus import find

TABLES = ("gemm", "attention", "mla", "fused_moe")
LEAST_US = {"gemm": 60.0, "attention": 330.0, "mla": 330.0, "fused_moe": 1000.0}  # for loops of a second
MOST_ROWS = 3000  # of a file
STEADY_READINGS = 9
LOOPS = "data/measured/*/energy/*.json"
FITTED_UNTIL = "2026-11-24"  # loops of later days say how far off the fit is: another H200, and an H100
# n and k of Llama-3.1-8B's products, fitted whatever their day; those of 70B on eight GPUs beside them are not.
FITTED_PRODUCTS = {"8889a620": ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))}
POWER_CAP = 4  # of NVML's reasons to hold clocks back
PRODUCTS = ("gemm", "fused_moe")  # whose loops on the tensor cores it holds back
NOISY = ("2209d14e",)  # cards whose counter was read while it lagged: ±6 %


def readings(watts: pd.Series) -> Any:
    """The fewest readings, in milliwatts, whose mean a row's watts can be."""
    found = np.zeros(len(watts), int)
    for count in range(60, 0, -1):
        total = watts.to_numpy() * 1e3 * count
        found[np.abs(total - np.round(total)) < 1e-3] = count
    return found


def collected_rows(data: Path | None) -> Iterator[dict[str, Any]]:
    """Steady rows of the corpus as cases, with watts, µs and what they are distinguished by."""
    folder = data_dir(data)
    for name in TABLES:
        for table in tables(name):
            for file in table.files(folder) if table.source == "aiconfigurator" else ():
                yield from _of_file(table, name, file, folder)


def _of_file(table: Any, name: str, file: Path, folder: Path) -> Iterator[dict[str, Any]]:
    raw = table.read(file, folder)
    if "power" not in raw:
        return
    raw = raw[(raw["power"] > 0) & (raw["latency_us"] > LEAST_US[name]) & ~raw["flagged"].astype(bool)]
    raw = raw[readings(raw["power"]) >= STEADY_READINGS].reset_index(drop=True)
    if raw.empty:
        return
    rows = finish(raw, name, table.source).assign(watts=raw["power"], limit=raw["power_limit"])
    rows["gpu"] = [gpu_name(str(raw_gpu)) for raw_gpu in rows["raw_gpu"]]
    for given in rows.sample(min(len(rows), MOST_ROWS), random_state=0).to_dict("records"):
        row = case_row(name, given)
        if row is not None:
            yield row | {"watts": given["watts"], "group": str(given["group"]), "own": False}


def own_rows() -> Iterator[dict[str, Any]]:
    """Loops of random data; those of a card that was read too often carry no watts."""
    for file in sorted(repository().glob(LOOPS)):
        said = json.loads(file.read_text(encoding="utf-8"))
        if said["card"] in NOISY:
            continue
        for row in said["rows"]:
            small = row.get("case", {}).get("kernel") == "elementwise" and row["case"]["bytes_read"] < 64 << 20
            if row.get("data") == "random" and "power_w" in row and not small:
                case = {name: value for name, value in row["case"].items() if name != "impl"}
                gpu, shape = find(said["gpu"]), (case.get("n"), case.get("k"))
                products = FITTED_PRODUCTS.get(said["card"], ())
                capped = case["kernel"] in PRODUCTS and int(row["reasons"]) & POWER_CAP
                time = "burst_us" if capped else "latency_us"
                yield {"case": case, "gpu": gpu.name, "protocol": "cold", "latency_us": row[time],
                       "watts": row["power_w"], "group": file.stem, "own": True,
                       "loops": "products of served models" if "counters" in row else "own loops",
                       "fitted": said["date"] <= FITTED_UNTIL or shape in products}  # fmt: skip
