"""Parts of a table side by side on the cores of this machine: numpy lets other threads run while it computes.

Only where BLAS keeps to one thread (`OPENBLAS_NUM_THREADS=1` before numpy is imported, as the command line sets it):
elsewhere its own threads share out every small product, and more of them would wait for one another.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

Part = TypeVar("Part")
Done = TypeVar("Done")


def each(work: Callable[[Part], Done], parts: Iterable[Part]) -> list[Done]:
    """What `work` makes of every part, in their order; raises what it raises first."""
    parts, threads = list(parts), cores()
    if min(threads, len(parts)) < 2:
        return list(map(work, parts))
    return list(_pool(os.getpid(), threads).map(work, parts))


def cores() -> int:
    """Cores for a table: those that this process may use, at most `OMP_NUM_THREADS`; one where BLAS shares out."""
    if os.environ.get("OPENBLAS_NUM_THREADS") != "1":
        return 1
    asked = os.environ.get("OMP_NUM_THREADS", "")
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(int(asked), mine) if asked.isdecimal() and int(asked) else mine


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Kept for the next table; `process`: after a fork the threads of the parent are gone."""
    from concurrent.futures import ThreadPoolExecutor  # one call needs no threads

    return ThreadPoolExecutor(threads, thread_name_prefix=f"pipewave-{process}")
