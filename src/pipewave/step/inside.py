"""What a kernel meets inside an engine step that it does not meet measured alone after a flush.

* The flush leaves the L2 full of dirty lines, and a cold kernel that streams from DRAM pays for writing them back. In a
  step the lines it displaces are clean weights. Of our H200 rows measured both ways (flushed by writing and by reading,
  98 pairs), memory-bound products gain as if one dirty byte went out for every two that came in, up to part of the L2.
* FlashAttention 3 prepares its schedule with a small kernel that a cold call includes; vLLM runs it once a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipewave.calls import Attention, Call, FusedMoe, Gemm, Mla
from pipewave.demand import PIPES, Array
from pipewave.gpus import GPU
from pipewave.prediction import Predictions, predict
from pipewave.step.engine import Engine
from pipewave.step.power import heat_us

DIRTY_PER_BYTE = 0.5  # dirty bytes a cold kernel writes back for each byte it reads from DRAM
DIRTY_SHARE = 0.6  # of the L2 that a flush leaves dirty
IDLE_DRAM, BUSY_DRAM = 0.15, 0.35  # shares of a call its least DRAM traffic takes: no write-back shows; all of it does
DRAM = PIPES.index("dram")
HEAVY = (Gemm, Attention, Mla, FusedMoe)
MOE_LAUNCHES = 10
COLUMNS = ("latency_us", "low_us", "high_us", "floor_us", "ceiling_us", "bound")
NODES: dict[type[Call], int] = {FusedMoe: 6, Attention: 1, Mla: 2}


@dataclass(frozen=True, slots=True)
class Kernels:
    """Distinct calls inside a step: predictions, µs their energy takes at the power limit, kernels each launches, and
    how many launches' host time it takes to launch them one by one."""

    found: Predictions
    heat_us: Array
    nodes: Array
    launches: Array

    @property
    def columns(self) -> tuple[Array, Array, Array, Array]:
        """What adds up over a step: µs, µs at the power limit, kernels, launches."""
        return self.found.latency_us, self.heat_us, self.nodes, self.launches


def inside(calls: Sequence[Call], gpu: GPU, engine: Engine) -> Kernels:
    """Predict calls as they run inside a step of an engine. Raises what `predict` raises."""
    found, cold = _predict(calls, gpu, engine)
    spared = np.where(_streams(calls), write_back_us(found, gpu), 0.0) + _setup_us(calls, gpu, engine)
    shorter = _shorter(found, np.where(cold, spared, 0.0))
    return Kernels(
        shorter,
        heat_us(calls, shorter.latency_us, gpu),
        np.array([nodes_of(call) for call in calls], float),
        np.array([launches_of(call) for call in calls], float),
    )


def _predict(calls: Sequence[Call], gpu: GPU, engine: Engine) -> tuple[Predictions, NDArray[np.bool_]]:
    """Predictions, and which of them are of cold calls.

    What reads weights or KV is cold in a step, too, but for the flush. Where no cold call was measured on this GPU,
    graph replays over rotating weights are the nearest that many GPUs have rows of. What streams activations finds
    them in L2.
    """
    heavy = np.array([isinstance(call, HEAVY) for call in calls], bool)
    first = _answers(calls, np.flatnonzero(heavy), gpu, "cold", engine)
    measured = [first.found.sources[group].basis == "measured_gpu" for group in first.found.group]
    known, unknown = first.only(measured), first.indices[~np.array(measured, bool)]
    named = [_backend(call, engine) for call in calls]
    others = [_answers(named, unknown, gpu, "graph", engine),
              _answers(calls, np.flatnonzero(~heavy), gpu, "serving", engine)]  # fmt: skip
    cold = np.isin(np.arange(len(calls)), known.indices)
    return _joined([known, *others]), cold


@dataclass(frozen=True, slots=True)
class _Part:
    """Predictions of some calls, by their indices among all."""

    indices: NDArray[np.intp]
    found: Predictions

    def only(self, keep: Sequence[bool]) -> _Part:
        """The calls a mask keeps."""
        mask = np.array(keep, bool)
        columns = {name: getattr(self.found, name)[mask] for name in (*COLUMNS, "group")}
        return _Part(self.indices[mask], Predictions(**columns, sources=self.found.sources))


def _answers(calls: Sequence[Call], indices: NDArray[np.intp], gpu: GPU, protocol: str, engine: Engine) -> _Part:
    return _Part(indices, predict([calls[i] for i in indices], gpu, protocol=protocol, stack=engine.stack))


def _joined(parts: Sequence[_Part]) -> Predictions:
    """Parts in the order of the calls."""
    order = np.argsort(np.concatenate([part.indices for part in parts]))
    offsets = np.cumsum([0, *(len(part.found.sources) for part in parts)])
    columns = {name: np.concatenate([getattr(part.found, name) for part in parts])[order] for name in COLUMNS}
    group = np.concatenate([part.found.group + offset for part, offset in zip(parts, offsets, strict=False)])[order]
    return Predictions(**columns, group=group, sources=sum((part.found.sources for part in parts), ()))


def _backend(call: Call, engine: Engine) -> Call:
    """Prompt attention of an engine whose own measured rows are of another backend than its default."""
    if not isinstance(call, Attention) or max(call.q_lens) == 1 or call.stack is not None:
        return call
    return replace(call, stack=engine.prompt_attention or engine.stack)


def _streams(calls: Sequence[Call]) -> NDArray[np.bool_]:
    """Products gain; attention was not seen to in traces (pages of a large cache miss the TLB, which costs as much)."""
    return np.array([isinstance(call, Gemm | FusedMoe) for call in calls], bool)


def write_back_us(found: Predictions, gpu: GPU) -> Array:
    """µs of a cold call that go into writing back what the flush left in the L2: all of it where DRAM is what the call
    waits for, none where it waits for other things most of the time."""
    per_us = gpu.dram_peak_gbps * 1e3
    dirty = np.minimum(DIRTY_PER_BYTE * found.floor_us * per_us, DIRTY_SHARE * gpu.l2_mb * 2.0**20)
    waiting = np.clip((found.floor_us / found.latency_us - IDLE_DRAM) / (BUSY_DRAM - IDLE_DRAM), 0.0, 1.0)
    return np.where(found.bound == DRAM, waiting * dirty / per_us, 0.0)


def _setup_us(calls: Sequence[Call], gpu: GPU, engine: Engine) -> Array:
    """Only FlashAttention 3, which runs on compute capability 9.0, prepares."""
    each = engine.attention_setup_us if gpu.compute_capability == 90 else 0.0
    return np.array([each if isinstance(call, Attention) else 0.0 for call in calls])


def _shorter(found: Predictions, spared: Array) -> Predictions:
    """Latency and interval less what a step spares, in proportion, nothing below the floor."""
    factor = np.maximum(found.latency_us - spared, found.floor_us) / found.latency_us
    times = {name: getattr(found, name) * factor for name in ("latency_us", "low_us", "high_us")}
    return replace(found, **{name: np.maximum(values, found.floor_us) for name, values in times.items()})


def nodes_of(call: Call) -> int:
    """Kernels one call launches: nodes of a CUDA graph."""
    if isinstance(call, Gemm):
        return 2 if call.quantize else 1
    return NODES.get(type(call), 1)


def launches_of(call: Call) -> int:
    """Launches whose host time equals that of a call launched kernel by kernel; a MoE layer runs much Python."""
    return MOE_LAUNCHES if isinstance(call, FusedMoe) else nodes_of(call)
