"""What a caller may not know of a launch: how a router spreads its tokens, how long the longest sequence is.

Anchors drew their loads at random. What they drew is kept as two halves, a light and a heavy one, so that a choice
without the load minimises the expected time, and not the time of one load that never comes: a large block that holds
every expert's expected tokens needs a second wave as soon as one expert is popular.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.tune.mapping import Values, active_experts, expert_rows
from pipewave.tune.measured import Measured
from pipewave.tune.shapes import family

Floats = NDArray[np.float64]
BRINGS_LOAD = ("rows", "rows_by", "longest")  # a shape with one of these brings its load
REACH = 0.7  # bins: how far away anchors still tell a bin


@dataclass(frozen=True, slots=True)
class Loads:
    """Light and heavy half of the anchors' loads, by bin of the shape (`bins`).

    `ratio` [2, bins, columns]: MoE, one column for experts in use and one for the rows of blocks of each of `sizes`,
    over their expected values; decode, one column: the longest sequence over the mean.
    """

    sizes: NDArray[np.int64]
    ratio: Floats

    def states(self, kernel: str, shape: Values, config: Values) -> list[dict[str, Floats]]:
        """Return both halves at shapes [s, 1] as the load columns of `measured.Measured`."""
        at = np.minimum(bins(kernel, shape), self.ratio.shape[1] - 1)
        if family(kernel) == "decode":
            return [{"longest": np.rint(shape["kv_len"] * half[at])} for half in self.ratio]
        active, rows = expected(shape, config["BLOCK_M"])
        column = 1 + np.searchsorted(self.sizes, config["BLOCK_M"])
        return [{"active": active * half[at, :1], "rows": rows * half[at][:, column]} for half in self.ratio]


def knows_load(shape: Values) -> bool:
    """Whether a shape brings its load."""
    return any(name in shape for name in BRINGS_LOAD)


def expected(shape: Values, block_m: Any) -> tuple[Any, Any]:
    """Return experts in use and rows of blocks as every expert being as likely makes them, in expectation."""
    active = active_experts(shape["m"], shape["e"], shape["top_k"])
    return active, expert_rows(shape["m"] * shape["top_k"], active, block_m)


def bins(kernel: str, shape: Values) -> NDArray[np.int64]:
    """Bin [s] of each shape: half octaves of tokens an expert, octaves of the batch; as bit lengths, like cells."""
    if family(kernel) == "decode":
        return np.asarray(np.frexp(np.asarray(shape["batch"], float).reshape(-1))[1], np.int64)
    each = np.asarray(shape["m"] * shape["top_k"] // shape["e"], float).reshape(-1)
    return np.asarray(np.frexp(each**2)[1], np.int64)


def held(anchors: Measured) -> Loads | None:
    """Return the loads of drawn anchors; None where a kernel has none."""
    if not anchors.load:
        return None
    shape, kind = anchors.columns(load=False), family(anchors.kernel)
    sizes = np.unique(anchors.config["BLOCK_M"]) if kind == "moe" else np.zeros(0, np.int64)
    if kind == "decode":
        found = anchors.load["longest"] / shape["kv_len"]
    else:
        one_each = [int(np.flatnonzero(anchors.config["BLOCK_M"] == size)[0]) for size in sizes]
        active, rows = expected(shape, sizes)
        found = np.concatenate([anchors.load["active"] / active, anchors.load["rows"][:, one_each] / rows], axis=1)
    light, heavy = halves(bins(anchors.kernel, shape), found)
    if kind == "decode":
        light, heavy = np.ones_like(light), np.maximum(light + heavy - 1.0, 1.0)  # half of all batches are even
    return Loads(sizes, np.stack([light, heavy]))


def halves(at: NDArray[np.int64], found: Floats) -> tuple[Floats, Floats]:
    """Mean less and plus one sigma of what was found [s, columns] around each bin 0 … max: two of [bins, columns]."""
    far = (np.arange(at.max() + 1)[:, None] - at) / REACH
    weight = np.exp(-0.5 * (far**2 - (far**2).min(axis=1, keepdims=True)))
    weight /= weight.sum(axis=1, keepdims=True)
    mean = weight @ found
    sigma = np.sqrt(np.einsum("bs,bsc->bc", weight, (found[None] - mean[:, None]) ** 2))
    return mean - sigma, mean + sigma
