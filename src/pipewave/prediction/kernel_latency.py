"""Latency of kernel calls that share a context: physics, learned residual, interval, floor and ceiling.

The laws are written for arrays and floats alike: `few_calls` answers a few calls with them.

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

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from pipewave.gpus import GPU, find
from pipewave.gpus.registry import of_one_capability
from pipewave.kernels.base import Analysis, Columns, Context, Family
from pipewave.nets.calibration import corrections
from pipewave.nets.calibration.correction import moved
from pipewave.nets.nets import UNTRAINED_SCALE, Residual
from pipewave.nets.weights_metadata import LEVELS, Interval, half_width
from pipewave.physics.arith import ARRAY, Arith
from pipewave.physics.cache import COLD, SERVING, l2_bytes
from pipewave.physics.demand import PIPES, Array, busiest, floor_s
from pipewave.physics.power import Draw
from pipewave.prediction.resolve import CEILINGS, FLOORS, TIMES, Setting, Source, as_original, setting, with_note
from pipewave.software import stacks
from pipewave.software.rules import constant

Rows = Sequence[float] | Array  # of one call, or [row, call]

US = 1e6
LATENCY, FLOOR, CEILING, BOUND, WORK_J = 0, 3, 4, 5, 6  # rows of an answer's numbers
NUMBERS = 7
BEYOND = 1.5  # times the interval's end: a ceiling above it is no finding but a poor guess at plain software's time
DRAM = PIPES.index("dram")
DRAM_REACHED, FIRST_BYTES_S = 1.1, 1.6e-6  # the envelope of our 26,000 cold rows: times of the DRAM pipe, and before it
WIDEST = 2.3  # log of the widest factor an interval states, ten: beyond it nothing is known but the floor
REPLAYED = "no cold rows of this GPU: answered as graph replays, not below the floor of serving"
OWN_REPLAYED = "cold rows are of another framework's kernel: answered as graph replays of its own"
LIBRARY = {"gemm": ("bf16", "fp16", "fp8", "int8")}  # cuBLAS and CUTLASS answer, whoever calls them


class Answers(NamedTuple):
    """Calls of one context. `numbers`: latency, low, high, floor and ceiling in seconds, index of the pipe that sets
    the floor, and joules of FLOPs and bytes.
    """

    numbers: Rows
    source: Source
    ctx: Context
    draw: Draw
    analysis: Any = None  # the `Analysis` of a batch

    @property
    def seconds(self) -> Any:
        """Latency, low, high, floor and ceiling."""
        return self.numbers[:BOUND]

    @property
    def bound(self) -> Any:
        """Indices into PIPES, [call]."""
        return np.asarray(self.numbers[BOUND], np.intp)


def answer(
    family: Family, cols: Columns, key: Sequence[Any], gpu: GPU, protocol: str, *, ceilings: bool = True
) -> Answers:
    """Answer a batch that shares the group key (dtype, stack, impl, options...)."""
    first, other, note = run_of(family, tuple(key), gpu, protocol, corrections.of(gpu), ceilings)
    found: Any = _alone(family, cols, gpu, first)
    if other:
        found = as_run(note, found, _alone(family, cols, gpu, other), ARRAY)
    return found._replace(numbers=np.asarray(found.numbers))  # type: ignore[no-any-return]


Asked = tuple[tuple[Any, ...], str, corrections.InForce | None, int]  # group key, protocol, calibrations, what is asked


@lru_cache(maxsize=4096)
def run_of(
    family: Family, key: tuple[Any, ...], gpu: GPU, protocol: str, in_force: corrections.InForce | None, ceilings: bool
) -> tuple[Asked, Asked | None, str]:
    """Calls measured one by one whose answers answer under a protocol, others beside them, and what to say of these.

    `ceilings`: whether anybody looks at them; else they mean nothing.
    """
    asked = CEILINGS if ceilings else TIMES
    if protocol == SERVING and family.reads == "operands" and (note := _stand_in(family, key, gpu, in_force)):
        return (key, protocol, in_force, FLOORS), (replay_key(key), "graph", in_force, asked), note
    if protocol == SERVING and family.reads == "activations":
        if not gpu.traits.l2_carries:  # calls in a step are as cold ones where no L2 carries their activations
            protocol = COLD
        elif ceilings:
            return (key, protocol, in_force, asked), (key, COLD, in_force, asked), ""
    return (key, protocol, in_force, asked), None, ""


def as_run(note: str, found: Answers, other: Answers, xp: Arith) -> Answers:
    """Answers of a run's first calls with those of its others."""
    if note:
        seconds = replayed(other.numbers, found.numbers[FLOOR], xp)
        work_j = xp.minimum(found.numbers[WORK_J], found.draw.most_j(seconds[LATENCY]))
        return found._replace(numbers=(*seconds, found.numbers[BOUND], work_j), source=with_note(other.source, note))
    # No ceiling was trained on what a step leaves in the L2: a well-made kernel gains as much by it as this one.
    step, cold = found.numbers, other.numbers
    ceiling = xp.maximum(cold[CEILING] * step[LATENCY] / cold[LATENCY], step[FLOOR])
    return found._replace(numbers=(*step[:CEILING], ceiling, *step[BOUND:]))


