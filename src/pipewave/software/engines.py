"""What a serving engine adds to its kernels: rules of its version with a source, and the law of its host's time."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.errors import BadInput, did_you_mean
from pipewave.files import packaged
from pipewave.physics.arith import ARRAY, SCALAR, Arith
from pipewave.physics.demand import Array
from pipewave.physics.energy import limited_us
from pipewave.software import rules, stacks
from pipewave.software.loads import Load, Regime
from pipewave.software.reading import unread
from pipewave.software.reserve import Reserve, static_share
from pipewave.software.rules import DeploymentFacts, KernelRule
from pipewave.software.states import UNKEPT, StateRule

FILE = Path(__file__).with_name("times.json")
LARGE = DeploymentFacts()  # a GPU of 140 GiB and a dense model
HOST_TIMES = ("step_us", "launch_us", "layer_us", "decode_host_us", "prefill_host_us", "request_host_us", "alone_us")
LAUNCH_TIMES = ("launch_us", "layer_us", "prefill_host_us")  # of them, those of steps that replay no whole graph
BACKENDS = {"fused_moe": "moe_backend", "gemm": "gemm_backend", "delta_net": "delta_backend"}
VERSION = re.compile(r"\d+\.\d+[\w.\-]*")


@dataclass(frozen=True, slots=True)
class Engine:
    """One version of an engine in one setting. Times in µs, memory in GiB.

    node_us, stream_us: idle time between two kernels of a CUDA graph, and of a stream the host keeps filled.
    step_us: host time of a step, which runs beside the GPU where the engine overlaps; launch_us: more for each kernel
    launched one by one; layer_us: more for each layer of a step that replays a graph for all but attention.
    decode_host_us, prefill_host_us, request_host_us: what the GPU waits for in a step, and for each of its requests:
    copies of inputs, sampling, scheduling when nothing runs beside it.
    alone_us: where the engine does not overlap, what each request costs more, instead of step_us (0: step_us it is).
    drafts_alone_us: alone_us of steps that draft, which the engine does not overlap (0: it does as ever).
    drafts_requests: max_requests while it drafts (0: max_requests).
    windows_once: layers with a window give pages back, so that only a step's own prompts hold more than they see.
    separate_attention: attention runs the prompts and the decodes of one step as two kernels.
    mixes_phases: decode tokens ride along with prompt chunks in one step.
    chunks: a prompt may be cut over steps. overlaps: the host schedules a step while the one before it runs.
    compiled: a compiler fuses the norms of heads with RoPE, and steps of few rows replay graphs between attentions.
    piecewise_tokens: tokens of a step up to which graphs between attentions replay without a compiler.
    streams_steps: a stream interval counts steps, not tokens.
    graph_stride: [from, step] pairs of the batch sizes captured as CUDA graphs, up to graph_limit; graphs_per_request:
    no more than this many times the requests that may run (None: whatever runs).
    memory_of: what memory_share is a share of: `whole` memory, `static` (weights and cache share it, the rest of the
    GPU holds everything else), or what is left `free` beside weights and activations.
    reserve: what sets memory_share where the engine works it out itself. output_reserve, output_reserve_least: share
    of the outputs still to come that must fit the cache when a request is admitted, at the start and once settled.
    max_prefill_tokens: prompt tokens of one step, all requests (0: max_batched_tokens).
    shared_experts: `added` after the routed ones, or `overlapped` with them on a second stream, or `fused` into them.
    shared_tokens: tokens of a step up to which they overlap.
    fused_norm_mib: largest hidden states, all-reduced by the kernel that norms them.
    fused_rope: the kernel that writes the cache turns queries and keys, too. one_head_norm: one kernel norms the
    heads of queries and keys. expands_from: cached tokens before a step's prompts from which latent attention expands
    their keys and values (0: however few). float_routers: routers of experts multiply 32-bit floats. within_rows:
    kernels whose time the rows that answer for attention and experts hold. prefix_cache: prefixes of prompts are cached
    (None: as the engine would); drafts: tokens are drafted; states: how recurrent ones are then kept.
    exchange: how tokens reach the experts of other data-parallel ranks: `allgather`, or a backend of the all-to-all;
    `_narrow` at its end: quantised before they are sent.
    two_batch: steps are cut in two, one half's exchange behind the other's kernels, from two_batch_prompt tokens of a
    rank with prompts (0: the engine cannot) and two_batch_decode without; exchange_sms: what high throughput keeps.
    masks_padding: requests that only fill a graph are sent to no expert by an all-to-all.
    routing: how tokens spread over experts where a call does not say (empty: at random).
    best_kernel_ratio: time of products and experts over that of the fastest kernel listed, where rows are of such;
    beside_clk: clocks of each small kernel that comes with a call and that its rows leave out.
    compile_us: a server's step with prompts waits so long for a kernel to be compiled, once for each number of tokens.
    kernels: which rows answer for which calls; moe_backend, gemm_backend, delta_backend: the choice among those of
    experts, of products and of delta nets' scans, empty for the default.
    chosen: what the user set, which no rule overrides.
    """

    name: str
    version: str
    stack: str
    page_size: int
    graph_limit: int
    graph_stride: tuple[tuple[int, int], ...]
    node_us: float
    stream_us: float
    step_us: float
    launch_us: float
    layer_us: float
    decode_host_us: float
    prefill_host_us: float
    request_host_us: float
    memory_share: float
    max_batched_tokens: int
    max_requests: int
    runtime_gib: float
    graph_gib: float
    mixes_phases: bool
    compiled: bool
    windows_once: bool = False
    alone_us: float = 0.0
    drafts_alone_us: float = 0.0
    drafts_requests: int = 0
    memory_of: str = "whole"
    separate_attention: bool = False
    chunks: bool = True
    overlaps: bool = True
    streams_steps: bool = False
    graphs_per_request: float | None = None
    max_prefill_tokens: int = 0
    output_reserve: float = 0.0
    output_reserve_least: float = 0.0
    reserve: Reserve | None = None
    piecewise_tokens: int = 0
    shared_experts: str = "added"
    shared_tokens: int = 0
    fused_norm_mib: float = 0.0
    fused_rope: bool = False
    within_rows: tuple[str, ...] = ()
    one_head_norm: bool = False
    expands_from: int = 0
    float_routers: bool = False
    prefix_cache: bool | None = None
    drafts: bool = False
    states: StateRule = UNKEPT
    exchange: str = ""
    two_batch: bool = False
    two_batch_prompt: int = 0
    two_batch_decode: int = 0
    exchange_sms: int = 20
    masks_padding: bool = False
    routing: str = ""
    best_kernel_ratio: float = 1.0
    beside_clk: float = 0.0
    compile_us: float = 0.0
    moe_backend: str = ""
    gemm_backend: str = ""
    delta_backend: str = ""
    kernels: tuple[KernelRule, ...] = ()
    setting: DeploymentFacts = field(default_factory=DeploymentFacts)
    chosen: tuple[tuple[str, Any], ...] = ()

    def what_if(self, **changes: Any) -> Engine:
        """A copy with other values, which no rule overrides."""
        chosen = tuple(sorted((dict(self.chosen) | changes).items()))
        return replace(self, **changes, chosen=chosen)

    def drafting(self) -> Engine:
        """The same engine while it drafts: with its limit of requests for that, and without overlap where it has none
        then."""
        changes: dict[str, Any] = {"max_requests": self.drafts_requests} if self.drafts_requests else {}
        changes |= {"overlaps": False, "alone_us": self.drafts_alone_us} if self.drafts_alone_us else {}
        return self.what_if(**changes) if changes else self

    def hosted(self, factor: float, launch: float = 1.0, request_us: float = 0.0) -> Engine:
        """The same engine on a host whose own work takes `factor` times as long, what it launches kernel by kernel
        `launch` times, and each request of a step `request_us` more."""
        factors = dict.fromkeys(HOST_TIMES, factor) | dict.fromkeys(LAUNCH_TIMES, launch)
        times = {name: each * getattr(self, name) for name, each in factors.items()}
        return replace(self, **times | {"request_host_us": times["request_host_us"] + request_us})

    def on(self, setting: DeploymentFacts) -> Engine:
        """The same version in another setting, with what was chosen by hand kept."""
        return resolve(self.name, self.version, setting, self.chosen)

    @property
    def substituted(self) -> str:
        """What to say where rows of another version answer for its kernels; empty where they are its own."""
        asked = f"{self.name}-{self.version}"
        if stacks.version(asked) == stacks.version(self.stack):
            return ""
        return f"{asked}: kernels answered from rows of {self.stack}, except where a rule of its version differs"

    @property
    def unread(self) -> str:
        """What to say where the engine is not recorded to have code for the model; empty where it is."""
        return unread(self.name, self.version, self.setting.model_type)

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of one step, all requests together."""
        return self.max_prefill_tokens or self.max_batched_tokens

    def kernel(self, family: str, dtype: str, phase: str = "") -> KernelRule | None:
        """The rule for calls of a family, operand type and phase: the chosen backend's, or the default one of the
        exchange."""
        fits = [rule for rule in self.kernels if rule.family == family and rule.dtype in ("", dtype)]
        fits = [rule for rule in fits if rule.phase in ("", phase)]
        fits = [rule for rule in fits if not rule.exchange or self.exchange.startswith(rule.exchange)]
        if chosen := self.backends.get(family):
            return next((rule for rule in fits if rule.backend == chosen), None)
        return next((rule for rule in fits if rule.default), None)

    @property
    def backends(self) -> dict[str, str]:
        """The chosen backend of each family that has several; empty for the default."""
        return {family: getattr(self, name) for family, name in BACKENDS.items()}

    def check_vendor(self) -> None:
        """Raise BadInput on a GPU of a vendor that the engine does not run on."""
        vendors = rules.read(self.name).get("vendors", [self.setting.vendor])
        if self.setting.vendor not in vendors:
            raise BadInput(
                f"engine = {self.name!r}: it does not run on {self.setting.gpu}; ask for another engine", field="engine"
            )

    def check_backend(self) -> None:
        """Raise BadInput when the chosen backend of experts, products or scans is none that is known here."""
        kinds = {
            "fused_moe": f"{self.setting.dtype} experts",
            "gemm": f"{self.setting.dense_dtype} products",
            "delta_net": "gated delta nets",
        }
        for family, chosen in self.backends.items():
            name = BACKENDS[family]
            known = [rule.backend for rule in self.kernels if rule.family == family and rule.backend]
            if chosen and chosen not in known:
                kind = f"{kinds[family]} on {self.setting.gpu}"
                runs = ", ".join(dict.fromkeys(known)) or "no backend but its default"
                raise BadInput(f"{name} = {chosen!r}: for {kind} {self.name} is known to run {runs}", field=name)

    def padded(self, requests: int) -> int:
        """Rows a decode batch is padded to: the next captured graph size, or its own size beyond the last."""
        if requests > self.graph_limit:
            return requests
        step = next(step for start, step in reversed(self.graph_stride) if requests >= start)
        size = -(-requests // step) * step
        return min(size, self.graph_limit) if self.graph_limit >= requests else size

    @property
    def each_request_us(self) -> float:
        """What the GPU waits for at each request of a step."""
        return self.request_host_us + (0.0 if self.overlaps else self.alone_us)

    @property
    def pieces_limit(self) -> int:
        """Rows up to which a step that is no decode replays graphs between its attentions; 0: it never does."""
        return self.piecewise_tokens or (self.graph_limit if self.compiled else 0)

    def regime(self, *, graph: bool, rows: float, nodes: float, launches: float, layers: float) -> Regime:
        """What `gaps_us` adds to a step of one kind, for loops over millions of such steps."""
        return self._regime(graph, rows <= self.pieces_limit, nodes, launches, layers, SCALAR)

    def _regime(self, graph: Any, few: Any, nodes: Any, launches: Any, layers: Any, xp: Arith) -> Regime:
        """Of one kind of step, or of many steps as arrays. `few`: rows that fit the captured sizes."""
        replayed = graph | few if self.pieces_limit else graph
        pieces = xp.where(replayed, layers * self.layer_us, launches * self.launch_us)
        beside, serial = (self.step_us, 0.0) if self.overlaps else (0.0, 0.0 if self.alone_us else self.step_us)
        return Regime(
            nodes * xp.where(replayed, self.node_us, self.stream_us),
            beside + xp.where(graph, 0.0, pieces),
            serial + xp.where(graph, self.decode_host_us, self.prefill_host_us),
        )

    def gaps_us(self, load: Load) -> dict[str, Array]:
        """Named additions to the kernels of steps: waits between kernels, waits for a host that cannot keep ahead, what
        the GPU always waits for, and slower clocks where the whole step, waits included, needs more than the board's
        power."""
        few = load.rows <= self.pieces_limit
        kind = self._regime(load.graph, few, load.nodes, load.launches, load.layers, ARRAY)
        launch = np.maximum(kind.beside_us - load.kernel_us - kind.between_us, 0.0)
        host = kind.after_us + load.requests * self.each_request_us
        whole = load.kernel_us + kind.between_us + launch + host
        power_throttling = limited_us(whole, load.heat_us) - whole
        return {
            "power_throttling": power_throttling,
            "between_kernels": kind.between_us,
            "launch": launch,
            "host": host,
        }


NAMED = tuple(one.name for one in fields(Engine))


@cache
def _times() -> dict[str, dict[str, float]]:
    return dict(packaged.document(FILE))


@cache
def resolve(
    name: str, version: str, setting: DeploymentFacts = LARGE, chosen: tuple[tuple[str, Any], ...] = ()
) -> Engine:
    """A version of an engine in a setting: fitted times, then rules, then what was chosen, then what follows."""
    ruled = rules.fields(name, version, setting)
    values = {key: _frozen(value) for key, value in (_times()[name] | ruled).items()} | dict(chosen)
    if reserve := ruled.get("reserve"):
        values["reserve"] = Reserve(**reserve)
    values["states"] = StateRule(**ruled.get("states", {})).held(
        values.get("prefix_cache"), values.get("drafts", False)
    )
    known = {key: value for key, value in values.items() if key in NAMED}
    kernels = rules.kernels(name, version, setting)
    return _settled(Engine(name=name, version=version, kernels=kernels, setting=setting, chosen=chosen, **known))


def _settled(engine: Engine) -> Engine:
    """Fields that follow from others: the largest graph, and the share of memory where the engine works it out."""
    by_hand = dict(engine.chosen)
    if engine.graphs_per_request and "graph_limit" not in by_hand:
        most = min(int(engine.graphs_per_request * engine.max_requests), engine.max_batched_tokens)
        engine = replace(engine, graph_limit=max(min(engine.graph_limit, most), 1))
    if engine.reserve and "memory_share" not in by_hand:
        engine = replace(engine, memory_share=_share(engine, engine.reserve))
    if engine.states.serial and "overlaps" not in by_hand:
        engine = replace(engine, overlaps=False)
    return engine


def _share(engine: Engine, reserve: Reserve) -> float:
    return static_share(reserve, engine.setting, chunk=engine.max_batched_tokens, graph=engine.graph_limit)


def _frozen(value: Any) -> Any:
    """Lists of data files as tuples, so that an engine can be a key."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def find(engine: str | Engine) -> Engine:
    """The engine of a name on a large GPU, with or without its version (`parts`); or the Engine itself; BadInput
    otherwise."""
    if isinstance(engine, Engine):
        return engine
    name, version = parts(str(engine))
    known = rules.names()
    if name not in known:
        raise BadInput(
            f"engine = {str(engine)!r}: must be one of {', '.join(known)}, alone or with its version "
            f"({known[0]}:{rules.read(known[0])['version']});{did_you_mean(name, known)}".rstrip(";"),
            field="engine",
        )
    return resolve(name, version or rules.read(name)["version"])


def parts(engine: str) -> tuple[str, str]:
    """Name and version of an engine as people write it: `vllm:0.11.0`, `vLLM==0.11.0`, `vllm-0.11.0`; no version where
    none is named."""
    return stacks.framework(engine), numbered(engine) or stacks.version_text(engine)


def numbered(version: str | None) -> str:
    """The version number in a version as people write it (`v0.5.8.post1-cu126`); empty when there is none."""
    found = VERSION.search(version or "")
    return found.group() if found else ""
