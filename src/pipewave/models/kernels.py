"""A batch through one pipeline stage as kernel calls: nothing is dropped, nothing is predicted here.

The order of kernels and what is fused follow the model code of vLLM and SGLang (facts, not code).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pipewave.calls.families import (
    Attention,
    Call,
    Elementwise,
    FusedMoe,
    Gemm,
    RmsNorm,
    SiluAndMul,
    all_gather,
    all_reduce,
    check_lengths,
    send_recv,
)
from pipewave.calls.families import Mla as MlaCall
from pipewave.errors import BadInput
from pipewave.kernels.streaming.stream import GENERATED
from pipewave.models.shard import ALONE, Parallel, padded_vocab
from pipewave.models.spec import Gqa, Layer, Linear, Mla, Mlp, ModelSpec, Moe

ACT = 2  # bytes of one 16-bit activation
COMPILED = ("embedding", "rope", "qk_norm", "activation", "shared_add")  # streaming kernels that a compiler generates


@dataclass(frozen=True, slots=True)
class Use:
    """One kernel of a step: what it is called in the model, the call, and how often the step launches it."""

    name: str
    call: Call
    count: int = 1


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests of one engine iteration; kv includes the new tokens. `padded`: tokens after padding to a CUDA graph."""

    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    padded: int | None = None

    def __post_init__(self) -> None:
        if not self.q_lens or min(self.q_lens) < 1:
            raise BadInput(f"q_lens = {list(self.q_lens)[:8]}: every request needs at least one token", field="q_lens")
        check_lengths(self.q_lens, self.kv_lens, causal=True)

    @property
    def rows(self) -> int:
        """Tokens the dense kernels see."""
        return max(self.padded or 0, sum(self.q_lens))

    @property
    def requests(self) -> int:
        """Requests in the batch, each of which samples one token."""
        return len(self.q_lens)

    @property
    def is_decode(self) -> bool:
        """True when every request brings one token."""
        return max(self.q_lens) == 1

    @classmethod
    def of(cls, q_lens: Sequence[int], kv_lens: Sequence[int], padded: int | None = None) -> Batch:
        """A batch from any two sequences."""
        return cls(tuple(q_lens), tuple(kv_lens), padded)


@dataclass(frozen=True, slots=True)
class Deployment:
    """What turns a model into kernels besides the batch: the split, the cache's type and its page size.

    `nodes`: hosts one tensor group spans. `compiled`: a compiler fuses the norms of heads with RoPE and generates what
    streams activations. `apart`: attention runs prompts and decodes of one step as two kernels.
    """

    model: ModelSpec
    parallel: Parallel = ALONE
    kv_dtype: str | None = None
    page_size: int | None = None
    nodes: int = 1
    compiled: bool = False
    apart: bool = False

    def kernels(self, batch: Batch, stage: int = 0) -> list[Use]:
        """Every kernel one rank of pipeline stage `stage` launches for a batch, in order, equal layers counted once."""
        walk = _Stage(self, batch)
        return merge([*walk.layers(stage), *walk.exit(stage)])

    def by_rows(self, batch: Batch, stage: int = 0) -> list[Use]:
        """The kernels that depend on the batch's row count only."""
        return merge(_Dense(self, batch).layers(stage))

    def by_requests(self, batch: Batch, stage: int = 0) -> list[Use]:
        """The kernels after the last layer: the head, which sees one row a request, or the next stage's input."""
        return merge(_Stage(self, batch).exit(stage))

    def by_length(self, batch: Batch, stage: int = 0) -> list[Use]:
        """The kernels that depend on each request's lengths; the three parts together are all of `kernels`."""
        return merge(_Stage(self, batch).attentions(stage))


