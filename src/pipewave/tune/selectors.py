"""Everything that can choose a configuration, under one contract: anchors in, one choice a test shape out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.tune import baselines, cells, fitted, published
from pipewave.tune.lookup import lookup
from pipewave.tune.mapping import routed
from pipewave.tune.margin import defaults
from pipewave.tune.measured import Measured, measured
from pipewave.tune.recording import ANCHOR, TEST, WAVE, Recording
from pipewave.tune.selector import Selector, asked, median_us
from pipewave.tune.shapes import family
from pipewave.tune.smooth import logs
from pipewave.tune.space import space
from pipewave.tune.table import make

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def pipewave(recording: Recording, test: Measured, *, load: bool = True) -> Selector:
    """Ours, through the very look-up that users call; `load`: the routing or the longest sequence is known too."""
    fit = fitted.fit(recording)
    table = lookup(make(fit, cells.build(fit), recording.meta))
    number = {id(config): i for i, config in enumerate(table.configs)}
    shapes = asked(test)
    chosen = np.array([number[id(table.select(**shape))] for shape in (loaded(test, recording) if load else shapes)])
    unseen = median_us(lambda shape: table.select(**shape), shapes, table.forget)
    return Selector(chosen, unseen, _speeds(table, shapes))


def loaded(test: Measured, recording: Recording) -> list[dict[str, Any]]:
    """Return test shapes as `asked`, with what a caller may know of the load: routing, longest sequence."""
    shapes = asked(test)
    if family(test.kernel) == "moe":
        return [{**shape, "counts": counts} for shape, counts in zip(shapes, counts_of(recording), strict=True)]
    if family(test.kernel) == "decode":
        # A mean that the drawn lengths exceed by rounding only is their longest.
        longest = np.maximum(test.load["longest"][:, 0], test.shape["kv_len"]).astype(int).tolist()
        return [{**shape, "longest": at} for shape, at in zip(shapes, longest, strict=True)]
    return shapes


def _speeds(table: Any, shapes: list[dict[str, Any]]) -> dict[str, float]:
    extra = {"repeated_us": repeated_us(table, shapes)}
    if hasattr(table, "prepare"):
        for shape in shapes:
            table.prepare(**{name: value for name, value in shape.items() if name != "m"})
        extra["known_layer_us"] = median_us(lambda shape: table.select(**shape), shapes, table.forget)
    return extra


def repeated_us(table: Any, shapes: list[dict[str, Any]], times: int = 50) -> float:
    """Median over shapes of a decision asked again and again."""
    select = table.select

    def again(sizes: tuple[int, ...]) -> None:
        for _ in range(times):
            select(*sizes)

    return median_us(again, [tuple(shape.values()) for shape in shapes]) / times


def counts_of(recording: Recording) -> list[tuple[int, ...]]:
    """Tokens of each expert at the test shapes."""
    return [tuple(int(c) for c in row) for row in recording.counts[recording.role == TEST]]


def published_table(recording: Recording, *, every: bool = False) -> published.Published:
    """Fit WaveTune as published to its own kind of anchors where the recording has them, or to all."""
    waves, drawn = measured(recording, WAVE), measured(recording, ANCHOR)
    anchors = [waves] if len(waves.us) and not every else [some for some in (drawn, waves) if len(some.us)]
    return published.fit(anchors, int(recording.meta["env"]["sm_count"]))


def as_published(recording: Recording, test: Measured, *, every: bool = False) -> Selector:
    """WaveTune as published."""
    table = published_table(recording, every=every)
    shapes = asked(test)
    if family(test.kernel) == "moe":
        sizes = sorted({macro["BLOCK_M"] for macro in table.macros})
        shapes = [shape | routed(counts, sizes) for shape, counts in zip(shapes, counts_of(recording), strict=True)]
    r2 = published.r2_table(table)
    return Selector(np.array([table.select(shape) for shape in shapes]), median_us(table.select, shapes),
                    {"r2_median": r2["median"], "r2_share_above_0.998": r2["share_above_0.998"]})  # fmt: skip


def default(_recording: Recording, test: Measured) -> Selector:
    """Return what a user runs without tuning."""
    rows = zip(*(values.tolist() for values in test.shape.values()), strict=True)
    shapes = [dict(zip(test.shape, row, strict=True)) for row in rows]
    return Selector(defaults(test.kernel, test.config, test.shape), median_us(space(test.kernel).default, shapes))


def one_for_all(recording: Recording, test: Measured) -> Selector:
    """Return the one configuration that does best over the anchors."""
    us = measured(recording, ANCHOR).us
    best = int(np.log(us / us.min(axis=1, keepdims=True)).mean(axis=0).argmin())
    return Selector(np.full(len(test.us), best), 0.0)


def nearest_m(recording: Recording, test: Measured) -> Selector:
    """Return the best configuration of the nearest profiled shape, as files keyed by M do; N and K by nearness too."""
    anchors = measured(recording, ANCHOR)
    at, best = logs(test.kernel, anchors.columns()), anchors.us.argmin(axis=1)
    wanted = logs(test.kernel, test.columns())

    def pick(x: Floats) -> Any:
        return best[np.abs(at - x).sum(axis=1).argmin()]

    return Selector(np.array([pick(x) for x in wanted]), median_us(pick, list(wanted)))


def at_random(_recording: Recording, test: Measured) -> Selector:
    """Draw any configuration."""
    return Selector(np.random.default_rng(0).integers(0, test.us.shape[1], len(test.us)), 0.0)


def autotune(_recording: Recording, test: Measured) -> Selector:
    """`triton.autotune`: measure everything once a shape. Its cost is upstream's own default of 25 + 100 ms each."""
    each_us = 125e3
    return Selector(np.nanargmin(np.nanmean(test.halves, axis=2), axis=1), each_us * test.us.shape[1])


def _load_unknown(recording: Recording, test: Measured) -> Selector | str:
    if not test.load:
        return "only where a launch has a load: routing, ragged caches"
    return pipewave(recording, test, load=False)


SELECTORS: dict[str, Callable[[Recording, Measured], Selector | str]] = {
    "pipewave": pipewave,
    "pipewave_load_unknown": _load_unknown,
    "published": as_published,
    "published_all_anchors": partial(as_published, every=True),
    "default": default,
    "one_for_all": one_for_all,
    "nearest_m": nearest_m,
    "random": at_random,
    "triton_autotune": autotune,
    "xgboost": baselines.xgboost,
    "nvidia-matmul-heuristics": baselines.matmul_heuristics,
}
