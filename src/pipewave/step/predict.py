"""Engine iterations in bulk: all distinct kernels of all steps are predicted in one call, then added up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.calls.families import Call
from pipewave.gpus import GPU
from pipewave.kernels.base import revision
from pipewave.models.expert_parallel import MOVED
from pipewave.models.kernels import Batch, Deployment, Use
from pipewave.nets.calibration import corrections
from pipewave.physics.demand import Array
from pipewave.physics.power import board_of
from pipewave.prediction.answers import Predictions
from pipewave.software.engine import Engine, StepLoad
from pipewave.software.front import Host
from pipewave.step.kernel_latency import KernelLatencies, kernel_latencies, nodes_of
from pipewave.step.overlap import EXCHANGED, TwoBatch, arranged, halved, lanes, overlapped_us, two_batch

# Share of a kernel's log-error that all kernels of a step have in common (clock, memory, software version).
COMMON = 0.5
USUAL_REQUESTS, USUAL_CACHE = 8, 1024  # of the step that stands for a deployment
KEPT = 4096  # lists of kernels that a deployment remembers
Launched = tuple[Sequence[Call], Sequence[int], Sequence[int]]  # calls, how often each runs, its lane
Lines = tuple[Sequence[int], Sequence[int], Sequence[int]]  # the same with indices of calls


@dataclass(frozen=True, slots=True)
class Steps:
    """Predicted iterations as arrays over steps, in µs, gaps included; pipeline stages run one after the other.

    `power_w`: mean of one GPU, gaps at what the clocked board draws idle.
    """

    total_us: Array
    low_us: Array
    high_us: Array
    families: dict[str, Array]
    gaps: dict[str, Array]
    basis: dict[str, Array]  # share of the kernels' time that rests on each kind of evidence
    load: StepLoad
    power_w: Array
    notes: tuple[str, ...] = ()  # what predictions say of their kernels: substitutions, calibrations

    def half(self, step: int) -> float:
        """Half the 90 % interval of a step's logarithm."""
        return float(np.log(self.high_us[step] / self.total_us[step]))


