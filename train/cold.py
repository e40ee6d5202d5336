"""`python -m train.cold [--runs DIR]`: intervals and ceilings of cold GEMMs whose SM clock is not given, from our rows.

Nets learn at the clock of each row; a call without one is answered as of a card by itself, while our rows were taken at
whatever clock power management left (`kernels.gemm.corrections`). That doubt belongs into the interval, and the
ceiling is to leave four measured rows in five slower. Rows of the fold that shipped weights are scored on stay unseen.
With the runs of `python -m train` at hand, intervals rest on what members say of products they never saw; without, on
what shipped weights say of products they know, which is a little too narrow.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import pipewave as pw
from corpus.cases import held_out
from corpus.select import HELD_OUT
from pipewave.calls.families import from_dict
from pipewave.kernels.gemm.family import NET_OF
from pipewave.measure.row_files import rows as measured_rows
from pipewave.nets.calibration.corrections import suspended
from train.cards import ROOT, WEIGHTS, read, write
from train.ceilings import QUANTILE
from train.intervals import LEVEL
from train.net import nets
from train.rows import load
from train.run import load_predictions
from train.splits import by_name

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
    above = float(np.quantile(np.log(measured / answers.ceiling_us), QUANTILE))
    return _known(card)["multiple"] * float(np.quantile(error, LEVEL)), card["ceiling"]["shifts"].get(
        PROTOCOL, 0.0
    ) + above


def _known(card: Mapping[str, Any]) -> dict[str, float]:
    """The interval that cold products of the GPU have by now."""
    intervals: dict[str, dict[str, float]] = card["intervals"]
    return intervals.get(f"{BASIS}|{PROTOCOL}", intervals[BASIS])


def unseen(net: str, runs: Path, power: float) -> float:
    """The same multiple for products that members never saw, from a run of `train.fit` and the rows it learned from."""
    rows, frame = load(runs / net / "rows.npz"), nets()[net].rows(net, None)
    _, base_us = nets()[net].features(net, frame.assign(sm_clock_mhz=0.0))
    mine = (rows.columns["source"].text() == GPU.lower()) & (rows.columns["protocol"].text() == PROTOCOL)
    ratios = []
    for name, (mean, scale) in load_predictions(runs / net / "net").items():
        if name.startswith("fold:") and name != f"fold:{HELD_OUT}":
            score = by_name(name, rows).score
            off = np.abs(np.log(base_us[score] / rows.latency_us[score]) + mean)
            ratios.append((off / scale**power)[mine[score]])
    return float(np.quantile(np.concatenate(ratios), LEVEL))


def update(net: str, rows: Sequence[Row], runs: Path | None) -> str:
    """Put both into the net's card; what they are."""
    path = WEIGHTS / f"{net}.json"
    card = read(path)
    multiple, shift = asked(card, rows)
    power = _known(card)["power"]
    multiple = unseen(net, runs, power) if runs else multiple
    card["intervals"][f"{BASIS}|{PROTOCOL}"] = {"multiple": round(multiple, 4), "power": power}
    card["ceiling"]["shifts"] |= {PROTOCOL: round(shift, 4), f"{PROTOCOL}|{GPU}": round(shift, 4)}
    write(path, card)
    return f"{net}: {len(rows):,} rows, multiple {multiple:.2f}, ceiling shifted by {shift:.3f}"


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m train.cold", description=__doc__)
    parser.add_argument("--runs", type=Path, help="where `python -m train` left its runs")
    options = parser.parse_args(argv)
    for net, rows in own(ROOT / "data" / "measured" / GPU.lower()).items():
        print(update(net, rows, options.runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
