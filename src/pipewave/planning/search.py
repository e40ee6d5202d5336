"""`plan`: look at every design, and serve the promising ones.

A look at a design (`screen`) costs hundredths of a second, serving it (`run`) two. Designs are served cheapest first by
their looks, the best of each GPU in any case, until no other could beat what the runs have found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import product
from typing import Any

from pipewave.errors import PipewaveError
from pipewave.models import ModelSpec
from pipewave.planning.fleet import Demand, Fleet, hourly
from pipewave.planning.plan import Design, Plan
from pipewave.planning.prices import Meter, Owned, Price, prices
from pipewave.planning.run import MOST_RANKS, TURNS, Ready, largest, ready_for, requests_for, serve
from pipewave.planning.screen import Screened, pairs, screen
from pipewave.planning.space import Question, Space, Split

Progress = Callable[[int, int], None]  # how many more designs are done, and how many there are
FIRST = 4  # designs that are served in any case, of the GPUs in turn, one of each at least
AT_ONCE, ROUNDS = 2, 2  # likely ones beside them, and further ones so many times
COULD = 0.85  # of what it seems to cost, a design may
NEARLY = 0.05  # of a replica, by which those that need fewer of the same number come first
ALSO = 1.6  # times the cost of the best of its GPU, up to which a design is tried with drafts
# Logarithm, near enough to the nearest limit: of a largest rate, and where whole replicas are sought.
NEAR = (0.05, 0.08)
# Further runs where a long one misses a limit that short ones kept, each of the requests of one run more, for a burst
# at an end looks like overload: how much slower they are, and how that grows.
ADDED, BACK, FARTHER = 5, 0.04, 1.25
UNPRICED = 1e6  # stands for USD of a GPU without a price: more than any price
TOO_DEAR = 1e-6  # of a design's rate, as it is ranked, where the budget pays none of it
USERS = 0.95  # of the rate of a run: less than that, users who wait longer in it ask for less
LOWER = (0.5, 0.2)  # of the largest rate: further points of the front
CHUNK = 8  # looks of one task
_same = lru_cache(lambda model: model)  # one object for equal models: caches compare others in full


@dataclass(slots=True)
class Search:
    """One search: what is asked, and what was found so far."""

    models: Mapping[str, ModelSpec]  # by name of their weights
    question: Question
    space: Space
    demand: Demand
    known: Mapping[str, Price]
    meter: Meter
    executor: Executor | None
    progress: Progress | None
    looked: list[Screened] = field(default_factory=list)
    found: dict[int, list[Design]] = field(default_factory=dict)  # by number of the look

    def run(self) -> Plan:
        """The whole search."""
        self.look()
        self.measure()
        asked = self.question, self.space, self.demand
        return Plan(self.models[""], *asked, tuple(self.looked), tuple(self.designs()), self.known, self.meter)

    # Looks.

    def look(self) -> None:
        """Every split, then the promising ones with drafts, then pools of engines apart."""
        kinds = product(self.space.gpus, self.space.weights)
        splits = (split for gpu, form in kinds for split in self.space.splits(self.models[form], gpu, form))
        plain = [replace(split, **settings) for split in splits for settings in self.space.settings()]
        ways = self.space.drafts(self.models[""])
        first = self._screened([replace(split, speculative=ways[0]) for split in plain], more=len(ways) > 1)
        able = [one.split for one in self._promising(first)]
        for way in ways[1:]:
            drafted = self._screened([replace(split, speculative=way) for split in able])
            able = [one.split for one in self._promising(drafted)]
            first += drafted
        apart = pairs(first, self.question, self.space.gpus_most) if self.space.disaggregated else ()
        self.looked = [*first, *apart]

    def _promising(self, looked: Sequence[Screened]) -> Iterator[Screened]:
        """Designs not far from the best of their GPU, for whole requests or for later tokens alone."""
        best: dict[tuple[Any, int], float] = {}
        costs = [(self.seems(one, sure=False), self._decode_seems(one)) for one in looked]
        for one, both in zip(looked, costs, strict=True):
            for kind, cost in enumerate(both):
                best[one.split.board, kind] = min(best.get((one.split.board, kind), math.inf), cost)
        for one, both in zip(looked, costs, strict=True):
            if any(c <= ALSO * best[one.split.board, kind] for kind, c in enumerate(both) if math.isfinite(c)):
                yield one

    def _decode_seems(self, one: Screened) -> float:
        """What the later tokens alone seem to cost."""
        if one.decode is None or not self.space.disaggregated:
            return math.inf
        rate = one.decode.within(self.question.limits, self.question.output_len)
        return self.costs(one.split, rate, one.times_ms[2] / 1e3) if rate else math.inf

    def _screened(self, splits: Sequence[Split], *, more: bool = False) -> list[Screened]:
        """A look at each; `more`: as many again may follow, of which progress hears now."""
        tasks = [(self.models[split.weights], split, self.question) for split in splits]
        return self._each(screen, tasks, len(splits) * (1 + more), CHUNK)

    def _each(
        self, work: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], total: int = 0, chunk: int = 1
    ) -> list[Any]:
        """Results in the order of their tasks, whoever computes them."""
        out, run = list[Any](), partial(self.executor.map, chunksize=chunk) if self.executor else map
        for result in run(partial(_done, work), *zip(*tasks, strict=True)) if tasks else ():
            out.append(result)
            if self.progress:
                self.progress(1, total or len(tasks))
        return out

    # Costs.

    def seems(self, one: Screened, *, sure: bool) -> float:
        """What a design seems to cost by a look at it."""
        rate = one.sure_rate if sure else one.rate
        return self.costs(one.split, rate, one.times_ms[2] / 1e3) if rate > 0 else math.inf

    def costs(self, split: Split, rate: float, e2e_s: float) -> float:
        """USD an hour of whole replicas, or of a request a second where nothing says how much comes."""
        usd = hourly(split, self.known, split.card.tdp_w)
        each = UNPRICED * split.gpus if usd is None else usd
        if not self.demand.given:
            return each / (rate * (self.demand.bought(usd)[1] or TOO_DEAR))
        replicas = self.demand.peak(self.question, e2e_s) / rate
        return each * (math.ceil(COULD * replicas) + NEARLY * replicas)

    # Runs.

    def measure(self) -> None:
        """Run the best of each GPU, then whatever else could be the cheapest."""
        order = self._order(sure=True)
        likely = self._order(sure=False)[:AT_ONCE]
        self.serve(dict.fromkeys([*likely, *self._each_gpu(order)]), frozenset(likely))  # the longest first
        for _ in range(ROUNDS):
            bound = min((d.cost for found in self.found.values() for d in found if d.sure), default=math.inf)
            left = [i for i in self._order(sure=True) if i not in self.found]
            self.serve([i for i in left if COULD * self.seems(self.looked[i], sure=True) < bound][:AT_ONCE])

    def _order(self, *, sure: bool) -> list[int]:
        costs = {i: tuple(self.seems(one, sure=which) for which in (sure, False))
                 for i, one in enumerate(self.looked) if one.rate > 0}  # fmt: skip
        return sorted(costs, key=costs.__getitem__)

    def _each_gpu(self, order: Iterable[int]) -> Iterator[int]:
        boards = len(self.space.gpus) * len(self.space.power_limits)
        seen, each = dict[Any, int](), max(FIRST // boards, 1)
        for number in order:
            split = self.looked[number].split
            alone = len(split.by_gpu) == 1
            seen[split.board] = seen.get(split.board, 0) + alone
            if seen[split.board] <= each and alone:
                yield number

    def serve(self, numbers: Iterable[int], likely: frozenset[int] = frozenset()) -> None:
        """Run designs, some of them at their likely rate as well."""
        listed = [number for number in numbers if number not in self.found]
        asked = self.question, self.demand
        tasks = [(self.models[(one := self.looked[i]).split.weights], one, *asked, i in likely) for i in listed]
        for number, served in zip(listed, self._each(serve_best, tasks), strict=True):
            self.found[number] = [self._design(self.looked[number], one) for one in served]

    def designs(self) -> list[Design]:
        """Every design that was served; where nothing says how much comes, the cheapest at lower rates, too."""
        out = [design for found in self.found.values() for design in found]
        best = min((d for d in out if d.sure), key=lambda d: d.cost, default=None)
        if best and not self.demand.given:
            lower = [(self.models[best.split.weights], best, self.question, part) for part in LOWER]
            out += [self._design(best.look, one) for one in self._each(serve_slower, lower) if one]
        return out

    def _design(self, look: Screened, fleet: Fleet) -> Design:
        usd = hourly(look.split, self.known, fleet.point.figures["power_w"])
        bought, spent = self.demand.bought(usd)
        replicas = max(fleet.replicas, bought)
        fleet = replace(fleet, replicas=replicas, usd_per_hour=usd and replicas * usd)
        cost = replicas * (UNPRICED * look.split.gpus if usd is None else usd)
        return Design(look, fleet, cost / (1.0 if self.demand.given else fleet.peak * (spent or TOO_DEAR)), self.meter)


def plan(
    model: ModelSpec,
    question: Question,
    space: Space,
    *,
    demand: Demand | None = None,
    variants: Mapping[str, ModelSpec] | None = None,
    own_prices: Mapping[str, float] | None = None,
    owned: Owned | None = None,
    grid_g_per_kwh: float | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Search a space for what serves a demand within limits at the least cost.

    variants: quantised checkpoints by name, for `space.weights`. owned: GPUs are bought, not rented. grid_g_per_kwh: of
    CO₂. `progress` hears of every few designs. Raises UnknownGPU or BadInput; a split that cannot be is a reason in the
    answer.
    """
    models = {"": model, **(variants or {})}
    known = prices(own_prices, owned, space.gpus)
    meter = Meter(owned.pue if owned else 1.0, grid_g_per_kwh)
    return Search(models, question, space, demand or Demand(), known, meter, executor, progress).run()


