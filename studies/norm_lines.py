"""`python -m studies.norm_lines`: what rows that start inside a cache line cost norms, fitted and scored.

Rows of another day, whose lengths no other row has: how far predictions without the factor are below them, by kind of
norm and by the largest power of two that divides a row's bytes; then the fit behind the rule `norm_row_start` (medians
of log time, the H100 and the first H200 counting alike) and what is left on the second H200.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.calls.dtypes import ACTIVATION_BYTES
from pipewave.kernels.streaming.norm import START_ROWS, row_start
from pipewave.measure.row_files import rows
from pipewave.physics.cache import LINE
from studies.another_day import PLACE, answered
from studies.card_blind import DATA
from studies.gemm_lines import unit

CARDS = (("H100", ""), ("H200", ""), ("H200", "second"))
Floats = NDArray[np.float64]


def below(card: str, second: str) -> tuple[list[dict[str, Any]], Floats]:
    """Cold rows of norms, and log of the time measured over the answer without the factor."""
    found = [row for row in rows(DATA / card.lower() / PLACE / second / "rmsnorm.json.gz") if row["protocol"] == "cold"]
    told = answered(card, found, "cold").latency_us
    alone = told / np.array([factor(row["case"]) for row in found])
    cases = [row["case"] | {"unit": int(unit(int(ACTIVATION_BYTES * row["case"]["dim"])))} for row in found]
    return cases, np.log([row["latency_us"] for row in found] / alone)


def factor(case: dict[str, object]) -> float:
    """What the rule makes of a row."""
    one = {name: np.array([float(str(case[name]))]) for name in ("rows", "dim")}
    return float(row_start(one["rows"], one["dim"], bool(case["fused_add"]), "cold")[0])


def concerned(case: dict[str, object]) -> bool:
    """A call that the rule speaks of."""
    return bool(case["fused_add"]) and int(str(case["rows"])) >= START_ROWS and int(str(case["unit"])) < LINE


def main() -> None:
    """Run the command."""
    fits = []
    for card, second in CARDS:
        cases, off = below(card, second)
        fused = np.array([bool(case["fused_add"]) for case in cases])
        many = np.array([case["rows"] >= START_ROWS for case in cases])
        units = np.array([case["unit"] for case in cases])
        for name, kind in (("in place", fused), ("plain", ~fused)):
            for of in (LINE, 64, 32):
                for size, part in (("many rows", many), ("few rows", ~many)):
                    at = kind & part & (units == of)
                    if at.any():
                        print(
                            f"{card} {second:6} {name:8} {of:3} {size:9} {at.sum():3}  below {np.median(off[at]):+.3f}"
                        )
        at = np.array([concerned(case) for case in cases])
        fits.append(np.median(off[at]))
        left = off[at] - np.mean(fits[:2])
        print(f"{card} {second:6} in place, inside a line, many rows: fit {fits[-1]:.3f}; left with the mean of fits"
              f" so far {100 * np.abs(left).mean():.1f} % of {100 * np.abs(off[at]).mean():.1f} %")  # fmt: skip


if __name__ == "__main__":
    main()
