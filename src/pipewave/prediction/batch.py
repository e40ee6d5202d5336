"""A batch of calls with one context, answered: physics, learned residual, interval, floor and ceiling.

`combined` and `ceiling_s` are written for arrays and floats alike; `scalar` answers one call with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipewave.gpus import GPU
from pipewave.kernels.base import Analysis, Columns, Context, Family
from pipewave.nets.calibration import corrections
from pipewave.nets.nets import UNTRAINED_SCALE, Residual, trained
from pipewave.nets.weights_metadata import Interval, half_width, intervals_of
from pipewave.physics.arith import ARRAY, Arith
from pipewave.physics.cache import COLD
from pipewave.physics.demand import PIPES, Array, busiest, floor_s
from pipewave.physics.energy import joules
from pipewave.prediction import in_step as serving
from pipewave.prediction.columns import options_of
from pipewave.prediction.resolve import Source, codes_of, measured_protocol, plain_context, resolve, with_note

US = 1e6
FLOOR = 3  # row of an answer's seconds
BEYOND = 1.5  # times the interval's end: a ceiling above it is no finding but a poor guess at plain software's time
DRAM = PIPES.index("dram")
DRAM_REACHED, FIRST_BYTES_S = 1.1, 1.6e-6  # the envelope of our 26,000 cold rows: times of the DRAM pipe, and before it
WIDEST = 2.3  # log of the widest factor an interval states, ten: beyond it nothing is known but the floor
UNTRAINED = {"measured_gpu": Interval(1.0), "same_architecture": Interval(1.5), "new_architecture": Interval(2.0)}


@dataclass(frozen=True, slots=True)
class Answers:
    """A batch with one context: [5, call] of latency, low, high, floor, ceiling (seconds) and the bound."""

    seconds: Array
    bound: NDArray[np.intp]
    source: Source
    analysis: Analysis
    ctx: Context

    @property
    def joules(self) -> Any:
        """Energy of each call above what the idle board draws; a number that holds for all, or an array."""
        return joules(self.ctx.gpu, self.ctx.dtype, self.analysis.done)


def answer(family: Family, cols: Columns, key: Sequence[Any], gpu: GPU, protocol: str) -> Answers:
    """Answer a batch that shares the group key (dtype, stack, impl, options...)."""
    protocol = serving.as_timed(family, protocol, gpu)
    found = _by_itself(family, cols, key, gpu, protocol)
    if serving.streams(family, protocol):
        cold = _by_itself(family, cols, key, gpu, COLD).seconds
        found.seconds[serving.CEILING] = serving.ceiling_in_step(found.seconds, cold)
    if not serving.applies(family, protocol):
        return found
    note = serving.stand_in(family, key, gpu, found.source)
    if not note:
        dram_bytes = found.analysis.demand.dram
        shorter = serving.in_step(found.seconds, dram_bytes, family, found.ctx, key[1], ARRAY)
        return replace(found, seconds=np.array(shorter))
    graph = _by_itself(family, cols, serving.replay_key(key), gpu, "graph")
    seconds = np.array(serving.replayed(graph.seconds, found.seconds[FLOOR], ARRAY))
    return replace(found, seconds=seconds, source=with_note(graph.source, note))


def _by_itself(family: Family, cols: Columns, key: Sequence[Any], gpu: GPU, protocol: str) -> Answers:
    """Answers from the net and its correction: under `serving`, what a cold call takes with its activations in L2."""
    dtype, stack, impl = key[:3]
    ctx, source = resolve(family, gpu, dtype, protocol, stack, impl, options_of(family, key))
    source = _assuming(family, ctx, source)
    analysis = family.analyse(cols, ctx)
    pipes = analysis.demand.seconds(ctx.gpu, ctx.dtype)
    floor = floor_s(pipes)
    learned = _learned(family, cols, analysis, ctx)
    widths = intervals_of(learned.intervals, source.basis, measured_protocol(protocol), source.software, dtype)
    latency, low, high = combined(analysis.base_s, learned.residual, pipes[DRAM], floor, widths, protocol, ARRAY)
    ceiling = ceiling_s(*learned.ceiling, floor, high, ARRAY) if learned.ceiling else low
    seconds = np.array((latency, low, high, floor, ceiling))
    correction = corrections.of(ctx, analysis.net)
    if correction is not None:
        seconds = correction.apply(seconds, coordinates(analysis, ctx), codes_of(ctx, analysis.net))
        source = replace(with_note(source, correction.note), near=source.near or bool(correction.origin))
    return Answers(seconds, busiest(pipes), source, analysis, ctx)


def _assuming(family: Family, ctx: Context, source: Source) -> Source:
    """What rests on an assumption that no row shows is as uncertain as a new architecture, and says so."""
    said = family.assumed(ctx) if family.assumed else ""
    return replace(with_note(source, said), basis="new_architecture") if said else source


def coordinates(analysis: Analysis, ctx: Context) -> dict[str, Array]:
    """What a correction looks at besides software: the features, and what the net makes of them."""
    learned = trained(analysis.net)
    units = learned.net.units(analysis.features, codes_of(ctx, analysis.net)) if learned else {}
    return dict(analysis.features) | {name: unit.astype(np.float64) for name, unit in units.items()}


def combined(
    base_s: Any, residual: Residual, dram_s: Any, floor: Any, widths: Sequence[Interval], protocol: str, xp: Arith
) -> tuple[Any, Any, Any]:
    """Latency and the ends of its interval: the base estimate with the learned residual, never below the floor.

    No cold call may be faster than DRAM ever delivered its bytes (`dram_s` at the highest rate).
    """
    least = xp.maximum(floor, DRAM_REACHED * dram_s + FIRST_BYTES_S) if protocol == COLD else floor
    latency = xp.maximum(base_s * xp.exp(residual.mean), least)
    spread = xp.exp(xp.minimum(half_width(widths, residual.scale, xp), WIDEST))
    return latency, xp.maximum(latency / spread, floor), latency * spread


def ceiling_s(base_s: Any, log_ratio: Any, floor: Any, high: Any, xp: Arith) -> Any:
    """Seconds that a well-made kernel takes, from the ceiling's answer about the base estimate of plain software.

    The kernel asked about may be faster than that; where it surely is by far (its `high`), it is what well made means.
    """
    return xp.maximum(xp.minimum(base_s * xp.exp(log_ratio), BEYOND * high), floor)


class Learned(NamedTuple):
    """What the nets say of a batch. `ceiling`: base seconds of plain software and the log of the ceiling over them;
    None where no ceiling was trained: the low end of the interval stands in.
    """

    residual: Residual
    intervals: Mapping[str, Interval]
    ceiling: tuple[Array, Array] | None = None


def _learned(family: Family, cols: Columns, analysis: Analysis, ctx: Context) -> Learned:
    known = trained(analysis.net)
    if known is None:
        zeros = np.zeros(len(analysis.base_s))
        return Learned(Residual(zeros, zeros + UNTRAINED_SCALE), UNTRAINED)
    inputs = known.net.inputs(analysis.features)
    residual = known.net(inputs, codes_of(ctx, analysis.net))
    if known.ceiling is None:
        return Learned(residual, known.card.intervals)
    plain = plain_context(ctx, analysis.net)
    seen = analysis if plain == ctx else family.analyse(cols, plain)
    same = seen is analysis and known.ceiling.net.features == known.net.features
    log_ratio = known.ceiling(inputs if same else seen.features, codes_of(plain, analysis.net))
    return Learned(residual, known.card.intervals, (seen.base_s, log_ratio))
