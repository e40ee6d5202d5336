"""Prompts through SGLang's whole layer of latent attention: measured, and as the step adds them up.

    python -m studies.latent_layers

The rows (`wideep_context_mla`) run the engine's own forward pass without a cached prefix: projections, expansion of
keys and values, attention, output. `as shipped` is what a step holds of it; `latent` takes attention from SGLang's rows
of the kernel alone (`context_mla`), which on Hopper attend in latent space, as those prompts do not. Nothing is fitted
to the rows of layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.attention_kernels import after, before, lengths
from pipewave.models.kernels import Batch, Deployment
from pipewave.models.shard import Parallel
from pipewave.step import Runner, find_engine
from pipewave.step.inside import inside
from studies.published_rows import corpus

MODEL, HEADS = "DeepSeek-V3", 128
FOLDERS = {"H100": "h100_sxm", "H200": "h200_sxm", "B200": "b200_sxm", "GB200": "gb200"}
IMPLEMENTATIONS = ("fa3", "trtllm_mla")  # what servers run there
TOKENS = (1024, 32768)  # of a step, from and to


@dataclass(frozen=True, slots=True)
class Row:
    """A measured layer: requests, tokens of each, ms."""

    requests: int
    tokens: int
    ms: float


def rows(gpu: str, version: str) -> Iterator[Row]:
    """The rows of all heads on one rank."""
    path = corpus() / "aiconfigurator" / FOLDERS[gpu] / "mla" / "sglang" / version / "wideep_context_mla_perf.parquet"
    if not Path(path).exists():
        return
    table = pq.read_table(path).to_pandas()
    kept = table[table.kernel_source.isin(IMPLEMENTATIONS) & (table.num_heads == HEADS)]
    for one in kept.itertuples():
        if TOKENS[0] <= one.isl * one.batch_size <= TOKENS[1]:
            yield Row(int(one.batch_size), int(one.isl), float(one.latency))


def layer_ms(runner: Runner, row: Row) -> float:
    """The mixer of a layer as a step adds it up."""
    view = runner.deployment.stage(Batch((row.tokens,) * row.requests, (row.tokens,) * row.requests))
    mixer = runner.deployment.model.layers[0].mixers[0]
    calls = [use.call for part in (before, lengths, after) for use in part(view, mixer)]
    return 1e-3 * float(inside(calls, runner.gpu, runner.engine).found.latency_us.sum())


def latent(runner: Runner) -> Runner:
    """The same with attention from the engine's own rows of the kernel."""
    kept = tuple(rule for rule in runner.engine.kernels.kernel_rules if rule.family != "mla")
    return replace(runner, engine=runner.engine.what_if(kernel_rules=kept))


def off(runner: Runner, measured: Sequence[Row]) -> tuple[float, float]:
    """Mean absolute and mean error in percent."""
    errors = np.array([layer_ms(runner, row) / row.ms - 1.0 for row in measured])
    return 100 * float(np.abs(errors).mean()), 100 * float(errors.mean())


def main() -> None:
    """A line for each GPU and version."""
    for gpu in FOLDERS:
        for version in ("0.5.6.post2", "0.5.9", "0.5.10"):
            if measured := list(rows(gpu, version)):
                split = Parallel(1, 1, 8, dp=8)
                runner = Runner.of(Deployment(load(MODEL), split), find(gpu), find_engine(f"sglang:{version}"))
                shown = (
                    f"{mean:.1f} % off ({bias:+.1f})"
                    for mean, bias in (off(runner, measured), off(latent(runner), measured))
                )
                print(f"{gpu} {version:12} {len(measured):3d} rows: as shipped {next(shown)}, latent {next(shown)}")


if __name__ == "__main__":
    main()
