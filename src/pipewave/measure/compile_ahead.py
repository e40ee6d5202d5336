"""Compile the Triton kernels of a plan in this process, one call each, over operands that are never filled."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from pipewave.files import store as records
from pipewave.measure.impls import Skip, prepare
from pipewave.measure.job import Job
from pipewave.measure.pools import Pools
from pipewave.measure.protocol import is_fatal, recoverable

SHARE_OF_BUDGET = 0.3


def compile_shard(options: argparse.Namespace, jobs_of: Callable[[argparse.Namespace], list[Job]]) -> int:
    """Run this shard of the distinct kernels once each; failures are left to the measuring run to record."""
    from pipewave.measure.impls.vllm_moe import distinct_kernels

    index, count = (int(part) for part in options.compile_only.split("/"))
    done = records.done_keys(records.read(options.store), retry_failed=options.retry_failed)
    jobs = [job for job in jobs_of(options) if job.family == "fused_moe" and job.key not in done]
    mine = distinct_kernels(jobs)[index::count]
    if not mine:
        return 0
    pools = Pools(elements=_needed(mine), fill=False)
    deadline = time.monotonic() + SHARE_OF_BUDGET * min(options.budget_s, 3600.0)
    failed = sum(not _compiled(job, pools) for job in mine if time.monotonic() < deadline)
    sys.stderr.write(f"compiled {len(mine) - failed} kernels, {failed} failed\n")
    return 0


def _needed(jobs: list[Job]) -> dict[str, int]:
    weights = max(4 * job.case["experts"] * job.case["hidden"] * job.case["inter"] // job.case["tp"] for job in jobs)
    tokens = max(job.case["tokens"] * job.case["hidden"] for job in jobs)
    return {"weight": weights + 8192, "activation": 2 * tokens + 8192, "scratch": 8192}


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
