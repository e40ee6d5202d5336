"""GPU memory of a deployment: weights, activations, engine, KV cache."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipewave.errors import DoesNotFit
from pipewave.gpus import GPU
from pipewave.models.attention_spec import Recurrent
from pipewave.models.kernels import ACT, Deployment
from pipewave.models.shard import cache_bytes as tokens_bytes
from pipewave.models.shard import kv_bytes_per_token, padded_vocab, stage_bytes
from pipewave.models.spec import Layer, Moe
from pipewave.software.engine import Engine

GIB = 2**30
# nvidia-smi's total less what the driver keeps: 139.81 of 140.40 GiB are left to a program on an H200, 79.1 of 79.65
# on an H100, 44.4 of 45.0 on an L40S.
DRIVER_GIB = 0.57
# Logits gathered, in fp32, and the sampler's copies of them: what vLLM 0.22.1 reports as its peak, less the hidden
# states, is 14.9 bytes a logit for vocabularies of 128k and 152k.
SAMPLER_BYTES = 13.0
UNBOUNDED = 1 << 17  # tokens over which a model without any cache spreads its state, where its config has no limit


@dataclass(frozen=True, slots=True)
class Budget:
    """GiB on the fullest rank."""

    total: float
    weights: float
    activations: float
    engine: float
    kv: float  # what the engine may fill with cache
    free: float  # what the engine leaves unused on purpose
    kv_tokens: int  # how many tokens that holds
    windows_once: bool = False  # `frees_window_pages` of the engine
    state_pool: float = 0.0  # what of `kv` holds nothing but recurrent states
    states: int = 1  # that a request must find room for
    drafts: float = 0.0  # cache of layers that draft

    def to_dict(self) -> dict[str, float]:
        """As the contract names it, cache tokens included."""
        names = ("total", "weights", "activations", "engine", "kv", "free", "drafts")[: 7 if self.drafts else 6]
        return {name: round(getattr(self, name), 3) for name in names} | {"kv_tokens": self.kv_tokens}


def activation_bytes(deployment: Deployment, tokens: int, requests: int) -> float:
    """Peak of temporary tensors: the widest layer's forward pass over `tokens`, or sampling `requests` rows.

    Engines keep the workspace of their experts, so it is there while they sample, too.
    """
    model, tp = deployment.model, deployment.parallel.tp
    widest = max(_layer_width(layer, deployment) for layer, _ in model.grouped())
    moes = [moe for layer, _ in model.grouped() for moe in layer.moes]
    # Of grouped products: their two intermediate results, each as wide as the wider.
    kept = tokens * ACT * max((2.0 * moe.topk * max(2.0 * moe.inter, moe.hidden) for moe in moes), default=0.0)
    forward = tokens * ACT * (4 * model.hidden + widest)
    sampling = tokens * ACT * model.hidden + requests * padded_vocab(model) * (ACT / tp + SAMPLER_BYTES)
    return max(forward, sampling + kept)


def _layer_width(layer: Layer, deployment: Deployment) -> float:
    """Elements per token of the intermediate tensors alive together in a layer's feed-forward parts."""
    tp, moe_tp = deployment.parallel.tp, deployment.parallel.moe_tp
    width = 0.0
    for part in layer.ffns:
        if isinstance(part, Moe):
            inter = part.inter / moe_tp
            width += part.topk * (max(2 * inter, part.hidden) + inter)
            width += 3.0 * part.shared.inter / tp if part.shared else 0.0
        else:
            width += 3.0 * getattr(part, "inter", 0) / tp
    return width


def _stage_bytes(deployment: Deployment, engine: Engine, stage: int) -> float:
    """Weight bytes of a pipeline stage on one rank, experts as wide as their kernel wants them."""
    model, parallel = deployment.model, deployment.parallel
    first, last = parallel.stages(len(model.layers))[stage]
    padding = sum(
        _padding(moe, engine, parallel.moe_tp) * moe.expert_bytes(parallel.group) * count
        for layer, count in model.grouped(first, last)
        for moe in layer.moes
    )
    return stage_bytes(model, parallel, stage) + padding


def _padding(moe: Moe, engine: Engine, ranks: int) -> float:
    """Bytes that pad an expert's matrices over those it has."""
    rule = engine.kernel("fused_moe", moe.precision.dtype)
    if rule is None:
        return 0.0
    sizes = (moe.hidden, moe.inter / ranks)
    hidden, inter = (
        math.ceil(size / unit) * unit / size for size, unit in zip(sizes, rule.weight_multiples, strict=True)
    )
    return hidden * inter - 1.0


