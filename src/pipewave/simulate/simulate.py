"""Requests through engines: arrivals, routing, steps, and prefill/decode disaggregation, as one heap of events."""

from __future__ import annotations

import heapq
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from typing import Any, Protocol

import numpy as np

from pipewave.errors import BadInput
from pipewave.physics.demand import Array
from pipewave.simulate.front import Desk, factors
from pipewave.simulate.inbox import Inbox
from pipewave.simulate.limits import Limits
from pipewave.simulate.lockstep import Group
from pipewave.simulate.lockstep import Timed as GroupTimed
from pipewave.simulate.replica import Replica, Step
from pipewave.simulate.timed import Timed
from pipewave.simulate.traffic import Traffic
from pipewave.software.front import INSIDE, Front


class Clock(Timed, GroupTimed, Protocol):
    """What tells how long steps take, of one scheduler and of ranks in lock step."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Engines of one kind: how many run side by side, what a step costs them, their limits, and when they look at new
    requests (`overlaps`, `interval`: see Inbox). Each holds `ranks` data-parallel ranks (`patience`: see Group). late:
    what a step made is handed on when this share of the step after it has passed, at once where none follows."""

    table: Clock
    limits: Limits
    engines: int = 1
    overlaps: bool = False
    interval: int = 1
    ranks: int = 1
    patience: int = 0
    late: float = 0.0

    def replicas(
        self, traffic: Traffic, *, ready: bool = False, jitter: float = 0.0, seed: int = 0
    ) -> list[Replica] | list[Group]:
        """Fresh engines, whose times of steps scatter by `jitter`."""
        drawn = [factors(jitter, seed + 1 + which) for which in range(self.engines)]
        if self.ranks > 1:
            parts = (self.table, self.limits, traffic, self.ranks)
            return [Group(*parts, ready=ready, patience=self.patience, jitter=one) for one in drawn]
        return [Replica(self.table, self.limits, traffic, ready=ready, jitter=one) for one in drawn]

    def inboxes(self) -> list[Inbox]:
        """An empty inbox for each engine."""
        return [Inbox(overlaps=self.overlaps, interval=self.interval) for _ in range(self.engines)]


@dataclass(slots=True)
class Record:
    """What happened: first and last token of each request as its client saw them (seconds), and every step of every
    engine. reached_s: when each request reached an engine; first_made_s, done_made_s: when the engine had made its
    first and last token, before they were streamed."""

    first_s: Array
    done_s: Array
    arrival_s: Array
    steps: list[tuple[int, Step]] = field(default_factory=list)
    reached_s: Array = field(default_factory=lambda: np.empty(0))
    first_made_s: Array = field(default_factory=lambda: np.empty(0))
    done_made_s: Array = field(default_factory=lambda: np.empty(0))

    @property
    def preemptions(self) -> int:
        """Requests thrown out of a cache, with repetition."""
        return sum(step.preempted for _, step in self.steps)


MOST = sys.maxsize  # steps of one stretch
# Work of a run at most, in engine steps (20 to 60 µs each). A request costs about as much as a step; a step in which
# nothing begins or ends, run in a stretch of such, a sixteenth. The largest published run takes 221,543.
MOST_STEPS, STRETCHED = 1_000_000, 1 / 16
MOST_KEPT = 500_000  # where every step is kept, 600 bytes each
Handler = Callable[[float, int], None]


