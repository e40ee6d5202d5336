"""Short lists: which configurations can win in each octave cell of the shape space, worked out ahead of time.

A shape's cell is the bit lengths of its coordinates less one: tiles are filled by the last of 2ᵏ, not by the first, so
a cell ends there. Within a cell the smoothed correction is taken as constant, so that a choice costs a dictionary
look-up and two or three laws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipewave.tune.fitted import Fitted
from pipewave.tune.mapping import Values
from pipewave.tune.shapes import family
from pipewave.tune.smooth import coordinates
from pipewave.tune.space import space

Floats = NDArray[np.float64]
Columns = dict[str, NDArray[np.float64]]
Rng = np.random.Generator
ENOUGH, WORST = 0.002, 0.03  # stop at this mean and this worst loss
MOST = {"gemm": 5, "moe": 3, "prefill": 5, "decode": 5}  # candidates at most: a decision costs a microsecond for each
FEW, SEEN = 8, 64  # samples of a cell that are hardly enough; that are looked at
KEEP_DEFAULT = 1.1  # the default stays a candidate wherever it is predicted within this factor
PREFER_DEFAULT = 0.02  # and is left only for what is predicted to gain more: anchors left out lose nothing by it


@dataclass(frozen=True, slots=True)
class Cells:
    """`key` [n] packed cells; `start` [n + 1] into `config` (candidates, best first) and `factor` (corrections)."""

    key: NDArray[np.int64]
    start: NDArray[np.int64]
    config: NDArray[np.int16]
    factor: NDArray[np.float32]


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
    kv_len = _rounded(rng, _log(rng, 16, 131072, count))
    ragged = np.where(rng.random(count) < 0.5, 1.0, rng.uniform(1.0, 1.6, count))
    return {"batch": _log(rng, 1, 512, count), "kv_len": kv_len, **_heads(rng, count),
            "longest": np.rint(kv_len * ragged).astype(np.int64)}  # fmt: skip


_DRAWS: dict[str, Callable[[Rng, int], dict[str, NDArray[np.int64]]]] = {
    "gemm": _gemm, "moe": _moe, "prefill": _prefill, "decode": _decode
}  # fmt: skip


# Leading coordinates that a cell takes in half octaves: as many as keep a table small.
HALVED = {"gemm": 3, "moe": 1, "prefill": 1, "decode": 2}


def key(kernel: str, shape: Values) -> int:
    """Pack a shape's cell into one integer: the bit lengths of its coordinates less one, of the first ones' squares."""
    packed, halved = 0, HALVED[family(kernel)]
    for i, value in enumerate(coordinates(kernel, shape)):
        less = int(value) - 1  # type: ignore[call-overload]
        packed = packed << 6 | int(less * less if i < halved else less).bit_length()
    return packed


def keys(kernel: str, shape: Values) -> NDArray[np.int64]:
    """`key` of many shapes at once."""
    packed, halved = np.int64(0), HALVED[family(kernel)]
    for i, value in enumerate(coordinates(kernel, shape)):
        less = np.asarray(value, float).reshape(-1) - 1
        # The exponent of a float is the bit length of the integer.
        packed = packed << 6 | np.frexp(less * less if i < halved else less)[1].astype(np.int64)
    return np.asarray(packed)


def build(fitted: Fitted, samples: int = 400_000, seed: int = 0, keep_default: float = KEEP_DEFAULT) -> Cells:
    """Sample the domain, predict every configuration, and keep each cell's few that lose nothing worth having."""
    drawn = _DRAWS[family(fitted.kernel)](np.random.default_rng(seed), samples)
    packed = keys(fitted.kernel, drawn)
    order = np.argsort(packed, kind="stable")
    names, start, size = np.unique(packed[order], return_index=True, return_counts=True)
    default = _defaults(fitted, drawn)
    found: list[tuple[int, NDArray[np.int64], Floats]] = []
    for name, first, count in zip(names.tolist(), start.tolist(), size.tolist(), strict=True):
        index = order[first : first + min(count, SEEN)]
        columns = {field: values[index][:, None] for field, values in drawn.items()}
        factor = fitted.log_factor(columns) + fitted.sigma  # as `Fitted.cautious`
        factor[np.arange(len(index)), default[index]] -= PREFER_DEFAULT
        lost = np.log(fitted.law_us(columns)) + factor
        lost -= lost.min(axis=1, keepdims=True)
        chosen = shortlist(lost, default[index], MOST[family(fitted.kernel)], keep_default)
        found.append((name, chosen, np.exp(factor.mean(axis=0)[chosen])))
    lengths = [len(chosen) for _, chosen, _ in found]
    return Cells(np.array([name for name, _, _ in found], np.int64), np.concatenate([[0], np.cumsum(lengths)]),
                 np.concatenate([c for _, c, _ in found]).astype(np.int16),
                 np.concatenate([f for _, _, f in found]).astype(np.float32))  # fmt: skip


def shortlist(
    lost: Floats, default: NDArray[np.int64], most: int, keep_default: float = KEEP_DEFAULT
) -> NDArray[np.int64]:
    """Pick configurations greedily until their best loses little anywhere (`lost` [s, c] = log µs over the best's)."""
    chosen: list[int] = []
    left = np.full(len(lost), np.inf)
    least = 1 if len(lost) >= FEW else 2  # few samples do not tell that one is enough
    while len(chosen) < most and (len(chosen) < least or left.mean() > ENOUGH or left.max() > WORST):
        gained = lost if not chosen else np.minimum(left[:, None], lost) + 1e-6 * lost
        score = gained.sum(axis=0)
        score[chosen] = np.inf
        chosen.append(int(score.argmin()))
        left = np.minimum(left, lost[:, chosen[-1]])
    near = np.log(keep_default)
    extra = {int(d) for d, row in zip(default, lost, strict=True) if row[d] < near} - set(chosen)
    return np.array(chosen + sorted(extra)[:1], np.int64)


def _defaults(fitted: Fitted, drawn: dict[str, NDArray[np.int64]]) -> NDArray[np.int64]:
    of = space(fitted.kernel)
    position = {config: i for i, config in enumerate(zip(*(c.tolist() for c in fitted.config.values()), strict=True))}
    constant = (
        {"head_dim": int(fitted.kernel.rsplit("_", 1)[1])} if family(fitted.kernel) in ("prefill", "decode") else {}
    )
    rows = zip(*(values.tolist() for values in drawn.values()), strict=True)
    return np.array([position[of.default(dict(zip(drawn, row, strict=True)) | constant)] for row in rows])