def _alone(family: Family, cols: Columns, gpu: GPU, given: Asked) -> Answers:
    """Answers of calls measured one by one; under `serving`, of cold calls or of those that read operands."""
    key, protocol, in_force, asked = given
    at = setting(family, key, gpu, protocol, in_force, asked)
    analysis, ctx = family.analyse(cols, at.ctx), at.ctx
    if analysis.net != at.net:
        at = setting(family, key, gpu, protocol, in_force, asked, analysis.net)
    _, seen, *plain = at.each(lambda other: analysis if other == ctx else family.analyse(cols, other))
    pipes = analysis.demand.seconds(ctx.gpu, ctx.dtype)
    residual, log_ceiling, log_factor = _learned(at, seen, plain[1])
    parts = analysis.base_s, floor_s(pipes), pipes[DRAM], plain[0].base_s
    seconds = finished(parts, residual, log_ceiling, log_factor, at.widths, at.width, protocol, ARRAY)
    if in_step_of(family, protocol):
        seconds = in_step(seconds, analysis.demand.dram, family, ctx, key[1], ARRAY)
    work = analysis.done
    draw, numbers = at.draw(work.product), np.empty((NUMBERS, len(analysis.base_s)))
    work_j = draw.work_j(work, analysis.base_s, analysis.features)
    rest = busiest(pipes), work_j
    for row, values in zip(numbers, (*seconds, *rest), strict=True):
        row[:] = values
    return Answers(numbers, at.source, ctx, draw, analysis)


def in_step_of(family: Family, protocol: str) -> bool:
    """Whether answers are those of cold calls as they run inside a step."""
    return protocol == SERVING and family.reads == "operands"


def _learned(at: Setting, seen: Analysis, plain: Analysis) -> tuple[Residual, Any, Any]:
    """What the nets say of a batch from the features that they are given: the residual, the log of the ceiling over
    the base time of plain software, and the log of a calibration's factor; None where nothing was trained.
    """
    learned, units = at.learned, None
    residual, log_ceiling = Residual(0.0, UNTRAINED_SCALE), None
    if learned:
        inputs, ceiling = learned.net.inputs(seen.features), at.ceiling
        if at.correction:
            residual, units = learned.net.with_units(inputs, at.codes)
        else:
            residual = learned.net(inputs, at.codes)
        same = ceiling and plain is seen and ceiling.net.features == learned.net.features
        log_ceiling = ceiling(inputs if same else plain.features, at.plain_codes) if ceiling else None
    if at.correction is None:
        return residual, log_ceiling, None
    features = np.transpose([seen.features[name] for name in at.correction.features])
    return residual, log_ceiling, at.correction.log_factor(len(seen.base_s), features, units)


def finished(
    seconds: Sequence[Any],
    residual: Residual,
    log_ceiling: Any,
    log_factor: Any,
    widths: Sequence[Interval],
    width: float | None,
    protocol: str,
    xp: Arith,
) -> tuple[Any, ...]:
    """Latency, low, high, floor and ceiling. `seconds`: the base estimate, the floor, the DRAM pipe, and the base
    estimate of plain software, over which `log_ceiling` is the ceiling (None: the low end of the interval stands in).
    `log_factor` and `width` are a calibration's.
    """
    base_s, floor, dram_s, plain_s = seconds
    latency, low, high = combined(base_s, residual, dram_s, floor, widths, protocol, xp)
    ceiling = low if log_ceiling is None else not_beyond(plain_s * xp.exp(log_ceiling), floor, high, xp)
    answers = latency, low, high, floor, ceiling
    if width is None:
        return answers
    latency, low, high, floor, ceiling = moved(answers, log_factor, width, xp)
    return latency, low, high, floor, not_beyond(ceiling, floor, high, xp)


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


def not_beyond(ceiling: Any, floor: Any, high: Any, xp: Arith) -> Any:
    """A ceiling within what is known of the kernel asked about: where it surely is faster by far (its `high`), it is
    what well made means.
    """
    return xp.maximum(xp.minimum(ceiling, BEYOND * high), floor)


def replay_key(key: Sequence[Any]) -> tuple[Any, ...]:
    """The group key of graph replays over rotating weights, which come closer than other GPUs' cold rows."""
    return key[0], key[1] or stacks.DEFAULT[SERVING], *key[2:]


def _stand_in(family: Family, key: tuple[Any, ...], gpu: GPU, in_force: corrections.InForce | None) -> str:
    """What to say of graph replays that answer in the place of calls in a step; empty where cold rows answer.

    A framework's own kernels, of which there are replays on the GPU, come before another framework's cold ones. A GPU
    of which neither was measured is answered as the GPUs of its compute capability are.
    """
    cold = setting(family, key, gpu, SERVING, in_force).source
    own = setting(family, replay_key(key), gpu, "graph", None).source if family.nets else cold
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
    """Answers of cold calls as the same calls take in a step of `stack`: all but the floor shrink alike."""
    latency, floor = seconds[LATENCY], seconds[FLOOR]
    framework = stacks.framework(stack or stacks.DEFAULT[ctx.protocol])
    facts = {"family": family.name, "mma": ctx.gpu.traits.mma, "framework": framework, "impl": ctx.impl}
    # A what-if of another DRAM waits for its start as its original does.
    rate = ctx.gpu.dram_peak_gbps / as_original(ctx).gpu.dram_peak_gbps
    saved = write_back_s(rate * floor / latency, dram_bytes, family, ctx.gpu, xp, ctx.impl)
    saved = saved + float(constant("step_setup_saved", **facts))
    shrunk = xp.maximum(latency - saved, floor) / latency
    return tuple(xp.maximum(each * shrunk, floor) for each in seconds)


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
    dirty = xp.minimum(dirt["per_byte"] * dram_bytes, dirt["of_l2"] * l2_bytes(gpu))
    share = xp.minimum(xp.maximum((busy - none) / (all_ - none), 0.0), 1.0)
    return share * dirty / (1e9 * gpu.dram_peak_gbps)
