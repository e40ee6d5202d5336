"""Speed on every GPU of the registry: `python -m bench.every_gpu`. Others answer from other rows than the H200 does."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np

import pipewave as pw
from pipewave.errors import PipewaveError
from pipewave.gpus import find, names

SCALAR, TABLE, ESTIMATES = 300, 20_000, 5  # calls, rows of a table, estimates


def gemm_us(gpu: str) -> float:
    """Median µs of one GEMM, each of a new shape."""
    rng = random.Random(0)
    calls = [pw.gemm(*(rng.randrange(1, 8192) for _ in range(3)), dtype=_half(gpu)) for _ in range(SCALAR)]
    return 1e6 * statistics.median(_times(lambda call: pw.predict(call, gpu), calls))


def _half(gpu: str) -> str:
    """The 16-bit type that a GPU runs."""
    return "bf16" if find(gpu).supports("bf16") else "fp16"


def table_rows_per_s(gpu: str) -> float:
    """GEMMs a second of a table, the best of three."""
    rng = np.random.default_rng(0)
    m, (n, k) = rng.integers(1, 32768, TABLE), rng.integers(64, 65536, (2, TABLE))
    table = {"kernel": "gemm", "m": m, "n": n, "k": k, "dtype": _half(gpu)}
    return TABLE / min(_times(lambda one: pw.predict(one, gpu), [table] * 3))


def estimate_ms(gpu: str) -> float:
    """Median ms of a warm estimate of Llama-3.1-70B; nan where no split of eight GPUs holds it."""
    for tp in (4, 8):
        try:
            return 1e3 * statistics.median(_times(partial(_estimate, gpu, tp), range(1, ESTIMATES + 1)))
        except PipewaveError:  # does not fit
            continue
    return float("nan")


def _estimate(gpu: str, tp: int, batch: int) -> object:
    return pw.estimate("Llama-3.1-70B", gpu, tp=tp, batch=batch, input_len=512, output_len=64)


def _times(work: Callable[[Any], object], given: Iterable[Any]) -> list[float]:
    """Seconds of each, after the first was asked once unmeasured."""
    every = list(given)
    work(every[0])
    out = []
    for one in every:
        start = time.perf_counter()
        work(one)
        out.append(time.perf_counter() - start)
    return out


def measured() -> dict[str, tuple[float, float, float]]:
    """By GPU: µs of a GEMM, rows of a table a second, ms of an estimate."""
    return {gpu: (gemm_us(gpu), table_rows_per_s(gpu), estimate_ms(gpu)) for gpu in names()}


def main() -> None:
    """A line a GPU."""
    for gpu, (one_us, rows, estimate) in measured().items():
        print(f"{gpu:24} GEMM {one_us:7.1f} µs   table {rows:12,.0f} rows/s   estimate {estimate:6.2f} ms")


if __name__ == "__main__":
    main()
