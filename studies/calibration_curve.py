"""`python -m studies.calibration_curve --runs DIR [--json FILE]`: error against the number of a card's own rows.

Starts from members of `train.fit` that saw no row of the GPU (split `logo:GPU`), fits the correction of `pipewave
calibrate` to a few of our own rows and scores groups that none of them belongs to. DIR holds <net>/rows.npz and, in a
folder beside it, predictions.npz; nets without such a split are skipped.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from pipewave.calibrate.fit import Sample, fit, mape
from train.corrected import coordinates_of, log_factors
from train.rows import Floats, Rows
from train.rows import load as load_rows
from train.run import Run, load_predictions
from train.splits import by_name

ROOT = Path(__file__).resolve().parents[1]
COUNTS = (0, 10, 30, 100, 1000)
DRAWS = 5
PROTOCOL = "cold"
FAR = 1.645  # half-width of a 90 % interval in standard deviations


@dataclass(frozen=True, slots=True)
class Point:
    """Mean error in % by draw: of the median draw, of the best and of the worst."""

    rows: int
    mape: float
    best: float
    worst: float


def sample_of(rows: Rows, predictions: Path, gpu: str) -> Sample | None:
    """Our own rows of the GPU beside what a net without it says; None where no such net was trained."""
    split = f"logo:{gpu}"
    found = load_predictions(predictions).get(split)
    if found is None:
        return None
    index = by_name(split, rows).score
    if len(found[0]) != len(index):
        raise ValueError(f"{predictions}: not of these rows ({len(found[0])} predictions, {len(index)} rows)")
    text = {name: rows.columns[name].text()[index] for name in ("source", "protocol")}
    own = (text["source"] == "h200") & (text["protocol"] == PROTOCOL)
    mine = rows.take(index[own])
    coordinates = coordinates_of(mine, np.arange(len(mine)), Run.read(predictions), split)
    return _sample(mine, *coordinates, found[0][own], found[1][own]) if own.any() else None


def _sample(rows: Rows, names: tuple[str, ...], coordinates: Floats, mean: Floats, scale: Floats) -> Sample:
    return Sample(names, coordinates, rows.residual - mean, FAR * scale, rows.group, frozenset())


def curve(sample: Sample) -> list[Point]:
    """Errors of groups without a calibration row, by the number of rows."""
    found = {count: sorted(_error(sample, count, draw) for draw in range(DRAWS)) for count in COUNTS}
    return [
        Point(count, *(round(errors[at], 3) for at in (DRAWS // 2, 0, -1)))
        for count, errors in found.items()
        if np.isfinite(errors).all()
    ]


def _error(sample: Sample, count: int, draw: int) -> float:
    """Half of the groups give rows, the other half is scored; NaN where there are too few rows."""
    rng = np.random.default_rng(draw)
    groups = rng.permutation(np.unique(sample.group))
    scored = np.isin(sample.group, groups[: len(groups) // 2])
    pool, test = np.flatnonzero(~scored), sample.take(np.flatnonzero(scored))
    if len(pool) < count or not len(test):
        return float("nan")
    correction = fit(sample.take(rng.choice(pool, count, replace=False))).correction if count else None
    return mape(log_factors(correction, test) - test.log_ratio)


def places(runs: Path) -> Iterator[tuple[str, Path, Path]]:
    """Net, its rows, and every folder with predictions."""
    for rows in sorted(runs.glob("*/rows.npz")):
        for predictions in sorted(rows.parent.glob("*/predictions.npz")):
            yield rows.parent.name, rows, predictions.parent


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m studies.calibration_curve", description=__doc__)
    parser.add_argument("--runs", type=Path, default=ROOT / ".cache" / "runs")
    parser.add_argument("--net", action="append", help="only these nets")
    parser.add_argument("--gpu", default="H200")
    parser.add_argument("--json", type=Path, help="also write the curves here")
    options = parser.parse_args(argv)
    curves: dict[str, list[dict[str, float]]] = {}
    for net, rows, run in places(options.runs):
        if net in curves or (options.net and net not in options.net):
            continue
        sample = sample_of(load_rows(rows), run, options.gpu)
        if sample is not None:
            curves[net] = [asdict(point) for point in curve(sample)]
            print(f"{net}:", ", ".join(f"{p['rows']} rows {p['mape']:.2f} %" for p in curves[net]), flush=True)
    if options.json:
        content = {"gpu": options.gpu, "protocol": PROTOCOL, "draws": DRAWS, "curves": curves}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
