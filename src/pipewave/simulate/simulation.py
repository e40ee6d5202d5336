"""Requests through engines: arrivals, routing, steps, and prefill/decode disaggregation, as one heap of events."""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from operator import sub
from typing import Any

import numpy as np

from pipewave.errors import BadInput
from pipewave.physics.demand import Array
from pipewave.simulate.data_parallel import DataParallelGroup, GroupTimer
from pipewave.simulate.engine_step import Step
from pipewave.simulate.frontend_queue import FrontendQueue, RequestInbox, lognormal_factors
from pipewave.simulate.kv_budget import KvBudget
from pipewave.simulate.policies import SchedulingPolicy
from pipewave.simulate.power import StretchLog
from pipewave.simulate.replica import Replica
from pipewave.simulate.traffic import Traffic
from pipewave.software.front import INSIDE, Front

LAST = 1 << 62  # serial of events that come after all others of their instant
# Work of a run at most, in engine steps (20 to 60 µs each). A request costs about as much as a step; a step in which
# nothing begins or ends, run in a stretch of such, a sixteenth. The largest published run takes 221,543.
MOST_STEPS, STRETCHED = 6_000_000, 1 / 16  # a million requests of a hundred tokens
MOST_KEPT = 500_000  # where every step is kept, 600 bytes each
Handler = Callable[[float, int], None]


@dataclass(frozen=True, slots=True)
class Pool:
    """Equal engines side by side."""

    timer: GroupTimer
    policy: SchedulingPolicy
    kv: KvBudget  # of one data-parallel rank
    engines: int = 1
    ranks: int = 1  # data-parallel ranks of an engine
    # What a step made is handed on when this share of the step after it has passed, at once where none follows.
    handoff_delay_share: float = 0.0

    def replicas(
        self, traffic: Traffic, *, ready: bool = False, jitter: float = 0.0, seed: int = 0
    ) -> list[Replica] | list[DataParallelGroup]:
        """Fresh engines, whose times of steps scatter by `jitter`."""
        drawn = [lognormal_factors(jitter, seed + 1 + which) for which in range(self.engines)]
        parts = (self.timer, self.policy, self.kv, traffic)
        if self.ranks > 1:
            return [DataParallelGroup(*parts, self.ranks, ready=ready, jitter=one) for one in drawn]
        return [Replica(*parts, ready=ready, jitter=one) for one in drawn]

    def inboxes(self) -> list[RequestInbox]:
        """An empty inbox for each engine."""
        overlaps, interval = self.policy.overlaps, self.policy.recv_interval
        return [RequestInbox(overlaps=overlaps, interval=interval) for _ in range(self.engines)]


class StepLog:
    """Every step of a run in columns: its engine, begin, seconds, requests that decoded, and those preempted."""

    def __init__(self) -> None:
        self.engine, self.start_s, self.seconds = array("i"), array("d"), array("d")
        self.decoding, self.preempted = array("i"), array("i")

    def add(
        self, which: int, starts: Sequence[float], seconds: Iterable[float], decoding: int, preempted: int = 0
    ) -> None:
        """Steps of an engine that begin then, in each of which so many requests decode."""
        count = len(starts)
        self.engine.extend([which] * count)
        self.start_s.extend(starts)
        self.seconds.extend(seconds)
        self.decoding.extend([decoding] * count)
        self.preempted.extend([preempted] * count)

    def within(self, begin: float = -math.inf, end: float = math.inf) -> Mapping[str, Array]:
        """The columns of steps that began in a window."""
        start = np.array(self.start_s)
        kept = (begin <= start) & (start < end)
        names = ("engine", "seconds", "decoding", "preempted")
        return {name: np.array(getattr(self, name))[kept] for name in names}


