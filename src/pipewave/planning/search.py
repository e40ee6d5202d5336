"""`plan`: look at every design, run the promising ones at their largest rates, and serve the best at the demand's own.

A look at a design (`screen`) costs hundredths of a second, a run (`run`) a second. Designs are run cheapest first by
their looks, the best two of each GPU in any case, until no other could beat what the runs have found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass, field, replace
from typing import Any

from pipewave.errors import PipewaveError
from pipewave.gpus import find as find_gpu
from pipewave.models import ModelSpec
from pipewave.planning.fleet import Demand, Fleet, hourly
from pipewave.planning.plan import Design, Plan
from pipewave.planning.prices import Price, prices
from pipewave.planning.run import MOST_REPLICAS, Measured, Point, measure, requests_for, serve
from pipewave.planning.screen import Screened, pairs, screen
from pipewave.planning.space import Question, Space, Split

Progress = Callable[[int, int], None]  # how many more designs are done, and how many there are
EACH, MORE = 2, 4  # designs of a GPU that are run in any case, and further ones of all
COULD = 0.85  # of what it seems to cost, a design may
ALSO = 2.0  # times the cost of the best of its GPU, up to which a design is tried with drafts
FLEETS = 6  # designs that are served at the demand's own rate, and the best of each GPU
ADDED = 3  # replicas added at most where the first guess misses
LOWER = (0.5, 0.2)  # of the largest rate: further points of the front
CHUNK = 8  # looks of one task


@dataclass(slots=True)
class Search:
    """One search: what is asked, and what was found so far."""

    models: Mapping[str, ModelSpec]  # by name of their weights
    question: Question
    space: Space
    demand: Demand
    known: Mapping[str, Price]
    executor: Executor | None
    progress: Progress | None
    looked: list[Screened] = field(default_factory=list)
    found: dict[int, Measured] = field(default_factory=dict)  # by number of the look

    def run(self) -> Plan:
        """The whole search."""
        self.look()
        self.measure()
        designs = self.designs()
        served = self.serve(designs) if self.demand.given else designs
        return Plan(
            self.models[""], self.question, self.space, self.demand, tuple(self.looked), tuple(served), self.known
        )

    # Looks.

    def look(self) -> None:
        """Every split, then the promising ones with drafts, then pools of engines apart."""
        plain = [
            replace(split, **settings)
            for gpu in self.space.gpus
            for weights in self.space.weights
            for split in self.space.splits(self.models[weights], gpu, weights)
            for settings in self.space.settings()
        ]
        ways = self.space.drafts(self.models[""])
        first = self._screened([replace(split, speculative=ways[0]) for split in plain], len(ways) > 1)
        if len(ways) > 1:
            best = self._best_of_gpus(first)
            able = [one for one in first if self.seems(one, sure=False) <= ALSO * best.get(one.split.gpu, math.inf)]
            first += self._screened([replace(one.split, speculative=way) for one in able for way in ways[1:]], False)
        apart = pairs(first, self.question, self.space.gpus_most) if self.space.disaggregated else ()
        self.looked = [*first, *apart]

    def _best_of_gpus(self, looked: Iterable[Screened]) -> dict[str, float]:
        best: dict[str, float] = {}
        for one in looked:
            best[one.split.gpu] = min(best.get(one.split.gpu, math.inf), self.seems(one, sure=False))
        return best

    def _screened(self, splits: Sequence[Split], more: bool) -> list[Screened]:
        chunks = [splits[i : i + CHUNK] for i in range(0, len(splits), CHUNK)]
        total = len(splits) * (1 + more)
        found = self._each(screen_many, [(self.models, chunk, self.question) for chunk in chunks], total, CHUNK)
        return [one for part in found for one in part]

    def _each(self, work: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], total: int, size: int) -> list[Any]:
        """Results in the order of their tasks, whoever computes them."""
        tell = self.progress or (lambda _done, _total: None)
        if self.executor is None:
            out = []
            for task in tasks:
                out.append(work(*task))
                tell(size, total)
            return out
        futures = {self.executor.submit(work, *task): number for number, task in enumerate(tasks)}
        done: dict[int, Any] = {}
        for future in as_completed(futures):
            done[futures[future]] = future.result()
            tell(size, total)
        return [done[number] for number in range(len(tasks))]

    # Costs.

    def seems(self, one: Screened, *, sure: bool) -> float:
        """What a design seems to cost by a look at it."""
        rate = one.sure_rate if sure else one.rate
        return self.costs(one.split, rate, one.times_ms[2] / 1e3) if rate > 0 else math.inf

    def costs(self, split: Split, rate: float, e2e_s: float) -> float:
        """USD an hour of the demand, or of a request a second where nothing says how much comes; GPUs in place of USD
        for those without a price, which are more than any price.
        """
        usd = hourly(split, self.known)
        each = 1e6 * split.gpus if usd is None else usd
        if not self.demand.given:
            return each / rate
        return each * max(self.demand.peak(self.question, e2e_s) / rate, 1.0)

    # Runs.

    def measure(self) -> None:
        """Run the best of each GPU, then whatever else could be the cheapest."""
        order = self._order(sure=True)
        likely = self._order(sure=False)[:EACH]
        self._measured(dict.fromkeys([*self._each_gpu(order), *likely]), frozenset(likely))
        for _ in range(MORE // EACH):
            bound = min((self.cost(number) for number in self.found), default=math.inf)
            left = [i for i in self._order(sure=True) if i not in self.found]
            could = [i for i in left if COULD * self.seems(self.looked[i], sure=True) < bound][:EACH]
            if not could:
                return
            self._measured(could)

    def _order(self, *, sure: bool) -> list[int]:
        numbers = [i for i, one in enumerate(self.looked) if one.rate > 0]
        return sorted(
            numbers, key=lambda i: (self.seems(self.looked[i], sure=sure), self.seems(self.looked[i], sure=False))
        )

    def _each_gpu(self, order: Iterable[int]) -> Iterator[int]:
        seen: dict[str, int] = {}
        for number in order:
            gpu = self.looked[number].split.gpu
            seen[gpu] = seen.get(gpu, 0) + 1
            if seen[gpu] <= EACH:
                yield number

    def _measured(self, numbers: Iterable[int], likely: frozenset[int] = frozenset()) -> None:
        listed = [number for number in numbers if number not in self.found]
        tasks = [(self.models, self.looked[number], self.question, number in likely) for number in listed]
        self.found |= dict(zip(listed, self._each(measure_one, tasks, len(tasks), 1), strict=True))

    def cost(self, number: int) -> float:
        """What a design costs by its run, where it keeps the limits for sure."""
        point = self.found[number].sure
        return (
            self.costs(self.found[number].split, point.rate, point.figures["e2e_mean_ms"] / 1e3) if point else math.inf
        )

    # Designs.

    def designs(self) -> list[Design]:
        """Every design that was run, at its largest rates."""
        out: list[Design] = []
        for number, one in self.found.items():
            look = self.looked[number]
            out += [self._design(look, point, point.rate, 1) for point in (one.sure, one.likely) if point]
        if not self.demand.given:
            best = {design.split.gpu: design for design in sorted(out, key=lambda d: -d.cost) if design.sure}
            lower = [(self.models, design, self.question, share) for design in best.values() for share in LOWER]
            found = self._each(serve_slower, lower, len(lower), 1)
            out += [
                self._design(task[1].look, p, task[1].fleet.capacity, 1)
                for task, p in zip(lower, found, strict=True)
                if p
            ]
        return out

    def _design(self, look: Screened, point: Point, capacity: float, replicas: int) -> Design:
        peak = point.rate * replicas / point.replicas
        usd = hourly(look.split, self.known, replicas)
        cost = usd if usd is not None else 1e6 * look.split.gpus * replicas
        return Design(look, Fleet(replicas, peak, capacity, point, usd), cost / (1.0 if self.demand.given else peak))

    def serve(self, designs: Sequence[Design]) -> list[Design]:
        """Designs at the demand's own rate: the best of each GPU, and the best of all, cheapest first."""
        ordered = sorted(designs, key=lambda d: (not d.sure, self._costs_at_peak(d)))
        likely = sorted(designs, key=self._costs_at_peak)
        first = {design.split.gpu: design for design in reversed(ordered)}
        chosen = dict.fromkeys([*ordered[:FLEETS], *likely[:EACH], *first.values()])
        tasks = [(self.models, design, self.question, self.demand) for design in chosen]
        found = self._each(serve_fleet, tasks, len(tasks), 1)
        return [
            self._design(design.look, point, design.fleet.capacity, replicas)
            for design, one in zip(chosen, found, strict=True)
            if one is not None
            for point, replicas in [one]
        ]

    def _costs_at_peak(self, design: Design) -> float:
        e2e_s = design.fleet.point.figures["e2e_mean_ms"] / 1e3
        whole = math.ceil(self.demand.peak(self.question, e2e_s) / design.fleet.capacity)
        usd = hourly(design.split, self.known)
        return whole * (1e6 * design.split.gpus if usd is None else usd)


