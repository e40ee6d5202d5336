"""Kernel calls as values: one frozen class a family, with the field names and defaults of the public contract.

A call holds numbers about one launch (or one fused operation) and nothing about a GPU. Sizes are in elements,
`bytes` in bytes. Every field is checked on construction, so a call that exists is well formed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import gt
from typing import Any, ClassVar

from pipewave.calls.fields import check_names, of, schema
from pipewave.errors import BadInput, UnknownKernel, did_you_mean

DTYPES = ("bf16", "fp16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int8", "int4")
KV_DTYPES = ("bf16", "fp16", "fp8")


@dataclass(frozen=True, slots=True)
class Call:
    """What all calls share: operand type, and optionally the software that runs it."""

    kernel: ClassVar[str] = ""

    def __post_init__(self) -> None:
        known = schema(type(self))
        for name, rule in known.rules.items():
            value = getattr(self, name)
            if value is not known.otherwise[name]:  # defaults are valid
                checked = rule.check(name, value)
                if checked is not value:
                    object.__setattr__(self, name, checked)
        self.check()

    def check(self) -> None:
        """Raise BadInput when fields contradict one another."""

    def to_dict(self) -> dict[str, Any]:
        """The call as a case of the contract (without `id` and `gpu`)."""
        return {"kernel": self.kernel} | {k: v for k, v in asdict(self).items() if v is not None}


@dataclass(frozen=True, slots=True)
class Gemm(Call):
    """y[m,n] = x[m,k] · W[n,k]ᵀ. `quantize`: the call also quantises x. `tile`, `ctas`: when known from a trace.

    `sm_clock_mhz`: the SM clock during the call where it was read; null means a card that was idle before the call
    (`cold`) or is busy serving (`serving`). Other protocols take no notice of it.
    """

    kernel: ClassVar[str] = "gemm"
    m: int = of("int")
    n: int = of("int")
    k: int = of("int")
    dtype: str = of("str", "bf16", choices=DTYPES)
    quantize: bool = of("bool", False)
    tile: tuple[int, ...] | None = of("ints", None, length=3)
    ctas: int | None = of("int", None)
    sm_clock_mhz: float | None = of("float", None, low=50, high=10_000)
    stack: str | None = of("str", None)
    impl: str | None = of("str", None)


@dataclass(frozen=True, slots=True)
class Attention(Call):
    """Softmax attention of a batch: one entry of `q_lens`, `kv_lens` a request; kv includes the new tokens.

    `window` counts the keys a query may see (null = all); `page_size` null = contiguous KV.
    """

    kernel: ClassVar[str] = "attention"
    q_lens: tuple[int, ...] = of("ints")
    kv_lens: tuple[int, ...] = of("ints")
    heads: int = of("int", high=4096)
    kv_heads: int = of("int", high=4096)
    head_dim: int = of("int", high=1024)
    head_dim_v: int | None = of("int", None, high=1024)
    causal: bool = of("bool", True)
    window: int | None = of("int", None, low=0)
    dtype: str = of("str", "bf16", choices=DTYPES)
    kv_dtype: str | None = of("str", None, choices=KV_DTYPES)
    page_size: int | None = of("int", None)
    sinks: bool = of("bool", False)
    softcap: float | None = of("float", None, low=0)
    stack: str | None = of("str", None)
    impl: str | None = of("str", None)

    def check(self) -> None:
        check_lengths(self.q_lens, self.kv_lens, causal=self.causal)
        if self.heads % self.kv_heads:
            raise BadInput(
                f"heads = {self.heads}: must be a multiple of kv_heads = {self.kv_heads}",
                field="heads",
            )


@dataclass(frozen=True, slots=True)
class Mla(Call):
    """Multi-head latent attention; `context` expands K and V, `generation` works on the compressed cache."""

    kernel: ClassVar[str] = "mla"
    q_lens: tuple[int, ...] = of("ints")
    kv_lens: tuple[int, ...] = of("ints")
    heads: int = of("int", high=4096)
    phase: str = of("str", choices=("context", "generation"))
    kv_lora_rank: int = of("int", 512, high=8192)
    rope_dim: int = of("int", 64, high=1024)
    dtype: str = of("str", "bf16", choices=DTYPES)
    kv_dtype: str | None = of("str", None, choices=KV_DTYPES)
    stack: str | None = of("str", None)
    impl: str | None = of("str", None)

    def check(self) -> None:
        check_lengths(self.q_lens, self.kv_lens, causal=True)


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
    dtype: str = of("str", "bf16", choices=DTYPES)
    stack: str | None = of("str", None)
    impl: str | None = of("str", None)

    def check(self) -> None:
        for name, shards, of_name in (("tp", self.inter, "inter"), ("ep", self.experts, "experts")):
            if shards % getattr(self, name):
                raise BadInput(f"{name} = {getattr(self, name)}: must divide {of_name} = {shards}", field=name)
        if self.topk > self.experts:
            raise BadInput(f"topk = {self.topk}: must be at most experts = {self.experts}", field="topk")
        if isinstance(self.routing, tuple) and len(self.routing) not in (self.experts, self.experts // self.ep):
            raise BadInput(
                f"routing has {len(self.routing)} entries: must hold one count per expert ({self.experts}) "
                f"or per local expert ({self.experts // self.ep})",
                field="routing",
            )


@dataclass(frozen=True, slots=True)
class RmsNorm(Call):
    """Row-wise RMS normalisation; `fused_add` also adds the residual and writes it back."""

    kernel: ClassVar[str] = "rmsnorm"
    rows: int = of("int")
    dim: int = of("int", high=1 << 24)
    fused_add: bool = of("bool", False)
    dtype: str = of("str", "bf16", choices=DTYPES)
    stack: str | None = of("str", None)
    impl: str | None = of("str", None)


@dataclass(frozen=True, slots=True)
class SiluAndMul(Call):
    """SiLU of one half times the other; `dim` is the output width, the input is rows × 2·dim."""

    kernel: ClassVar[str] = "silu_and_mul"
    rows: int = of("int")
    dim: int = of("int", high=1 << 24)
    dtype: str = of("str", "bf16", choices=DTYPES)
    stack: str | None = of("str", None)
    impl: str | None = of("str", None)


@dataclass(frozen=True, slots=True)
class Elementwise(Call):
    """Any kernel that only streams memory (RoPE, embedding rows, KV-cache write, sampling): named bytes in and out.

    `rounds`: steps of which each waits for the one before it, on values already read, such as the picks of a top-k.
    """

    kernel: ClassVar[str] = "elementwise"
    bytes_read: int = of("int", low=0, high=1 << 50)
    bytes_written: int = of("int", low=0, high=1 << 50)
    weight_bytes: int = of("int", 0, low=0, high=1 << 50)
    op: str = of("str", "elementwise")
    rounds: int = of("int", 0, low=0, high=1 << 16)
    dtype: str = of("str", "bf16", choices=DTYPES)
    stack: str | None = of("str", None)
    impl: str | None = of("str", None)


@dataclass(frozen=True, slots=True)
class Collective(Call):
    """One collective; `bytes` as nccl-tests counts size, `world` ranks over `nodes` hosts."""

    bytes: int = of("int", high=1 << 50)
    world: int = of("int", low=2, high=65_536)
    nodes: int = of("int", 1, high=65_536)
    dtype: str = of("str", "bf16", choices=DTYPES)
    stack: str | None = of("str", None)
    impl: str | None = of("str", None)

    def check(self) -> None:
        if self.world % self.nodes:
            raise BadInput(f"nodes = {self.nodes}: must divide world = {self.world}", field="nodes")


@dataclass(frozen=True, slots=True)
class AllReduce(Collective):
    """Sum over all ranks; `bytes` per rank."""

    kernel: ClassVar[str] = "all_reduce"


@dataclass(frozen=True, slots=True)
class AllGather(Collective):
    """Every rank ends with all parts; `bytes` of the gathered output."""

    kernel: ClassVar[str] = "all_gather"


@dataclass(frozen=True, slots=True)
class ReduceScatter(Collective):
    """Every rank ends with its part of the sum; `bytes` of the input."""

    kernel: ClassVar[str] = "reduce_scatter"


@dataclass(frozen=True, slots=True)
class AllToAll(Collective):
    """Every rank sends a part to every other; `bytes` per rank."""

    kernel: ClassVar[str] = "all_to_all"


@dataclass(frozen=True, slots=True)
class SendRecv(Collective):
    """One rank sends to the next; `bytes` per rank."""

    kernel: ClassVar[str] = "send_recv"


_BUILT_IN: tuple[type[Call], ...] = (
    Gemm,
    Attention,
    Mla,
    FusedMoe,
    RmsNorm,
    SiluAndMul,
    Elementwise,
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    SendRecv,
)
CLASSES: dict[str, type[Call]] = {cls.kernel: cls for cls in _BUILT_IN}


def check_lengths(q_lens: Sequence[int], kv_lens: Sequence[int], *, causal: bool) -> None:
    """Raise BadInput unless there is one kv length per query length, none shorter than its new tokens when causal."""
    if len(q_lens) != len(kv_lens):
        raise BadInput(
            f"kv_lens has {len(kv_lens)} entries: must have as many as q_lens ({len(q_lens)})", field="kv_lens"
        )
    if causal and any(map(gt, q_lens, kv_lens)):
        raise BadInput("kv_lens includes the new tokens: each entry must be at least its q_len", field="kv_lens")


def class_of(kernel: Any) -> type[Call]:
    """The call class of a family name, or UnknownKernel."""
    if not isinstance(kernel, str) or kernel not in CLASSES:
        known = ", ".join(CLASSES)
        raise UnknownKernel(
            f"kernel = {kernel!r}: unknown;{did_you_mean(str(kernel), CLASSES)} known: {known}", field="kernel"
        )
    return CLASSES[kernel]


def from_dict(case: Mapping[str, Any]) -> Call:
    """Build a call from a case of the contract; `id`, `gpu` and `protocol` are ignored here."""
    cls = class_of(case.get("kernel"))
    given = {k: v for k, v in case.items() if k not in ("id", "kernel", "gpu", "protocol")}
    check_names(cls, tuple(given))
    return cls(**given)


def gemm(m: int, n: int, k: int, **options: Any) -> Gemm:
    """y[m,n] = x[m,k] · W[n,k]ᵀ; options are the fields of `Gemm`."""
    return Gemm(m, n, k, **options)


def attention(
    q_lens: Sequence[int], kv_lens: Sequence[int], heads: int, kv_heads: int, head_dim: int = 128, **options: Any
) -> Attention:
    """Attention over a batch of requests; options are the fields of `Attention`."""
    return Attention(tuple(q_lens), tuple(kv_lens), heads, kv_heads, head_dim, **options)


def mla(q_lens: Sequence[int], kv_lens: Sequence[int], heads: int, phase: str, **options: Any) -> Mla:
    """Latent attention over a batch of requests; options are the fields of `Mla`."""
    return Mla(tuple(q_lens), tuple(kv_lens), heads, phase, **options)


def fused_moe(tokens: int, experts: int, topk: int, hidden: int, inter: int, **options: Any) -> FusedMoe:
    """The routed experts of a layer; options are the fields of `FusedMoe`."""
    return FusedMoe(tokens, experts, topk, hidden, inter, **options)


def rmsnorm(rows: int, dim: int, **options: Any) -> RmsNorm:
    """RMS normalisation of rows × dim; options are the fields of `RmsNorm`."""
    return RmsNorm(rows, dim, **options)


def silu_and_mul(rows: int, dim: int, **options: Any) -> SiluAndMul:
    """Gated activation to rows × dim; options are the fields of `SiluAndMul`."""
    return SiluAndMul(rows, dim, **options)


def elementwise(bytes_read: int, bytes_written: int, **options: Any) -> Elementwise:
    """A memory-streaming kernel; options are the fields of `Elementwise`."""
    return Elementwise(bytes_read, bytes_written, **options)


def all_reduce(bytes: int, world: int, **options: Any) -> AllReduce:
    """All-reduce of `bytes` per rank; options are the fields of `Collective`."""
    return AllReduce(bytes, world, **options)


def all_gather(bytes: int, world: int, **options: Any) -> AllGather:
    """All-gather to an output of `bytes`; options are the fields of `Collective`."""
    return AllGather(bytes, world, **options)


def reduce_scatter(bytes: int, world: int, **options: Any) -> ReduceScatter:
    """Reduce-scatter of an input of `bytes`; options are the fields of `Collective`."""
    return ReduceScatter(bytes, world, **options)


def all_to_all(bytes: int, world: int, **options: Any) -> AllToAll:
    """All-to-all of `bytes` per rank; options are the fields of `Collective`."""
    return AllToAll(bytes, world, **options)


def send_recv(bytes: int, world: int = 2, **options: Any) -> SendRecv:
    """Point-to-point transfer of `bytes`; options are the fields of `Collective`."""
    return SendRecv(bytes, world, **options)