@dataclass(slots=True)
class Record:
    """What happened to each request (seconds), and in every step of every engine."""

    first_s: Array  # first token of each request as its client saw it
    done_s: Array  # last token
    arrival_s: Array
    steps: list[tuple[int, Step]] = field(default_factory=list)  # engine, step; where each was to be kept
    reached_s: Array = field(default_factory=lambda: np.empty(0))  # when each request reached an engine
    first_made_s: Array = field(default_factory=lambda: np.empty(0))  # when an engine had made its first token
    done_made_s: Array = field(default_factory=lambda: np.empty(0))  # and its last one, before they were streamed
    found: Array = field(default_factory=lambda: np.empty(0))  # tokens of each prompt that a cache held at first
    log: StepLog = field(default_factory=StepLog)
    stretches: StretchLog = field(default_factory=StretchLog)  # what engines ran, a sample


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
        self.traffic, self.keep_steps, self.frontend = traffic, keep_steps, FrontendQueue(front, seed)
        self.transfer_s, self.most_steps, self.spent = transfer_s and cache(transfer_s), most_steps, 0.0
        self._spend(len(traffic))
        prompts = replace(traffic, output_len=np.ones_like(traffic.output_len)) if decode else traffic
        scatter: dict[str, Any] = {"jitter": front.jitter, "seed": seed}
        self.front = pool.replicas(prompts, **scatter)
        self.back = decode.replicas(traffic, ready=True, **scatter) if decode else []
        self.engines: list[Replica | DataParallelGroup] = [*self.front, *self.back]
        self.fronts, self.backs = range(len(self.front)), range(len(self.front), len(self.engines))
        self.inboxes = pool.inboxes() + (decode.inboxes() if decode else [])
        self.handoff_delay = [pool.handoff_delay_share] * len(self.front) + [0.0] * len(self.back)
        self.began_s = [0.0] * len(self.engines)  # when the step before the next one began
        self.busy: list[Step | None] = [None] * len(self.engines)
        self.events: list[tuple[float, int, Handler, int]] = []
        self.serial = count()
        size = len(traffic)
        self.arrival_s: list[float] = traffic.arrival_s.tolist()
        self.reached_s, self.first_s, self.done_s, self.first_made_s, self.done_made_s, self.found = (
            [math.nan] * size for _ in range(6)
        )
        self.steps, self.log, self.stretches = list[tuple[int, Step]](), StepLog(), StretchLog()
        self.prompt: list[int] = traffic.input_len.tolist()
        self.output: list[int] = traffic.output_len.tolist()
        self.open = traffic.concurrency is None and traffic.after is None
        after = [-1] * size if traffic.after is None else traffic.after.tolist()
        told = ((request, sent) for request, sent in enumerate(self.arrival_s) if after[request] < 0)
        self.arrivals = self._reaching() if self.open else told
        self.next_turn = {earlier: turn for turn, earlier in enumerate(after) if earlier >= 0}
        self.think_s: list[float] = [0.0] * size if traffic.think_s is None else traffic.think_s.tolist()

    def run(self) -> Record:
        """Run until every request is done."""
        for _ in range(self.traffic.concurrency or 1):
            self._next_arrival(0.0)
        while self.events:
            now, _, handle, which = heapq.heappop(self.events)
            handle(now, which)
        names = ("first_s", "done_s", "arrival_s", "reached_s", "first_made_s", "done_made_s", "found")
        times = {name: np.array(getattr(self, name)) for name in names}
        return Record(**times, steps=self.steps, log=self.log, stretches=self.stretches)

    def _at(self, time: float, handle: Handler, which: int, *, last: bool = False) -> None:
        """Handle an event then; `last`: after all others of that instant."""
        heapq.heappush(self.events, (time, next(self.serial) + LAST * last, handle, which))

    def _reaching(self) -> Iterator[tuple[int, float]]:
        """Requests that come whatever happens to others, and when they reach an engine, in that order: known from the
        beginning, so that nothing has to be looked at when one is sent.
        """
        told = zip(self.traffic.arrival_s.tolist(), self.traffic.input_len.tolist(), strict=True)
        reached = np.array([self.frontend.enter(sent, tokens) for sent, tokens in told])
        order = np.argsort(reached, kind="stable")
        return zip(order.tolist(), reached[order].tolist(), strict=True)

    def _next_arrival(self, now: float) -> None:
        """Put the next request on the heap: at its own time, or now where another one only now made room for it."""
        request, time = next(self.arrivals, (-1, 0.0))
        if request >= 0:
            self._at(max(now, time), self._arrive, request)

    def _arrive(self, now: float, request: int) -> None:
        """A client sends a request that waits for no other, or one that was sent reaches an engine."""
        if not self.traffic.concurrency:
            self._next_arrival(now)
        if self.open:
            self._reach(now, request)
        else:
            self._enter(now, request)

    def _enter(self, now: float, request: int) -> None:
        self.arrival_s[request] = now
        reached = self.frontend.enter(now, self.prompt[request])
        if reached > now:
            self._at(reached, self._reach, request)
        else:
            self._reach(now, request)

    def _reach(self, now: float, request: int) -> None:
        self.reached_s[request] = now
        self._send(now, request, self.fronts)

    def _send(self, now: float, request: int, among: Sequence[int]) -> None:
        """Queue a request at the engine with the fewest."""
        which = min(among, key=self._load) if len(among) > 1 else among[0]
        self.inboxes[which].put(now, request)
        if self.busy[which] is None:
            self._at(now, self._start, which, last=True)  # requests of one instant are all queued before a step starts

    def _load(self, which: int) -> int:
        """Requests of an engine, those that end with the step it runs included."""
        step = self.busy[which]
        return self.engines[which].load + len(self.inboxes[which].requests) + (len(step.done) if step else 0)

    def _start(self, now: float, which: int) -> None:
        """Start an engine's next step, unless one runs, and those after it that end before anything else happens."""
        engine, inbox = self.engines[which], self.inboxes[which]
        while self.busy[which] is None:
            step = self._step(now, which)
            now = step.start_s + step.seconds
            if self.handoff_delay[which] or (self.events and self.events[0][0] <= now):
                self.busy[which] = step
                self._at(now, self._finish, which)
                return
            self._tokens(now, which, step)
            if engine.idle and not inbox:
                return

    def _step(self, now: float, which: int) -> Step:
        """The next step of an engine, after the decode steps that come before anything else."""
        engine, inbox = self.engines[which], self.inboxes[which]
        one, step = (engine if isinstance(engine, Replica) else None), None
        if one is None or one.decodes_alone:
            now = self._decode_until(now, which)
            step = one.decode_step(now) if one and inbox.none_joins(self.began_s[which]) else None
        if step:
            inbox.skipped(1)
        else:
            engine.waiting.extend(inbox.take(now, self.began_s[which], idle=engine.idle))
            step = engine.step(now)
            inbox.ran(prompts=bool(step.pieces))
            for request, _, before in step.pieces:
                if math.isnan(self.found[request]):
                    self.found[request] = before
        self._spend(1.0)
        self.began_s[which] = now
        if step.seconds:
            side = int(which >= len(self.front))
            self.stretches.add(side, now, step.seconds, 1, step.decoding, step.cached, step.pieces)
            self.log.add(which, [now], [step.seconds], step.decoding, step.preempted)
            if self.keep_steps:
                self.steps.append((which, step))
        return step

    def _spend(self, steps: float) -> None:
        """Count work; BadInput when it becomes more than a run may take."""
        self.spent += steps
        if self.spent > self.most_steps:
            raise BadInput(
                f"requests = {len(self.traffic)}: the run takes over {self.most_steps:,} engine steps and requests; "
                "ask for fewer requests or shorter outputs",
                field="requests",
            )

    def _decode_until(self, now: float, which: int) -> float:
        """Run decode steps in one stretch up to the next event; returns when the step after them starts."""
        engine, inbox = self.engines[which], self.inboxes[which]
        if self.keep_steps and not isinstance(engine, Replica):
            return now
        until = self.events[0][0] if self.events else math.inf
        count = engine.decoding
        ends = engine.decode_until(now, until, inbox.unseen_steps)
        if not ends:
            return now
        if self.keep_steps and isinstance(engine, Replica):
            self.steps.extend((which, step) for step in engine.decoded(now, ends))
        self._spend(len(ends) * (1.0 if self.keep_steps else STRETCHED))
        side, middle = int(which >= len(self.front)), engine.cached - 0.5 * count * len(ends)
        self.stretches.add(side, now, ends[-1] - now, len(ends), count, middle, ())
        starts = [now, *ends[:-1]]
        self.log.add(which, starts, map(sub, ends, starts), count)
        self.frontend.stream(ends, count)
        inbox.skipped(len(ends))
        self.began_s[which] = starts[-1]
        return ends[-1]

    def _finish(self, now: float, which: int) -> None:
        step = self.busy[which]
        self.busy[which] = None
        if step is not None and not self.handoff_delay[which]:
            self._tokens(now, which, step)
        if not (self.engines[which].idle and not self.inboxes[which]):
            self._start(now, which)
        if step is not None and self.handoff_delay[which]:
            follows = self.busy[which]
            wait_s = self.handoff_delay[which] * follows.seconds if follows else 0.0
            self._at(now + wait_s, lambda then, engine: self._tokens(then, engine, step), which)

    def _tokens(self, now: float, which: int, step: Step) -> None:
        seen = self.frontend.leave(now, step.decoding + len(step.first))
        for request in step.first:
            if math.isnan(self.first_s[request]) and not self._goes_on(which, request):
                self.first_s[request], self.first_made_s[request] = seen, now
        for request in step.done:
            if self._goes_on(which, request):
                delay = self.transfer_s(self.prompt[request]) if self.transfer_s else 0.0
                self._at(now + delay, lambda then, handed: self._send(then, handed, self.backs), request)
                continue
            self.done_s[request], self.done_made_s[request] = seen, now
            if request in self.next_turn:
                turn = self.next_turn[request]
                self._at(seen + self.think_s[turn], self._enter, turn)
            elif self.traffic.concurrency:
                self._next_arrival(self.frontend.next_request(seen))

    def _goes_on(self, which: int, request: int) -> bool:
        """Whether a prefill engine hands a request over: its client hears of it from the decode engine, which sends
        the first token once it has taken the request in (Dynamo, SGLang's router and vLLM's proxies stream so).
        """
        return bool(self.back) and which < len(self.front) and self.output[request] > 1
