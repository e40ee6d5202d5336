"""What a kernel inside an engine step does not pay that the same kernel pays when measured by itself after a flush.

* The flush leaves the L2 full of dirty lines, and whatever a cold kernel brings in sends some of them out. In a step
  the lines it displaces are clean weights. Of our H200 rows measured both ways (flushed by writing and by reading, 97
  pairs), products gain as if one dirty byte went out for every two that came in, up to part of the L2; so do the
  products of prompts in traces of steps (data/measured/h200/traces).
* Attention gains by how much of its time it keeps DRAM busy: splits of short caches wait for one another instead.
* FlashAttention 3 prepares its schedule with a small kernel that a cold call includes; vLLM runs it once a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipewave.gpus import GPU, find
from pipewave.kernels.base import Context, Family
from pipewave.physics.arith import Arith
from pipewave.physics.cache import COLD, SERVING
from pipewave.physics.demand import Array
from pipewave.prediction.columns import options_of
from pipewave.prediction.resolve import Source, resolve
from pipewave.software import stacks
from pipewave.software.fallback import LEVELS
from pipewave.software.rules import constant

Rows = Sequence[float] | Array  # of one call, or [row, call]
LATENCY, FLOOR, CEILING = 0, 3, 4
REPLAYED = "no cold rows of this GPU: answered as graph replays, not below the floor of serving"
OWN_REPLAYED = "cold rows are of another framework's kernel: answered as graph replays of its own"
LIBRARY = {"gemm": ("bf16", "fp16", "fp8", "int8")}  # cuBLAS and CUTLASS answer, whoever calls them


def applies(family: Family, protocol: str) -> bool:
    """Whether calls take less inside a step than what a cold call takes."""
    return protocol == SERVING and family.reads == "operands"


def as_timed(family: Family, protocol: str, gpu: GPU) -> str:
    """The protocol that answers for a family: streaming calls in a step as cold ones where no L2 carries what a kernel
    wrote to the next one, as between dies that have an L2 each.
    """
    return COLD if streams(family, protocol) and not gpu.traits.l2_carries else protocol


def streams(family: Family, protocol: str) -> bool:
    """Whether a step leaves what calls read in the L2."""
    return protocol == SERVING and family.reads == "activations"


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
    own = resolve(family, gpu, *_replayed(family, key))[1] if family.nets else cold
    alike = cold.reference_gpu and find(cold.reference_gpu).compute_capability == gpu.compute_capability
    if not cold.near and (own.near or not alike):
        return REPLAYED
    if cold.software != LEVELS[-1] or key[0] in LIBRARY.get(family.name, ()):
        return ""
    known = own.software in (LEVELS[:1] if cold.near else LEVELS[:2])
    return OWN_REPLAYED if known and own.impl != cold.impl else ""


def _replayed(family: Family, key: Sequence[Any]) -> tuple[Any, ...]:
    """What graph replays of a group are resolved by."""
    dtype, stack, impl = replay_key(key)[:3]
    return dtype, "graph", stack, impl, options_of(family, key)


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


def ceiling_in_step(seconds: Array, cold: Array) -> Array:
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
