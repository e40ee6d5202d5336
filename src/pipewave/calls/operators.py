"""Calls of routed experts and of the operators that newer models are made of: state-space layers, attention modules,
expert exchange.

Heads and channels are this rank's; lists hold one entry a request, and `kv_lens` include the new tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from pipewave.calls.fields import DTYPES, KV_DTYPES, Call, check_divides, check_lengths, documented, of
from pipewave.errors import BadInput

PHASES = ("context", "generation", "verify")
STATE_DTYPES = ("fp32", "bf16")
MODULE_KINDS = ("mla", "dsa", "msa", "csa", "hca")
MODULE_PARTS = ("module", "attention", "indexer", "topk")
EXCHANGES = ("deepep_ht", "deepep_ll", "deepep_v2", "nvlink_one_sided", "nvlink_two_sided")


@dataclass(frozen=True, slots=True)
class FusedMoe(Call):
    """Routed experts of one layer on one rank: alignment, two grouped GEMMs, activation and reduction.

    `experts` and `inter` are the model's, before sharding by `tp` and `ep`; `tokens` enter the layer on one rank.
    """

    kernel: ClassVar[str] = "fused_moe"
    tokens: int = of("int")
    experts: int = of("int", high=65_536)
    topk: int = of("int", high=1024)
    hidden: int = of("int")
    inter: int = of("int")
    gated: bool = of("bool", True)
    tp: int = of("int", 1, high=4096)
    ep: int = of("int", 1, high=4096)
    routing: str | tuple[int, ...] = of("routing", "random", low=0)
    part: str = of("str", "all", choices=("all", "w13", "w2"))
    config: tuple[tuple[str, int], ...] | None = of("config", None)

    def check(self) -> None:
        """Raise BadInput where sizes do not fit together."""
        check_divides("tp", self.tp, "inter", self.inter)
        check_divides("ep", self.ep, "experts", self.experts)
        check_topk(self.topk, self.experts)
        check_routing(self.routing, self.experts, self.ep, self.tokens * self.topk)


@documented
def fused_moe(tokens: int, experts: int, topk: int, hidden: int, inter: int, **options: Any) -> FusedMoe:
    """The routed experts of one layer on one rank: sort, two grouped products, activation, sum.

    Args:
        tokens: tokens that enter the layer on this rank.
        experts: experts of the model, before sharding.
        topk: experts of a token.
        hidden: width of the model, elements.
        inter: width of one expert, elements, before sharding.
        **options: fields of `FusedMoe`: `tp`, `ep`, `routing`, `part`, `gated`, `config`, {options}.

    {call}

    Work: 2·hidden·inter FLOPs for each of three matrices, token and expert (two where not gated)
    (`kernels/moe/software.py`).
    """
    return FusedMoe(tokens, experts, topk, hidden, inter, **options)


def check_steps(q_lens: tuple[int, ...], phase: str) -> None:
    """Raise BadInput where a generation step brings more than one token a request."""
    if phase == "generation" and max(q_lens) > 1:
        raise BadInput(f"q_lens up to {max(q_lens)}: one token each in generation; use context", field="q_lens")


@dataclass(frozen=True, slots=True)
class DeltaNet(Call):
    """The recurrence of a gated delta net (`gdn`, one decay a head) or Kimi delta attention (`kda`, one a channel).

    `context` scans prompts in chunks, `generation` takes one step, `verify` several and keeps every state.
    """

    kernel: ClassVar[str] = "delta_net"
    q_lens: tuple[int, ...] = of("ints")
    k_heads: int = of("int", high=4096)
    v_heads: int = of("int", high=4096)
    head_k_dim: int = of("int", 128, high=1024)
    head_v_dim: int = of("int", 128, high=1024)
    kind: str = of("str", "gdn", choices=("gdn", "kda"))
    phase: str = of("str", "context", choices=PHASES)
    state_dtype: str = of("str", "fp32", choices=STATE_DTYPES)

    def check(self) -> None:
        """Raise BadInput where sizes do not fit together."""
        check_steps(self.q_lens, self.phase)
        if self.v_heads % self.k_heads:
            raise BadInput(f"v_heads = {self.v_heads}: must be a multiple of k_heads = {self.k_heads}", field="v_heads")


@dataclass(frozen=True, slots=True)
class CausalConv1d(Call):
    """Depthwise convolution over the last `width` tokens of each channel; `branches` kernels share the channels."""

    kernel: ClassVar[str] = "causal_conv1d"
    q_lens: tuple[int, ...] = of("ints")
    channels: int = of("int", high=1 << 22)
    width: int = of("int", 4, high=64)
    branches: int = of("int", 1, high=16)
    phase: str = of("str", "context", choices=PHASES)

    def check(self) -> None:
        """Raise BadInput where sizes do not fit together."""
        check_steps(self.q_lens, self.phase)


@dataclass(frozen=True, slots=True)
class Mamba2(Call):
    """The selective scan of Mamba 2 without its convolution: `heads` states of `head_dim` × `state_dim`."""

    kernel: ClassVar[str] = "mamba2"
    q_lens: tuple[int, ...] = of("ints")
    heads: int = of("int", high=4096)
    head_dim: int = of("int", 64, high=1024)
    state_dim: int = of("int", 128, high=4096)
    groups: int = of("int", 8, high=4096)
    chunk: int = of("int", 128, high=4096)
    phase: str = of("str", "context", choices=PHASES)
    state_dtype: str = of("str", "fp32", choices=STATE_DTYPES)

    def check(self) -> None:
        """Raise BadInput where sizes do not fit together."""
        check_steps(self.q_lens, self.phase)


@dataclass(frozen=True, slots=True)
class AttentionModule(Call):
    """An attention layer with its projections (`part` module) or one of its kernels alone; `dtype` is the projections'.

    Dimensions that are null are those of the published model of that kind. `topk` counts what a query keeps: keys
    (dsa), blocks of `block_size` keys (msa) or compressed entries (csa). `share_index`: as an earlier layer chose.
    """

    kernel: ClassVar[str] = "attention_module"
    q_lens: tuple[int, ...] = of("ints")
    kv_lens: tuple[int, ...] = of("ints")
    heads: int = of("int", high=4096)
    kind: str = of("str", choices=MODULE_KINDS)
    phase: str = of("str", "context", choices=("context", "generation"))
    part: str = of("str", "module", choices=MODULE_PARTS)
    hidden: int | None = of("int", None, high=1 << 20)
    q_lora_rank: int | None = of("int", None, high=1 << 16)
    kv_lora_rank: int | None = of("int", None, high=1 << 16)
    nope_dim: int | None = of("int", None, high=1 << 16)
    rope_dim: int | None = of("int", None, high=1 << 16)
    v_dim: int | None = of("int", None, high=1 << 16)
    kv_heads: int | None = of("int", None, high=4096)
    head_dim: int | None = of("int", None, high=1 << 16)
    index_heads: int | None = of("int", None, high=4096)
    index_dim: int | None = of("int", None, high=1 << 16)
    topk: int | None = of("int", None, high=1 << 20)
    block_size: int | None = of("int", None, high=1 << 16)
    compress_ratio: int | None = of("int", None, low=0, high=1 << 16)
    window: int | None = of("int", None, high=1 << 20)
    o_groups: int | None = of("int", None, high=4096)
    o_lora_rank: int | None = of("int", None, high=1 << 16)
    share_index: bool = of("bool", False)
    kv_dtype: str | None = of("str", None, choices=KV_DTYPES)

    def check(self) -> None:
        """Raise BadInput where sizes do not fit together."""
        check_lengths(self.q_lens, self.kv_lens, causal=True)
        if self.part in ("indexer", "topk") and self.kind in ("mla", "hca"):
            raise BadInput(f"part = {self.part!r}: layers of kind {self.kind!r} choose no keys", field="part")
        for name in ("index_heads", "index_dim", "topk", "block_size") if self.kind == "mla" else ():
            if (value := getattr(self, name)) is not None:
                raise BadInput(f"{name} = {value}: layers of kind {self.kind!r} choose no keys", field=name)


@dataclass(frozen=True, slots=True)
class HyperConnection(Call):
    """Manifold-constrained hyper-connections: `pre` mixes `mult` residual streams to one, `post` spreads back."""

    kernel: ClassVar[str] = "hyper_connection"
    tokens: int = of("int")
    hidden: int = of("int", high=1 << 20)
    mult: int = of("int", 4, low=2, high=64)
    part: str = of("str", "pre", choices=("pre", "post"))
    sinkhorn_iters: int = of("int", 20, low=0, high=1024)


@dataclass(frozen=True, slots=True)
class MoeAllToAll(Call):
    """Tokens to the ranks of their experts (`dispatch`) or results back (`combine`); `tokens` are one rank's."""

    kernel: ClassVar[str] = "moe_all_to_all"
    tokens: int = of("int")
    hidden: int = of("int", high=1 << 20)
    topk: int = of("int", high=4096)
    experts: int = of("int", high=65_536)
    ep: int = of("int", low=2, high=65_536)
    nodes: int = of("int", 1, high=65_536)
    direction: str = of("str", "dispatch", choices=("dispatch", "combine"))
    backend: str = of("str", "deepep_ht", choices=EXCHANGES)
    sms: int | None = of("int", None, high=1024)

    def check(self) -> None:
        """Raise BadInput where sizes do not fit together."""
        check_divides("nodes", self.nodes, "ep", self.ep)
        check_topk(self.topk, self.experts)


