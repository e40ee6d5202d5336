"""Engine iterations in bulk: all distinct kernels of all steps are predicted in one call, then added up by part.

What runs on as many rows is the same whatever the lengths: a deployment remembers the kernels of such parts of a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np

from pipewave.calls.families import Call
from pipewave.errors import BadInput
from pipewave.gpus import GPU
from pipewave.kernels.base import revision
from pipewave.models.expert_parallel import MOVED
from pipewave.models.kernels import Batch, Deployment, Use
from pipewave.nets.calibration import corrections
from pipewave.physics.demand import Array
from pipewave.physics.power import board_of
from pipewave.prediction.notes import Note, said_of
from pipewave.software.engine import Engine, StepLoad
from pipewave.software.front import Host
from pipewave.step.kernel_latency import Kernel, Rules, kernel_latencies, kernels_of, latencies_of, nodes_of
from pipewave.step.overlap import EXCHANGED, ROUTED, SHARED, TwoBatch, arranged, halved, lanes, two_batch

# Share of a kernel's log-error that all kernels of a step have in common (clock, memory, software version).
COMMON = 0.5
BY_NAME = ("families", "basis")  # of PartSums
USUAL_REQUESTS, USUAL_CACHE = 8, 1024  # of the step that stands for a deployment
KEPT = 4096  # parts of steps that a deployment remembers
Launched = tuple[Sequence[Kernel], Sequence[int], Sequence[int]]  # kernels, how often each runs, its lane


@dataclass(frozen=True, slots=True)
class Steps:
    """Predicted iterations as arrays over steps, in µs, gaps included; pipeline stages run one after the other."""

    total_us: Array
    low_us: Array
    high_us: Array
    families: dict[str, Array]
    gaps: dict[str, Array]
    basis: dict[str, Array]  # share of the kernels' time that rests on each kind of evidence
    load: StepLoad
    power_w: Array  # mean of one GPU (`pipewave.physics.power`)
    notes: tuple[str, ...] = ()  # what predictions say of their kernels: substitutions, calibrations

    def half(self, step: int) -> float:
        """Half the 90 % interval of a step's logarithm."""
        return float(np.log(self.high_us[step] / self.total_us[step]))


@dataclass(frozen=True, slots=True)
class Priced:
    """Lists of kernels as arrays."""

    us: Array  # of the GPU
    nodes: Array  # kernels
    launches: Array  # by the host
    above_idle_j: Array  # above what the idle board draws
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PartSums:
    """Sums over the kernels of a part of a step.

    `numbers`: GPU µs, kernels, launches by the host, joules above what the idle board draws, half-widths of intervals
    in µs and their squares, µs of routed experts, of shared ones, and of exchanges that the other half of a step hides.
    """

    numbers: Sequence[float]
    families: Mapping[str, float]  # µs
    basis: Mapping[str, float]  # µs that rest on each kind of evidence
    notes: Sequence[Note]


