"""Requests that have reached an engine and that its scheduler has not looked at yet."""

from __future__ import annotations

import math
from collections import deque


class Inbox:
    """Mail of one engine.

    overlaps: steps are scheduled while the one before runs, so a request is seen one step later than it could be.
    interval: decode steps between two looks (SGLang's `scheduler_recv_interval`); after a prompt step it looks at once.
    """

    def __init__(self, *, overlaps: bool = False, interval: int = 1) -> None:
        self.overlaps, self.interval = overlaps, interval
        self.mail: deque[tuple[float, int]] = deque()
        self.since = interval

    def __len__(self) -> int:
        return len(self.mail)

    def put(self, now: float, request: int) -> None:
        """A request arrives."""
        self.mail.append((now, request))

    def take(self, now: float, before_s: float, *, idle: bool) -> list[int]:
        """Requests for the step that starts now; the step before it began at `before_s`."""
        if self.since < self.interval and not idle:
            return []
        seen_s = before_s if self.overlaps and not idle else now
        self.since, found = 0, []
        while self.mail and self.mail[0][0] <= seen_s:
            found.append(self.mail.popleft()[1])
        return found

    @property
    def blind(self) -> float:
        """Decode steps that no new request can join: all of them while there is none."""
        return max(self.interval - self.since, 0) if self.mail else math.inf

    def coasted(self, steps: int) -> None:
        """So many decode steps were run, none of which a new request joined."""
        begun = self.since if self.since < self.interval else 0
        self.since = (begun + steps - 1) % self.interval + 1

    def ran(self, *, prompts: bool) -> None:
        """A step was run."""
        self.since += self.interval if prompts else 1