@dataclass(frozen=True, slots=True)
class Priced:
    """Lists of kernels as arrays: GPU µs, µs at the power limit, kernels, launches by the host, joules above what the
    idle board draws, relative half-width.
    """

    us: Array
    heat_us: Array
    nodes: Array
    launches: Array
    above_idle_j: Array
    spread: Array
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)  # distinguished by identity: what is worked out of one is cached by it
class Runner:
    """A deployment on a GPU under an engine: batches in, latencies out."""

    deployment: Deployment
    gpu: GPU
    engine: Engine
    known: dict[Any, Launched] = field(default_factory=dict, init=False, repr=False)  # kernels of steps of as many rows

    @classmethod
    def of(cls, deployment: Deployment, gpu: GPU, engine: Engine) -> Runner:
        """Resolve the engine's rules here, and the hosts a tensor group spans from the GPU."""
        return _runner(deployment, gpu, engine)

    def hosted(self, host: Host) -> Runner:
        """The same on another host, whose times scale with how much slower it is."""
        factor = host.slower(min(self.deployment.parallel.world, self.gpu.gpus_per_node), 1)
        return replace(self, engine=self.engine.on_host(factor, factor))

    def batch(self, q_lens: Sequence[int], kv_lens: Sequence[int]) -> Batch:
        """A batch as the engine runs it: decode padded to a captured graph size."""
        decodes = bool(q_lens) and max(q_lens) == 1
        return Batch.of(q_lens, kv_lens, self.engine.graphs.padded(len(q_lens)) if decodes else None)

    def steps(self, batches: Sequence[Batch]) -> Steps:
        """Predict many iterations at once."""
        distinct = CallIndex()
        for index, batch in enumerate(batches):
            self._enter(distinct, index, batch)
        return self._add_up(distinct, batches)

    def energy(self, steps: Steps, step: int = 0) -> dict[str, float]:
        """`power_w` of one GPU in a step and `energy_j` of all, with both ends of their intervals."""
        watts = float(steps.power_w[step])
        ends = zip(("", "_low", "_high"), (watts, *board_of(self.gpu).ends(watts)), strict=True)
        powers = {f"power_w{side}": float(value) for side, value in ends}
        seconds = 1e-6 * float(steps.total_us[step]) * self.deployment.parallel.world
        return powers | {name.replace("power_w", "energy_j"): value * seconds for name, value in powers.items()}

    def price(self, parts: Sequence[Sequence[Use]]) -> Priced:
        """Latency, energy and launches of each list of kernels."""
        distinct = CallIndex()
        for index, uses in enumerate(parts):
            distinct.add(index, _launched(uses, self.engine))
        kernels = self._predict(distinct)
        step, call, count, lane = distinct.columns()
        us, heat_us, nodes, launches, above_idle_j = (
            _sums(step, column[call] * count, len(parts)) for column in kernels.columns
        )
        us = us - overlapped_us(kernels.found.latency_us[call] * count, lane, step, len(parts))
        spread = _spread(kernels.found, call, count, step, len(parts)) / np.maximum(us, 1e-9)
        return Priced(us, heat_us, nodes, launches, above_idle_j, spread, kernels.notes)

    def usual(self) -> tuple[float, dict[str, float]]:
        """How uncertain a step of this deployment is (half-width of its interval's logarithm) and on what evidence it
        rests, both of a decode step of eight requests: one method for all that is made of steps.
        """
        return _usual(self, corrections.of(self.gpu), revision())

    def stage_shares(self) -> list[float]:
        """Each pipeline stage's part of a step."""
        stages = self.deployment.parallel.pp
        if stages == 1:
            return [1.0]
        batch = Batch((1,) * 8, (512,) * 8)
        us = self.price([self.deployment.kernels(batch, stage) for stage in range(stages)]).us
        return [float(value) for value in us / us.sum()]

    def _predict(self, distinct: CallIndex) -> KernelLatencies:
        return kernel_latencies(list(distinct.calls), self.gpu, self.engine)

    @property
    def two_batch(self) -> TwoBatch | None:
        """How steps are cut in two, None where they are not."""
        return two_batch(self.engine, self.gpu, len(self.deployment.model.layers))

    def _enter(self, distinct: CallIndex, step: int, batch: Batch) -> None:
        overlap = self.two_batch
        cut = overlap is not None and overlap.cuts(sum(batch.q_lens), prompts=not batch.is_decode)
        batch = halved(batch) if cut else batch
        rows, sampled = batch.rows, batch.sampled
        for stage in range(self.deployment.parallel.pp):
            for key, part in (
                ((stage, rows, cut), self.deployment.by_rows),
                ((stage, rows, sampled, cut), self.deployment.by_requests),
            ):
                launched = self.known.get(key)
                if launched is None:
                    if len(self.known) >= KEPT:
                        self.known.clear()
                    launched = self.known[key] = _launched(part(batch, stage), self.engine, cut=cut)
                distinct.add(step, launched, key)
            distinct.add(step, _launched(self.deployment.by_length(batch, stage), self.engine, cut=cut))

    def _add_up(self, distinct: CallIndex, batches: Sequence[Batch]) -> Steps:
        priced = self._predict(distinct)
        found = priced.found
        step, call, count, lane = distinct.columns()
        size = len(batches)
        us = found.latency_us[call] * count
        hidden = overlapped_us(us, lane, step, size)
        behind = self._behind(batches, us, lane, step, hidden)
        shared, hidden = hidden, hidden + behind
        sums = [_sums(step, column[call] * count, size) for column in priced.columns]
        load = self._load(batches, [sums[0] - hidden, *sums[1:4]])
        kernels = load.kernel_us
        gaps = self.engine.gaps_us(load)
        total = kernels + sum(gaps.values())
        spread = _spread(found, call, count, step, size)
        families = _by_name([c.kernel for c in distinct.calls], us, step, call, size)
        families |= {"shared_overlap": -shared} if shared.any() else {}
        families |= {"two_batch_overlap": -behind} if behind.any() else {}
        basis = _by_name([found.sources[g].basis for g in found.group], us, step, call, size)
        # Gaps are as uncertain as the kernels around them.
        factor = np.exp(spread / np.maximum(kernels, 1e-9))
        evidence = {name: us / np.maximum(kernels + hidden, 1e-9) for name, us in basis.items()}
        watts = board_of(self.gpu).step_w(sums[4], 1e-6 * total, self.deployment.parallel.pp)
        return Steps(total, total / factor, total * factor, families, gaps, evidence, load, watts, priced.notes)

    def _behind(
        self, batches: Sequence[Batch], us: Array, lane: NDArray[np.intp], step: NDArray[np.intp], hidden: Array
    ) -> Array:
        """µs of each step that two-batch overlap hides."""
        overlap, size = self.two_batch, len(batches)
        if overlap is None:
            return np.zeros(size)
        exchanging = _sums(step[lane == EXCHANGED], us[lane == EXCHANGED], size)
        computing = _sums(step, us, size) - hidden - exchanging
        tokens = np.array([sum(batch.q_lens) / 2 for batch in batches])
        busy = overlap.busy(computing, exchanging, tokens)
        return np.asarray(np.where(exchanging > 0.0, computing + exchanging - busy, 0.0))

    def _load(self, batches: Sequence[Batch], sums: Sequence[Array]) -> StepLoad:
        requests = np.array([batch.requests for batch in batches], float)
        rows = np.array([batch.rows for batch in batches], float)
        graph = np.array([batch.is_decode and batch.requests <= self.engine.graphs.graph_limit for batch in batches])
        kernels, heat, nodes, launches = sums
        layers = np.full_like(rows, len(self.deployment.model.layers))
        return StepLoad(kernels, heat, nodes, launches, requests, rows, graph, layers)


