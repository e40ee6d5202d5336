"""Shared by the kernels of a pipeline stage: layout, batch, and makers of products, norms and collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

from pipewave.calls.dtypes import ACTIVATION_BYTES, kv_bytes
from pipewave.calls.families import Call, Elementwise, Gemm, RmsNorm, all_reduce, check_lengths
from pipewave.errors import BadInput
from pipewave.gpus import GPU
from pipewave.kernels.streaming.stream import GENERATED
from pipewave.models.attention_spec import Mla, Recurrent
from pipewave.models.precision import Linear
from pipewave.models.shard import ALONE, Parallel, state_bytes
from pipewave.models.spec import ModelSpec
from pipewave.software.engine import Engine
from pipewave.software.engine_parts import DeploymentFacts, KernelChoice

ACT = int(ACTIVATION_BYTES)  # bytes of one 16-bit activation
NO_CHOICE = KernelChoice()
# Streaming kernels that a compiler generates.
COMPILED = ("embedding", "rope", "qk_norm", "activation", "shared_add", "delta_unpack")
Lengths = tuple[tuple[int, ...], tuple[int, ...]]  # new tokens of each request, and its tokens in all


@dataclass(frozen=True, slots=True)
class Use:
    """One kernel of a step: what it is called in the model, the call, and how often the step launches it."""

    name: str
    call: Call
    count: int = 1

    def times(self, count: int) -> Use:
        """The same, so many times over."""
        return self if count == 1 else Use(self.name, self.call, self.count * count)


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests of one engine iteration; kv includes the new tokens."""

    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    padded: int | None = None  # tokens after padding to a CUDA graph
    verify: int = 1  # tokens that a decoding request brings, drafts included; who brings more is in its prompt

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
        """Requests in the batch."""
        return len(self.q_lens)

    @property
    def sampled(self) -> int:
        """Rows of the head: a token of each prompt, every token that is verified."""
        return sum(q if q <= self.verify else 1 for q in self.q_lens)

    @property
    def is_decode(self) -> bool:
        """True when no request brings a prompt."""
        return max(self.q_lens) <= self.verify

    @classmethod
    def of(cls, q_lens: Sequence[int], kv_lens: Sequence[int], padded: int | None = None) -> Batch:
        """A batch from any two sequences."""
        return cls(tuple(q_lens), tuple(kv_lens), padded)


@dataclass(frozen=True, slots=True)
class Layout:
    """A model on its GPUs: how it is split, and the engine whose choices decide which kernels it runs."""

    model: ModelSpec
    parallel: Parallel = ALONE
    kv_dtype: str | None = None  # of the KV cache; None: the model's
    page_size: int | None = None  # tokens of a KV page; None: the engine's
    nodes: int = 1  # hosts that one tensor group spans
    group_nodes: int = 1  # hosts that all data-parallel ranks span
    host_gpus: int = 1 << 20  # GPUs of a host
    engine: Engine | None = None  # None: nothing is fused or compiled

    def facts(self, gpu: GPU) -> DeploymentFacts:
        """What rules of engines are conditional on, on a GPU."""
        model, split = self.model, self.parallel
        mixers = [mixer for layer, _ in model.grouped() for mixer in layer.mixers]
        experts = [moe for layer, _ in model.grouped() for moe in layer.moes]
        operands = Counter(matrix.precision.dtype for mixer in mixers for matrix in mixer.linears())
        dense = operands.most_common(1)[0][0] if operands else model.dtype  # of most matrices outside the experts
        return DeploymentFacts(
            gpu=gpu.name, vendor=gpu.vendor, mma=gpu.traits.mma, gib=gpu.dram_gib,
            tp=split.tp, pp=split.pp, ep=split.ep, dp=split.dp,
            attention="mla" if model.has(Mla) else "gqa",
            experts=bool(experts),
            shared_experts=any(moe.shared is not None for moe in experts),
            dtype=experts[0].precision.dtype if experts else dense,
            dense_dtype=dense,
            sinks=any(getattr(mixer, "sinks", False) for mixer in mixers),
            model_type=model.model_type,
            hidden=model.hidden,
            states=next((mixer.kind for mixer in mixers if isinstance(mixer, Recurrent)), ""),
        )  # fmt: skip

    @property
    def state_width(self) -> int:
        """Bytes that the engine stores an element of a recurrent state in; 0: as the model says."""
        return self.engine.memory.states.element_bytes if self.engine else 0

    @property
    def state_bytes(self) -> float:
        """Bytes of the recurrent states of one sequence on the fullest rank."""
        return state_bytes(self.model, self.parallel, self.state_width)


