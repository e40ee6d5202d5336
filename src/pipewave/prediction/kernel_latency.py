"""Latency of kernel calls that share a context: physics, learned residual, interval, floor and ceiling.

The laws are written for arrays and floats alike: `scalar` answers one call with them.

What a kernel inside an engine step (protocol `serving`) does not pay that the same kernel pays when measured by itself
after a flush:

* The flush leaves the L2 full of dirty lines, and whatever a cold kernel brings in sends some of them out. In a step
  the lines it displaces are clean weights. Of our H200 rows measured both ways (flushed by writing and by reading, 97
  pairs), products gain as if one dirty byte went out for every two that came in, up to part of the L2; so do the
  products of prompts in traces of steps (data/measured/h200/traces).
* Attention gains by how much of its time it keeps DRAM busy: splits of short caches wait for one another instead.
* FlashAttention 3 prepares its schedule with a small kernel that a cold call includes; vLLM runs it once a step.

A what-if that changes rates alone (clocks, bandwidths, peaks) is answered as its original times what physics says the
rates change: so a faster GPU is never slower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipewave.errors import UnknownGPU
from pipewave.gpus import GPU, find
from pipewave.gpus.registry import of_one_capability
from pipewave.gpus.spec import VALUE_FIELDS
from pipewave.kernels.base import Analysis, Columns, Context, Family
from pipewave.nets.calibration import corrections
from pipewave.nets.nets import UNTRAINED_SCALE, Residual, trained
from pipewave.nets.weights_metadata import Interval, half_width, intervals_of
from pipewave.physics.arith import ARRAY, Arith
from pipewave.physics.cache import COLD, SERVING
from pipewave.physics.demand import PIPES, Array, busiest, floor_s
from pipewave.physics.power import Draw, draw_of
from pipewave.prediction.columns import options_of
from pipewave.prediction.resolve import Source, codes_of, measured_protocol, plain_context, resolve, with_note
from pipewave.software import stacks
from pipewave.software.fallback import LEVELS
from pipewave.software.rules import constant

Rows = Sequence[float] | Array  # of one call, or [row, call]

US = 1e6
LATENCY, FLOOR, CEILING = 0, 3, 4  # rows of an answer's seconds
BEYOND = 1.5  # times the interval's end: a ceiling above it is no finding but a poor guess at plain software's time
DRAM = PIPES.index("dram")
DRAM_REACHED, FIRST_BYTES_S = 1.1, 1.6e-6  # the envelope of our 26,000 cold rows: times of the DRAM pipe, and before it
WIDEST = 2.3  # log of the widest factor an interval states, ten: beyond it nothing is known but the floor
UNTRAINED = {"measured_gpu": Interval(1.0), "same_architecture": Interval(1.5), "new_architecture": Interval(2.0)}
RATES = frozenset((
    "boost_clock_mhz", "sustained_clock_mhz", "fp32_tflops", "tf32_tflops", "fp16_tflops", "bf16_tflops", "fp8_tflops",
    "int8_tops", "fp4_tflops", "dram_gbps", "dram_pin_gbps", "dram_measured_gbps", "l2_gbps", "link_gbps", "pcie_gbps",
    "tdp_w",
))  # fmt: skip
REPLAYED = "no cold rows of this GPU: answered as graph replays, not below the floor of serving"
OWN_REPLAYED = "cold rows are of another framework's kernel: answered as graph replays of its own"
LIBRARY = {"gemm": ("bf16", "fp16", "fp8", "int8")}  # cuBLAS and CUTLASS answer, whoever calls them


@dataclass(frozen=True, slots=True)
class Answers:
    """A batch with one context: [5, call] of latency, low, high, floor, ceiling (seconds) and the bound."""

    seconds: Array
    bound: NDArray[np.intp]
    source: Source
    analysis: Analysis
    ctx: Context

    @property
    def draw(self) -> Draw:
        """What calls of this kind draw on the board."""
        product = self.analysis.done.product or self.ctx.dtype
        return draw_of(self.ctx.gpu, self.analysis.net, product, self.ctx.stack, self.ctx.protocol)

    @property
    def joules(self) -> Array:
        """Energy of each call above what the idle board draws, [call]."""
        draw = self.draw
        return np.asarray(draw.joules(draw.work_j(self.analysis.done), self.seconds[LATENCY]))


def answer(family: Family, cols: Columns, key: Sequence[Any], gpu: GPU, protocol: str) -> Answers:
    """Answer a batch that shares the group key (dtype, stack, impl, options...)."""
    protocol = as_timed(family, protocol, gpu)
    found = _alone(family, cols, key, gpu, protocol)
    if streams(family, protocol):
        cold = _alone(family, cols, key, gpu, COLD).seconds
        found.seconds[CEILING] = _ceiling_in_step(found.seconds, cold)
    if not shortened(family, protocol):
        return found
    note = stand_in(family, key, gpu, found.source)
    if not note:
        shorter = in_step(found.seconds, found.analysis.demand.dram, family, found.ctx, key[1], ARRAY)
        return replace(found, seconds=np.array(shorter))
    graph = _alone(family, cols, replay_key(key), gpu, "graph")
    seconds = np.array(replayed(graph.seconds, found.seconds[FLOOR], ARRAY))
    return replace(found, seconds=seconds, source=with_note(graph.source, note))


def _alone(family: Family, cols: Columns, key: Sequence[Any], gpu: GPU, protocol: str) -> Answers:
    """Answers of calls measured one by one: under `serving`, of a cold call with its activations in L2."""
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
        seconds = correction.apply(seconds, coordinates(learned.seen, ctx), codes_of(ctx, analysis.net))
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


class Learned(NamedTuple):
    """What the nets say of a batch. `seen`: the analysis whose features they were given. `ceiling`: base seconds of
    plain software and the log of the ceiling over them; None where no ceiling was trained: the low end of the interval
    stands in.
    """

    seen: Analysis
    residual: Residual
    intervals: Mapping[str, Interval]
    ceiling: tuple[Array, Array] | None = None


def _learned(family: Family, cols: Columns, analysis: Analysis, ctx: Context) -> Learned:
    known = trained(analysis.net)
    if known is None:
        zeros = np.zeros(len(analysis.base_s))
        return Learned(analysis, Residual(zeros, zeros + UNTRAINED_SCALE), UNTRAINED)
    original, plain = as_original(ctx), plain_context(ctx, analysis.net)
    seen = analysis if original is ctx else family.analyse(cols, original)
    inputs = known.net.inputs(seen.features)
    residual = known.net(inputs, codes_of(ctx, analysis.net))
    if known.ceiling is None:
        return Learned(seen, residual, known.card.intervals)
    base, low = (analysis, seen) if plain == ctx else (family.analyse(cols, plain), None)
    if low is None:
        low = base if as_original(plain) is plain else family.analyse(cols, as_original(plain))
    same = low is seen and known.ceiling.net.features == known.net.features
    log_ratio = known.ceiling(inputs if same else low.features, codes_of(plain, analysis.net))
    return Learned(seen, residual, known.card.intervals, (base.base_s, log_ratio))


@lru_cache(maxsize=4096)
def as_original(ctx: Context) -> Context:
    """The context whose features the nets see: of a what-if that changes rates alone, that of its original."""
    original = _original(ctx.gpu)
    return ctx if original is None else replace(ctx, gpu=original)


@lru_cache(maxsize=1024)
def _original(gpu: GPU) -> GPU | None:
    """The GPU that a what-if of other rates was made of."""
    if not gpu.origin:
        return None
    try:
        original = find(gpu.origin)
    except UnknownGPU:
        return None
    changed = {name for name in VALUE_FIELDS if getattr(gpu, name) != getattr(original, name)}
    return original if changed <= RATES else None


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


def shortened(family: Family, protocol: str) -> bool:
    """Whether calls take less inside a step than what a cold call takes."""
    return protocol == SERVING and family.reads == "operands"


def streams(family: Family, protocol: str) -> bool:
    """Whether a step leaves what calls read in the L2."""
    return protocol == SERVING and family.reads == "activations"


def as_timed(family: Family, protocol: str, gpu: GPU) -> str:
    """The protocol that answers for a family: streaming calls in a step as cold ones where no L2 carries what a kernel
    wrote to the next one, as between dies that have an L2 each.
    """
    return COLD if streams(family, protocol) and not gpu.traits.l2_carries else protocol


def replay_key(key: Sequence[Any]) -> tuple[Any, ...]:
    """The group key that stands in where no cold rows were measured: of most GPUs there are graph replays over rotating
    weights only, which come closer than other GPUs' cold rows.
    """
    return key[0], key[1] or stacks.DEFAULT[SERVING], *key[2:]


def stand_in(family: Family, key: Sequence[Any], gpu: GPU, cold: Source) -> str:
    """What to say of graph replays that answer in the place of cold calls; empty where cold rows answer.

    A framework's own kernels, of which there are replays on the GPU, come before another framework's cold ones. A GPU
    of which neither was measured is answered as the GPUs of its compute capability are.
    """
    dtype, stack, impl = replay_key(key)[:3]
    own = resolve(family, gpu, dtype, "graph", stack, impl, options_of(family, key))[1] if family.nets else cold
    alike = cold.reference_gpu and of_one_capability(find(cold.reference_gpu), gpu)
    if not cold.near and (own.near or not alike):
        return REPLAYED
    if cold.software != LEVELS[-1] or key[0] in LIBRARY.get(family.name, ()):
        return ""
    known = own.software in (LEVELS[:1] if cold.near else LEVELS[:2])
    return OWN_REPLAYED if known and own.impl != cold.impl else ""


def in_step(
    seconds: Rows, dram_bytes: Any, family: Family, ctx: Context, stack: str | None, xp: Arith
) -> tuple[Any, ...]:
    """Answers (latency, low, high, floor, ceiling) of cold calls as the same calls take in a step of `stack`.

    All but the floor shrink in proportion, nothing below the floor.
    """
    latency, floor = seconds[LATENCY], seconds[FLOOR]
    saved = write_back_s(floor / latency, dram_bytes, family, ctx.gpu, xp, ctx.impl) + _setup_s(family, ctx, stack)
    shrunk = xp.maximum(latency - saved, floor) / latency
    return tuple(xp.maximum(each * shrunk, floor) for each in seconds)


def _ceiling_in_step(seconds: Array, cold: Array) -> Array:
    """The ceiling of streaming calls in a step, [call], from answers [row, call] in a step and of the same calls cold.

    No ceiling was trained on what a step leaves in the L2: a well-made kernel gains as much by it as the one predicted.
    """
    return np.asarray(np.maximum(cold[CEILING] * seconds[LATENCY] / cold[LATENCY], seconds[FLOOR]))


def replayed(graph: Rows, floor: Any, xp: Arith) -> tuple[Any, ...]:
    """Answers of graph replays in the place of those in a step, above the step's own floor."""
    latency, low, high, ceiling = (xp.maximum(each, floor) for each in (*graph[:FLOOR], graph[CEILING]))
    return latency, low, high, floor, ceiling


def write_back_s(busy: Any, dram_bytes: Any, family: Family, gpu: GPU, xp: Arith, impl: str = "") -> Any:
    """Seconds of cold calls that go into writing back what the flush left in the L2. `busy`: floor over latency."""
    waiting = constant("step_waiting", family=family.name, impl=impl, mma=gpu.traits.mma, vendor=gpu.vendor)
    dirt = constant("step_write_back")
    if waiting is None:
        return 0.0 * busy
    none, all_ = waiting
    dirty = xp.minimum(dirt["per_byte"] * dram_bytes, dirt["of_l2"] * gpu.l2_mb * 2.0**20)
    share = xp.minimum(xp.maximum((busy - none) / (all_ - none), 0.0), 1.0)
    return share * dirty / (1e9 * gpu.dram_peak_gbps)


def _setup_s(family: Family, ctx: Context, stack: str | None) -> float:
    framework = stacks.framework(stack or stacks.DEFAULT[ctx.protocol])
    facts = {"family": family.name, "mma": ctx.gpu.traits.mma, "framework": framework, "impl": ctx.impl}
    return float(constant("step_setup_saved", **facts))
