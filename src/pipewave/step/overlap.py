"""What engines fuse or overlap: an all-reduce with its norm, shared with routed experts, half batches.

All-reduce and norm in one kernel (TensorRT-LLM's and FlashInfer's): every rank pushes its rows to every other, then
each norms the sum, so the norm's own launch and traffic are gone and

    start + bytes × (world − 1) / (share × link)

is what it takes. Start and share are those of the corpus's measured rows of this kernel (`python -m
studies.fused_norm`), on H200 and B200 at 2, 4 and 8 GPUs from 64 KiB to 1 MiB, mean error 3 %.

Two-batch overlap: a step runs as two halves, and the exchange of one hides behind the kernels of the other.

With computing time C and exchanging time A of both halves together, the halves taking turns at every layer:

    step = max(C + A·s, A) + min(C, A) / layers

s: share of the SMs that a high-throughput exchange keeps from the kernels beside it; a low-latency one keeps none. The
first half's first turn has nothing beside it: the last term. Halves cost more than half: weights are read twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from pipewave.calls.families import Call, Collective, Elementwise, FusedMoe, Gemm, RmsNorm
from pipewave.errors import BadInput
from pipewave.gpus import GPU
from pipewave.kernels.collective.fabric import joined
from pipewave.kernels.streaming.elementwise import FLOAT_PRODUCT
from pipewave.kernels.streaming.sampling import VALUE_BYTES
from pipewave.models.expert_parallel import DEEPEP, FEW_TOKENS, LOW_LATENCY, NARROW
from pipewave.models.kernels import Batch, Use
from pipewave.physics.demand import Array
from pipewave.prediction.answers import Predictions
from pipewave.software.engine import Engine

START_US = {"wgmma": 2.5, "tcgen05": 4.7}  # of the fused kernel, by the GPU's tensor instruction
RANK_US = 0.08  # more for each further rank
LINK_SHARE = 0.7  # of a GPU's link rate in one direction that pushing to all ranks reaches
MIB = 2.0**20
USUAL_PROMPT = 1024  # tokens; longer ones take the GPU longer than the host launches
# Lanes of a step's kernels: everything else, routed experts, shared ones, exchanges that another half hides.
SIDE, ROUTED, SHARED, EXCHANGED = 0, 1, 2, 3
TINY_US = 1e-6  # a kernel that runs inside another
PART_OF_ROWS = "strided"  # implementation of a norm of part of wider rows: without rows of its own, joined to nothing


@lru_cache(maxsize=4096)
def fused_us(size: float, world: int, gpu: GPU) -> float:
    """µs of all-reduce and norm in one kernel, for a message of `size` bytes over `world` GPUs that NVLink joins: those
    of a host, or of a rack (TensorRT-LLM's MNNVL strategy, FlashInfer's trtllm_mnnvl_allreduce).
    """
    start = START_US.get(gpu.traits.mma, max(START_US.values())) + RANK_US * world
    return start + size * (world - 1) / (LINK_SHARE * 1e3 * gpu.link_gbps)


def with_fused_norms(
    calls: Sequence[Call], found: Predictions, gpu: GPU, engine: Engine
) -> tuple[Predictions, Array, Array]:
    """Predictions with norms inside the all-reduces before them, which calls are launched no more, and all-reduces that
    the engine's call for both launches: what is launched does not depend on sizes, so where a usual prompt's are.
    """
    gone, called = np.zeros((2, len(calls)), bool)
    most = engine.kernels.fused_norm_mib * MIB
    if engine.facts.tp == 1 or not most:
        return found, gone, called
    usual = engine.kernels.fused_norm_any_size or 2 * USUAL_PROMPT * engine.facts.hidden <= most
    factor = np.ones(len(calls))
    norms = [one if isinstance(one, RmsNorm) and one.fused_add and not one.impl else None for one in calls]
    sizes = [2 * one.rows * one.dim if one else 0 for one in norms]
    small = {size for size in sizes if 0 < size <= most}
    for index, (call, size) in enumerate(zip(calls, sizes, strict=True)):
        if size in small:
            gone[index] = True
        elif isinstance(call, Collective) and call.kernel == "all_reduce" and call.world <= joined(gpu):
            us = fused_us(call.bytes, call.world, gpu) if call.bytes in small else math.inf
            factor[index] = min(1.0, us / found.latency_us[index])
            called[index] = usual and call.bytes in sizes
    return found.scaled(np.where(gone, TINY_US / found.latency_us, factor)), gone, called


def lanes(uses: Sequence[Use], engine: Engine) -> list[int]:
    """The lane of each use: experts apart where the engine runs shared ones beside routed ones."""
    if engine.kernels.shared_experts != "overlapped" or any(
        use.call.tokens > engine.kernels.shared_tokens for use in uses if isinstance(use.call, FusedMoe)
    ):
        return [SIDE] * len(uses)
    shared = [use.name.startswith("shared_") and use.name != "shared_add" for use in uses]
    return [
        ROUTED if isinstance(use.call, FusedMoe) else SHARED if beside else SIDE
        for use, beside in zip(uses, shared, strict=True)
    ]


def arranged(uses: Sequence[Use], engine: Engine) -> Sequence[Use]:
    """The uses as the engine launches them: fused, in its types, less those that rows of others hold."""
    left_out = (*engine.kernels.included_kernels, *(["rope"] if engine.kernels.fused_rope else []))
    uses = [use for use in uses if use.name not in left_out] if left_out else uses
    uses = [_floating(use) for use in uses] if engine.kernels.float_routers else uses
    uses = [_padded(use, engine) for use in uses] if engine.facts.hidden % engine.kernels.padded_sums else uses
    if engine.kernels.shared_experts != "fused" or engine.facts.ep > 1:
        return uses
    if not any(use.name.startswith("shared_") for use in uses):
        return uses
    kept = [use for use in uses if not use.name.startswith("shared_")]
    return [
        replace(use, call=replace(call, experts=call.experts + 1, topk=call.topk + 1))
        if isinstance(call := use.call, FusedMoe)
        else use
        for use in kept
    ]


def _padded(use: Use, engine: Engine) -> Use:
    """An all-reduce of experts' padded rows, or a norm of part of these, which no pass joins; others as they are."""
    unit, hidden, call = engine.kernels.padded_sums, engine.facts.hidden, use.call
    if use.name == "ffn_all_reduce" and isinstance(call, Collective):
        return replace(use, call=call.changed(bytes=call.bytes // hidden * math.ceil(hidden / unit) * unit))
    return replace(use, call=call.changed(impl=PART_OF_ROWS)) if use.name == "input_norm" else use


def _floating(use: Use) -> Use:
    """A router's product over 32-bit floats; others as they are."""
    if use.name != "router" or not isinstance(use.call, Gemm):
        return use
    call = use.call
    sizes = (VALUE_BYTES * call.m * call.k, VALUE_BYTES * call.m * call.n)
    return replace(use, call=Elementwise(*sizes, weight_bytes=VALUE_BYTES * call.n * call.k, op=FLOAT_PRODUCT))


@dataclass(frozen=True, slots=True)
class TwoBatch:
    """From how many tokens of a rank steps are cut, and what the overlap leaves."""

    prompt: int
    decode: int
    layers: int
    exchange: str
    sms_share: float

    def cuts(self, tokens: int, *, prompts: bool) -> bool:
        """Whether a step is cut whose emptiest rank has so many tokens."""
        return tokens >= max(self.prompt if prompts else self.decode, 2)

    def busy(self, computing: Array | float, exchanging: Array | float, tokens: Array | float) -> Array:
        """Time of both halves; `tokens`: of a half, on a rank."""
        few = np.asarray(tokens) <= FEW_TOKENS if self.exchange == DEEPEP else np.bool_(self.exchange == LOW_LATENCY)
        held = computing + np.where(few, 0.0, self.sms_share) * exchanging
        return np.asarray(np.maximum(held, exchanging) + np.minimum(computing, exchanging) / self.layers)


def two_batch(engine: Engine, gpu: GPU, layers: int) -> TwoBatch | None:
    """The overlap of an engine on a GPU, None where steps are not cut. Raises BadInput where nothing could overlap."""
    experts = engine.expert_parallel
    if not experts.two_batch:
        return None
    if engine.facts.dp > 1 and not experts.two_batch_prompt:
        raise BadInput(f"two_batch_overlap: {engine.name} {engine.version} has none", field="two_batch_overlap")
    way = experts.exchange.removesuffix(NARROW)
    if engine.facts.dp == 1 or not way.startswith(DEEPEP):
        raise BadInput(
            "two_batch_overlap: engines overlap DeepEP's exchange alone; give dp, ep and one of its backends",
            field="two_batch_overlap",
        )
    return TwoBatch(experts.two_batch_prompt, experts.two_batch_decode, layers, way, experts.exchange_sms / gpu.sms)


def halved(batch: Batch) -> Batch:
    """The larger half of a batch: every second request, or half the tokens where there is one."""
    if batch.requests == 1:
        tokens = -(-batch.q_lens[0] // 2)
        return Batch((tokens,), (batch.kv_lens[0] - batch.q_lens[0] + tokens,), verify=batch.verify)
    padded = None if batch.padded is None else -(-batch.padded // 2)
    return Batch(batch.q_lens[::2], batch.kv_lens[::2], padded, batch.verify)
