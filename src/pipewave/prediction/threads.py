"""Parts of a table side by side on the cores of this machine: numpy lets other threads run while it computes.

BLAS keeps to one thread meanwhile: it would share out every small product of the networks among its own threads, and
where another program keeps a core busy, each product waits for the slowest of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

Part = TypeVar("Part")
Done = TypeVar("Done")

KEPT_BYTES = 31 << 20  # glibc keeps twice as much; of more than 32 MiB it learns nothing
WORTH_IT = 64  # calls: asking BLAS takes 20 µs


def each(work: Callable[[Part], Done], parts: Iterable[Part]) -> list[Done]:
    """What `work` makes of every part, in their order; raises what it raises first."""
    parts, threads = list(parts), cores()
    if min(threads, len(parts)) < 2:
        return list(map(work, parts))
    return list(_pool(os.getpid(), threads).map(work, parts))


def parts_of(calls: int, most: int) -> list[tuple[int, int]]:
    """First and last number of equal parts of at most so many calls: an even number of them, whatever the machine."""
    count = 2 * -(-calls // (2 * most)) if calls > most else 1
    ends = [calls * i // count for i in range(count + 1)]
    return list(pairwise(ends))


def cores() -> int:
    """Cores for a table: those that this process may use, at most `OMP_NUM_THREADS`."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(int(asked), mine) if asked.isdecimal() and int(asked) else mine


class _OneThread:
    """BLAS on one thread, then on as many as before, for callers on several threads: the first one sets it, the last
    one lifts it. Nothing is set where it was told so before (`OPENBLAS_NUM_THREADS=1`).
    """

    def __init__(self) -> None:
        self.lock, self.callers = Lock(), 0
        self.held: list[tuple[Any, int]] = []  # libraries and their threads before

    def __enter__(self) -> None:
        with self.lock:
            self.callers += 1
            if self.callers == 1:
                self.held = [(library, count) for library in _blas() if (count := library.get_num_threads()) > 1]
                self._set(1)

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.callers -= 1
            if not self.callers:
                self._set(None)

    def _set(self, threads: int | None) -> None:
        for library, before in self.held:
            library.set_num_threads(threads or before)


ONE_THREAD = _OneThread()


def blas_alone(calls: int) -> AbstractContextManager[None]:
    """BLAS on one thread while so many calls are answered; nothing is asked of it for few."""
    if calls < WORTH_IT:
        return nullcontext()
    _keep_memory()
    return ONE_THREAD


@cache
def _keep_memory() -> None:
    """Free a large block once: glibc then keeps as much for the next arrays. Else it gives what a part of a list leaves
    back to the system, and every part waits for its pages again: an eighth of the time of a list of attention calls.
    """
    np.empty(KEPT_BYTES, np.uint8)


@cache
def _blas() -> tuple[Any, ...]:
    """The BLAS libraries of this process."""
    from threadpoolctl import ThreadpoolController  # a few calls need none

    return tuple(ThreadpoolController().select(user_api="blas").lib_controllers)


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Kept for the next table; `process`: after a fork the threads of the parent are gone."""
    from concurrent.futures import ThreadPoolExecutor  # one call needs no threads

    return ThreadPoolExecutor(threads, thread_name_prefix=f"pipewave-{process}")