def budget(deployment: Deployment, gpu: GPU, engine: Engine, *, max_batched_tokens: int | None = None) -> Budget:
    """Memory of the fullest rank. Raises DoesNotFit when no room is left for the cache."""
    engine = engine.on(deployment.facts(gpu))
    parallel, total = deployment.parallel, gpu.dram_gib - DRIVER_GIB
    tokens = max_batched_tokens or engine.scheduler.max_batched_tokens
    weights = max(_stage_bytes(deployment, engine, stage) for stage in range(parallel.pp)) / GIB
    activations = activation_bytes(deployment, tokens, min(engine.scheduler.max_requests, tokens)) / GIB
    fixed = engine.memory.runtime_gib + engine.memory.graph_gib
    left, free = _for_cache(engine, total, weights, activations, fixed)
    if left <= 0:
        raise DoesNotFit(
            f"{deployment.model.name} does not fit {parallel.world} × {gpu.name}: {weights:.1f} GiB of weights a GPU "
            f"and {activations + fixed:.1f} GiB for activations and the engine leave no KV cache in "
            f"{total - free:.1f} GiB; use more GPUs or smaller weights",
            field="gpu",
        )
    rule = engine.memory.states
    pool = left * rule.pool_share if deployment.model.has(Recurrent) else 0.0
    per_token = kv_bytes_per_token(deployment.model, parallel, deployment.kv_dtype)
    per_token = per_token or deployment.state_bytes / (deployment.model.max_length or UNBOUNDED) or ACT
    tokens = int((left - pool) * GIB / (per_token * engine.memory.page_size)) * engine.memory.page_size
    once, states = engine.memory.frees_window_pages, rule.free_to_admit
    return Budget(total, weights, activations, fixed, left, free, tokens, once, pool, states)


def _for_cache(engine: Engine, total: float, weights: float, activations: float, fixed: float) -> tuple[float, float]:
    """GiB for the cache, and those left unused, by what an engine's share of memory is a share of."""
    share = engine.memory.memory_share
    if engine.memory.memory_of == "whole":  # vLLM: that much of the GPU holds everything
        return total * share - weights - activations - fixed, total * (1 - share)
    if engine.memory.memory_of == "static":  # SGLang: what is free before loading; activations and graphs get the rest
        left = (total - fixed) * share - weights
        return left, total - fixed - weights - activations - left
    left = total - weights - activations - fixed  # TensorRT-LLM: what weights and a trial run leave
    return left * share, left * (1 - share)


def cache_bytes(deployment: Deployment, length: int, *, chunk: int = 0, states: int = 1) -> float:
    """Bytes a request of `length` tokens holds on the fullest rank; `chunk`: tokens before windows give pages back."""
    model, parallel = deployment.model, deployment.parallel
    cached = tokens_bytes(model, length, parallel, deployment.kv_dtype, chunk=chunk)
    return cached + states * deployment.state_bytes


def held_bytes(
    deployment: Deployment, memory: Budget, requests: float, length: int, chunk: int, states: int | None = None
) -> float:
    """Bytes of so many such requests while a step brings `chunk` prompt tokens; freed windows hold those once."""
    states = memory.states if states is None else states
    first = cache_bytes(deployment, length, chunk=chunk, states=states)
    alone = requests == 1 or not memory.windows_once
    return first + (requests - 1) * (first if alone else cache_bytes(deployment, length, states=states))


def requests_in(deployment: Deployment, memory: Budget, length: int, chunk: int) -> float:
    """Requests of `length` tokens that fit beside the `chunk` prompt tokens of a step; may be infinite."""
    if not memory.state_pool:
        return caches_in(deployment, memory, length, chunk, memory.states)
    return min(caches_in(deployment, memory, length, chunk, 0), states_in(deployment, memory) / memory.states)


def caches_in(deployment: Deployment, memory: Budget, length: int, chunk: int, states: int) -> float:
    """The same by the pages alone, when each request keeps so many states in them."""
    first, second = (held_bytes(deployment, memory, count, length, chunk, states) for count in (1, 2))
    each = second - first
    return 1.0 + ((memory.kv - memory.state_pool) * GIB - first) / each if each else math.inf


def states_in(deployment: Deployment, memory: Budget) -> float:
    """States that a pool of their own holds."""
    return memory.state_pool * GIB / deployment.state_bytes
