"""One version of a serving engine in one deployment, and the law of what its host adds to a step."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.errors import BadInput, did_you_mean
from pipewave.files import packaged
from pipewave.physics.arith import ARRAY, SCALAR, Arith
from pipewave.physics.demand import Array
from pipewave.physics.power import limited_us
from pipewave.software import engine_parts, engine_rules, stacks
from pipewave.software.engine_parts import PART_OF, PARTS, DeploymentFacts, KernelRule, StateCheckpoints
from pipewave.software.recorded import unread

FILE = Path(__file__).with_name("times.json")  # fitted times of each engine's host
USUAL = DeploymentFacts()  # a GPU of 140 GiB and a dense model
VERSION = re.compile(r"\d+\.(?:\d|[xX*]$)[\w.\-*]*")
WORD = re.compile(r"\.(?!(?:rc|post|dev|pre)\d*$)(?:[a-z]\w*|\*)$", re.IGNORECASE)  # of a version: `.x` of a line
LATEST = re.compile(r"[:=@ -](latest|newest)$", re.IGNORECASE)  # the last release whose source was read
Chosen = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class StepGaps:
    """What a kind of step adds to its kernels, in µs (scalars, or arrays over steps)."""

    between_us: Any  # waits between kernels
    beside_us: Any  # host work while the GPU runs
    after_us: Any  # what comes on top of both
    beside_request_us: float  # of each request, as beside_us
    after_request_us: float  # of each request, as after_us
    slack_us: Any  # at the power limit that the board may draw beyond it

    def delays_us(self, kernel_us: Any, at_limit_us: Any, requests: Any, xp: Arith = SCALAR) -> tuple[Any, Any, Any]:
        """The step law: µs by which a slow host, host work that the GPU waits for, and the power limit lengthen a step
        of so many requests, of kernels that take so long, and so long at the power limit.
        """
        beside = self.beside_us + requests * self.beside_request_us
        launch = xp.maximum(beside - kernel_us - self.between_us, 0.0)
        host = self.after_us + requests * self.after_request_us
        whole = kernel_us + self.between_us + launch + host
        return launch, host, limited_us(whole, at_limit_us, xp, self.slack_us) - whole

    def step_us(self, kernel_us: float, at_limit_us: float, requests: int) -> float:
        """µs of one step, its gaps included."""
        return kernel_us + float(self.between_us + sum(self.delays_us(kernel_us, at_limit_us, requests)))


@dataclass(frozen=True, slots=True)
class StepLoad:
    """Steps as an engine sees them: arrays over steps."""

    kernel_us: Array
    at_limit_us: Array  # in which the board delivers their joules at its power limit
    nodes: Array  # kernels
    launches: Array  # by the host
    requests: Array
    rows: Array  # of the dense kernels
    graph: NDArray[np.bool_]  # one CUDA graph is replayed
    layers: Array


@dataclass(frozen=True, slots=True)
class Engine:
    """One version of an engine in one deployment: its rules' values by part."""

    name: str
    version: str
    stack: str  # whose rows answer for its kernels
    scheduler: engine_parts.Scheduler
    graphs: engine_parts.CudaGraphs
    host: engine_parts.HostTimes
    memory: engine_parts.MemoryPolicy
    kernels: engine_parts.KernelChoice
    expert_parallel: engine_parts.ExpertParallel
    facts: DeploymentFacts = field(default_factory=DeploymentFacts)
    chosen: Chosen = ()  # fields set by the user, which no rule overrides

    def what_if(self, **changes: Any) -> Engine:
        """A copy with other values of fields of any part, which no rule overrides."""
        chosen = tuple(sorted((dict(self.chosen) | changes).items()))
        return replace(_changed(self, changes), chosen=chosen)

    def drafting(self) -> Engine:
        """The same engine while it drafts: its own limit of requests, and no overlap where it has none then."""
        changes: dict[str, Any] = {}
        if self.scheduler.max_requests_drafting:
            changes["max_requests"] = self.scheduler.max_requests_drafting
        if self.host.serial_draft_request_us:
            changes |= {"overlaps": False, "serial_request_us": self.host.serial_draft_request_us}
        return self.what_if(**changes) if changes else self

    def on_host(self, factor: float, launch: float = 1.0, request_us: float = 0.0) -> Engine:
        """The same engine on another host: see `HostTimes.scaled`."""
        return replace(self, host=self.host.scaled(factor, launch, request_us))

    def on(self, facts: DeploymentFacts) -> Engine:
        """The same version in another deployment, with what was chosen by hand kept."""
        return resolve(self.name, self.version, facts, self.chosen)

    @property
    def substituted(self) -> str:
        """What to say where rows of another version answer for its kernels; empty where they are its own."""
        asked = f"{self.name}-{self.version}"
        if stacks.version(asked) == stacks.version(self.stack):
            return ""
        said = f"{asked}: kernels answered from rows of {self.stack}, except where a rule of its version differs"
        known = engine_rules.knows(self.name, self.version)
        return said if known else f"{said}; no rule or row of {self.version} is known: interval as of no named version"

    @property
    def unsupported_model(self) -> str:
        """What to say where the engine is not recorded to have code for the model; empty where it is."""
        return unread(self.name, self.version, self.facts.model_type)

    def kernel(self, family: str, dtype: str, phase: str = "") -> KernelRule | None:
        """The rule for calls of a family, type and phase: the chosen backend's, or the default one of the exchange."""
        exchange = self.expert_parallel.exchange
        fits = [rule for rule in self.kernels.kernel_rules if rule.family == family and rule.dtype in ("", dtype)]
        fits = [rule for rule in fits if rule.phase in ("", phase)]
        fits = [rule for rule in fits if not rule.exchange or exchange.startswith(rule.exchange)]
        if chosen := self.kernels.backends.get(family):
            return next((rule for rule in fits if rule.backend == chosen), None)
        return next((rule for rule in fits if rule.default), None)

    def check_vendor(self) -> None:
        """Raise BadInput on a GPU of a vendor that the engine does not run on."""
        vendors = engine_rules.read(self.name).get("vendors", [self.facts.vendor])
        if self.facts.vendor not in vendors:
            raise BadInput(
                f"engine = {self.name!r}: it does not run on {self.facts.gpu}; ask for another engine", field="engine"
            )

    def check_backend(self) -> None:
        """Raise BadInput when the chosen backend of experts, products or scans is none that is known here."""
        kinds = {
            "fused_moe": f"{self.facts.dtype} experts",
            "gemm": f"{self.facts.dense_dtype} products",
            "delta_net": "gated delta nets",
        }
        for family, chosen in self.kernels.backends.items():
            name = engine_parts.BACKENDS[family]
            known = [rule.backend for rule in self.kernels.kernel_rules if rule.family == family and rule.backend]
            if chosen and chosen not in known:
                kind = f"{kinds[family]} on {self.facts.gpu}"
                runs = ", ".join(dict.fromkeys(known)) or "no backend but its default"
                raise BadInput(f"{name} = {chosen!r}: for {kind} {self.name} is known to run {runs}", field=name)

    @property
    def each_request_us(self) -> float:
        """What the GPU waits for at each request of a step."""
        serial = 0.0 if self.scheduler.overlaps else self.host.serial_request_us
        return self.host.request_host_us + self.host.draw_wait_us + serial

    def gaps_of(self, *, graph: bool, rows: float, nodes: float, launches: float, layers: float) -> StepGaps:
        """What `gaps_us` adds to a step of one kind, for loops over millions of such steps."""
        return self._gaps(graph, rows <= self.graphs.piecewise_limit, nodes, launches, layers, SCALAR)

    def _gaps(self, graph: Any, few: Any, nodes: Any, launches: Any, layers: Any, xp: Arith) -> StepGaps:
        """Of one kind of step, or of many steps as arrays. `few`: rows that fit the captured sizes."""
        host = self.host
        replayed = graph | few if self.graphs.piecewise_limit else graph
        pieces = xp.where(replayed, layers * host.layer_us, launches * host.launch_us)
        serial = 0.0 if self.scheduler.overlaps or host.serial_request_us else host.step_us
        return StepGaps(
            nodes * xp.where(replayed, host.graph_gap_us, host.stream_gap_us),
            (host.step_us if self.scheduler.overlaps else 0.0) + xp.where(graph, 0.0, pieces),
            serial + xp.where(graph, host.decode_host_us, host.prefill_host_us),
            host.draw_request_us,
            self.each_request_us,
            xp.where(graph, 0.0, host.slack_us),
        )

    def gaps_us(self, load: StepLoad) -> dict[str, Array]:
        """Named additions to the kernels of steps: waits between kernels, for the host, and for power."""
        few = load.rows <= self.graphs.piecewise_limit
        kind = self._gaps(load.graph, few, load.nodes, load.launches, load.layers, ARRAY)
        launch, host, throttling = kind.delays_us(load.kernel_us, load.at_limit_us, load.requests, ARRAY)
        return {"power_throttling": throttling, "between_kernels": kind.between_us, "launch": launch, "host": host}


