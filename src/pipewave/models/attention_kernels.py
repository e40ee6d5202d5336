"""Kernels of attention and recurrences, in three steps: before, by the lengths of requests, and after.

The order of kernels and what is fused follow the model code of vLLM and SGLang (facts, not code).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pipewave.calls.families import Attention, Gemm, all_gather, reduce_scatter
from pipewave.calls.families import Mla as MlaCall
from pipewave.calls.operators import AttentionModule, CausalConv1d, DeltaNet, Mamba2
from pipewave.models.attention_spec import Compressed, Gqa, Mixer, Mla, Recurrent
from pipewave.models.stage import ACT, Lengths, Stage, Use

# Fields that a module's call takes from its part of the model; those of CUT are divided among the ranks.
MODULE_FIELDS: dict[type[Mixer], tuple[str, ...]] = {
    Mla: ("heads", "q_lora_rank", "kv_lora_rank", "nope_dim", "v_dim"),
    Gqa: ("heads", "kv_heads", "head_dim"),
    Compressed: ("heads", "head_dim", "q_lora_rank", "o_groups", "o_lora_rank", "compress_ratio", "window"),
}
CUT = ("heads", "kv_heads", "o_groups")
STATE_DTYPES = {2: "bf16", 4: "fp32"}
DELTA = ("gdn", "kda")
BRANCHES = {"kda": 3}  # kernels of a convolution that share the channels: those of q, k and v
Step = Callable[[Stage, Any], Iterator[Use]]


def modules(stage: Stage, part: Mla | Gqa | Compressed) -> Iterator[Use]:
    """One call for the prompts of a batch and one for its decodes."""
    indexer, query = part.indexer, part.qkv if isinstance(part, Gqa) else part.query
    sizes: dict[str, Any] = {name: getattr(part, name) for name in MODULE_FIELDS[type(part)]}
    sizes |= {name: max(sizes[name] // stage.tp, 1) for name in CUT if name in sizes}
    kind = "csa" if indexer else "hca"
    if indexer:
        sizes |= {"index_heads": indexer.heads, "index_dim": indexer.dim, "topk": indexer.topk}
        if isinstance(part, Mla):  # DeepSeek's sparse attention
            kind, more = "dsa", {"rope_dim": max(part.rope_dim, 1), "share_index": indexer.reused}
            sizes |= more
        elif isinstance(part, Gqa):  # MiniMax's: blocks of keys
            kind, sizes = "msa", sizes | {"block_size": indexer.block}
    for phase, (q_lens, kv_lens) in stage.phases():
        call = AttentionModule(
            q_lens=q_lens, kv_lens=kv_lens, phase=phase, hidden=stage.model.hidden, dtype=query.precision.dtype,
            kv_dtype=stage.kv_dtype, kind=kind, **sizes,
        )  # fmt: skip
        yield Use(f"{kind}_{phase}", call)


def before_recurrence(stage: Stage, spec: Recurrent) -> Iterator[Use]:
    """All maps from the hidden states, and the copy that parts what the first one leaves side by side."""
    for matrix in spec.inputs:
        yield stage.linear(matrix)
    if spec.interleaved:
        size = stage.rows * (spec.inputs[0].out // stage.tp) * ACT
        yield stage.streaming("delta_unpack", size, size)


def recurrence(stage: Stage, spec: Recurrent) -> Iterator[Use]:
    """The convolution and the recurrence, prompts and decodes apart, as engines launch them."""
    for phase, (q_lens, _) in stage.phases():
        phase = "verify" if phase == "generation" and max(q_lens) > 1 else phase
        if spec.channels and spec.kernel > 1:
            branches = BRANCHES.get(spec.kind, 1)
            channels, width = max(spec.channels // stage.tp // branches, 1), spec.kernel
            call = CausalConv1d(q_lens, channels, width=width, branches=branches, phase=phase, dtype=stage.dtype)
            yield Use("causal_conv1d", call)
        if spec.kind in DELTA and phase == "context":
            # Beside the scan vLLM 0.22.1 (fla/ops/fused_gdn_prefill_post_conv.py) norms queries and keys and parts them
            # from values, and zeroes the buffer of outputs, which is then filled with copies.
            sizes = (spec.channels, spec.heads * spec.value_dim)
            parted, out = (sum(q_lens) * (size // stage.tp) * ACT for size in sizes)
            yield stage.streaming("delta_prepare", parted, parted)
            yield stage.streaming("delta_output", out, 2 * out)
        if spec.key_dim:
            yield _CORES[spec.kind](stage, spec, q_lens, phase)


def _delta(stage: Stage, spec: Recurrent, q_lens: tuple[int, ...], phase: str) -> Use:
    """A delta net's chunked scan or step; ranks beyond the key heads repeat them."""
    values, keys = spec.heads // stage.tp, max(spec.key_heads // stage.tp, 1)
    call = DeltaNet(
        q_lens, keys, values, head_k_dim=spec.key_dim, head_v_dim=spec.value_dim, kind=spec.kind, phase=phase,
        state_dtype=STATE_DTYPES[spec.state_width], dtype=stage.dtype,
    )  # fmt: skip
    return Use("delta_net", call)


