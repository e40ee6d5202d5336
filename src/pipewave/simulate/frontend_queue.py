"""Between a client and a scheduler: the server's front end as two queues, and the inbox that the scheduler looks into.

HTTP and tokenising on the way in, detokenising and streaming on the way out: requests are served in order of arrival,
each for a service time drawn around its mean; tokens that go out are served in order, too. A request that comes in does
not wait for tokens that wait to go out: they are another process's (SGLang's detokeniser) or other turns of one event
loop. Requests sent together reach the engine one after another, which keeps equal requests from running in step for
ever, and thousands of short chats wait here and not for the GPU.
"""

from __future__ import annotations

import sys
from collections import deque

import numpy as np

from pipewave.software.front import Front

FACTORS = 4093  # drawn; a prime, so that they keep no step with anything


class FrontendQueue:
    """The queues in front of one engine. Times in seconds; `seed` draws the service times."""

    def __init__(self, front: Front, seed: int = 0) -> None:
        self.front, self.in_s, self.out_s = front, 0.0, 0.0
        self.draws = lognormal_factors(front.variation, seed)
        self.drawn = 0

    def enter(self, now: float, tokens: int) -> float:
        """When a request of `tokens` prompt tokens that a client sends now reaches the engine."""
        work_us = self.front.request_us + self.front.token_us * tokens
        self.in_s = (now if now > self.in_s else self.in_s) + 1e-6 * work_us * self._draw() / self.front.workers
        return self.in_s + 1e-6 * self.front.transit_us * self._draw()

    def leave(self, now: float, streamed: int) -> float:
        """When clients see the `streamed` tokens that a step ending now has made, on average over them."""
        begin = now if now > self.out_s else self.out_s
        work_s = 1e-6 * self.front.stream_us * streamed / self.front.workers
        self.out_s = begin + work_s
        return begin + 0.5 * work_s

    def stream(self, ends: list[float], streamed: int) -> None:
        """Steps that end so have each made `streamed` tokens, none of them a request's first or last."""
        work_s, out_s = 1e-6 * self.front.stream_us * streamed / self.front.workers, self.out_s
        for end in ends:
            out_s = (end if end > out_s else out_s) + work_s
        self.out_s = out_s

    def next_request(self, now: float) -> float:
        """When a client that has seen its last token now sends its next request."""
        return now + 1e-6 * self.front.think_us * self._draw()

    def _draw(self) -> float:
        self.drawn += 1
        return self.draws[self.drawn % len(self.draws)]


def lognormal_factors(variation: float, seed: int) -> list[float]:
    """Log-normal factors of mean one, to be used in turn; `variation` is their standard deviation."""
    if not variation:
        return [1.0]
    sigma = float(np.sqrt(np.log1p(variation**2)))
    return [float(one) for one in np.exp(np.random.default_rng(seed).normal(-0.5 * sigma**2, sigma, FACTORS))]


class RequestInbox:
    """Requests that have reached an engine and that its scheduler has not looked at yet.

    overlaps: steps are scheduled while the one before runs, so a request is seen one step later than it could be.
    interval: decode steps between two looks (SGLang's `scheduler_recv_interval`); after a prompt step it looks at once.
    """

    def __init__(self, *, overlaps: bool = False, interval: int = 1) -> None:
        self.overlaps, self.interval = overlaps, interval
        self.requests: deque[tuple[float, int]] = deque()
        self.since = interval  # decode steps since the last look

    def __len__(self) -> int:
        return len(self.requests)

    def put(self, now: float, request: int) -> None:
        """A request arrives."""
        self.requests.append((now, request))

    def take(self, now: float, before_s: float, *, idle: bool) -> list[int]:
        """Requests for the step that starts now; the step before it began at `before_s`."""
        if self.since < self.interval and not idle:
            return []
        seen_s = before_s if self.overlaps and not idle else now
        self.since, found = 0, []
        while self.requests and self.requests[0][0] <= seen_s:
            found.append(self.requests.popleft()[1])
        return found

    @property
    def unseen_steps(self) -> int:
        """Decode steps that no new request can join: all of them while there is none."""
        return max(self.interval - self.since, 0) if self.requests else sys.maxsize

    def none_joins(self, before_s: float) -> bool:
        """Whether no new request can join the decode step that comes now, before which one began at `before_s`."""
        return self.unseen_steps > 0 or (self.overlaps and self.requests[0][0] > before_s)

    def skipped(self, steps: int) -> None:
        """So many decode steps were run, none of which a new request joined."""
        begun = self.since if self.since < self.interval else 0
        self.since = (begun + steps - 1) % self.interval + 1

    def ran(self, *, prompts: bool) -> None:
        """A step was run."""
        self.since += self.interval if prompts else 1
