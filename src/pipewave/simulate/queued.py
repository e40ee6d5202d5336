"""A static batch of which the cache holds only a part at once: the others wait, as the engine would have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pipewave.simulate import drafted_batch
from pipewave.simulate.room import limits_of
from pipewave.simulate.run import table_of
from pipewave.simulate.simulate import Pool, Simulation
from pipewave.simulate.speculative import Speculative
from pipewave.simulate.traffic import synthetic
from pipewave.step import Runner
from pipewave.step.memory import Budget


@dataclass(frozen=True, slots=True)
class Batch:
    """Equal requests of one data-parallel rank that arrive together, under a token budget a step."""

    requests: int
    input_len: int
    output_len: int
    budget: int


def times(runner: Runner, memory: Budget, batch: Batch, how: Speculative | None = None) -> Mapping[str, float]:
    """`prefill_ms`, `tpot_ms` and `e2e_ms`.

    `prefill_ms`: until the last request has its first token; `tpot_ms`: mean over requests, waits after preemption
    included; `how`: what drafts. Raises DoesNotFit when not even one request fits.
    """
    traffic = synthetic(batch.requests, input_len=batch.input_len, output_len=batch.output_len)
    sizes = batch.budget, min(batch.requests, runner.engine.scheduler.max_requests), traffic.longest
    table = table_of(runner, *sizes)
    pool = Pool(
        drafted_batch.table(runner, how, *sizes) if how else table,
        limits_of(runner, memory, batch.input_len + batch.output_len, batch.budget),
        runner.deployment.parallel.pp,
    )
    record = Simulation(traffic, pool, keep_steps=False).run()
    later = max(batch.output_len - 1, 1)
    return {
        "prefill_ms": 1e3 * float(record.first_s.max()),
        "tpot_ms": 1e3 * float(np.mean(record.done_s - record.first_s)) / later if batch.output_len > 1 else 0.0,
        "e2e_ms": 1e3 * float(record.done_s.max()),
    }
