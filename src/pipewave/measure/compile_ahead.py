"""Compile the Triton kernels of a plan in this process, one call each, over operands that are never filled."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType

from pipewave.files import store as records
from pipewave.measure.impls import Skip, prepare, runner
from pipewave.measure.job import Job
from pipewave.measure.pools import Pools
from pipewave.measure.protocol import is_fatal, recoverable

SHARE_OF_BUDGET = 0.3


def compile_shard(options: argparse.Namespace, jobs_of: Callable[[argparse.Namespace], list[Job]]) -> int:
    """Run this shard of the distinct kernels once each; failures are left to the measuring run to record."""
    index, count = (int(part) for part in options.compile_only.split("/"))
    done = records.done_keys(records.read(options.store), retry_failed=options.retry_failed)
    jobs = [job for job in jobs_of(options) if job.key not in done]
    mine = [pair for module, own in _by_module(jobs) for pair in _shard(module, own, index, count)]
    if not mine:
        return 0
    deadline = time.monotonic() + SHARE_OF_BUDGET * min(options.budget_s, 3600.0)
    failed = sum(not _compiled(job, pools) for job, pools in mine if time.monotonic() < deadline)
    sys.stderr.write(f"compiled {len(mine) - failed} kernels, {failed} failed\n")
    return 0


def _by_module(jobs: Sequence[Job]) -> list[tuple[ModuleType, list[Job]]]:
    """Jobs under the module that runs them, of modules that say which kernels Triton will compile for them."""
    found: dict[str, list[Job]] = {}
    for job in jobs:
        found.setdefault(runner(job).module, []).append(job)
    modules = [(importlib.import_module(name), own) for name, own in found.items() if name]
    return [(module, own) for module, own in modules if hasattr(module, "distinct_kernels")]


def _shard(module: ModuleType, jobs: Sequence[Job], index: int, count: int) -> list[tuple[Job, Pools]]:
    """This shard's distinct kernels, each over pools that hold the largest of them."""
    mine: list[Job] = module.distinct_kernels(jobs)[index::count]
    pools = Pools(elements=module.elements(mine), fill=False) if mine else None
    return [(job, pools) for job in mine if pools is not None]


def _compiled(job: Job, pools: Pools) -> bool:
    import torch

    try:
        prepare(job, pools).call()
        torch.cuda.synchronize()
    except Skip:
        return True
    except recoverable() as error:
        if is_fatal(error):
            raise
        return False
    return True