class Stage:
    """One rank's view of a batch in a pipeline stage."""

    def __init__(self, layout: Layout, batch: Batch) -> None:
        self.layout, self.batch, self.model, self.parallel = layout, batch, layout.model, layout.parallel
        self.rows = batch.rows  # tokens of the dense kernels
        self.tp = self.parallel.tp  # ranks that cut each layer
        self.dtype = self.model.dtype  # the 16-bit type of activations
        self.expert_tokens = self.rows * self.parallel.dp  # that experts meet: every data-parallel rank has as many
        self.kv_dtype = layout.kv_dtype or self.model.kv_dtype  # None: that of activations
        self.cache_width = int(kv_bytes(self.kv_dtype, "bf16"))  # bytes of one cached element
        engine = layout.engine
        self.choice = engine.kernels if engine else NO_CHOICE  # which kernels the engine runs and fuses
        self.page_size = layout.page_size or (engine.memory.page_size if engine else None)  # None: cache in one piece
        # How data-parallel ranks exchange tokens; empty: all are gathered.
        self.exchange = engine.expert_parallel.exchange if engine else ""
        # Whether a compiler fuses the norms of heads with RoPE and generates what streams activations.
        self.compiled = engine is not None and engine.graphs.compiled
        self.impl = GENERATED if self.compiled else None  # who writes the streaming kernels

    def phases(self) -> list[tuple[str, Lengths]]:
        """`context` with the requests that bring prompts, `generation` with those that decode, where there are any."""
        batch, few = self.batch, self.batch.verify
        prompts = [q > few for q in batch.q_lens]
        if all(prompts) or not any(prompts):
            return [("context" if prompts[0] else "generation", (batch.q_lens, batch.kv_lens))]
        both = batch.q_lens, batch.kv_lens
        decodes = [not prompt for prompt in prompts]
        context, generation = (tuple(tuple(compress(lens, of)) for lens in both) for of in (prompts, decodes))
        return [("context", context), ("generation", generation)]  # type: ignore[list-item]

    def linear(self, matrix: Linear, rows: int | None = None) -> Use:
        """One matrix product over `rows` tokens."""
        n, k = matrix.shape(self.tp)
        kind = matrix.precision
        call = Gemm(self.rows if rows is None else rows, n, k, dtype=kind.dtype, quantize=kind.quantize)
        return Use(matrix.name, call)

    def streaming(self, name: str, read: float, written: float, weights: float = 0, rounds: int = 0) -> Use:
        """A kernel that only moves bytes."""
        impl, weights = self.impl if name in COMPILED else None, round(weights)
        call = Elementwise(round(read), round(written), weight_bytes=weights, op=name, rounds=rounds, impl=impl)
        return Use(name, call)

    def norm(self, name: str, dim: int, rows: int | None = None, *, fused_add: bool = False) -> Use:
        """A norm over `dim` elements of each row."""
        return Use(name, RmsNorm(rows or self.rows, dim, fused_add=fused_add, dtype=self.dtype))

    def reduce(self, name: str, size: int = 0) -> list[Use]:
        """All-reduce over the tensor group, of the hidden states or of `size` bytes."""
        size = size or self.rows * self.model.hidden * ACT
        return [Use(name, all_reduce(size, self.tp, nodes=self.layout.nodes, dtype=self.dtype))] if self.tp > 1 else []
