"""The parts of an engine's behaviour: scheduler, CUDA graphs, host times, memory, kernels, expert parallelism.

Field names are unique over all parts, so that a rule or `Engine.what_if` names a field without its part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

NOT_CACHED, EVERY_BLOCK, STEP_ENDS_ON_BLOCK, STEP_ENDS, BRANCHES = "none", "blocks", "steps", "ends", "branches"
CHECKPOINT_PLACES = {
    EVERY_BLOCK: "at every block's end",
    STEP_ENDS_ON_BLOCK: "where a step's piece of a prompt ends on a block",
    STEP_ENDS: "where a step's piece of a prompt ends",
    BRANCHES: "before the end of a step's piece of a prompt, or where prompts part",
}
BACKENDS = {"fused_moe": "moe_backend", "gemm": "gemm_backend", "delta_net": "delta_backend"}


@dataclass(frozen=True, slots=True)
class DeploymentFacts:
    """What an engine chooses its defaults by: the GPU, the parallelism and the kind of model."""

    gpu: str = "H200"  # name in the registry
    mma: str = "wgmma"  # tensor instruction of the GPU (`Architecture.mma`)
    gib: float = 140.4  # memory of the GPU as nvidia-smi states it
    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1  # data parallelism of attention
    attention: str = "gqa"  # or "mla"
    experts: bool = False
    shared_experts: bool = False
    dtype: str = "bf16"  # of the weights; of the experts where there are any
    dense_dtype: str = "bf16"  # of the matrices outside the experts
    sinks: bool = False  # attention has sinks
    model_type: str = ""  # as the model's config names it
    vendor: str = "nvidia"  # or "amd"
    hidden: int = 4096  # width of the residual stream
    states: str = ""  # kind of the recurrent layers, empty without


@dataclass(frozen=True, slots=True)
class GroupedGemmTime:
    """time = start + ((read_factor · read)² + (math_factor · math)²)^½ of an expert layer behind DeepEP; read: weights
    of active experts from DRAM, math: FLOPs at the peak. `python -m studies.masked_experts` fits it.
    """

    start_us: float
    read_factor: float
    math_factor: float


@dataclass(frozen=True, slots=True)
class KernelRule:
    """How an engine runs calls of a family and operand type: from rows of which stack, as which implementation."""

    family: str
    dtype: str  # empty: any
    phase: str = ""  # of the calls that it holds for; empty: any
    exchange: str = ""  # it holds where tokens reach experts this way; empty: however they do
    backend: str = ""  # the engine's own name of the choice, empty where there is none
    default: bool = True  # it holds where no backend is chosen
    stack: str = ""  # whose rows answer; empty: the engine's own
    impl: str = ""  # the implementation in those rows
    runs_as_dtype: str = ""  # operand type it runs in where that is not the weights' own
    wide_rows: int = 0  # of a product, or of each expert on average, from which that is 16 bits; 0: however many
    cache_dtype: str = ""  # KV type it is answered with where rows of the deployment's own would mislead
    note: str = ""  # why other rows answer
    quantize_kernel: bool = True  # products pay a kernel of its own to quantise activations
    norm_reads_twice: bool = False  # without that kernel, the norm reads its rows twice: free only while they fit L2
    weight_multiples: tuple[int, int] = (1, 1)  # an expert's hidden and inner width (of a rank) are padded to these
    rows_per_expert: int = 0  # rows that a grouped product walks for every expert, filled or not
    max_flops_per_clk: float = 0.0  # of one SM, where the kernel leaves most tensor cores idle; 0: it does not
    host_launches: int = 0  # launches whose host time equals that of one call; 0: as many as its family has
    extra_kernels: int = 0  # small kernels that come with a call and that no row holds
    masked_gemm: GroupedGemmTime | None = None  # grouped products over masked rows, a few for each rank
    contiguous_gemm: GroupedGemmTime | None = None  # over rows laid out one expert after the other


@dataclass(frozen=True, slots=True)
class Scheduler:
    """What a step may hold and whether the host schedules ahead."""

    max_batched_tokens: int
    max_requests: int
    mixes_phases: bool  # decode tokens ride along with prompt chunks in one step
    chunks: bool = True  # a prompt may be cut over steps
    overlaps: bool = True  # the host schedules a step while the one before it runs
    max_prefill_tokens: int = 0  # prompt tokens of one step, all requests (0: max_batched_tokens)
    max_requests_drafting: int = 0  # max_requests while it drafts (0: max_requests)
    output_reserve: float = 0.0  # share of outputs still to come that must fit the cache at admission, at the start
    output_reserve_least: float = 0.0  # the same once settled
    stream_interval_in_steps: bool = False  # a stream interval counts steps, not tokens
    prefix_cache: bool | None = None  # prefixes of prompts are cached (None: as the engine would)
    drafts: bool = False  # tokens are drafted (speculative decoding)

    @property
    def prompt_tokens(self) -> int:
        """Most prompt tokens of one step, all requests together."""
        return self.max_prefill_tokens or self.max_batched_tokens


@dataclass(frozen=True, slots=True)
class CudaGraphs:
    """Which steps replay CUDA graphs."""

    graph_limit: int  # largest captured batch size
    graph_stride: tuple[tuple[int, int], ...]  # (from, step) of the captured batch sizes
    compiled: bool  # a compiler fuses head norms with RoPE, and small steps replay graphs between attentions
    graphs_per_request: float | None = None  # graph_limit is at most this times max_requests (None: any)
    piecewise_tokens: int = 0  # tokens of a step up to which graphs between attentions replay without a compiler

    def padded(self, requests: int) -> int:
        """Rows a decode batch is padded to: the next captured size, or its own beyond the largest."""
        if requests > self.graph_limit:
            return requests
        step = next(step for start, step in reversed(self.graph_stride) if requests >= start)
        return min(-(-requests // step) * step, self.graph_limit)

    @property
    def piecewise_limit(self) -> int:
        """Rows up to which a step that is no decode replays graphs between its attentions; 0: it never does."""
        return self.piecewise_tokens or (self.graph_limit if self.compiled else 0)


@dataclass(frozen=True, slots=True)
class HostTimes:
    """What the host and gaps between kernels add to a step, in µs."""

    graph_gap_us: float  # between two kernels of a CUDA graph
    stream_gap_us: float  # between two kernels of a stream that the host keeps filled
    step_us: float  # of a step; beside the GPU where the engine overlaps
    launch_us: float  # for each kernel launched one by one
    layer_us: float  # for each layer of a step that replays a graph for all but attention
    decode_host_us: float  # what the GPU waits for in a decode step: inputs, sampling, scheduling
    prefill_host_us: float  # the same of a step with prompts
    request_host_us: float  # the same for each request
    serial_request_us: float = 0.0  # instead of step_us, for each request, without overlap (0: step_us it is)
    serial_draft_request_us: float = 0.0  # the same of steps that draft, never overlapped (0: overlapped as others)
    draw_request_us: float = 0.0  # beside the GPU, for each request whose token a sampler draws (`models.samplers`)
    draw_wait_us: float = 0.0  # the same, for which the GPU waits
    compile_us: float = 0.0  # a step with prompts waits so long for a kernel compiled once for its number of tokens
    # At the power limit that a step with prompts draws beyond it before its clock gives way: prompts of 50 ms alone
    # take 4 % less than one after another (H200: `data/measured/h200/engine` beside `steady`); of a second, as much.
    slack_us: float = 10_000.0

    def scaled(self, host: float, launch: float, request_us: float) -> HostTimes:
        """With host work `host` times as long, eager steps `launch` times, and `request_us` more a request."""
        eager = dict.fromkeys(("launch_us", "layer_us", "prefill_host_us"), launch)
        names = ("step_us", "decode_host_us", "serial_request_us", "draw_request_us", "draw_wait_us")
        longer = {name: by * getattr(self, name) for name, by in (eager | dict.fromkeys(names, host)).items()}
        return replace(self, **longer, request_host_us=host * self.request_host_us + request_us)


@dataclass(frozen=True, slots=True)
class StateCheckpoints:
    """How an engine caches recurrent states (delta nets, Mamba, short convolutions) beside its KV prefix cache.

    A block of keys and values serves any prompt that begins with it; a state serves only prompts that begin with all
    the tokens behind it, so what counts is at which tokens a version saves one.
    """

    places: str = NOT_CACHED  # a key of CHECKPOINT_PLACES, or "none"
    every_tokens: int = 0  # block of tokens; 0: as many as take the bytes of a state in an attention block
    opt_in: bool = False  # only where the user asks for a prefix cache
    pool_share: float = 0.0  # of the cache's memory, a pool of states (0: one pool of pages)
    per_request: int = 1  # states that a running request takes
    free_to_admit: int = 1  # states without which no request is admitted
    drafting: int = 0  # states beside one for every drafted token while it drafts
    blocks_overlap: bool = False  # nothing is scheduled while a step runs
    off_while_drafting: bool = False
    element_bytes: int = 0  # as stored (0: those of the model's type)

    def in_use(self, prefix_cache: bool | None, drafts: bool) -> StateCheckpoints:
        """What holds where a prefix cache is wanted or not (None: not said), with drafting or without."""
        wanted = not self.opt_in if prefix_cache is None else prefix_cache
        if wanted and not (drafts and self.off_while_drafting) and self.places != NOT_CACHED:
            return self
        unsaid = self.opt_in and prefix_cache is None
        return StateCheckpoints(opt_in=unsaid, drafting=self.drafting, element_bytes=self.element_bytes)


@dataclass(frozen=True, slots=True)
class StaticReserve:
    """MiB that SGLang keeps out of weights and cache, from which it works out its memory share."""

    fixed_mib: float
    chunk_token_mib: float = 0.0  # for each token of a chunk
    graph_request_mib: float = 0.0  # for each request of the largest graph
    rank_mib: float = 0.0  # for each GPU of a replica
    dp_request_mib: float = 0.0  # for each request of the largest graph and rank of data-parallel attention
    least_mib: float = 0.0  # of all together

    def share(self, facts: DeploymentFacts, *, chunk: int, graph: int) -> float:
        """Share of the GPU that weights and cache get (SGLang's rule) with chunks and graphs of such sizes."""
        kept = self.fixed_mib + self.chunk_token_mib * max(chunk, 2048)
        kept += self.graph_request_mib * graph + self.rank_mib * facts.tp * facts.dp * facts.pp
        kept += self.dp_request_mib * graph * facts.dp if facts.dp > 1 else 0.0
        total = facts.gib * 1024
        return round((total - max(kept, self.least_mib)) / total, 3)


@dataclass(frozen=True, slots=True)
class MemoryPolicy:
    """How an engine divides GPU memory."""

    page_size: int  # tokens of a KV page
    memory_share: float
    runtime_gib: float  # CUDA context, libraries
    graph_gib: float  # captured graphs
    memory_of: str = "whole"  # the share is of `whole` memory, of `static` (weights + cache), or of what is left `free`
    reserve: StaticReserve | None = None  # sets memory_share where the engine works it out itself
    frees_window_pages: bool = False  # sliding-window layers free old pages; only a step's own prompts exceed windows
    states: StateCheckpoints = StateCheckpoints()


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """Which kernels an engine runs and fuses."""

    kernel_rules: tuple[KernelRule, ...] = ()  # the first that fits a call holds
    moe_backend: str = ""  # chosen backend of experts; empty: the default
    gemm_backend: str = ""  # of products
    delta_backend: str = ""  # of scans of delta nets
    separate_attention: bool = False  # prompts and decodes of one step are two attention kernels
    shared_experts: str = "added"  # after the routed ones, or `overlapped` on a second stream, or `fused` into them
    shared_tokens: int = 0  # tokens of a step up to which they overlap
    fused_norm_mib: float = 0.0  # largest hidden states all-reduced by the kernel that norms them
    fused_norm_launches: int = 1  # launches whose host time equals that of the call for both
    fused_norm_any_size: bool = False  # that call is made whatever the size, and decides inside
    padded_sums: int = 1  # experts' sums are reduced in rows padded to multiples of this, and then normed apart
    fused_rope: bool = False  # the kernel that writes the cache applies RoPE, too
    one_head_norm: bool = False  # one kernel norms the heads of queries and keys
    included_kernels: tuple[str, ...] = ()  # kernels whose time the rows of attention and experts include
    parts_caches: bool = False  # decode context parallelism
    expands_from: int = 0  # cached tokens before a prompt from which MLA expands keys and values (0: however few)
    float_routers: bool = False  # routers of experts multiply in FP32
    sampler: str = ""  # that draws tokens, in `samplers.json`; empty: the likeliest is taken
    routing: str = ""  # how tokens spread over experts where a call does not say (empty: at random)
    best_kernel_ratio: float = 1.0  # time of products and experts over the fastest kernel listed, for such rows
    extra_kernel_clk: float = 0.0  # clocks of each small kernel that comes with a call and that its rows leave out

    @property
    def backends(self) -> dict[str, str]:
        """The chosen backend of each family that has several; empty for the default."""
        return {family: getattr(self, name) for family, name in BACKENDS.items()}


@dataclass(frozen=True, slots=True)
class ExpertParallel:
    """How tokens reach experts of other data-parallel ranks, and what overlaps with that."""

    exchange: str = ""  # `allgather`, or a backend of the all-to-all; `_narrow` at its end: quantised before sending
    two_batch: bool = False  # steps are cut in two, one half's exchange behind the other's kernels
    two_batch_prompt: int = 0  # tokens of a rank with prompts from which it does (0: the engine cannot)
    two_batch_decode: int = 0  # without prompts
    exchange_sms: int = 20  # SMs that a high-throughput exchange keeps
    masks_padding: bool = False  # requests that only fill a graph are sent to no expert by an all-to-all


PARTS: dict[str, type[Any]] = {
    "scheduler": Scheduler,
    "graphs": CudaGraphs,
    "host": HostTimes,
    "memory": MemoryPolicy,
    "kernels": KernelChoice,
    "expert_parallel": ExpertParallel,
}
PART_OF = {name: part for part, kind in PARTS.items() for name in kind.__dataclass_fields__}