class _Stage:
    """The walk over one stage; `rows` is the token count of all dense kernels."""

    def __init__(self, deployment: Deployment, batch: Batch) -> None:
        self.model, self.parallel = deployment.model, deployment.parallel
        self.tp, self.nodes = self.parallel.tp, deployment.nodes
        self.batch, self.rows = batch, batch.rows
        self.kv_dtype = deployment.kv_dtype or self.model.kv_dtype
        self.page_size, self.compiled = deployment.page_size, deployment.compiled
        self.apart = deployment.apart
        self.impl = GENERATED if deployment.compiled else None
        self.dtype = self.model.dtype

    def layers(self, stage: int) -> Iterator[Use]:
        if stage == 0:
            yield from self.embedding()
        for layer, count in self.grouped(stage):
            for use in self.layer(layer):
                yield Use(use.name, use.call, use.count * count)

    def attentions(self, stage: int) -> Iterator[Use]:
        for layer, count in self.grouped(stage):
            for use in self.by_length(layer.attention):
                yield Use(use.name, use.call, use.count * count)

    def exit(self, stage: int) -> Iterator[Use]:
        yield from self.head() if stage == self.parallel.pp - 1 else self.handover()

    def grouped(self, stage: int) -> list[tuple[Layer, int]]:
        return self.model.grouped(*self.parallel.stages(len(self.model.layers))[stage])

    def by_length(self, spec: Gqa | Mla) -> Iterator[Use]:
        """The kernels whose work depends on each request's lengths."""
        pairs = list(zip(self.batch.q_lens, self.batch.kv_lens, strict=True))
        prompts, decodes = [pair for pair in pairs if pair[0] > 1], [pair for pair in pairs if pair[0] == 1]
        if isinstance(spec, Mla):
            yield from self.mla_context(spec, prompts)
            yield from self.mla_generation(spec, decodes)
            return
        for part in (prompts, decodes) if self.apart else (pairs,):
            if part:
                yield Use("attention", self.attention_call(spec, part))

    def linear(self, matrix: Linear, rows: int | None = None) -> Use:
        n, k = matrix.shape(self.tp)
        kind = matrix.precision
        call = Gemm(self.rows if rows is None else rows, n, k, dtype=kind.dtype, quantize=kind.quantize)
        return Use(matrix.name, call)

    def streaming(self, name: str, read: float, written: float, weights: float = 0, rounds: int = 0) -> Use:
        impl, weights = self.impl if name in COMPILED else None, round(weights)
        call = Elementwise(round(read), round(written), weight_bytes=weights, op=name, rounds=rounds, impl=impl)
        return Use(name, call)

    def norm(self, name: str, dim: int, rows: int | None = None, *, fused_add: bool = False) -> Use:
        return Use(name, RmsNorm(rows or self.rows, dim, fused_add=fused_add, dtype=self.dtype))

    def reduce(self, name: str) -> list[Use]:
        """All-reduce of the hidden states over the tensor group."""
        size = self.rows * self.model.hidden * ACT
        return [Use(name, all_reduce(size, self.tp, nodes=self.nodes, dtype=self.dtype))] if self.tp > 1 else []

    def embedding(self) -> Iterator[Use]:
        size = self.rows * self.model.hidden * ACT
        tables = 2 if self.model.learned_positions else 1
        yield self.streaming("embedding", 8 * self.rows, size, tables * size)
        yield from self.reduce("embedding_all_reduce")

    def layer(self, layer: Layer) -> Iterator[Use]:
        norms, hidden = self.model.norms, self.model.hidden
        before, after = norms in ("pre", "sandwich", "parallel"), norms in ("post", "sandwich")
        if before:
            yield self.norm("input_norm", hidden, fused_add=True)
        yield from self.attention(layer.attention)
        if after:
            yield self.norm("post_attention_norm", hidden, fused_add=norms == "post")
        if before and norms != "parallel":
            yield self.norm("ffn_norm", hidden, fused_add=True)
        yield from self.moe(layer.ffn) if isinstance(layer.ffn, Moe) else self.mlp(layer.ffn)
        yield from self.reduce("ffn_all_reduce")
        if after:
            yield self.norm("post_ffn_norm", hidden, fused_add=norms == "post")

    def attention(self, spec: Gqa | Mla) -> Iterator[Use]:
        yield from self.gqa(spec) if isinstance(spec, Gqa) else self.mla(spec)
        yield self.linear(spec.out)
        yield from self.reduce("attention_all_reduce")

    def gqa(self, spec: Gqa) -> Iterator[Use]:
        heads, kv_heads = spec.heads // self.tp, max(spec.kv_heads // self.tp, 1)
        yield self.linear(spec.qkv)
        yield from self.head_norms(spec, heads, kv_heads)
        if spec.rope:
            size = self.rows * (heads + kv_heads) * spec.head_dim * ACT
            yield self.streaming("rope", size, size, self.rows * spec.head_dim * ACT)
        yield self.kv_write(2 * kv_heads * spec.head_dim)
        yield from self.by_length(spec)

    def head_norms(self, spec: Gqa, heads: int, kv_heads: int) -> Iterator[Use]:
        """Norms of queries and keys. Compiled, one kernel sums the squares and RoPE's applies them."""
        by_head = spec.qk_norm in ("head", "each")
        if by_head and self.compiled:
            sums = self.rows * (heads + kv_heads)
            yield self.streaming("qk_norm", sums * spec.head_dim * ACT, sums * 4)
        elif by_head:
            yield self.norm("q_norm", spec.head_dim, self.rows * heads)
            yield self.norm("k_norm", spec.head_dim, self.rows * kv_heads)
        elif spec.qk_norm == "full":
            yield self.norm("q_norm", spec.head_dim * heads)
            yield self.norm("k_norm", spec.head_dim * kv_heads)

    def kv_write(self, elements: int) -> Use:
        width = 1 if self.kv_dtype == "fp8" else ACT
        return self.streaming("kv_write", self.rows * (elements * ACT + 8), self.rows * elements * width)

    def attention_call(self, spec: Gqa, pairs: list[tuple[int, int]]) -> Attention:
        q_lens, kv_lens = zip(*pairs, strict=True)
        return Attention(
            q_lens,
            kv_lens,
            spec.heads // self.tp,
            max(spec.kv_heads // self.tp, 1),
            spec.head_dim,
            window=spec.window,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            page_size=self.page_size,
            sinks=spec.sinks,
            softcap=spec.softcap,
        )

    def mla(self, spec: Mla) -> Iterator[Use]:
        heads = spec.heads // self.tp
        yield self.linear(spec.down)
        if spec.q_lora_rank is not None:
            yield self.norm("q_a_norm", spec.q_lora_rank)
        yield self.norm("kv_a_norm", spec.kv_lora_rank)
        yield self.linear(spec.query)
        size = self.rows * (heads + 1) * spec.rope_dim * ACT
        yield self.streaming("rope", size, size, self.rows * spec.rope_dim * ACT)
        yield self.kv_write(spec.kv_lora_rank + spec.rope_dim)
        yield from self.by_length(spec)

    def mla_context(self, spec: Mla, pairs: list[tuple[int, int]]) -> Iterator[Use]:
        """Prompts: K and V of every visible token are expanded from the latent, then ordinary attention."""
        if pairs:
            yield self.linear(spec.expand, sum(kv for _, kv in pairs))
            yield Use("mla_context", self.mla_call(spec, pairs, "context"))

    def mla_generation(self, spec: Mla, pairs: list[tuple[int, int]]) -> Iterator[Use]:
        """Decode: queries move into the latent space and results back, by per-head products absorbed from kv_b_proj."""
        if pairs:
            rows, heads = len(pairs), spec.heads // self.tp
            yield Use("q_absorb", Gemm(rows, heads * spec.kv_lora_rank, spec.nope_dim, dtype=self.dtype))
            yield Use("mla_generation", self.mla_call(spec, pairs, "generation"))
            yield Use("v_absorb", Gemm(rows, heads * spec.v_dim, spec.kv_lora_rank, dtype=self.dtype))

    def mla_call(self, spec: Mla, pairs: list[tuple[int, int]], phase: str) -> MlaCall:
        q_lens, kv_lens = zip(*pairs, strict=True)
        return MlaCall(
            q_lens,
            kv_lens,
            spec.heads // self.tp,
            phase,
            kv_lora_rank=spec.kv_lora_rank,
            rope_dim=spec.rope_dim,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
        )

    def mlp(self, spec: Mlp) -> Iterator[Use]:
        yield self.linear(spec.up)
        inter = spec.inter // self.tp
        if spec.gated:
            call = SiluAndMul(self.rows, inter, dtype=self.dtype, impl=self.impl)
            yield Use(spec.up.name.replace("gate_up_proj", "silu_and_mul"), call)
        else:
            size = self.rows * inter * ACT
            yield self.streaming("activation", size, size)
        yield self.linear(spec.down)

    def moe(self, spec: Moe) -> Iterator[Use]:
        yield self.linear(spec.router)
        yield self.streaming("topk", self.rows * spec.experts * ACT, self.rows * spec.topk * 8, rounds=spec.topk)
        call = FusedMoe(
            self.rows,
            spec.experts,
            spec.topk,
            spec.hidden,
            spec.inter,
            gated=spec.gated,
            tp=self.parallel.moe_tp,
            ep=self.parallel.ep,
            dtype=spec.precision.dtype,
        )
        yield Use("fused_moe", call)
        if spec.shared:
            yield from self.mlp(spec.shared)
            hidden = self.rows * spec.hidden * ACT
            if spec.shared_gate:
                yield self.linear(spec.shared_gate)
            yield self.streaming("shared_add", 2 * hidden, hidden)

    def head(self) -> Iterator[Use]:
        model, count, vocab = self.model, self.batch.requests, padded_vocab(self.model)
        yield self.norm("final_norm", model.hidden, fused_add=True)
        size = count * model.hidden * ACT
        yield self.streaming("last_rows", size, size)
        yield self.linear(replace(model.lm_head, out=vocab), count)
        logits = count * vocab * ACT
        if self.tp > 1:
            yield Use("logits_all_gather", all_gather(logits, self.tp, nodes=self.nodes, dtype=self.dtype))
        if model.logit_softcap:
            yield self.streaming("softcap", logits, logits)
        yield self.streaming("logits_to_float", logits, 2 * logits)
        yield self.streaming("sample", 2 * logits, 8 * count)

    def handover(self) -> Iterator[Use]:
        """Hidden states and residual to the next stage: each tensor rank sends its slice, the receivers gather it."""
        size = 2 * self.rows * self.model.hidden * ACT
        yield Use("stage_send_recv", send_recv(max(size // self.tp, 1), dtype=self.dtype))
        if self.tp > 1:
            yield Use("stage_all_gather", all_gather(size, self.tp, nodes=self.nodes, dtype=self.dtype))


class _Dense(_Stage):
    """The same walk without what depends on lengths."""

    def by_length(self, spec: Gqa | Mla) -> Iterator[Use]:
        yield from ()


def merge(uses: Iterable[Use]) -> list[Use]:
    """Equal kernels of the same name counted together, in order of first appearance."""
    counts: dict[tuple[str, Call], int] = {}
    for use in uses:
        key = (use.name, use.call)
        counts[key] = counts.get(key, 0) + use.count
    return [Use(name, call, count) for (name, call), count in counts.items()]