class Simulation:
    """Colocated engines, or prefill engines that hand caches to decode engines, behind one front end."""

    def __init__(
        self,
        traffic: Traffic,
        pool: Pool,
        *,
        decode: Pool | None = None,
        transfer_s: Callable[[int], float] | None = None,
        keep_steps: bool = True,
        most_steps: int = MOST_STEPS,
        front: Front = INSIDE,
        seed: int = 0,
    ) -> None:
        self.traffic, self.keep_steps, self.desk = traffic, keep_steps, Desk(front, seed)
        self.transfer_s, self.most_steps, self.spent = transfer_s and cache(transfer_s), most_steps, 0.0
        self._spend(len(traffic))
        prompts = replace(traffic, output_len=np.ones_like(traffic.output_len)) if decode else traffic
        scatter: dict[str, Any] = {"jitter": front.jitter, "seed": seed}
        self.front = pool.replicas(prompts, **scatter)
        self.back = decode.replicas(traffic, ready=True, **scatter) if decode else []
        self.engines: list[Replica | Group] = [*self.front, *self.back]
        self.inboxes = pool.inboxes() + (decode.inboxes() if decode else [])
        self.late = [pool.late] * len(self.front) + [decode.late if decode else 0.0] * len(self.back)
        self.began_s = [0.0] * len(self.engines)  # when the step before the next one began
        self.busy: list[Step | None] = [None] * len(self.engines)
        self.events: list[tuple[float, int, Handler, int]] = []
        self.serial = count()
        size = len(traffic)
        first, done, *inside = (np.full(size, np.nan) for _ in range(5))
        self.record = Record(first, done, traffic.arrival_s.copy(), [], *inside)
        self.arrivals = self._arrivals()

    def run(self) -> Record:
        """Run until every request is done."""
        for _ in range(self.traffic.concurrency or 1):
            self._next_arrival(0.0)
        while self.events:
            now, _, handle, which = heapq.heappop(self.events)
            handle(now, which)
        return self.record

    def _at(self, time: float, handle: Handler, which: int) -> None:
        heapq.heappush(self.events, (time, next(self.serial), handle, which))

    def _arrivals(self) -> Iterator[tuple[int, float]]:
        return enumerate(self.traffic.arrival_s.tolist())

    def _next_arrival(self, now: float) -> None:
        """Put the next request on the heap: at its own time, or now when another one made room for it."""
        request, time = next(self.arrivals, (-1, 0.0))
        if request >= 0:
            self._at(now if self.traffic.concurrency else time, self._arrive, request)

    def _arrive(self, now: float, request: int) -> None:
        """A client sends a request."""
        self.record.arrival_s[request] = now
        if not self.traffic.concurrency:
            self._next_arrival(now)
        reached = self.desk.enter(now, int(self.traffic.input_len[request]))
        if reached > now:
            self._at(reached, self._reach, request)
        else:
            self._reach(now, request)

    def _reach(self, now: float, request: int) -> None:
        self.record.reached_s[request] = now
        self._send(now, request, range(len(self.front)))

    def _send(self, now: float, request: int, among: Sequence[int]) -> None:
        """Queue a request at the engine with the fewest."""
        which = min(among, key=self._load)
        self.inboxes[which].put(now, request)
        if self.busy[which] is None:
            self._start(now, which)

    def _load(self, which: int) -> int:
        """Requests of an engine, those that end with the step it runs included."""
        step = self.busy[which]
        return self.engines[which].load + len(self.inboxes[which]) + (len(step.done) if step else 0)

    def _start(self, now: float, which: int) -> None:
        engine, inbox = self.engines[which], self.inboxes[which]
        if not self.keep_steps:
            now = self._coast(now, which)
        engine.waiting.extend(inbox.take(now, self.began_s[which], idle=engine.idle))
        step = engine.step(now)
        self._spend(1.0)
        inbox.ran(prompts=bool(step.pieces))
        self.began_s[which] = now
        self.busy[which] = step
        self._at(now + step.seconds, self._finish, which)
        if self.keep_steps and step.seconds:
            self.record.steps.append((which, step))

    def _spend(self, steps: float) -> None:
        """Count work; BadInput when it becomes more than a run may take."""
        self.spent += steps
        if self.spent > self.most_steps:
            raise BadInput(
                f"requests = {len(self.traffic)}: the run takes over {self.most_steps:,} engine steps and requests; "
                "ask for fewer requests or shorter outputs",
                field="requests",
            )

    def _coast(self, now: float, which: int) -> float:
        """Run the steps until something can happen at once; returns when the next one starts."""
        engine, inbox = self.engines[which], self.inboxes[which]
        if not isinstance(engine, Replica):
            return now
        until = self.events[0][0] if self.events else math.inf
        count = engine.decoding
        ends = engine.coast(now, until, int(min(inbox.blind, MOST)))
        if not ends:
            return now
        self._spend(STRETCHED * len(ends))
        self.desk.stream(ends, count)
        inbox.coasted(len(ends))
        self.began_s[which] = ends[-2] if len(ends) > 1 else now
        return ends[-1]

    def _finish(self, now: float, which: int) -> None:
        step = self.busy[which]
        self.busy[which] = None
        if step is not None and not self.late[which]:
            self._tokens(now, which, step)
        if self.busy[which] is None and not (self.engines[which].idle and not self.inboxes[which]):
            self._start(now, which)
        if step is not None and self.late[which]:
            self._after(now, which, step)

    def _after(self, now: float, which: int, step: Step) -> None:
        """Hand on what a step made once the next one, which has begun, is launched."""
        follows = self.busy[which]
        wait_s = self.late[which] * follows.seconds if follows else 0.0
        self._at(now + wait_s, lambda then, engine: self._tokens(then, engine, step), which)

    def _tokens(self, now: float, which: int, step: Step) -> None:
        record, seen = self.record, self.desk.leave(now, step.decoding + len(step.first))
        for request in step.first:
            if np.isnan(record.first_s[request]) and not self._goes_on(which, request):
                record.first_s[request], record.first_made_s[request] = seen, now
        for request in step.done:
            if self._goes_on(which, request):
                delay = self.transfer_s(int(self.traffic.input_len[request])) if self.transfer_s else 0.0
                self._at(now + delay, self._received, request)
                continue
            record.done_s[request], record.done_made_s[request] = seen, now
            if self.traffic.concurrency:
                self._next_arrival(self.desk.again(seen))

    def _goes_on(self, which: int, request: int) -> bool:
        """Whether a prefill engine hands a request over: its client hears of it from the decode engine, which sends
        the first token once it has taken the request in (Dynamo, SGLang's router and vLLM's proxies stream so)."""
        return bool(self.back) and which < len(self.front) and bool(self.traffic.output_len[request] > 1)

    def _received(self, now: float, request: int) -> None:
        self._send(now, request, range(len(self.front), len(self.engines)))
