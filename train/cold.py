"""`python -m train.cold`: intervals and ceilings of cold GEMMs whose SM clock is not told, from our own rows.

Nets learn at the clock of each row; a call without one is answered as of a card by itself, while our rows were taken at
whatever clock power management left (`pipewave.kernels.gemm_clock`). That doubt belongs into the interval, and the
ceiling is to leave four measured rows in five slower. Rows of the fold that shipped weights are scored on stay unseen.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import pipewave as pw
from pipewave.accuracy.folds import held_out
from pipewave.calibrate.corrections import suspended
from pipewave.calls import from_dict
from pipewave.kernels.gemm import NET_OF
from pipewave.measure.pack import rows as measured_rows
from train.ceilings import QUANTILE
from train.intervals import LEVEL

ROOT = Path(__file__).resolve().parents[1]
WEIGHTS = ROOT / "src" / "pipewave" / "data" / "weights"
GPU, PROTOCOL = "H200", "cold"
BASIS = "measured_gpu"
Row = Mapping[str, Any]


def own(folder: Path) -> dict[str, list[Row]]:
    """Our cold products by net, but for the fold that shipped weights are scored on."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in measured_rows(folder):
        case = row["case"]
        wanted = case["kernel"] == "gemm" and row["protocol"] == PROTOCOL and row.get("flush", "write") == "write"
        if wanted and not held_out(case):
            found[NET_OF[case.get("dtype", "bf16")]].append(row)
    return found


def asked(card: Mapping[str, Any], rows: Sequence[Row]) -> tuple[float, float]:
    """The multiple under which LEVEL of the rows are inside, and the ceiling's shift that leaves QUANTILE faster."""
    calls = [from_dict(row["case"] | {"stack": row["stack"], "impl": row["impl"]}) for row in rows]
    with suspended():
        answers = pw.predict(calls, GPU, protocol=PROTOCOL)
    measured = np.array([row["latency_us"] for row in rows])
    error = np.abs(np.log(measured / answers.latency_us)) / np.log(answers.high_us / answers.latency_us)
    known = card["intervals"].get(f"{BASIS}|{PROTOCOL}", card["intervals"][BASIS])
    above = float(np.quantile(np.log(measured / answers.ceiling_us), QUANTILE))
    return known["multiple"] * float(np.quantile(error, LEVEL)), card["ceiling"]["shifts"].get(PROTOCOL, 0.0) + above


def update(net: str, rows: Sequence[Row]) -> str:
    """Put both into the net's card; what they are."""
    path = WEIGHTS / f"{net}.json"
    card = json.loads(path.read_text(encoding="utf-8"))
    multiple, shift = asked(card, rows)
    power = card["intervals"][BASIS]["power"]
    card["intervals"][f"{BASIS}|{PROTOCOL}"] = {"multiple": round(multiple, 4), "power": power}
    card["ceiling"]["shifts"] |= {PROTOCOL: round(shift, 4), f"{PROTOCOL}|{GPU}": round(shift, 4)}
    path.write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    return f"{net}: {len(rows):,} rows, multiple {multiple:.2f}, ceiling shifted by {shift:.3f}"


def updated(folder: Path) -> Iterator[str]:
    """A line for every net with such rows."""
    for net, rows in own(folder).items():
        yield update(net, rows)


if __name__ == "__main__":
    print(*updated(ROOT / "data" / "measured" / GPU.lower()), sep="\n")
    sys.exit(0)
