"""`python -m studies.norm_loops`: SM cycles a block takes a loop over its threads, of norms that load one element.

Sarathi's norms and activations give a row to a block of at most 1,024 threads, and each thread one element a loop. Over
more than three rounds of blocks, time is a line in the rounds. Its slope over loops, in cycles, is what `norm_scalar`
of the stack rules says: a block waits, and issues beside the other blocks of its SM.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from pipewave.gpus import GPU, find
from pipewave.kernels.streaming.norm import blocks
from train import corpus

FEWEST = 20  # rows that make a line
MANY = 3.0  # rounds of blocks


def cycles(net: str) -> Iterator[tuple[str, float, int, float, float]]:
    """GPU, columns, rows, blocks an SM, and cycles a loop."""
    frame = corpus.training_rows(net)
    old = frame[frame["impl"].astype(str).str.startswith("sarathi")]
    for (name, dim), rows in old.groupby(["gpu", "dim"], observed=True):
        gpu = find(str(name))
        per_sm, loops = _shape(gpu, float(dim))
        rounds = np.ceil(rows["rows"] / (per_sm * gpu.sms))
        many = rows[rounds > MANY]
        if len(many) >= FEWEST:
            slope_us = _slope(rounds[rounds > MANY], many["latency_us"])
            yield str(name), float(dim), len(many), per_sm, slope_us / loops * gpu.sustained_clock_mhz


def _shape(gpu: GPU, dim: float) -> tuple[float, float]:
    """Blocks an SM and loops of a block."""
    found = blocks(gpu, np.array([1e4]), np.array([dim]), False, 1.0)
    return float(found.per_sm[0]), float(found.loops[0])


def _slope(rounds: pd.Series, latency_us: pd.Series) -> float:
    """Of the line with the least squares of relative errors, in us a round."""
    given = np.column_stack([rounds, np.ones(len(rounds))]) / latency_us.to_numpy()[:, None]
    return float(np.linalg.lstsq(given, np.ones(len(rounds)), rcond=None)[0][0])


def main() -> None:
    for net in ("rmsnorm", "silu_and_mul"):
        print(f"{net}\n{'GPU':8} columns rows blocks an SM cycles a loop")
        for gpu, dim, rows, per_sm, found in cycles(net):
            print(f"{gpu:8} {dim:7.0f} {rows:4} {per_sm:12.0f} {found:13.0f}")


if __name__ == "__main__":
    main()