def plan(
    model: ModelSpec,
    question: Question,
    space: Space,
    *,
    demand: Demand | None = None,
    variants: Mapping[str, ModelSpec] | None = None,
    own_prices: Mapping[str, float] | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Search a space for what serves a demand within limits at the least cost.

    variants: quantised checkpoints by name, for `space.weights`. `progress` hears of every few designs. Raises
    UnknownGPU or BadInput; a split that cannot be is a reason in the answer.
    """
    for gpu in space.gpus:
        find_gpu(gpu)
    models = {"": model, **(variants or {})}
    return Search(models, question, space, demand or Demand(), prices(own_prices), executor, progress).run()


def screen_many(models: Mapping[str, ModelSpec], splits: Sequence[Split], question: Question) -> list[Screened]:
    """Looks, the unit of work of an executor."""
    return [screen(models[split.weights], split, question) for split in splits]


def measure_one(models: Mapping[str, ModelSpec], look: Screened, question: Question, likely: bool) -> Measured:
    """Runs of one design at its largest sure rate; at its largest likely one where asked, or where none is sure."""
    rates = look.rate, look.sure_rate
    return measure(models[look.split.weights], look.split, question, rates, look.in_flight, likely=likely)


def serve_slower(models: Mapping[str, ModelSpec], design: Design, question: Question, share: float) -> Point | None:
    """A design at a share of its rate."""
    point = design.fleet.point
    requests = requests_for(point.in_flight * share)
    try:
        return serve(models[design.split.weights], design.split, question, point.rate * share, requests)
    except PipewaveError:
        return None


def serve_fleet(
    models: Mapping[str, ModelSpec], design: Design, question: Question, demand: Demand
) -> tuple[Point, int] | None:
    """As many replicas as serve a demand's peak within the limits, as surely as one does at its largest rate; and the
    run that says so.
    """
    point, capacity = design.fleet.point, design.fleet.capacity
    e2e_s = point.figures["e2e_mean_ms"] / 1e3
    replicas = max(math.ceil(demand.peak(question, e2e_s) / capacity - 1e-6), 1)
    for _ in range(ADDED + 1):
        peak, run = demand.peak(question, e2e_s), min(replicas, MOST_REPLICAS)
        requests = requests_for(peak * e2e_s * run / replicas)
        try:
            found = serve(models[design.split.weights], design.split, question, peak * run / replicas, requests, run)
        except PipewaveError:
            return None
        faster = demand.peak(question, e2e_s := found.figures["e2e_mean_ms"] / 1e3)
        if (found.sure if design.sure else found.over <= 0) and faster <= peak * 1.01:
            return found, replicas
        replicas = max(replicas + (faster <= peak * 1.01), math.ceil(faster / capacity - 1e-6))
    return None