def _done(work: Callable[..., Any], model: ModelSpec, *task: Any) -> Any:
    """A task, whose model is its own copy where a process was sent it."""
    return work(_same(model), *task)


def serve_best(model: ModelSpec, look: Screened, question: Question, demand: Demand, likely: bool) -> list[Fleet]:
    """A design that serves a demand as cheaply as it surely can, and as it likely can where asked or where it cannot
    surely; without a demand, one replica at its largest rate.
    """
    out, design = list[Fleet](), ready_for(model, look.split, question)
    for sure, guess in ((True, look.sure_rate), (False, look.rate)):
        if guess > 0 and (sure or likely or not out):
            found = None
            with suppress(PipewaveError):
                found = _served(design, look, question, demand, guess, sure=sure)
            same = [one for one in out if found and found.replicas == one.replicas]
            if found and not any(demand.given or found.peak == one.peak for one in same):  # not the same run again
                out.append(found)
    return out


def _served(
    design: Ready, look: Screened, question: Question, demand: Demand, guess: float, *, sure: bool
) -> Fleet | None:
    """From the largest rate of a replica to as many as serve the demand's peak within the limits, by runs."""
    e2e_s = look.times_ms[2] / 1e3
    capacity = largest(design, question, guess, guess * e2e_s, sure=sure, near=NEAR[bool(demand.given)])
    enough, back = None, BACK
    for turn in range((ADDED + 1) * (1 if demand.users is None else 2)):
        if not capacity:
            break
        peak = demand.peak(question, e2e_s) if demand.given else capacity
        replicas = max(math.ceil(peak / capacity - 1e-6), 1)
        run = min(replicas, max(MOST_RANKS // look.split.dp, 1))
        requests = requests_for(peak * e2e_s * run / replicas, TURNS * (1 + turn if demand.users is None else 1))
        point = serve(design, question, peak * run / replicas, requests, run, sure=sure)
        if not (point.sure if sure else point.over <= 0):
            capacity, back = min(capacity, peak / replicas) * (1 - back), back * FARTHER
            continue
        took_s = point.figures["e2e_mean_ms"] / 1e3
        share = demand.peak(question, took_s) / peak if demand.given else 1.0  # users who wait less ask more
        e2e_s = took_s if demand.users is None else math.sqrt(e2e_s * took_s)  # half way: they would swing to and fro
        if share < 1.01:
            enough = Fleet(replicas, capacity, point)
        if USERS < share < 1.01:
            break
    return enough


def serve_slower(model: ModelSpec, design: Design, question: Question, share: float) -> Fleet | None:
    """A design at a share of its rate; None where it misses a limit or cannot be served."""
    point = design.fleet.point
    with suppress(PipewaveError):
        ready = ready_for(model, design.split, question)
        slower = serve(ready, question, point.rate * share, requests_for(point.in_flight * share))
        return Fleet(1, design.fleet.capacity, slower) if slower.over <= 0 else None
    return None
