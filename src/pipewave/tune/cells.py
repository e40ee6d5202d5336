"""Short lists: which configurations can win in each octave cell of the shape space, worked out ahead of time.

A shape's cell is the bit lengths of its coordinates less one: tiles are filled by the last of 2ᵏ, not by the first, so
a cell ends there. Within a cell the smoothed correction is taken as constant, so that a choice costs a dictionary
look-up and two or three laws.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipewave.tune.fitted import Fitted
from pipewave.tune.mapping import Values
from pipewave.tune.margin import defaults, with_margin
from pipewave.tune.shapes import family
from pipewave.tune.smooth import coordinates
from pipewave.tune.space import MOE_CROWDED, MOE_SWITCHES

Floats = NDArray[np.float64]
Columns = dict[str, NDArray[np.float64]]
Rng = np.random.Generator
ENOUGH, WORST = 0.002, 0.03  # stop at this mean and this worst loss
MOST = {"gemm": 6, "moe": 3, "prefill": 6, "decode": 6}  # candidates at most: a decision costs a microsecond for each
MOST_KNOWN = 6  # where a load is known: to count what it fills costs more than candidates do
FEW, SEEN = 8, 64  # samples of a cell that are hardly enough; that are looked at
KEEP_DEFAULT = 1.1  # the default stays a candidate wherever it is predicted within this factor


@dataclass(frozen=True, slots=True)
class Cells:
    """`key` [n] packed cells; `start` [n + 1] into `config` (candidates, best first) and `factor` (corrections)."""

    key: NDArray[np.int64]
    start: NDArray[np.int64]
    config: NDArray[np.int16]
    factor: NDArray[np.float16]


def _log(rng: Rng, low: float, high: float, count: int) -> NDArray[np.int64]:
    return np.asarray(np.rint(np.exp(rng.uniform(np.log(low), np.log(high), count))), np.int64)


def _rounded(rng: Rng, values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Round half of the values up to a multiple of some power of two, as most sizes in use are."""
    step = 1 << (rng.random(len(values)) * np.frexp(values)[1]).astype(np.int64)
    return np.where(rng.random(len(values)) < 0.5, values, -(-values // step) * step)


def _gemm(rng: Rng, count: int) -> dict[str, NDArray[np.int64]]:
    m, n, k = (_rounded(rng, _log(rng, 1, most, count)) for most in (16384, 512, 512))
    return {"m": m, "n": 64 * np.maximum(n, 4), "k": 64 * np.maximum(k, 4)}


def _moe(rng: Rng, count: int) -> dict[str, NDArray[np.int64]]:
    e = rng.choice((8, 16, 32, 60, 64, 72, 128, 160, 256), count)
    top_k = rng.choice((1, 2, 4, 6, 8), count)
    m, hidden, inter = (
        _rounded(rng, _log(rng, least, most, count)) for least, most in ((1, 16384), (8, 128), (1, 128))
    )
    return {"m": m, "e": e, "top_k": top_k, "hidden": 64 * hidden, "inter": 64 * inter}


def _heads(rng: Rng, count: int) -> dict[str, NDArray[np.int64]]:
    kv_heads = 1 << rng.integers(0, 6, count)
    group = rng.choice((1, 2, 4, 5, 6, 7, 8), count)
    return {"heads": kv_heads * group, "kv_heads": kv_heads}


def _prefill(rng: Rng, count: int) -> dict[str, NDArray[np.int64]]:
    q_len = _rounded(rng, _log(rng, 1, 16384, count))
    prefix = np.where(rng.random(count) < 0.5, 0, _log(rng, 16, 16384, count))
    return {"batch": _log(rng, 1, 64, count), "q_len": q_len, "kv_len": q_len + prefix, **_heads(rng, count)}


def _decode(rng: Rng, count: int) -> dict[str, NDArray[np.int64]]:
    return {"batch": _log(rng, 1, 512, count), "kv_len": _rounded(rng, _log(rng, 16, 131072, count)),
            **_heads(rng, count)}  # fmt: skip


_DRAWS: dict[str, Callable[[Rng, int], dict[str, NDArray[np.int64]]]] = {
    "gemm": _gemm, "moe": _moe, "prefill": _prefill, "decode": _decode
}  # fmt: skip


RULED = ("moe_w13", "moe_w2")  # their default switches within cells: each gets cells of its own, to be preferred in
# Leading coordinates that a cell takes in half octaves: as many as keep a table small.
HALVED = {"gemm": 3, "moe": 1, "prefill": 1, "decode": 2}


def key(kernel: str, shape: Values) -> int:
    """Pack a shape's cell into one integer: the bit lengths of its coordinates less one, of the first ones' squares."""
    packed, halved = 0, HALVED[family(kernel)]
    for i, value in enumerate(coordinates(kernel, shape)):
        less = int(value) - 1  # type: ignore[call-overload]
        packed = packed << 6 | int(less * less if i < halved else less).bit_length()
    if kernel in RULED:
        packed = packed << 4 | bisect_left(MOE_SWITCHES, shape["m"]) << 1 | (shape["m"] // shape["e"] > MOE_CROWDED)
    return packed


def keys(kernel: str, shape: Values) -> NDArray[np.int64]:
    """`key` of many shapes at once."""
    packed, halved = np.int64(0), HALVED[family(kernel)]
    for i, value in enumerate(coordinates(kernel, shape)):
        less = np.asarray(value, float).reshape(-1) - 1
        # The exponent of a float is the bit length of the integer.
        packed = packed << 6 | np.frexp(less * less if i < halved else less)[1].astype(np.int64)
    if kernel in RULED:
        m, e = (np.asarray(shape[name]).reshape(-1) for name in ("m", "e"))
        packed = packed << 4 | np.searchsorted(MOE_SWITCHES, m) << 1 | (m // e > MOE_CROWDED)
    return np.asarray(packed, np.int64)


def build(
    fitted: Fitted, samples: int = 400_000, seed: int = 0, keep_default: float = KEEP_DEFAULT
) -> tuple[Cells, Cells]:
    """Sample the domain, predict every configuration, and keep each cell's few that lose nothing worth having.

    Returns the lists for launches whose load is not known, and for those where it is; the same where there is none.
    """
    kind = family(fitted.kernel)
    drawn = _DRAWS[kind](np.random.default_rng(seed), samples)
    packed = keys(fitted.kernel, drawn)
    order = np.argsort(packed, kind="stable")
    names, start, size = np.unique(packed[order], return_index=True, return_counts=True)
    default = defaults(fitted.kernel, fitted.config, drawn)
    most, seen = (MOST[kind], MOST_KNOWN), SEEN if fitted.loads is None else SEEN // 2
    found: list[list[tuple[NDArray[np.int64], Floats]]] = []
    for first, count in zip(start.tolist(), size.tolist(), strict=True):
        index = order[first : first + min(count, seen)]
        columns = {field: values[index][:, None] for field, values in drawn.items()}
        scored = _scored(fitted, columns, default[index])
        # Where a load blurs times and margins are wide, the default is put ahead only after the list is made.
        found.append([
            _list(*some, most[known], keep_default, ahead=fitted.loads is None) for known, some in enumerate(scored)
        ])  # fmt: skip
    lists = [_joined(names, some) for some in zip(*found, strict=True)]
    return lists[0], lists[-1]


# log µs by the laws [s, c], log factors [s, c], defaults [s], margin
Scored = tuple[Floats, Floats, NDArray[np.int64], float]


def _scored(fitted: Fitted, columns: dict[str, NDArray[np.int64]], default: NDArray[np.int64]) -> list[Scored]:
    """Score samples: by the time to expect, then, where there is a load to tell, at each half of the loads."""
    factor = fitted.log_factor(columns) + fitted.sigma  # as `Fitted.upper_us`
    scored = [(np.log(fitted.law_us(columns)), factor, default, fitted.margin(known_load=False))]
    if fitted.loads is not None:
        laws = [fitted.work_us(work) for work in fitted.works(columns)]
        law, times = np.log(np.concatenate(laws)), len(laws)
        scored.append((law, np.tile(factor, (times, 1)), np.tile(default, times), fitted.margin(known_load=True)))
    return scored


def _list(
    law: Floats,
    factor: Floats,
    default: NDArray[np.int64],
    margin: float,
    most: int,
    keep_default: float,
    *,
    ahead: bool,
) -> tuple[NDArray[np.int64], Floats]:
    """Return a cell's candidates, those that are fast and the default, and their factors, with the margin in them."""
    with_margin_us = with_margin(factor, default, margin)
    lost = law + (with_margin_us if ahead else factor)
    lost -= lost.min(axis=1, keepdims=True)
    chosen = shortlist(lost, default, most, keep_default * (1.0 if ahead else np.exp(margin)))
    return chosen, np.exp(with_margin_us.mean(axis=0)[chosen])


def _joined(names: NDArray[np.int64], found: tuple[tuple[NDArray[np.int64], Floats], ...]) -> Cells:
    lengths = [len(chosen) for chosen, _ in found]
    return Cells(names, np.concatenate([[0], np.cumsum(lengths)]),
                 np.concatenate([c for c, _ in found]).astype(np.int16),
                 np.concatenate([f for _, f in found]).astype(np.float16))  # fmt: skip


def shortlist(
    lost: Floats, default: NDArray[np.int64], most: int, keep_default: float = KEEP_DEFAULT
) -> NDArray[np.int64]:
    """Pick configurations greedily until their best loses little anywhere (`lost` [s, c] = log µs over the best's).

    The default keeps a place where it is predicted near the best.
    """
    near = [int(d) for d, row in zip(default, lost, strict=True) if row[d] < np.log(keep_default)]
    kept = sorted(set(near))[:1]
    chosen: list[int] = []
    left = np.full(len(lost), np.inf)
    least = 1 if len(lost) >= FEW else 2  # few samples do not tell that one is enough
    while len({*chosen, *kept}) < most and (len(chosen) < least or left.mean() > ENOUGH or left.max() > WORST):
        score = (np.minimum(left[:, None], lost) + 1e-6 * lost).sum(axis=0)
        score[chosen] = np.inf
        chosen.append(int(score.argmin()))
        left = np.minimum(left, lost[:, chosen[-1]])
    return np.array(chosen + [config for config in kept if config not in chosen], np.int64)
