"""`python -m bench.gemm_lines`: what rows that start inside a cache line cost our cold products, fitted and scored.

By the largest power of two that divides the bytes of a row: rows outside the fold that shipped weights are scored on,
how far the net alone is below them (%), and the fit behind the rule `gemm_row_start`: least absolute errors of
log time over m. Then errors on that fold with and without the factor, clocks not given.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from bench.gemm_clock import GPU, RESTED, TYPES, Floats, Row, answered
from pipewave.calls.dtypes import OPERAND_BYTES
from pipewave.evaluate.folds import held_out
from pipewave.kernels.base import Context
from pipewave.kernels.gemm.cache_lines import FEWEST, LINE, MOST, losses, unaligned
from pipewave.measure.pack import rows
from pipewave.physics.arith import SCALAR

LEAST, MORE = np.arange(0.0, 0.1, 0.001), np.arange(0.0, 0.02, 0.001)  # tried


def factors(found: list[Row]) -> Floats:
    """The factor of each row."""
    return np.array([_factor(row["case"]) for row in found])


def _factor(case: Row) -> float:
    ctx = Context(GPU, case["dtype"], "cold", "", "", ())
    size = OPERAND_BYTES[case["dtype"]]
    return float(unaligned(float(case["m"]), float(case["k"]), size, ctx, SCALAR))


def unit(case: Row) -> int:
    """The largest power of two, up to a line, that divides a row's bytes."""
    size = int(case["k"] * OPERAND_BYTES[case["dtype"]])
    return min(size & -size, LINE)


def fitted(off: Floats, octaves: Floats) -> tuple[float, float]:
    """Log of the time lost at the fewest rows, and more per octave."""
    tried = [(np.abs(off - least - more * octaves).mean(), least, more) for least, more in product(LEAST, MORE)]
    _, least, more = min(tried)
    return float(least), float(more)


def main() -> None:
    found = [row for row in rows(RESTED) if row["protocol"] == "cold" and row["case"]["dtype"] in TYPES[:3]]
    alone = answered(found, known=False)[0] / factors(found)
    off = np.log([row["latency_us"] for row in found]) - np.log(alone)
    octaves = np.log2(np.clip([row["case"]["m"] for row in found], FEWEST, MOST) / FEWEST)
    units, held = np.array([unit(row["case"]) for row in found]), np.array([held_out(row["case"]) for row in found])
    dtypes = np.array([row["case"]["dtype"] for row in found])
    shipped = losses("cold", "bf16")
    print("unit, bytes | rows | net alone below, % | fitted: at 8 rows | per octave | shipped")
    for of in (LINE, *shipped):
        at = (units == of) & ~held
        fit = " | ".join(f"{value:.3f}" for value in fitted(off[at], octaves[at])) if of in shipped else "- | -"
        print(f"{of} | {at.sum()} | {100 * np.expm1(off[at].mean()):.1f} | {fit} | {shipped.get(of, '-')}")
    print("type | rows of the fold | MAPE without, % | with, %")
    for dtype in TYPES[:3]:
        at = held & (dtypes == dtype)
        errors = [100 * np.abs(np.expm1(shift[at] - off[at])).mean() for shift in (0 * off, np.log(factors(found)))]
        print(f"{dtype} | {at.sum()} | {errors[0]:.2f} | {errors[1]:.2f}")


if __name__ == "__main__":
    main()