@dataclass(frozen=True, slots=True)
class MegaMoe(Call):
    """Routed experts with dispatch and combine in one kernel; `tokens` are one rank's, `inter` one expert's width."""

    kernel: ClassVar[str] = "mega_moe"
    tokens: int = of("int")
    experts: int = of("int", high=65_536)
    topk: int = of("int", high=4096)
    hidden: int = of("int", high=1 << 20)
    inter: int = of("int", high=1 << 20)
    ep: int = of("int", low=2, high=65_536)
    nodes: int = of("int", 1, high=65_536)
    routing: str | tuple[int, ...] = of("routing", "balanced", low=0)
    dtype: str = of("str", "mxfp4", choices=DTYPES)

    def check(self) -> None:
        """Raise BadInput where sizes do not fit together."""
        check_divides("nodes", self.nodes, "ep", self.ep)
        check_topk(self.topk, self.experts)
        check_routing(self.routing, self.experts, self.ep, self.ep * self.tokens * self.topk)


@dataclass(frozen=True, slots=True)
class BatchedGemm(Call):
    """y[b,m,n] = x[b,m,k] · W[b,n,k]ᵀ for each of `batch`: the products that MLA absorbs its up-projections with."""

    kernel: ClassVar[str] = "batched_gemm"
    batch: int = of("int", high=65_536)
    m: int = of("int")
    n: int = of("int")
    k: int = of("int")


def check_routing(routing: str | tuple[int, ...], experts: int, ep: int, pairs: int) -> None:
    """Raise BadInput unless counts are of all experts or of a rank's, and add up to the pairs of tokens and experts."""
    if isinstance(routing, str):
        return
    check_divides("ep", ep, "experts", experts)
    if len(routing) not in (experts, experts // ep):
        raise BadInput(
            f"routing has {len(routing)} entries: must hold one count per expert ({experts}) "
            f"or per local expert ({experts // ep})",
            field="routing",
        )
    found, whole = sum(routing), len(routing) == experts
    if found > pairs or (whole and found != pairs):  # of one rank's no more is known than that they get no more
        bound = "add up to" if whole else "add up to at most"
        raise BadInput(f"routing adds up to {found:,}: must {bound} tokens × topk = {pairs:,}", field="routing")


def check_topk(topk: int, experts: int) -> None:
    """Raise BadInput where a token would go to more experts than there are."""
    if topk > experts:
        raise BadInput(f"topk = {topk}: must be at most experts = {experts}", field="topk")


OPERATORS = (DeltaNet, CausalConv1d, Mamba2, AttentionModule, HyperConnection, MoeAllToAll, MegaMoe, BatchedGemm)
