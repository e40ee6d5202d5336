"""How a model is served: split, limits, kernels, front end, and what stands beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipewave.calls.fields import check_whole, is_number
from pipewave.errors import BadInput
from pipewave.models.expert_parallel import Balance, exchange_of
from pipewave.models.lora_and_drafts import Lora
from pipewave.models.samplers import sampler
from pipewave.models.shard import Parallel
from pipewave.simulate.interval import Uncertainty, server_of
from pipewave.simulate.speculative import Speculative
from pipewave.software.engine import names_known_version
from pipewave.software.front import Front
from pipewave.software.front import of as front_of
from pipewave.step import Engine, find_engine

WORDS = ("kv_dtype", "moe_backend", "gemm_backend", "delta_backend", "exchange", "sampler")
# Of requests at once: a table of steps is made for as many, and a call takes no longer list than 65,536.
MOST = {"replicas": 1 << 20, "max_num_batched_tokens": 1 << 20, "max_num_seqs": 1 << 15}


@dataclass(frozen=True, slots=True)
class Pace:
    """How far one machine is from its prediction: times of the parts of a run over predicted ones."""

    decode: float = 1.0  # kernels of steps that only decode: mostly the rate of memory
    prompt: float = 1.0  # kernels of steps with prompts: mostly the rate of tensor cores
    host: float = 1.0  # what the engine's host does in a step, launches among it
    frontend: float = 1.0  # what a request waits for on its way in, and a token on its way out


AS_PREDICTED = Pace()


@dataclass(frozen=True, slots=True)
class Setup:
    """How a model is served; None: the engine's own default."""

    tp: int = 1
    pp: int = 1
    ep: int = 1
    engine: str | Engine = "vllm"
    replicas: int = 1  # engines side by side
    dp: int = 1  # ranks of attention data parallelism in an engine, each with limits and cache of its own
    dcp: int = 1  # GPUs of a tensor group that part the cache of each sequence (decode context parallelism)
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    gpu_memory_utilization: float | None = None
    kv_dtype: str | None = None
    moe_backend: str | None = None
    gemm_backend: str | None = None
    delta_backend: str | None = None  # of scans of delta nets
    exchange: str | None = None  # how tokens reach experts of other ranks, in the engine's words
    two_batch: bool = False  # that exchange overlaps with kernels
    balance: Balance | None = None  # how experts are loaded
    alike: int = 0  # requests that are copies of one another, whose tokens choose the same experts
    front: Front | None = None  # between clients and engine; None: its own server, `INSIDE`: nothing
    pace: Pace = AS_PREDICTED  # of this machine
    recv_interval: int = 1  # decode steps between two looks at new requests
    stream_interval: int = 1  # tokens streamed at once, the first ones too
    mixes_phases: bool | None = None  # decode tokens ride along with prompts (SGLang's mixed chunks)
    message_tokens: int = 1  # tokens of a request that go out in one message after its first
    chunks: bool | None = None  # prompts are cut over steps
    overlaps: bool | None = None  # the host schedules a step while the one before it runs
    eager: bool = False  # no CUDA graphs and no compiler: every kernel is launched by the host
    graph_limit: int | None = None  # largest captured batch size
    graph_step: int | None = None  # sizes of decode graphs are multiples of it
    fused_norm_mib: float | None = None  # largest hidden states all-reduced by the kernel that norms them
    wait_steps: int = 0  # prompts wait so many decode steps for company (TensorRT-LLM's batch waiting),
    wait_share: float = 0.0  # or until a step holds this share of its tokens
    prefill_wait_steps: int = 0  # steps that data-parallel ranks hold prompts back until all have one
    speculative: Speculative | None = None  # how tokens are drafted
    sampler: str | None = None  # that draws tokens (`models.samplers`); None: the likeliest is taken
    penalised_tokens: int = 0  # output tokens of the longest request, which penalties count anew in each step
    images: int = 0  # of each prompt
    lora: Lora | None = None
    kv_offload_gib: float = 0.0  # host memory a GPU for idle blocks of prompts
    prefix_cache: bool | None = None  # prefixes of prompts are cached
    spread: float = 0.0  # of cache lengths in a step about their mean (`Traffic.spread`)
    version_assumed: bool = False  # nobody named the engine's version

    def __post_init__(self) -> None:
        if not isinstance(self.engine, str | Engine):
            find_engine(self.engine)  # refuses what is no name
        for name, most in MOST.items():
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), high=most)
        for name in WORDS:
            if not isinstance(getattr(self, name), str | None):
                raise BadInput(f"{name} = {getattr(self, name)!r}: must be a word", field=name)
        share = self.gpu_memory_utilization
        if share is not None and not (is_number(share) and 0 < share <= 1):
            name = "gpu_memory_utilization"
            raise BadInput(f"{name} = {share!r}: must be above 0 and at most 1", field=name)

    @property
    def parallel(self) -> Parallel:
        """How the model is cut."""
        return Parallel(self.tp, self.pp, self.ep, self.dp, self.dcp)

    def uncertainty(self, engine: Engine, kernels: float) -> Uncertainty:
        """What widens intervals under this set-up of an engine, and `kernels`: half-width of a step, in log time."""
        named = names_known_version(self.engine) and not self.version_assumed
        drafts = self.speculative.spread if self.speculative else 0.0
        return Uncertainty(kernels, server_of(engine), named, self.dp > 1, drafts=drafts)

    @property
    def front_end(self) -> Front:
        """What stands between clients and engine."""
        return front_of(find_engine(self.engine).name) if self.front is None else self.front

    @property
    def together(self) -> int:
        """Tokens of a request that go out in one message."""
        return max(self.message_tokens, self.stream_interval)

    def streaming(self, sent: float) -> Front:
        """The front end, with its time a token shared by those that go out in one message, after `sent` others."""
        front = self.front_end
        way_in = {name: self.pace.frontend * getattr(front, name) for name in ("request_us", "token_us", "transit_us")}
        return replace(front, **way_in, stream_us=(front.stream_us + front.copied_us * sent / 1000) / self.together)

    def hosted(self, engine: Engine) -> Engine:
        """The engine on the host behind this front end."""
        front, slower = self.front_end, self.pace.host
        return engine.on_host(slower * front.host, slower * front.launch, front.message_us / self.together)

    def program(self) -> Engine:
        """The engine with this set-up's limits in place of its defaults."""
        named = find_engine(self.engine)
        engine = named.drafting() if self.speculative else named
        chosen = {
            "max_batched_tokens": self.max_num_batched_tokens,
            "max_requests": self.max_num_seqs,
            "memory_share": self.gpu_memory_utilization,
            "mixes_phases": self.mixes_phases,
            "chunks": self.chunks,
            "overlaps": self.overlaps,
            "graph_limit": self.graph_limit,
            "prefix_cache": self.prefix_cache,
            "drafts": True if self.speculative and self.speculative.tokens else None,
            "graph_stride": ((1, self.graph_step),) if self.graph_step else None,
        }
        chosen |= sampler(self.sampler).host(self.penalised_tokens) if self.sampler else {}
        eager = {"graph_limit": 0, "compiled": False, "piecewise_tokens": 0} if self.eager else {}
        return engine.what_if(**_said(chosen) | eager, **self.kernels())

    def kernels(self) -> dict[str, Any]:
        """Choices that change which kernels run."""
        exchange = exchange_of(self.exchange) if self.exchange else None
        names = ("moe_backend", "gemm_backend", "delta_backend", "fused_norm_mib", "sampler")
        chosen = {name: getattr(self, name) for name in names}
        routing = f"alike_{self.alike}" if self.alike else None
        return _said(chosen | {"exchange": exchange, "two_batch": self.two_batch or None, "routing": routing})


def _said(chosen: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in chosen.items() if value is not None}