def _selective(stage: Stage, spec: Recurrent, q_lens: tuple[int, ...], phase: str) -> Use:
    """Mamba 2, and lightning attention, which is the same scan with a group of B and C for every head."""
    heads, groups = spec.heads // stage.tp, max(spec.key_heads // stage.tp, 1)
    call = Mamba2(
        q_lens, heads, head_dim=spec.value_dim, state_dim=spec.key_dim, groups=groups, chunk=spec.chunk, phase=phase,
        state_dtype=STATE_DTYPES[spec.state_width], dtype=stage.dtype,
    )  # fmt: skip
    return Use(spec.kind, call)


def _channelwise(stage: Stage, spec: Recurrent, q_lens: tuple[int, ...], _phase: str) -> Use:
    """Mamba 1: every channel has a state of its own, read and written once; x, B, C and the gate pass by."""
    states = len(q_lens) * spec.heads // stage.tp * spec.key_dim * spec.state_width
    passing = sum(q_lens) * (3 * spec.heads // stage.tp + 2 * spec.key_dim) * ACT
    return stage.streaming("mamba1", states + passing, states + passing / 3)


_CORES: dict[str, Callable[[Stage, Recurrent, tuple[int, ...], str], Use]] = {
    "gdn": _delta,
    "kda": _delta,
    "mamba2": _selective,
    "lightning": _selective,
    "mamba1": _channelwise,
}


def after_recurrence(stage: Stage, spec: Recurrent) -> Iterator[Use]:
    """The gated norm of the outputs and the maps behind it."""
    if spec.norm:
        size = stage.rows * (spec.heads // stage.tp) * max(spec.value_dim, 1) * ACT
        yield stage.streaming("gated_norm", 2 * size, size)
    for matrix in spec.outputs:
        yield stage.linear(matrix)


def steps(part: Mixer) -> tuple[Step, Step, Step]:
    """What comes before (by the count of tokens alone), kernels by each request's lengths, and what follows."""
    whole = isinstance(part, Compressed) or getattr(part, "indexer", None)  # engines' rows measure it as a whole
    return (_nothing, modules, _nothing) if whole else _STEPS[type(part)]


def _nothing(_stage: Stage, _part: Mixer) -> Iterator[Use]:
    return iter(())


# Grouped attention


def _gqa_before(stage: Stage, spec: Gqa) -> Iterator[Use]:
    heads, kv_heads = spec.heads // stage.tp, max(spec.kv_heads // stage.tp, 1)
    yield stage.linear(spec.qkv)
    if spec.query:
        yield stage.norm("q_bottleneck_norm", spec.query.inp)
        yield stage.linear(spec.query)
    keys = 0 if spec.borrowed else kv_heads
    yield from _head_norms(stage, spec, heads, keys)
    if spec.rope:
        size = stage.rows * (heads + keys) * spec.head_dim * ACT
        yield stage.streaming("rope", size, size, stage.rows * spec.head_dim * ACT)
    if not spec.borrowed and spec.causal:
        yield kv_write(stage, kv_heads * (spec.head_dim + spec.v_dim))


def _head_norms(stage: Stage, spec: Gqa, heads: int, kv_heads: int) -> Iterator[Use]:
    """Norms of queries and keys. Compiled, one kernel sums the squares and RoPE's applies them."""
    by_head = spec.qk_norm in ("head", "each", "plain")
    if by_head and stage.compiled:
        sums = stage.rows * (heads + kv_heads)
        yield stage.streaming("qk_norm", sums * spec.head_dim * ACT, sums * 4)
    elif by_head and stage.choice.one_head_norm:
        yield stage.norm("qk_norm", spec.head_dim, stage.rows * (heads + kv_heads))
    elif by_head:
        yield stage.norm("q_norm", spec.head_dim, stage.rows * heads)
        if kv_heads:
            yield stage.norm("k_norm", spec.head_dim, stage.rows * kv_heads)
    elif spec.qk_norm == "full":
        yield from stage.reduce("qk_norm_all_reduce", stage.rows * 2 * 4)  # squares of a rank's heads, in fp32
        yield stage.norm("q_norm", spec.head_dim * heads)
        yield stage.norm("k_norm", spec.head_dim * kv_heads)


def kv_write(stage: Stage, elements: int) -> Use:
    """New keys and values into their pages."""
    written = stage.rows * elements * stage.cache_width
    return stage.streaming("kv_write", stage.rows * (elements * ACT + 8), written)


def _gqa_lengths(stage: Stage, spec: Gqa) -> Iterator[Use]:
    if not spec.causal:  # an encoder sees its own tokens only
        yield _attention(stage, spec, (stage.batch.q_lens, stage.batch.q_lens))
    elif stage.choice.separate_attention or stage.parallel.dcp > 1:
        for phase, lengths in stage.phases():
            dcp = stage.parallel.dcp if phase == "generation" else 1
            yield _attention(stage, spec, lengths, dcp)
            yield from _merged(stage, sum(lengths[0]), spec.heads // stage.tp * dcp, spec.head_dim, spec.v_dim, dcp)
    else:
        yield _attention(stage, spec, (stage.batch.q_lens, stage.batch.kv_lens))


def _chunks(lengths: Lengths, size: int) -> Iterator[tuple[int, int]]:
    """The pieces of requests that see only their own chunk of so many tokens."""
    for q, kv in zip(*lengths, strict=True):
        start = kv - q
        while start < kv:
            stop = min((start // size + 1) * size, kv)
            yield stop - start, stop - start // size * size
            start = stop


def _merged(stage: Stage, rows: int, heads: int, query: int, out: int, dcp: int) -> Iterator[Use]:
    """Around attention over parts of caches: all ranks' queries, logarithms of their sums, and results scaled by these
    and added up, each rank its heads (vLLM 0.22.1, v1/attention/ops/common.py: cp_lse_ag_out_rs).
    """
    if dcp > 1:
        size, nodes = rows * heads * ACT, stage.layout.nodes if dcp == stage.tp else 1
        yield Use("dcp_query_all_gather", all_gather(size * query, dcp, nodes=nodes, dtype=stage.dtype))
        yield Use("dcp_lse_all_gather", all_gather(4 * rows * heads * dcp, dcp, nodes=nodes, dtype=stage.dtype))
        yield stage.streaming("dcp_rescale", size * out, size * out)
        yield Use("dcp_reduce_scatter", reduce_scatter(size * out, dcp, nodes=nodes, dtype=stage.dtype))


def _parted(lengths: Lengths, dcp: int) -> Lengths:
    """What a rank holds of each sequence."""
    return lengths if dcp == 1 else (lengths[0], tuple(max(-(-kv // dcp), q) for q, kv in zip(*lengths, strict=True)))


def _attention(stage: Stage, spec: Gqa, lengths: Lengths, dcp: int = 1) -> Use:
    cut = zip(*_chunks(lengths, spec.chunk), strict=True) if spec.chunk and spec.causal else _parted(lengths, dcp)
    (q_lens, kv_lens), heads, kv_heads = cut, spec.heads // stage.tp * dcp, max(spec.kv_heads // stage.tp, 1)
    kv_dtype, page_size = (stage.kv_dtype, stage.page_size) if spec.causal else (None, None)
    call = Attention(
        q_lens, kv_lens, heads, kv_heads, spec.head_dim, head_dim_v=spec.value_dim, causal=spec.causal,
        window=spec.window, dtype=stage.dtype, sinks=spec.sinks, softcap=spec.softcap,
        kv_dtype=kv_dtype, page_size=page_size,
    )  # fmt: skip
    return Use("attention", call)


def _gqa_after(stage: Stage, spec: Gqa) -> Iterator[Use]:
    if spec.gate:
        out = stage.rows * spec.heads // stage.tp * spec.v_dim * ACT
        yield stage.streaming("output_gate", out + stage.rows * spec.gate // stage.tp * ACT, out)
    yield stage.linear(spec.out)


# Latent attention


def _mla_before(stage: Stage, spec: Mla) -> Iterator[Use]:
    heads = spec.heads // stage.tp
    yield stage.linear(spec.down)
    if spec.q_lora_rank is not None:
        yield stage.norm("q_a_norm", spec.q_lora_rank)
    yield stage.norm("kv_a_norm", spec.kv_lora_rank)
    yield stage.linear(spec.query)
    if spec.rope and spec.rope_dim:
        size = stage.rows * (heads + 1) * spec.rope_dim * ACT
        yield stage.streaming("rope", size, size, stage.rows * spec.rope_dim * ACT)
    yield kv_write(stage, spec.kv_lora_rank + spec.rope_dim)


def _mla_lengths(stage: Stage, spec: Mla) -> Iterator[Use]:
    for phase, (q_lens, kv_lens) in stage.phases():
        cached = sum(kv_lens) - sum(q_lens)
        if phase == "context" and not 0 < cached < stage.choice.expands_from:
            # K and V of every visible token are expanded from the latent, then ordinary attention
            yield stage.linear(spec.expand, sum(kv_lens))
            yield _latent_attention(stage, spec, (q_lens, kv_lens), "context")
        else:  # queries move into the latent space and results back, by per-head products absorbed from kv_b_proj
            rows, heads = sum(q_lens), spec.heads // stage.tp
            dcp, latent = stage.parallel.dcp if phase == "generation" else 1, spec.kv_lora_rank
            yield Use("q_absorb", Gemm(rows, heads * latent, spec.nope_dim, dtype=stage.dtype))
            yield _latent_attention(stage, spec, _parted((q_lens, kv_lens), dcp), "generation", dcp)
            yield from _merged(stage, rows, heads * dcp, latent + spec.rope_dim, latent, dcp)
            yield Use("v_absorb", Gemm(rows, heads * spec.v_dim, spec.kv_lora_rank, dtype=stage.dtype))


def _latent_attention(stage: Stage, spec: Mla, lengths: Lengths, phase: str, dcp: int = 1) -> Use:
    call = MlaCall(
        *lengths, spec.heads // stage.tp * dcp, phase, kv_lora_rank=spec.kv_lora_rank,
        rope_dim=max(spec.rope_dim, 1), dtype=stage.dtype, kv_dtype=stage.kv_dtype,
    )  # fmt: skip
    return Use(f"mla_{phase}", call)


def _mla_after(stage: Stage, spec: Mla) -> Iterator[Use]:
    if spec.gate:
        yield stage.linear(spec.gate)
        out = stage.rows * spec.heads // stage.tp * spec.v_dim * ACT
        yield stage.streaming("output_gate", 2 * out, out)
    yield stage.linear(spec.out)


_STEPS: dict[type[Mixer], tuple[Step, Step, Step]] = {
    Gqa: (_gqa_before, _gqa_lengths, _gqa_after),
    Mla: (_mla_before, _mla_lengths, _mla_after),
    Recurrent: (before_recurrence, recurrence, after_recurrence),
}
