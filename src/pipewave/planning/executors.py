"""Where a sweep runs: in this process, in processes of this machine, or on a Dask cluster."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from pipewave.errors import BadInput, MissingExtra

WATCH_S = 0.5  # between two looks at whether the process that started a worker is still there


def one_a_core() -> str | None:
    """One process a core of this machine; None where it has one."""
    cores = os.cpu_count() or 1
    return f"processes://{cores}" if cores > 1 else None


@contextmanager
def executor(name: str | None) -> Iterator[Executor | None]:
    """`None` = this process, `processes://N`, or `dask://HOST:PORT`; BadInput for anything else."""
    scheme, _, rest = (name or "").partition("://")
    if not name:
        yield None
    elif scheme == "processes" and rest.isdigit() and int(rest) > 0:
        with ProcessPoolExecutor(int(rest), initializer=_end_with, initargs=(os.getpid(),)) as pool:
            yield pool
    elif scheme == "dask" and rest:
        with _dask(rest) as pool:
            yield pool
    else:
        raise BadInput(f"executor = {name!r}: must be processes://N or dask://HOST:PORT", field="executor")


def _end_with(parent: int) -> None:
    """End this worker soon after the process that started it is gone: a killed one closes no pool."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _dask(address: str) -> Iterator[Executor]:
    try:
        distributed: Any = import_module("distributed")
    except ImportError as problem:
        raise MissingExtra("a Dask executor needs distributed: pip install 'pipewave[dask]'") from problem
    try:
        client = distributed.Client(f"tcp://{address}", timeout=10)
    except OSError as problem:
        raise BadInput(f"executor = dask://{address}: no scheduler answers ({problem})", field="executor") from problem
    with client:
        # A worker that dies gives its tasks back; the scheduler runs them elsewhere.
        yield client.get_executor(retries=5)
