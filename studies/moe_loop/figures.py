"""What the loop's layers say: gaps before and after, speed-ups, and whether flags foretell them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipewave.physics.demand import Array
from studies.moe_loop.layers import PARTS, Layer, column

SPANS = ((1, 8), (8, 64), (64, 512), (512, 4096), (4096, 1 << 20))  # of tokens
LOSS = 0.02  # beyond it a layer counts as slower; vLLM's repeats spread by that much at the median
BINS = 5
READ, MULTIPLY = 4.45e12, 778e12  # bytes, ops a second: what this card reached in bursts (docs/h200.md)


def summary(of: Sequence[Layer]) -> dict[str, Any]:
    """Everything the page shows."""
    parts = {
        "flagged": [x for x in of if x.flagged],
        "not flagged": [x for x in of if not x.flagged],
        "all": of,
        "vLLM ships a file": [x for x in of if x.file is not None],
        "skewed routing": [x for x in of if x.skew],
    }
    by_tokens = {_span(low, high): [x for x in of if low <= x.m < high] for low, high in SPANS}
    return {"groups": _groups(parts), "tokens": _groups(by_tokens), "by_gap": by_gap(of), "separation": separation(of),
            "separation_by_tokens": {name: separation(part) for name, part in by_tokens.items() if len(part) > 2},
            "parts": {name: shares(part) for name, part in by_tokens.items() if part},
            "few_path": few_path(of), "errors": errors(of)}  # fmt: skip


def _span(low: int, high: int) -> str:
    return f"{low}–{high - 1} tokens" if high < SPANS[-1][1] else f"{low}+ tokens"


def _groups(parts: Mapping[str, Sequence[Layer]]) -> dict[str, Any]:
    return {name: group(part) for name, part in parts.items() if part}


def group(of: Sequence[Layer]) -> dict[str, Any]:
    """Figures of some layers: mean gaps to the ceiling before and after, speed-ups over vLLM's default and as run."""
    us = {name: column(of, name) for name in ("default", "served", "tuned", "ours", "oracle", "ceiling")}
    gaps = {name: float((us[name] / us["ceiling"]).mean() - 1) for name in ("default", "served", "tuned", "ours")}
    products = column(of, lambda x: x.default_parts["products"]) / column(of, lambda x: x.our_parts["products"])
    return {"layers": len(of), "mean_gap": gaps, "products": speedups(products),
            "oracle": speedups(us["default"] / us["oracle"]),
            "over_default": {name: speedups(us["default"] / us[name]) for name in ("served", "tuned", "ours")},
            "over_served": {name: speedups(us["served"] / us[name]) for name in ("tuned", "ours")}}  # fmt: skip


def speedups(ratio: Array) -> dict[str, float]:
    """Geomean, median, extremes, and how many layers lose more than LOSS."""
    return {"geomean": geomean(ratio), "median": float(np.median(ratio)), "max": float(ratio.max()),
            "min": float(ratio.min()), "slower": int((ratio < 1 / (1 + LOSS)).sum())}  # fmt: skip


def geomean(values: Array) -> float:
    """Geometric mean."""
    return float(np.exp(np.log(values).mean()))


def separation(of: Sequence[Layer]) -> dict[str, dict[str, float | None]]:
    """Correlation of the flag, and of the log of the gap, with the log of what is gained over vLLM as served."""
    gap = np.log(column(of, lambda layer: layer.served / layer.ceiling))
    flag, found = (gap > 0).astype(float), {}
    for name in ("tuned", "ours"):
        gain = np.log(column(of, "served") / column(of, name))
        found[name] = {"flag": pearson(flag, gain), "flag_rank": pearson(flag, ranks(gain)),
                       "gap": pearson(gap, gain), "gap_rank": pearson(ranks(gap), ranks(gain))}  # fmt: skip
    return found


def pearson(a: Array, b: Array) -> float | None:
    """Pearson's correlation; none where one side does not vary."""
    return float(np.corrcoef(a, b)[0, 1]) if a.std() > 0 and b.std() > 0 else None


def ranks(values: Array) -> Array:
    """Ranks of distinct values."""
    return np.argsort(np.argsort(values, kind="stable"), kind="stable").astype(float)


def by_gap(of: Sequence[Layer]) -> list[dict[str, float]]:
    """The gains over vLLM as served of equal parts of the layers, from the smallest gap to the largest."""
    ratio, m = column(of, lambda layer: layer.served / layer.ceiling), column(of, "m")
    gains = {name: column(of, "served") / column(of, name) for name in ("tuned", "ours")}
    parts = [part for part in np.array_split(np.argsort(ratio), BINS) if len(part)]
    return [{"layers": len(part), "from": float(ratio[part].min() - 1), "to": float(ratio[part].max() - 1),
             "median_tokens": float(np.median(m[part])), "most": float(gains["ours"][part].max()),
             **{name: geomean(gain[part]) for name, gain in gains.items()}} for part in parts]  # fmt: skip


def shares(of: Sequence[Layer]) -> dict[str, Any]:
    """Mean shares of vLLM's default time by part, ours in the same unit, and the most a kernel could gain over it."""
    default = column(of, "default")
    found: dict[str, Any] = {
        way: {name: float(np.mean(column(of, lambda x, name=name, way=way: getattr(x, way)[name]) / default))  # type: ignore[misc]
              for name in PARTS} for way in ("default_parts", "our_parts")}  # fmt: skip
    return found | {"room": geomean(default / column(of, least_us)), "ours": geomean(default / column(of, "ours"))}


def least_us(layer: Layer) -> float:
    """No layer is shorter: weights of the experts hit are read once, and everything is multiplied."""
    each = 3 * layer.hidden * layer.inter
    return 1e6 * max(2 * layer.hit * each / READ, 2 * layer.m * layer.top_k * each / MULTIPLY)


def few_path(of: Sequence[Layer]) -> dict[str, float]:
    """How well the shipped rule picks between our two paths, where both were timed."""
    both = [layer for layer in of if layer.other is not None]
    if not both:
        return {"timed_both": 0}
    lost = column(both, "ours") / column(both, "oracle")
    return {"timed_both": len(both), "taken": sum(layer.few for layer in both), "mean_loss": float(lost.mean() - 1),
            "worst_loss": float(lost.max() - 1), "lose": int((lost > 1 + LOSS).sum())}  # fmt: skip


def errors(of: Sequence[Layer]) -> dict[str, float]:
    """Worst relative error of ours: against float64 where that was computed, else against vLLM's own result."""
    exact, other = ([layer.error for layer in of if layer.exact is which] for which in (True, False))
    return {"exact_layers": len(exact), "exact": max(exact, default=0.0), "against_vllm": max(other, default=0.0)}
