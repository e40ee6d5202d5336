"""One engine: its queue, its KV cache in pages, and the steps that its scheduling policy fills (`policies`).

Requests that decode do so in lock step, so a step needs only their number, the sum of their cache lengths, who
finishes at which tick, and how many open a new page: its cost does not grow with the batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from pipewave.physics.demand import Array
from pipewave.simulate.engine_step import BatchPolicy, Step, StepTimer
from pipewave.simulate.kv_budget import KvBudget
from pipewave.simulate.prefix_cache import PrefixCache
from pipewave.simulate.step_grids import Reader
from pipewave.simulate.traffic import Traffic

FEW, BLOCK = 16, 512  # steps of a stretch that are run one by one, and then so many at once


class Replica:
    """State of one engine. Of all requests of `traffic`, those sent here are put into `waiting`.

    ready: requests have their cache already (decode engines of a disaggregated deployment). jitter: factors of steps'
    times, in turn. compiled: numbers of tokens of steps that a kernel was compiled for, shared by data-parallel ranks.
    """

    def __init__(
        self,
        timer: StepTimer,
        policy: BatchPolicy,
        kv: KvBudget,
        traffic: Traffic,
        *,
        ready: bool = False,
        jitter: Sequence[float] = (1.0,),
        compiled: set[int] | None = None,
    ) -> None:
        self.timer, self.policy, self.kv, self.ready = timer, policy, kv, ready
        self.decoder: Callable[[int], Reader] | None = getattr(timer, "decoder", None)
        self.hidden_s: Callable[[int, Sequence[tuple[int, int]]], float] | None = getattr(timer, "hidden_s", None)
        self.jitter, self.jitters, self.steps = jitter, np.array(jitter), 0
        self.ended, self.last_s = -1.0, 0.0  # when the step before ended, and how long it took
        self.tokens: list[int] = traffic.input_len.tolist()  # to cache before a request decodes: prompt, and made ones
        self.left: list[int] = (traffic.output_len - 1).tolist()  # decode steps after these
        found = np.zeros_like(traffic.input_len) if traffic.found_len is None else traffic.found_len
        self.found: list[int] = kv.usable_prefix(found, policy.max_batched_tokens * traffic.parting).tolist()
        shared = traffic.shared if kv.prefix_caching and not ready else None
        self.cache = PrefixCache(shared, kv.page_size, kv.host_pages, kv.checkpoint) if shared else None
        self.waiting: deque[int] = deque()
        self.free = kv.pages
        self.tick = 0  # decode steps so far
        self.decoding = self.cached = 0
        self.owed = 0  # tokens that running requests will still make
        self.finish: dict[int, list[int]] = {}
        self.opens = [0] * kv.page_size  # decoding requests that open a page when tick ≡ index
        self.order: list[int] = []  # running requests, newest last; entries of finished ones are skipped
        self.begun: dict[int, tuple[int, int]] = {}  # decoding request → (tick, cache length) when it began
        self.evicted: set[int] = set()  # requests that decoded and were preempted
        self.leaving: list[tuple[int, int]] = []  # requests that are done and hold pages for so many tokens
        self.partial: dict[int, int] = {}  # requests in the middle of their prompts → tokens done
        self.running = self.held_steps = 0
        self.compiled = set[int]() if compiled is None else compiled
        ends = traffic.input_len + traffic.output_len - 1  # the last token is never cached
        if self.cache is None and kv.held(int(ends.max())) > kv.pages:  # the longest must fit when it is alone
            raise kv.too_small(int(ends.max()))

    @property
    def idle(self) -> bool:
        """True when there is nothing to do."""
        return not (self.waiting or self.running)

    @property
    def load(self) -> int:
        """Requests that run or wait."""
        return len(self.waiting) + self.running

    def step(self, now: float) -> Step:
        """Schedule and run one step that starts at `now`."""
        step = Step(now, 0.0, 0, [])
        decodes = self.policy.next_batch(self, step)
        self._let_go()
        step.decoding, step.cached = decodes, self.cached + decodes if decodes else 0
        step.waiting, step.pages = len(self.waiting), self.kv.pages - self.free
        if decodes or step.pieces:
            pieces = [(t, b) for _, t, b in step.pieces]
            step.seconds = self.timer.seconds(decodes, self.cached + decodes, pieces)
            if self.hidden_s and pieces and now == self.ended:
                step.seconds -= min(self.hidden_s(decodes, pieces), self.last_s)
            step.seconds *= self.jitter[self.steps % len(self.jitter)]
            self.steps += 1
            if self.policy.compile_s and pieces:
                tokens = decodes + sum(size for size, _ in pieces)
                step.seconds += self.policy.compile_s * (tokens not in self.compiled)
                self.compiled.add(tokens)
        if self.cache:
            step.seconds += self.cache.loaded() * self.kv.host_load_s
        if decodes:
            step.done += self._advance()
        self._begin(step)
        return self._ended(step)

    def quiet_steps(self, most: int) -> int:
        """How many of the next steps, at most so many, decode alone: none of its requests begins, ends or leaves."""
        if self._prompts_due() or self.tick + 1 in self.finish:
            return 0
        left = min(most, min(self.finish) - self.tick - 1) if self.decoding else most
        return left if self.opened(left) <= self.free else 0

    def pass_quiet_step(self) -> int | None:
        """Run the next step without its time, if it is one of those; pages that it opens (None: it is none)."""
        opened, begins = self.opens[self.tick % self.kv.page_size], self.waiting and self._prompts_due()
        if self.partial or begins or self.tick + 1 in self.finish or opened > self.free:
            return None
        self.pass_quiet(1, opened)
        return opened

    def pass_quiet(self, steps: int, opened: int) -> None:
        """Run so many of those, which open so many pages, without their time."""
        if self.leaving:
            self._let_go()
        if self.decoding:
            self.free -= opened
            self.tick += steps
            self.cached += steps * self.decoding
            self.owed -= steps * self.decoding

    def opened(self, steps: int) -> int:
        """Pages that decoding requests need for so many tokens each."""
        return sum([self.opens[tick % self.kv.page_size] for tick in range(self.tick, self.tick + steps)])

    @property
    def decodes_alone(self) -> bool:
        """Whether the next step, where no new request joins it, is one of decodes alone whose time is read."""
        return bool(self.decoding and self.decoder) and not self._prompts_due()

    def decode_until(self, now: float, until: float, most: int) -> list[float]:
        """Run steps from `now` in which every request that runs decodes and none begins or ends, at most so many and
        while they end by `until`; returns when each ends.
        """
        ends: list[float] = []
        count, begin, tick = self.decoding, now, self.tick
        if not self.decoder or tick + 1 in self.finish:
            return ends
        read = self.decoder(count)
        seconds, jitter, draws, opens, page = read.at, self.jitter, len(self.jitter), self.opens, self.kv.page_size
        for step in range(self.steps, self.steps + min(most, FEW)):
            now += seconds(self.cached + count) * jitter[step % draws]
            if now > until or opens[tick % page] > self.free:
                break
            self._let_go()
            ends.append(now)
            self.free -= opens[tick % page]
            self.cached += count
            tick += 1
            if tick + 1 in self.finish:
                break
        self.steps, self.tick = self.steps + len(ends), tick
        if len(ends) == FEW and tick + 1 not in self.finish:
            ends += self._stretch(read.each, now, until, most - FEW)
        self.owed -= count * len(ends)
        if ends:
            self.ended, self.last_s = ends[-1], ends[-1] - (ends[-2] if len(ends) > 1 else begin)
        return ends

    def decode_step(self, now: float) -> Step | None:
        """Run the step that starts now, whoever ends with it, where no request has to be thrown out for it (None)."""
        count = self.decoding
        if not self.decoder or self.opening > self.free:
            return None
        self._let_go()
        cached, waiting, pages = self.cached + count, len(self.waiting), self.kv.pages - self.free
        seconds = self.decoder(count).at(cached) * self.jitter[self.steps % len(self.jitter)]
        self.steps += 1
        return self._ended(Step(now, seconds, count, [], [], self._advance(), 0, cached, waiting, pages))

    def _stretch(self, seconds: Callable[[Array], Array], now: float, until: float, most: int) -> list[float]:
        """The same steps, many at once."""
        ends: list[float] = []
        left = min(most, min(self.finish) - self.tick - 1)
        opens = np.array(self.opens)
        while left > 0:
            ahead = np.arange(min(left, BLOCK))
            held: Array = np.add(self.cached, self.decoding * (ahead + 1.0))
            took = seconds(held) * self.jitters[(self.steps + ahead) % len(self.jitters)]
            found = np.add.accumulate(np.concatenate(([now], took)))[1:]
            taken = np.cumsum(opens[(self.tick + ahead) % len(opens)])
            run = int(min(np.searchsorted(found, until, "right"), np.searchsorted(taken, self.free, "right")))
            if run:
                now = float(found[run - 1])
                ends += found[:run].tolist()
                self.free -= int(taken[run - 1])
                self.tick, self.steps = self.tick + run, self.steps + run
                self.cached += self.decoding * run
            left = left - run if run == len(ahead) else 0
        return ends

    def decoded(self, begin: float, ends: Sequence[float]) -> Iterator[Step]:
        """The steps that `decode_until` has just run from `begin` on, one by one."""
        count, page = self.decoding, self.kv.page_size
        opened = [self.opens[tick % page] for tick in range(self.tick - len(ends), self.tick)]
        cached, pages = self.cached - count * len(ends), self.kv.pages - self.free - sum(opened)
        for start, end, opens in zip([begin, *ends], ends, opened, strict=False):
            cached += count
            yield Step(start, end - start, count, [], cached=cached, waiting=len(self.waiting), pages=pages)
            pages += opens

    def _prompts_due(self) -> bool:
        """Whether the next step may hold a prompt, or counts towards one that is held back."""
        seats = self.running < self.policy.max_requests
        return bool(self.partial) or (bool(self.waiting) and (seats or self.policy.wait_steps > 0))

    # What policies ask of an engine.

    def outputs_to_come(self, request: int) -> int:
        """Tokens that running requests and this one will still make."""
        return self.owed + self.left[request] + 1

    @property
    def opening(self) -> int:
        """Pages that decoding requests need for their next token."""
        return self.opens[self.tick % self.kv.page_size]

    def preempt_for_decodes(self, step: Step) -> None:
        """Throw out the newest requests until every decoding one can write its next token."""
        while self.opening > self.free and self.decoding:
            victim = next(one for one in iter(self.order.pop, None) if one in self.begun or one in self.partial)
            if self.decoding == 1 and not (self.partial or self.leaving):
                raise self.kv.too_small(self._end(victim))
            self._evict(victim)
            step.preempted += 1

    def admit(self, request: int, reserved: int, step: Step) -> bool:
        """Take the first waiting request in, where its prompt fits the cache with so many pages to spare."""
        tokens = self.tokens[request]
        need = held = self.kv.held(tokens)
        free = self.free - (self.opening if self.policy.mixes_phases else 0)  # this step's decodes take theirs first
        if self.cache:
            match = self.cache.match(request, tokens, held, free, self.running)
            need = match.takes
        if need + reserved > free:
            if not self.running and not step.pieces:
                raise self.kv.too_small(self._end(request))
            return False
        self.waiting.popleft()
        if self.cache:
            self.found[request] = match.tokens
            self.cache.admit(request, match)
        self.free -= need
        self.running += 1
        self.owed += self.left[request] + 1
        self.order.append(request)
        return True

    def add_piece(self, step: Step, request: int, done: int, room: int) -> int:
        """Put the next piece of a prompt, behind `done` tokens, into `room` tokens; returns what is left of these."""
        total = self.tokens[request]
        take = min(total - done, room)
        take = self.kv.checkpoint.cut(done, take, total) if self.kv.checkpoint else take
        if take:
            step.pieces.append((request, take, done))
            if self.cache:
                self.cache.passed(request, done, done + take, total)
        if done + take == total:
            self.partial.pop(request, None)
        else:
            self.partial[request] = done + take
        return room - take

    # How requests begin, leave and end.

    def _evict(self, request: int) -> None:
        if request in self.partial:
            done = self.partial.pop(request)
            self._release(request, self.tokens[request], done)
        else:
            began, held = self._leave(request)
            self._release(request, held, held)
            self.finish[began + self.left[request]].remove(request)
            made = 1 + self.tick - began
            self.tokens[request] += made
            self.left[request] -= made
            self.evicted.add(request)
        self.owed -= self.left[request] + 1
        self.running -= 1
        self.waiting.appendleft(request)

    def _leave(self, request: int) -> tuple[int, int]:
        """Take a decoding request out of the sums; returns the tick at which it began, and the tokens that it holds."""
        began, length = self.begun.pop(request)
        now = length + self.tick - began
        self.decoding -= 1
        self.cached -= now
        self.opens[self._opening(began, length)] -= 1
        return began, now

    def _ended(self, step: Step) -> Step:
        """A step is over: pages of requests that are done are free, at once or when the next step is scheduled."""
        self.ended, self.last_s = step.start_s + step.seconds, step.seconds
        if not (self.policy.overlaps and self.running):
            self._let_go()
        return step

    def _let_go(self) -> None:
        """Free the pages of requests that are done."""
        for request, tokens in self.leaving:
            self._release(request, tokens, tokens)
        self.leaving.clear()

    def _release(self, request: int, length: int, done: int) -> None:
        """Free the pages of a request of `length` tokens, `done` of them computed, less those that others share."""
        held = self.kv.held(length)
        self.free += self.cache.leave(request, held, done) if self.cache else held

    def _opening(self, began: int, length: int) -> int:
        """The tick, modulo the page size, at which a request that began so opens a page."""
        return (began - length) % self.kv.page_size

    def _advance(self) -> list[int]:
        """Every decoding request gets a token; returns those that are done with it."""
        self.free -= self.opening
        self.tick += 1
        self.cached += self.decoding
        self.owed -= self.decoding
        done = self.finish.pop(self.tick, None) or []
        self.leaving += [(request, self._leave(request)[1]) for request in done]
        self.running -= len(done)
        return done

    def _begin(self, step: Step) -> None:
        """Requests whose prompt is complete join those that decode, or are done with their first token."""
        step.first += [request for request, take, done in step.pieces if done + take == self.tokens[request]]
        for request in step.first:
            length, left = self.tokens[request], self.left[request]
            self.owed -= 1
            if left <= 0:
                self.leaving.append((request, length))
                self.running -= 1
                step.done.append(request)
                continue
            self.begun[request] = (self.tick, length)
            self.finish.setdefault(self.tick + left, []).append(request)
            self.opens[self._opening(self.tick, length)] += 1
            self.decoding += 1
            self.cached += length

    def _end(self, request: int) -> int:
        """Tokens that a request holds when it is done."""
        return self.tokens[request] + max(self.left[request], 0)
