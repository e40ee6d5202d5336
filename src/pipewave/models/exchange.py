"""Tokens to the ranks of their experts and results back, where attention is data parallel.

Every rank of a group of tp × dp holds tokens of its own. Engines either gather all tokens on all ranks and scatter the
sums (vLLM's default since 0.11, SGLang's without an all-to-all backend, TensorRT-LLM's where NVLink does not join the
ranks for one-sided writes), or send each token to the ranks of its experts. SGLang gathers the tokens of prompts, whose
number differs between ranks, by adding up buffers for all of them that hold zeros elsewhere, and adds up all results.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipewave.calls.families import all_gather, all_reduce, reduce_scatter
from pipewave.calls.operators import MoeAllToAll
from pipewave.errors import BadInput
from pipewave.models.ffns import Moe
from pipewave.models.stage import ACT, Stage, Use

GATHER = "allgather"
ADDED = "allreduce"
NARROW = "_narrow"  # ends the word of an engine that quantises tokens before it sends them
# Bytes of one element with its share of the scales, as experts of a type take their input.
NARROWED = {"fp8": 1.0, "fp8_block": 1.0 + 4.0 / 128, "nvfp4": 0.5 + 1.0 / 16, "mxfp4": 1.0 + 1.0 / 32}
SENT = {"mxfp4": "fp8"}  # operands of experts in MXFP4 go out as MXFP8, which moves as FP8 does
MOVED = ("moe_dispatch", "moe_combine")
SHARED = ("fused_moe", *MOVED)  # kernels whose work is that of the whole group
NVLINK = "nvlink"  # exchanges that write into other ranks' memory
DEEPEP = "deepep"  # low latency for few tokens of a rank, high throughput for more
LOW_LATENCY, HIGH_THROUGHPUT = "deepep_ll", "deepep_ht"
# Tokens of a rank that low-latency buffers hold: SGLang 0.5.14 environ.py NUM_MAX_DISPATCH_TOKENS_PER_RANK.
FEW_TOKENS = 128
# What engines call their exchanges: vLLM 0.22.1 config/parallel.py, SGLang 0.5.14 server_args.py moe_a2a_backend.
NAMES = {
    "allgather": GATHER,
    "allgather_reducescatter": GATHER,
    "none": GATHER,
    "allgather_quantised": GATHER + NARROW,
    "allreduce": ADDED,
    "deepep": DEEPEP + NARROW,
    "deepep_high_throughput": HIGH_THROUGHPUT + NARROW,
    "deepep_low_latency": LOW_LATENCY + NARROW,
    "flashinfer_nvlink_one_sided": "nvlink_one_sided" + NARROW,
    "flashinfer_nvlink_two_sided": "nvlink_two_sided" + NARROW,
}


def exchange_of(word: str) -> str:
    """An exchange by the name that an engine gives it. Raises BadInput."""
    if word not in NAMES:
        raise BadInput(f"all2all_backend = {word!r}: must be one of {', '.join(NAMES)}", field="all2all_backend")
    return NAMES[word]


def dispatch(stage: Stage, spec: Moe) -> Iterator[Use]:
    """What brings tokens to experts; nothing where all ranks hold all tokens."""
    if stage.parallel.dp == 1:
        return
    way, narrow = _way(stage)
    if way == GATHER:
        width = NARROWED.get(spec.precision.dtype, ACT) if narrow else ACT
        yield Use("moe_dispatch", all_gather(_size(stage, spec, width), **_among(stage)))
    elif way == ADDED:
        yield Use("moe_dispatch", all_reduce(_size(stage, spec, ACT), **_among(stage)))
    else:
        yield Use("moe_dispatch", _sent(stage, spec, way, "dispatch", narrow=narrow))


def combine(stage: Stage, spec: Moe) -> Iterator[Use]:
    """What brings results back; sums inside the tensor group are part of it."""
    if stage.parallel.dp == 1:
        return
    way, _ = _way(stage)
    if way == GATHER:
        yield Use("moe_combine", reduce_scatter(_size(stage, spec, ACT), **_among(stage)))
    elif way == ADDED:
        yield Use("moe_combine", all_reduce(_size(stage, spec, ACT), **_among(stage)))
    else:
        yield Use("moe_combine", _sent(stage, spec, way, "combine", narrow=False))


def is_moved(use: Use) -> bool:
    """Whether a kernel brings tokens to experts or back."""
    return use.name in MOVED


def is_shared(use: Use) -> bool:
    """Whether a kernel waits for the whole group: experts, the exchange, and what runs beside them."""
    return use.name in SHARED or (use.name.startswith("shared_") and use.name != "shared_add")


def _way(stage: Stage) -> tuple[str, bool]:
    """The exchange, and whether tokens are quantised first. One rank an expert part: nothing but gathering."""
    word = stage.exchange or GATHER
    way = word.removesuffix(NARROW)
    if way == DEEPEP:
        way = LOW_LATENCY if stage.rows <= FEW_TOKENS else HIGH_THROUGHPUT
    gathers = stage.parallel.ep == 1 and way != ADDED
    return (GATHER if gathers else way), word.endswith(NARROW)


def _among(stage: Stage) -> dict[str, int]:
    group = stage.parallel.group
    return {"world": group, "nodes": stage.group_nodes}


def _size(stage: Stage, spec: Moe, width: float) -> int:
    return max(round(stage.met * spec.hidden * width), 1)


def _sent(stage: Stage, spec: Moe, backend: str, direction: str, *, narrow: bool) -> MoeAllToAll:
    """An all-to-all of this rank's share of the tokens: tensor ranks of one request send a part each."""
    tokens = max(round(-(-stage.rows // stage.tp) * spec.skew), 1)  # the fullest rank receives as much
    own = spec.precision.dtype
    dtype = SENT.get(own, own) if narrow and own in NARROWED else stage.dtype
    if backend.startswith(DEEPEP) and dtype == "nvfp4":
        dtype = "fp8"  # no rows of DeepEP are of 4-bit tokens, which move no slower
    return MoeAllToAll(
        tokens, spec.hidden, spec.topk, spec.experts, stage.parallel.ep, nodes=_hosts(stage, backend),
        direction=direction, backend=backend, dtype=dtype,
    )  # fmt: skip


def _hosts(stage: Stage, backend: str) -> int:
    """Hosts that the ranks lie on; one where NVLink joins them all, which is the only place for writes over it."""
    apart = stage.parallel.ep % stage.group_nodes == 0 and not backend.startswith(NVLINK)
    return stage.group_nodes if apart else 1