@dataclass(frozen=True, slots=True, eq=False)  # distinguished by identity: what is worked out of one is cached by it
class Runner:
    """A deployment on a GPU under an engine: batches in, latencies out."""

    deployment: Deployment
    gpu: GPU
    engine: Engine
    known: dict[Any, Launched] = field(default_factory=dict, init=False, repr=False)
    rules: Rules = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, deployment: Deployment, gpu: GPU, engine: Engine) -> Runner:
        """Resolve the engine's rules here, and the hosts a tensor group spans. Raises CannotShard, BadInput."""
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
        asked: dict[Any, Launched] = {}
        steps = [list(self._parts(index, batch, asked)) for index, batch in enumerate(batches)]
        found = dict(zip(asked, self._sums(list(asked.values())), strict=True))
        return self._add_up([[found[key] for key in keys] for keys in steps], batches)

    def energy(self, steps: Steps, step: int = 0) -> dict[str, float]:
        """`power_w` of one GPU in a step and `energy_j` of all, with both ends of their intervals."""
        watts = float(steps.power_w[step])
        ends = zip(("", "_low", "_high"), (watts, *board_of(self.gpu).ends(watts)), strict=True)
        powers = {f"power_w{side}": float(value) for side, value in ends}
        seconds = 1e-6 * float(steps.total_us[step]) * self.deployment.parallel.world
        return powers | {name.replace("power_w", "energy_j"): value * seconds for name, value in powers.items()}

    def price(self, parts: Sequence[Sequence[Use]]) -> Priced:
        """Latency, energy and launches of each list of kernels."""
        sums = self._sums([self._launched(uses) for uses in parts])
        us, nodes, launches, above_idle_j, _, _, routed, shared, _ = _columns([[s] for s in sums])
        return Priced(us - np.minimum(routed, shared), nodes, launches, above_idle_j, _words(sums))

    def usual(self) -> tuple[float, dict[str, float]]:
        """Half-width of a usual decode step's interval (logarithm), and the evidence that the step rests on."""
        return _usual(self, corrections.of(self.gpu), revision())

    def stage_shares(self) -> list[float]:
        """Each pipeline stage's part of a step."""
        stages = self.deployment.parallel.pp
        if stages == 1:
            return [1.0]
        batch = Batch((1,) * 8, (512,) * 8)
        us = self.price([self.deployment.kernels(batch, stage) for stage in range(stages)]).us
        return [float(value) for value in us / us.sum()]

    @property
    def two_batch(self) -> TwoBatch | None:
        """How steps are cut in two, None where they are not."""
        return two_batch(self.engine, self.gpu, len(self.deployment.model.layers))

    def _parts(self, step: int, batch: Batch, asked: dict[Any, Launched]) -> Iterator[Any]:
        """Keys of the parts of a step; enters what those launch that no step before it shares."""
        overlap = self.two_batch
        cut = overlap is not None and overlap.cuts(sum(batch.q_lens), prompts=not batch.is_decode)
        batch = halved(batch) if cut else batch
        rows, sampled, state = batch.rows, batch.sampled, revision()
        if len(self.known) >= KEPT:
            self.known.clear()
        for stage in range(self.deployment.parallel.pp):
            for key, part in (
                (("rows", stage, rows, cut, state), self.deployment.by_rows),
                (("requests", stage, rows, sampled, cut, state), self.deployment.by_requests),
            ):
                if key not in asked:
                    known = self.known.get(key) or self._launched(part(batch, stage), cut=cut)
                    asked[key] = self.known[key] = known
                yield key
            asked[step, stage] = self._launched(self.deployment.by_length(batch, stage), cut=cut)
            yield step, stage

    def _launched(self, uses: Sequence[Use], *, cut: bool = False) -> Launched:
        """Kernels as the engine launches them. cut: of half a step, run twice."""
        uses = arranged(uses, self.engine)
        lane = lanes(uses, self.engine)
        if cut:
            lane = [EXCHANGED if use.name in MOVED else one for use, one in zip(uses, lane, strict=True)]
        kernels = kernels_of([use.call for use in uses], self.gpu, self.engine, self.rules)
        return kernels, [use.count * (1 + cut) for use in uses], lane

    def _sums(self, parts: Sequence[Launched]) -> list[PartSums]:
        """Predict the distinct calls of some parts at once, and add them up by part."""
        places: dict[Call, int] = {}
        index = [[places.setdefault(kernel.asked, len(places)) for kernel in part[0]] for part in parts]
        every = zip(chain.from_iterable(index), chain.from_iterable(part[0] for part in parts), strict=True)
        distinct = list(dict(every).values())
        kernels = latencies_of(distinct, self.gpu, self.engine)
        found, part = kernels.found, np.repeat(np.arange(len(parts)), list(map(len, index)))
        _, counts, lanes_of = zip(*parts, strict=True)
        call, count, lane = (np.array(list(chain.from_iterable(each))) for each in (index, counts, lanes_of))
        us = found.latency_us[call] * count
        half = np.log(found.high_us / found.latency_us)[call] * us
        others = (column[call] * count for column in kernels.columns[1:])
        apart = (us * (lane == one) for one in (ROUTED, SHARED, EXCHANGED))
        lines = (us, *others, half, half**2, *apart)
        numbers = np.array([np.bincount(part, line, len(parts)) for line in lines]).T.tolist()
        names = [one.call.kernel for one in distinct], [found.sources[group].basis for group in found.group.tolist()]
        each_us = iter(us.tolist())
        sums = []
        for row, those in zip(numbers, index, strict=True):
            by_name: tuple[dict[str, float], dict[str, float]] = ({}, {})
            for one in those:
                one_us = next(each_us)
                for known, name in zip(by_name, names, strict=True):
                    known[name[one]] = known.get(name[one], 0.0) + one_us
            sums.append(PartSums(row, *by_name, [note for one in those for note in kernels.notes[one]]))
        return sums

    def _add_up(self, parts: Sequence[Sequence[PartSums]], batches: Sequence[Batch]) -> Steps:
        us, nodes, launches, joules, linear, squares, routed, shared, exchanged = _columns(parts)
        beside = np.minimum(routed, shared)
        behind = self._behind(batches, us - beside - exchanged, exchanged)
        hidden, board = beside + behind, board_of(self.gpu)
        load = self._load(batches, [us - hidden, board.at_limit_us(joules), nodes, launches])
        kernels = load.kernel_us
        gaps = self.engine.gaps_us(load)
        total = kernels + sum(gaps.values())
        families, basis = (_by_name([[getattr(one, name) for one in step] for step in parts]) for name in BY_NAME)
        families |= {"shared_overlap": -beside} if beside.any() else {}
        families |= {"two_batch_overlap": -behind} if behind.any() else {}
        # Gaps are as uncertain as the kernels around them.
        factor = np.exp(_spread(linear, squares) / np.maximum(kernels, 1e-9))
        evidence = {name: us / np.maximum(kernels + hidden, 1e-9) for name, us in basis.items()}
        split = self.deployment.parallel
        spins = np.where(load.graph | (split.group == 1), 0.0, total - kernels)  # a replayed graph's gaps are short
        watts = board.step_w(joules, 1e-6 * spins, 1e-6 * total, split.pp)
        notes = _words(chain.from_iterable(parts))
        return Steps(total, total / factor, total * factor, families, gaps, evidence, load, watts, notes)

    def _behind(self, batches: Sequence[Batch], computing: Array, exchanging: Array) -> Array:
        """µs of each step that two-batch overlap hides."""
        overlap = self.two_batch
        if overlap is None:
            return np.zeros(len(batches))
        tokens = np.array([sum(batch.q_lens) / 2 for batch in batches])
        busy = overlap.busy(computing, exchanging, tokens)
        return np.asarray(np.where(exchanging > 0.0, computing + exchanging - busy, 0.0))

    def _load(self, batches: Sequence[Batch], sums: Sequence[Array]) -> StepLoad:
        requests = np.array([batch.requests for batch in batches], float)
        rows = np.array([batch.rows for batch in batches], float)
        graph = np.array([batch.is_decode and batch.requests <= self.engine.graphs.graph_limit for batch in batches])
        kernels, limited, nodes, launches = sums
        layers = np.full_like(rows, len(self.deployment.model.layers))
        return StepLoad(kernels, limited, nodes, launches, requests, rows, graph, layers)


