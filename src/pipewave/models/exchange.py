"""Tokens to the ranks of their experts and results back, where attention is data parallel.

Every rank of a group of tp × dp holds tokens of its own. Engines either gather all tokens on all ranks and scatter the
sums (vLLM's default since 0.11, SGLang's without an all-to-all backend, TensorRT-LLM's where NVLink does not join the
ranks for one-sided writes), or send each token to the ranks of its experts.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipewave.calls.families import all_gather, reduce_scatter
from pipewave.calls.operators import MoeAllToAll
from pipewave.models.ffns import Moe
from pipewave.models.stage import ACT, Stage, Use

GATHER = "allgather"
NARROW = "_narrow"  # ends the word of an engine that quantises tokens before it sends them
# Bytes of one element with its share of the scales, as experts of a type take their input.
NARROWED = {"fp8": 1.0, "fp8_block": 1.0 + 4.0 / 128, "nvfp4": 0.5 + 1.0 / 16, "mxfp4": 1.0 + 1.0 / 32}
SHARED = ("fused_moe", "moe_dispatch", "moe_combine")  # kernels whose work is that of the whole group


def dispatch(stage: Stage, spec: Moe) -> Iterator[Use]:
    """What brings tokens to experts; nothing where all ranks hold all tokens."""
    if stage.parallel.dp == 1:
        return
    way, narrow = _way(stage)
    if way == GATHER:
        width = NARROWED.get(spec.precision.dtype, ACT) if narrow else ACT
        yield Use("moe_dispatch", all_gather(_size(stage, spec, width), **_among(stage)))
    else:
        yield Use("moe_dispatch", _sent(stage, spec, way, "dispatch", narrow=narrow))


def combine(stage: Stage, spec: Moe) -> Iterator[Use]:
    """What brings results back; sums inside the tensor group are part of it."""
    if stage.parallel.dp == 1:
        return
    way, _ = _way(stage)
    if way == GATHER:
        yield Use("moe_combine", reduce_scatter(_size(stage, spec, ACT), **_among(stage)))
    else:
        yield Use("moe_combine", _sent(stage, spec, way, "combine", narrow=False))


def is_shared(use: Use) -> bool:
    """Whether a kernel waits for the whole group: experts, the exchange, and what runs beside them."""
    return use.name in SHARED or (use.name.startswith("shared_") and use.name != "shared_add")


def _way(stage: Stage) -> tuple[str, bool]:
    """The exchange, and whether tokens are quantised first. One rank an expert part: nothing but gathering."""
    word = stage.exchange or GATHER
    way = word.removesuffix(NARROW)
    return (GATHER if stage.parallel.ep == 1 else way), word.endswith(NARROW)


def _among(stage: Stage) -> dict[str, int]:
    group = stage.parallel.group
    return {"world": group, "nodes": stage.group_nodes}


def _size(stage: Stage, spec: Moe, width: float) -> int:
    return max(round(stage.met * spec.hidden * width), 1)


def _sent(stage: Stage, spec: Moe, backend: str, direction: str, *, narrow: bool) -> MoeAllToAll:
    """An all-to-all of this rank's share of the tokens: tensor ranks of one request send a part each."""
    tokens = max(-(-stage.rows // stage.tp), 1)
    dtype = spec.precision.dtype if narrow and spec.precision.dtype in NARROWED else stage.dtype
    return MoeAllToAll(
        tokens, spec.hidden, spec.topk, spec.experts, stage.parallel.ep, nodes=_hosts(stage), direction=direction,
        backend=backend, dtype=dtype,
    )  # fmt: skip


def _hosts(stage: Stage) -> int:
    return stage.group_nodes if stage.parallel.ep % stage.group_nodes == 0 else 1
