"""`python -m bench.tiles`: the tile the GEMM model would choose, against that in the kernel's name, on held-out rows.

cuBLAS on Hopper has some sixty tiles, the model five (and a slicing of k): a hit is the nearest of the five. What a
latency depends on is how often the tiles fill the GPU: the share of rows with the right number of waves stands beside.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

import pipewave as pw
from pipewave.evaluate.folds import held_out
from pipewave.kernels.base import Context
from pipewave.kernels.gemm.machine import machine
from pipewave.kernels.gemm.tiles import TILES, tiling
from pipewave.measure.pack import rows
from pipewave.physics.arith import SCALAR
from pipewave.traces.names import tile_of

DATA = Path(__file__).resolve().parents[1] / "data" / "measured" / "h200" / "gemm.json.gz"
Tile = tuple[int, int]


def nearest(tile: Tile) -> Tile:
    """The model's tile closest to one, by the logarithms of its sides."""
    return min(TILES, key=lambda own: sum(math.log(a / b) ** 2 for a, b in zip(own, tile, strict=True)))


def chosen(case: dict[str, Any], impl: str) -> Tile:
    """The model's fastest tile."""
    gpu = pw.find("H200")
    options = (("quantize", bool(case.get("quantize"))), ("tile", None))
    at = machine(Context(gpu, case["dtype"], "cold", "vllm-0.22.1", impl, options))
    seconds = tiling(float(case["m"]), float(case["n"]), float(case["k"]), at, SCALAR).seconds
    return TILES[int(np.argmin(seconds))]


def waves(case: dict[str, Any], tile: Tile) -> int:
    """How often the tiles of a product fill the card."""
    tiles = math.ceil(case["m"] / tile[0]) * math.ceil(case["n"] / tile[1])
    return math.ceil(tiles / pw.find("H200").sms)


def compare() -> dict[str, dict[str, float]]:
    """By type: rows, share of nearest tiles chosen, share with the right number of waves, and within one of it."""
    found: dict[str, list[tuple[bool, int]]] = {}
    for row in rows(DATA):
        tiles = [tile for kernel in row["kernels"] if "nvjet" in kernel["name"] and (tile := tile_of(kernel["name"]))]
        if row["protocol"] == "cold" and held_out(row["case"]) and len(tiles) == 1:
            ran, ours = tiles[0][:2], chosen(row["case"], row["impl"])
            off = abs(waves(row["case"], ran) - waves(row["case"], ours))
            found.setdefault(row["case"]["dtype"], []).append((ours == nearest(ran), off))
    return {dtype: _shares(each) for dtype, each in sorted(found.items())}


def _shares(each: list[tuple[bool, int]]) -> dict[str, float]:
    hit, off = np.array(each).T
    return {
        "rows": len(each),
        "nearest tile %": round(100 * float(hit.mean()), 1),
        "waves right %": round(100 * float((off == 0).mean()), 1),
        "waves within one %": round(100 * float((off <= 1).mean()), 1),
    }


if __name__ == "__main__":
    print(json.dumps(compare(), indent=1))