@lru_cache(maxsize=256)
def _runner(deployment: Deployment, gpu: GPU, engine: Engine) -> Runner:
    deployment.parallel.check(deployment.model)
    engine = engine.on(deployment.facts(gpu))
    engine.check_vendor()
    engine.check_backend()
    split = deployment.parallel
    if split.dcp > 1 and not engine.kernels.parts_caches:
        raise BadInput(f"dcp = {split.dcp}: {engine.stack} is not known to part caches: vllm does", field="dcp")
    nodes, group_nodes = hosts_of(split.tp, gpu), hosts_of(split.group, gpu)
    set_up = replace(deployment, engine=engine, page_size=None, nodes=nodes, group_nodes=group_nodes)
    return Runner(replace(set_up, host_gpus=gpu.gpus_per_node), gpu, engine)


@lru_cache(maxsize=256)
def _usual(runner: Runner, _in_force: corrections.InForce | None, _families: int) -> tuple[float, dict[str, float]]:
    """Under the calibrations in force and the kernel families that are registered."""
    steps = runner.steps([runner.batch([1] * USUAL_REQUESTS, [USUAL_CACHE] * USUAL_REQUESTS)])
    return steps.half(0), {name: float(share[0]) for name, share in steps.basis.items()}


def hosts_of(ranks: int, gpu: GPU) -> int:
    """Hosts that a group of ranks spans: the fewest that hold it with as many ranks on each."""
    return next(hosts for hosts in range(-(-ranks // gpu.gpus_per_node), ranks + 1) if ranks % hosts == 0)


def _columns(steps: Sequence[Sequence[PartSums]]) -> Array:
    """[number, step]: numbers of all parts of each step."""
    return np.asarray(np.sum([[part.numbers for part in step] for step in steps], axis=1)).T


def _by_name(steps: Sequence[Sequence[Mapping[str, float]]]) -> dict[str, Array]:
    """µs of each step by name, of all its parts."""
    found: dict[str, list[float]] = {}
    for index, step in enumerate(steps):
        for name, us in chain.from_iterable(part.items() for part in step):
            found.setdefault(name, [0.0] * len(steps))[index] += us
    return {name: np.array(us) for name, us in found.items()}


def _words(parts: Iterable[PartSums]) -> tuple[str, ...]:
    """Notes of all parts, each once: those of no kernel in particular, then others with the kernels they concern."""
    notes = dict.fromkeys(chain.from_iterable(part.notes for part in parts))
    general = tuple(note for name, note in notes if not name)
    return (*general, *said_of(note for note in notes if note[0])) if notes else ()


def _spread(linear: Array, squares: Array) -> Array:
    """Half-width in µs of each step's interval: a common factor that adds linearly, the rest in quadrature."""
    return np.asarray(np.sqrt(COMMON * linear**2 + (1 - COMMON) * squares))


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
        for use in arranged(runner.deployment.kernels(batch, stage), runner.engine)
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
    hidden = {name: us for name, us in steps.families.items() if us[0] < 0}  # behind other kernels
    gaps = {name: float(values[0]) for name, values in (hidden | steps.gaps).items()}
    return kernels + [Part(0, name, "gap", 1, us, us, us, us, us / total, "launch", "", 0) for name, us in gaps.items()]