def _changed(engine: Engine, changes: Mapping[str, Any]) -> Engine:
    """A copy with other values of fields of any part, or of the stack."""
    of_parts: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        of_parts.setdefault(PART_OF.get(name, ""), {})[name] = value
    own = of_parts.pop("", {})
    return replace(engine, **own, **{part: replace(getattr(engine, part), **new) for part, new in of_parts.items()})


@cache
def resolve(name: str, version: str, facts: DeploymentFacts = USUAL, chosen: Chosen = ()) -> Engine:
    """A version of an engine in a deployment: fitted times, then rules, then what was chosen, then what follows."""
    ruled = engine_rules.fields(name, version, facts)
    values: dict[str, Any] = {**packaged.shared(FILE)[name], **ruled}
    values["kernel_rules"] = engine_rules.kernels(name, version, facts)
    values |= dict(chosen)
    checkpoints: StateCheckpoints = ruled.get("states", StateCheckpoints())
    values["states"] = checkpoints.in_use(values.get("prefix_cache"), values.get("drafts", False))
    parts = {
        part: kind(**{key: value for key, value in values.items() if PART_OF.get(key) == part})
        for part, kind in PARTS.items()
    }
    return _settled(Engine(name, version, values["stack"], **parts, facts=facts, chosen=chosen))


