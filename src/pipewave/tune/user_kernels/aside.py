"""Work that no launch waits for: short lists and their C functions, one after another on a thread of their own."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable

SWITCH_S = 5e-4  # Python lets another thread wait so long for it; its own 5 ms would stall launches meanwhile


class Aside:
    """A queue of jobs. Nothing that a job raises reaches a launch: what it was to make is then not there, and
    `problems` say why. `generation` counts forks: what a parent's thread was working on is lost to the child, which has
    to ask again.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._fresh()
        os.register_at_fork(after_in_child=self._fresh)

    def _fresh(self) -> None:
        self.generation += 1
        self.problems: list[str] = []
        self._jobs: deque[Callable[[], object]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def do(self, job: Callable[[], object]) -> None:
        """Work a job off as soon as those before it are done."""
        with self._changed:
            self._jobs.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True, name="pipewave-tune")
                self._thread.start()

    def settle(self) -> None:
        """Wait until nothing is left to do."""
        with self._changed:
            self._changed.wait_for(lambda: self._thread is None)

    def _work(self) -> None:
        usual = sys.getswitchinterval()
        sys.setswitchinterval(min(usual, SWITCH_S))
        try:
            while (job := self._next()) is not None:
                try:
                    job()
                except Exception as problem:  # noqa: BLE001  a launch without it goes on as it did
                    self.problems.append(f"{type(problem).__name__}: {problem}")
        finally:
            sys.setswitchinterval(usual)

    def _next(self) -> Callable[[], object] | None:
        with self._changed:
            if self._jobs:
                return self._jobs.popleft()
            self._thread = None
            self._changed.notify_all()
            return None


ASIDE = Aside()
