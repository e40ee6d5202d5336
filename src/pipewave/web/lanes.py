"""Where answers are worked out, and how many of a kind at once.

What takes milliseconds runs in threads of this process. Threads of Python share one core, however: a plan, a run of
traffic or a large trace would slow every slider down. They run in processes of their own, one of each kind, which
start at the first such question and hold what they read for the next one. One that dies, for want of memory say,
takes its own question with it and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, to_process, to_thread

T = TypeVar("T")


class Lanes:
    """How many answers of a kind are worked out at once; further ones wait."""

    def __init__(self) -> None:
        self.quick, self.kernel, self.plan, self.traffic, self.trace = map(CapacityLimiter, (2, 1, 1, 1, 1))


async def here(lane: CapacityLimiter, work: Callable[..., T], *args: object) -> T:
    """Work in a thread of a lane."""
    return await to_thread.run_sync(work, *args, limiter=lane)


async def apart(lane: CapacityLimiter, work: Callable[..., T], *args: object) -> T:
    """Work in another process of a lane: a function of a module, its arguments and its result are sent as pickles.

    Raises what the work raises, and anyio.BrokenWorkerProcess where the process dies.
    """
    return await to_process.run_sync(work, *args, limiter=lane)