def _settled(engine: Engine) -> Engine:
    """Fields that follow from others: the largest graph, and the share of memory where the engine works it out."""
    by_hand, scheduler, graphs = dict(engine.chosen), engine.scheduler, engine.graphs
    changes: dict[str, Any] = {}
    if graphs.graphs_per_request and "graph_limit" not in by_hand:
        most = min(int(graphs.graphs_per_request * scheduler.max_requests), scheduler.max_batched_tokens)
        changes["graph_limit"] = max(min(graphs.graph_limit, most), 1)
    if engine.memory.reserve and "memory_share" not in by_hand:
        graph = changes.get("graph_limit", graphs.graph_limit)
        chunk = scheduler.max_batched_tokens
        changes["memory_share"] = engine.memory.reserve.share(engine.facts, chunk=chunk, graph=graph)
    if engine.memory.states.blocks_overlap and "overlaps" not in by_hand:
        changes["overlaps"] = False
    return _changed(engine, changes) if changes else engine


def find(engine: str | Engine) -> Engine:
    """The engine of a name on a large GPU, with version (`parts`), a line (`0.9.x`) or none; or itself. BadInput."""
    if isinstance(engine, Engine):
        return engine
    name, version = parts(str(engine))
    known = engine_rules.NAMES
    if name not in known:
        raise BadInput(
            f"engine = {str(engine).strip(':')!r}: must be one of {', '.join(known)}, alone or with its version "
            f"({known[0]}:{engine_rules.read(known[0])['version']});{did_you_mean(name, known)}".rstrip(";"),
            field="engine",
        )
    if not version and LATEST.search(str(engine)):
        version = next(reversed(engine_rules.releases(name)["versions"]), "")
    if WORD.search(version):
        every = engine_rules.read(name)["known_versions"]
        line = [each for each in every if f"{each}.".startswith(version.rstrip("xX*"))]
        if not line:
            raise BadInput(f"engine = '{name}:{version}': not known; the newest is {every[-1]}", field="engine")
        version = line[-1]
    return resolve(name, version or engine_rules.read(name)["version"])


@cache
def parts(engine: str) -> tuple[str, str]:
    """Name and version of `vllm:0.11.0`, `vLLM==0.11.0` or `vllm-0.11.0`; no version where none is named."""
    return stacks.framework(engine), numbered(engine) or stacks.version_text(engine)


def names_known_version(engine: str | Engine) -> bool:
    """Whether an engine is named with a version that has rules or rows of its own, as `vllm:0.22.1` is."""
    name, version = (engine.name, engine.version) if isinstance(engine, Engine) else parts(str(engine))
    return name in engine_rules.NAMES and engine_rules.knows(name, version)


def numbered(version: str | None) -> str:
    """The version number in a version as people write it (`v0.5.8.post1-cu126`); empty when there is none."""
    found = VERSION.search(version or "")
    return found.group() if found else ""
