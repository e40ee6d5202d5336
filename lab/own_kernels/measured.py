"""A recording as arrays to fit and to score: shapes down, configurations across, one column a half of the repeats."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lab.own_kernels.recording import Recording
from lab.own_kernels.shapes import lengths
from pipewave.tune.law.anchors import peaks_of
from pipewave.tune.shipped_kernels import family
from pipewave.tune.user_kernels.device import Built
from pipewave.tune.user_kernels.measuring import HICCUP, resident

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Measured:
    """Shapes of some roles with their times.

    `shape`: field → [s]; `config`: parameter → [c]; `halves` [s, c, 2] µs, median of each half, NaN where not timed;
    `us` [s, c]: both halves together without disturbed launches; `resident` [c]: blocks an SM holds at once.
    `load`: what is known of a launch beyond its shape, as columns [s]. MoE: `active` experts and `rows_16`, …: blocks
    of so many rows, by the routing that was drawn. Decode: `longest` sequence.
    """

    kernel: str
    shape: dict[str, NDArray[np.int64]]
    config: dict[str, NDArray[np.int64]]
    halves: Floats
    us: Floats
    resident: NDArray[np.int64]
    load: dict[str, Floats]

    def take(self, index: NDArray[np.int64]) -> Measured:
        """Keep some shapes."""
        shape = {name: values[index] for name, values in self.shape.items()}
        load = {name: values[index] for name, values in self.load.items()}
        return Measured(self.kernel, shape, self.config, self.halves[index], self.us[index], self.resident, load)


def medians(recording: Recording, chosen: NDArray[np.int64]) -> Floats:
    """Median µs of each (shape, configuration, half): [len(chosen), c, 2], NaN where there is none."""
    count = len(recording.configs)
    position = np.full(len(recording.shapes), -1)
    position[chosen] = np.arange(len(chosen))
    here = position[recording.row_shape]
    keep = here >= 0
    key = (here[keep] * count + recording.row_config[keep]) * 2 + recording.row_half[keep]
    us = recording.row_us[keep].astype(float)
    order = np.lexsort((us, key))
    us, size = us[order], np.bincount(key, minlength=len(chosen) * count * 2)
    start = np.cumsum(size) - size
    some = size > 0
    out = np.full(len(size), np.nan)
    out[some] = (us[(start + (size - 1) // 2)[some]] + us[(start + size // 2)[some]]) / 2
    return out.reshape(len(chosen), count, 2)


def undisturbed(halves: Floats) -> Floats:
    """Mean of the halves, without one that a hiccup hit."""
    low = np.fmin(halves[..., 0], halves[..., 1])
    kept = np.where(halves > HICCUP * low[..., None], np.nan, halves)
    total, number = np.nansum(kept, axis=-1), np.sum(np.isfinite(kept), axis=-1)
    return np.where(number > 0, total / np.maximum(number, 1), np.nan)


def measured(recording: Recording, *roles: int) -> Measured:
    """Gather the shapes of some roles (`recording.TEST`, `ANCHOR`)."""
    names = recording.meta["names"]
    config = {name: recording.configs[:, i].astype(np.int64) for i, name in enumerate(names)}
    chosen = np.flatnonzero(np.isin(recording.role, roles))
    shape = {name: recording.shapes[chosen, i] for i, name in enumerate(recording.meta["fields"])}
    halves = medians(recording, chosen)
    built = [Built(int(smem), int(registers)) for smem, registers, _ in recording.built]
    held = resident(built, config["num_warps"], peaks_of("NVIDIA H200"))
    kernel = recording.meta["kernel"]
    load = {}
    if family(kernel) == "moe":
        load = routed_rows(recording.counts[chosen], config["BLOCK_M"])
    elif family(kernel) == "decode":
        mean, longest = cached(shape)
        shape["kv_len"], load = np.rint(mean).astype(np.int64), {"longest": longest}
    return Measured(kernel, shape, config, halves, undisturbed(halves), held, load)


def cached(shape: dict[str, NDArray[np.int64]]) -> tuple[Floats, Floats]:
    """Mean [s] and longest [s] of the sequence lengths that each decode shape drew around its nominal `kv_len`."""
    rows = zip(*(values.tolist() for values in shape.values()), strict=True)
    drawn = [lengths(dict(zip(shape, row, strict=True))) for row in rows]
    return np.array([some.mean() for some in drawn]), np.array([float(some.max()) for some in drawn])


def routed_rows(counts: NDArray[np.integer], block_m: NDArray[np.int64]) -> dict[str, Floats]:
    """Load columns [s] of routings, tokens of each expert [s, experts], for blocks of `block_m` rows."""
    rows = {f"rows_{size}": np.sum(-(-counts // size), axis=1).astype(float) for size in np.unique(block_m).tolist()}
    return {"active": np.sum(counts > 0, axis=1).astype(float)} | rows