@lru_cache(maxsize=256)
def _runner(deployment: Deployment, gpu: GPU, engine: Engine) -> Runner:
    engine = engine.on(deployment.facts(gpu))
    engine.check_vendor()
    engine.check_backend()
    split = deployment.parallel
    nodes, group_nodes = _hosts(split.tp, gpu), _hosts(split.group, gpu)
    set_up = replace(deployment, engine=engine, page_size=None, nodes=nodes, group_nodes=group_nodes)
    return Runner(set_up, gpu, engine)


@lru_cache(maxsize=256)
def _usual(runner: Runner, _in_force: corrections.InForce | None, _families: int) -> tuple[float, dict[str, float]]:
    """Under the calibrations in force and the kernel families that are registered."""
    steps = runner.steps([runner.batch([1] * USUAL_REQUESTS, [USUAL_CACHE] * USUAL_REQUESTS)])
    return steps.half(0), {name: float(share[0]) for name, share in steps.basis.items()}


def _hosts(ranks: int, gpu: GPU) -> int:
    """Hosts that a group of ranks spans."""
    return max(ranks // gpu.gpus_per_node, 1)


def _launched(uses: Sequence[Use], engine: Engine, *, cut: bool = False) -> Launched:
    """Kernels as the engine launches them. cut: of half a step, run twice."""
    uses = arranged(uses, engine)
    lane = lanes(uses, engine)
    if cut:
        lane = [EXCHANGED if use.name in MOVED else one for use, one in zip(uses, lane, strict=True)]
    return [use.call for use in uses], [use.count * (1 + cut) for use in uses], lane


class CallIndex:
    """Distinct calls, and which step launches which of them how often."""

    def __init__(self) -> None:
        self.calls: dict[Call, int] = {}
        self._known: dict[Any, Lines] = {}
        self._entries: list[tuple[int, Lines]] = []

    def add(self, step: int, launched: Launched, key: Any = None) -> None:
        """Charge calls to a step, entering those not seen before. key: of a list that several steps share."""
        lines = self._known.get(key) if key else None
        if lines is None:
            calls, count, lane = launched
            lines = [self.calls.setdefault(call, len(self.calls)) for call in calls], count, lane
            if key:
                self._known[key] = lines
        self._entries.append((step, lines))

    def columns(self) -> tuple[NDArray[np.intp], NDArray[np.intp], Array, NDArray[np.intp]]:
        """step, call, count and lane of every line."""
        steps, lines = zip(*self._entries, strict=True)
        call, count, lane = (np.array(list(chain.from_iterable(column))) for column in zip(*lines, strict=True))
        return np.repeat(steps, [len(index) for index, *_ in lines]), call, count.astype(float), lane


def _sums(owner: NDArray[np.intp], values: Array, size: int) -> Array:
    return np.bincount(owner, values, size).astype(float)


def _spread(found: Predictions, call: NDArray[np.intp], count: Array, step: NDArray[np.intp], size: int) -> Array:
    """Half-width in µs of each step's interval: a common factor that adds linearly, the rest in quadrature."""
    half = np.log(found.high_us / found.latency_us)[call] * found.latency_us[call] * count
    linear, squares = _sums(step, half, size), _sums(step, half**2, size)
    return np.sqrt(COMMON * linear**2 + (1 - COMMON) * squares)


def _by_name(
    names: Sequence[str], us: Array, step: NDArray[np.intp], call: NDArray[np.intp], size: int
) -> dict[str, Array]:
    """µs of each step by the name its calls go under; `us`: of each line."""
    known = list(dict.fromkeys(names))
    label = np.array([known.index(name) for name in names], np.intp)[call]
    table = _sums(label * size + step, us, len(known) * size).reshape(len(known), size)
    return dict(zip(known, table, strict=True))


@dataclass(frozen=True, slots=True)
class Part:
    """A kernel of a step, or a named gap (family `gap`): µs of one launch and of all, interval, share of the step."""

    stage: int
    name: str
    family: str
    count: int
    each_us: float
    total_us: float
    low_us: float
    high_us: float
    share: float
    bound: str
    basis: str
    kernels: int


def detail(runner: Runner, batch: Batch) -> list[Part]:
    """All kernels and gaps of a step. Raises what `predict` raises."""
    uses = [
        (stage, use)
        for stage in range(runner.deployment.parallel.pp)
        for use in runner.deployment.kernels(batch, stage)
    ]
    steps = runner.steps([batch])
    total = float(steps.total_us[0])
    found = kernel_latencies([use.call for _, use in uses], runner.gpu, runner.engine).found
    kernels = [
        Part(
            stage, use.name, use.call.kernel, use.count, one.latency_us, one.latency_us * use.count,
            one.low_us * use.count, one.high_us * use.count, one.latency_us * use.count / total, one.bound, one.basis,
            nodes_of(use.call) * use.count,
        )
        for (stage, use), one in zip(uses, found, strict=True)
    ]  # fmt: skip
    gaps = {name: float(values[0]) for name, values in steps.gaps.items()}
    return kernels + [Part(0, name, "gap", 1, us, us, us, us, us / total, "launch", "", 0) for name, us in gaps.items()]
