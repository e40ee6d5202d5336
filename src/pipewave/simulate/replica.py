"""One serving engine: continuous batching with chunked prefill, KV budget and preemption, as vLLM v1 and SGLang do it.

vLLM: every running request decodes in every step, prompts fill what is left of the token budget, a waiting request is
admitted when its whole prompt fits the cache, and when the cache is full the newest request is thrown out and later
recomputed. SGLang: prompt chunks run in steps of their own, ahead of decoding; admission keeps room for part of the
outputs still to come.

Requests that decode do so in lock step, so a step needs only their number, the sum of their cache lengths, who
finishes at which tick, and how many open a new page: its cost does not grow with the batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pipewave.errors import DoesNotFit
from pipewave.simulate.limits import Limits
from pipewave.simulate.prefix import PrefixCache
from pipewave.simulate.timed import Paced, Timed
from pipewave.simulate.traffic import Traffic

SETTLES = 600  # decode steps over which the share of outputs that an engine reserves falls to its least


@dataclass(slots=True)
class Step:
    """What one step did: duration in seconds, decoding requests, prompt pieces (request, tokens, before).

    cached: tokens that the decoding requests hold; waiting: requests left in the queue; pages: of the cache, in use.
    """

    start_s: float
    seconds: float
    decoding: int
    pieces: list[tuple[int, int, int]]
    first: list[int] = field(default_factory=list)  # requests whose prompt ended
    done: list[int] = field(default_factory=list)
    preempted: int = 0
    cached: int = 0
    waiting: int = 0
    pages: int = 0


class Replica:
    """State of one engine; `ready` requests have their cache already. `jitter`: factors of steps' times, in turn.
    `compiled`: numbers of tokens of steps with prompts that a kernel was compiled for, shared by ranks."""

    def __init__(
        self,
        table: Timed,
        limits: Limits,
        traffic: Traffic,
        *,
        ready: bool = False,
        jitter: Sequence[float] = (1.0,),
        compiled: set[int] | None = None,
    ) -> None:
        self.table, self.limits, self.ready = table, limits, ready
        self.jitter, self.steps = jitter, 0
        self.prompt: list[int] = traffic.input_len.tolist()
        self.output: list[int] = traffic.output_len.tolist()
        found = np.zeros_like(traffic.input_len) if traffic.found_len is None else traffic.found_len
        self.found: list[int] = limits.reached(found, parting=traffic.parting).tolist()
        known = traffic.blocks is not None and limits.caches and not ready
        sizes = (traffic.block_tokens, limits.page_size, limits.host_pages, limits.kept)
        self.cache = PrefixCache(traffic.blocks or (), *sizes) if known else None
        self.waiting: deque[int] = deque()
        self.free = limits.pages
        self.tick = 0
        self.decoding = self.cached = 0
        self.owed = 0  # tokens that running requests will still make
        self.finish: dict[int, list[int]] = {}
        self.opens = [0] * limits.page_size  # decoding requests that open a page when tick ≡ index
        self.order: list[int] = []  # running requests, newest last; entries of finished ones are skipped
        self.begun: dict[int, tuple[int, int]] = {}  # decoding request → (tick, cache length) when it began
        self.made: dict[int, int] = {}  # tokens a preempted request had made
        self.partial: dict[int, int] = {}  # requests in the middle of their prompts → tokens done
        self.running = self.waited = 0
        self.compiled = set[int]() if compiled is None else compiled
        if self.cache is None:
            self._check_longest(traffic)

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
        self._make_room(step)
        room = self.limits.tokens - (self.decoding if self.limits.mixed else 0)
        if not step.preempted and not self._waits(room):
            self._fill(step, room)
        decodes = self.decoding if self.limits.mixed or not step.pieces else 0
        step.decoding, step.cached = decodes, self.cached + decodes if decodes else 0
        step.waiting, step.pages = len(self.waiting), self.limits.pages - self.free
        if decodes or step.pieces:
            step.seconds = self.table.seconds(decodes, self.cached + decodes, [(t, b) for _, t, b in step.pieces])
            step.seconds *= self.jitter[self.steps % len(self.jitter)]
            self.steps += 1
            step.seconds += self._compile_s(step)
        if self.cache:
            step.seconds += self.cache.loaded() * self.limits.load_s
        if decodes:
            self._advance(step)
        self._begin(step)
        return step

    def _compile_s(self, step: Step) -> float:
        """Seconds for which a step waits for a kernel that is compiled for its number of tokens."""
        tokens = step.decoding + sum(tokens for _, tokens, _ in step.pieces)
        if not (self.limits.compile_s and step.pieces) or tokens in self.compiled:
            return 0.0
        self.compiled.add(tokens)
        return self.limits.compile_s

    def glide(self) -> bool:
        """Run a step in which every request that runs decodes and none begins or ends, without its time; False, with
        nothing done, where another may be due."""
        count = self.decoding
        if self._prompts_due():
            return False
        opens = self.opens[self.tick % self.limits.page_size]
        if count and (self.tick + 1 in self.finish or opens > self.free):
            return False
        self.free -= opens
        self.tick += bool(count)
        self.cached += count
        self.owed -= count
        return True

    def coast(self, now: float, until: float, most: int) -> list[float]:
        """Run steps from `now` in which every request that runs decodes and none begins or ends, at most so many and
        while they end by `until`; returns when each ends."""
        ends: list[float] = []
        count, limits = self.decoding, self.limits
        if not count or self._prompts_due() or not isinstance(self.table, Paced):
            return ends
        seconds, jitter = self.table.decoder(count), self.jitter
        while len(ends) < most and self.tick + 1 not in self.finish:
            opens = self.opens[self.tick % limits.page_size]
            now += seconds(self.cached + count) * jitter[self.steps % len(jitter)]
            if now > until or opens > self.free:
                break
            ends.append(now)
            self.free -= opens
            self.tick += 1
            self.steps += 1
            self.cached += count
        self.owed -= count * len(ends)
        return ends

    def _prompts_due(self) -> bool:
        """Whether the next step may hold a prompt, or counts towards one that is held back."""
        seats = self.running < self.limits.requests
        return bool(self.partial) or (bool(self.waiting) and (seats or self.limits.wait_steps > 0))

    def _make_room(self, step: Step) -> None:
        """Throw out the newest requests until every decoding one can write its next token."""
        while self.opens[self.tick % self.limits.page_size] > self.free and self.decoding:
            victim = self._newest()
            if self.decoding == 1 and not self.partial:
                self._too_small(victim)
            self._evict(victim)
            step.preempted += 1

    def _waits(self, room: int) -> bool:
        """Whether waiting prompts are held back for company."""
        if not (self.limits.wait_steps and self.waiting and self.decoding):
            return False
        tokens = self.decoding
        for request in self.waiting:
            if tokens + self._tokens(request) > room:
                break
            tokens += self._tokens(request)
        held = self.waited < self.limits.wait_steps and tokens < self.limits.wait_share * self.limits.tokens
        self.waited = self.waited + 1 if held else 0
        return held

    def _newest(self) -> int:
        while True:
            request = self.order.pop()
            if request in self.begun or request in self.partial:
                return request

    def _evict(self, request: int) -> None:
        if request in self.partial:
            del self.partial[request]
            self._give(request, self._tokens(request))
            self.owed -= self._left(request) + 1
        else:
            began, length = self.begun.pop(request)
            self.owed -= self._left(request) - (self.tick - began)
            due = began + self._left(request)
            self.finish[due].remove(request)
            self._leave(request, began, length)
            self.made[request] = self.made.get(request, 0) + 1 + self.tick - began
        self.running -= 1
        self.waiting.appendleft(request)

    def _leave(self, request: int, began: int, length: int) -> None:
        """Take a decoding request out of the sums."""
        now = length + self.tick - began
        self.decoding -= 1
        self.cached -= now
        self.opens[self._opening(began, length)] -= 1
        self._give(request, now)

    def _give(self, request: int, length: int) -> None:
        """Free the pages of a request of `length` tokens, but for those that others share."""
        self.free += self.limits.held(length) - (self.cache.leave(request) if self.cache else 0)

    def _opening(self, began: int, length: int) -> int:
        """The tick, modulo the page size, at which a request that began so opens a page."""
        return (began - length) % self.limits.page_size

    def _tokens(self, request: int) -> int:
        """Tokens a request must put in the cache before it decodes: its prompt, and after preemption its output."""
        return self.prompt[request] + self.made.get(request, 0)

    def _left(self, request: int) -> int:
        """Decode steps a request needs after its prompt has given one token."""
        return self.output[request] - 1 - self.made.get(request, 0)

    def _fill(self, step: Step, room: int) -> None:
        """Prompt pieces into the tokens left: unfinished prompts first, then waiting requests in order."""
        for request, done in list(self.partial.items()):
            room = self._piece(step, request, done, room)
        while self.waiting and room > 0 and self.running < self.limits.requests:
            request = self.waiting[0]
            if not self._whole(request, room, step):
                break
            need = self.limits.held(self._tokens(request)) - (self.cache.shared(request) if self.cache else 0)
            if need + self._reserve(request) > self.free:
                if not self.running and not step.pieces:
                    self._too_small(request)
                break
            self.waiting.popleft()
            if self.cache:
                self.found[request] = self.cache.admit(request, self._tokens(request), self.free, self.running)
            self.free -= need
            self.running += 1
            self.owed += self._left(request) + 1
            self.order.append(request)
            if self.ready and request not in self.made:
                step.first.append(request)  # decodes from the next step on
            else:
                room = self._piece(step, request, self.found[request], room)

    def _whole(self, request: int, room: int, step: Step) -> bool:
        """Whether a prompt may start in the room left: at all where prompts are cut, else whole, or alone. What comes
        with its cache needs none."""
        if self.ready and request not in self.made:
            return True
        if self.limits.prompt_tokens and step.pieces and self._crowded(request, step):
            return False
        if self.limits.chunks:
            return True
        return self._tokens(request) - self.found[request] <= room or not (step.pieces or self.decoding)

    def _crowded(self, request: int, step: Step) -> bool:
        """Whether a prompt would use up what a step's prompts may hold together: it then waits, it is not cut for it
        (0.5.6 SGLang's PrefillAdder: the first prompt of a step always fits)."""
        held = sum(tokens for _, tokens, _ in step.pieces) + (self.decoding if self.limits.mixed else 0)
        return held + self._tokens(request) - self.found[request] >= self.limits.prompt_tokens

    def _reserve(self, request: int) -> int:
        """Pages kept for outputs to come when a request is admitted."""
        limits = self.limits
        if not (limits.reserve and self.running):
            return 0
        settled = min(self.tick / SETTLES, 1.0)
        share = limits.reserve + settled * (limits.reserve_least - limits.reserve)
        return limits.pages_for(int(share * (self.owed + self._left(request) + 1)))

    def _piece(self, step: Step, request: int, done: int, room: int) -> int:
        total = self._tokens(request)
        take = min(total - done, room)
        take = self.limits.kept.cut(done, take, total) if self.limits.kept else take
        if take:
            step.pieces.append((request, take, done))
            if self.cache:
                self.cache.passed(request, done, done + take, total)
        if done + take == total:
            self.partial.pop(request, None)
        else:
            self.partial[request] = done + take
        return room - take

    def _advance(self, step: Step) -> None:
        """Every decoding request gets a token."""
        page = self.tick % self.limits.page_size
        self.free -= self.opens[page]
        self.tick += 1
        self.cached += self.decoding
        self.owed -= self.decoding
        for request in self.finish.pop(self.tick, ()):
            began, length = self.begun.pop(request)
            self._leave(request, began, length)
            self.running -= 1
            step.done.append(request)

    def _begin(self, step: Step) -> None:
        """Requests whose prompt is complete join those that decode, or are done with their first token."""
        for request, take, done in step.pieces:
            if done + take == self._tokens(request):
                step.first.append(request)
        for request in step.first:
            length, left = self._tokens(request), self._left(request)
            self.owed -= 1
            if left <= 0:
                self._give(request, length)
                self.running -= 1
                step.done.append(request)
                continue
            self.begun[request] = (self.tick, length)
            self.finish.setdefault(self.tick + left, []).append(request)
            self.opens[self._opening(self.tick, length)] += 1
            self.decoding += 1
            self.cached += length

    def _check_longest(self, traffic: Traffic) -> None:
        """Before any step is run: the longest request must fit when it is alone. Its last token is never cached."""
        ends = traffic.input_len + traffic.output_len - 1
        if self.limits.held(int(ends.max())) > self.limits.pages:
            self._too_small(int(ends.argmax()))

    def _too_small(self, request: int) -> None:
        tokens = self._tokens(request) + max(self._left(request), 0)
        raise DoesNotFit(
            f"a request of {tokens} tokens does not fit the KV cache of {self.limits.pages * self.limits.page_size} "
            f"tokens; use more GPUs or shorter requests",
            field="gpu",
        )
