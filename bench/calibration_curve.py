"""`python -m bench.calibration_curve [--net gemm ...]`: error against the number of a card's own rows.

Starts from members of `train.fit` that saw no row of the GPU (split `logo:GPU`), fits a correction to a few of our own
rows and scores groups that none of them belongs to. Nets without such a run are skipped.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipewave.calibrate.correction import CODES
from pipewave.calibrate.fit import Sample, fit, mape
from train.predictions import load_predictions
from train.rows import Rows
from train.rows import load as load_rows
from train.splits import by_name

RUNS = Path(__file__).resolve().parents[1] / ".cache" / "runs"
COUNTS = (0, 10, 30, 100, 1000)
DRAWS = 5
PROTOCOL = "cold"
FAR = 1.645  # half-width of a 90 % interval in standard deviations


def sample_of(rows: Rows, predictions: Path, gpu: str) -> Sample | None:
    """Our own rows of the GPU beside what a net without it says; None where no such net was trained."""
    found = load_predictions(predictions).get(f"logo:{gpu}")
    if found is None:
        return None
    index = by_name(f"logo:{gpu}", rows).score
    if len(found[0]) != len(index):
        raise ValueError(f"{predictions}: not of these rows ({len(found[0])} predictions, {len(index)} rows)")
    text = {name: rows.columns[name].text()[index] for name in ("source", "protocol", *CODES)}
    own = (text["source"] == "h200") & (text["protocol"] == PROTOCOL)
    return _sample(rows.take(index[own]), found[0][own], found[1][own])


def _sample(rows: Rows, mean: NDArray[np.float64], scale: NDArray[np.float64]) -> Sample | None:
    if not len(rows):
        return None
    text = {name: rows.columns[name].text() for name in CODES}
    codes = [(name, value) for name in CODES for value in np.unique(text[name])]
    told = [(text[name] == value).astype(float) for name, value in codes]
    coordinates = np.column_stack([rows.features.astype(float), *told])
    names = (*rows.names, *(f"{name}={value}" for name, value in codes))
    return Sample(names, coordinates, rows.residual - mean, FAR * scale, rows.group, frozenset())


def curve(sample: Sample) -> dict[int, float]:
    """Mean error in % of groups without a calibration row, by the number of rows: median of DRAWS draws."""
    found = {count: [_error(sample, count, draw) for draw in range(DRAWS)] for count in COUNTS}
    return {count: float(np.median(errors)) for count, errors in found.items() if np.isfinite(errors).all()}


def _error(sample: Sample, count: int, draw: int) -> float:
    """Half of the groups give rows, the other half is scored."""
    rng = np.random.default_rng(draw)
    groups = rng.permutation(np.unique(sample.group))
    scored = np.isin(sample.group, groups[: len(groups) // 2])
    pool, test = np.flatnonzero(~scored), sample.take(np.flatnonzero(scored))
    if len(pool) < count or not len(test):
        return float("nan")
    correction = fit(sample.take(rng.choice(pool, count, replace=False))).correction if count else None
    columns = dict(zip(test.names, test.coordinates.T, strict=True))
    # Codes are plain columns here, so the frame must not look them up among a call's codes.
    moved = _moved(correction, columns, len(test)) if correction else np.zeros(len(test))
    return mape(moved - test.log_ratio)


def _moved(correction: object, columns: dict[str, NDArray[np.float64]], rows: int) -> NDArray[np.float64]:
    frame = correction.frame  # type: ignore[attr-defined]
    raw = np.column_stack([columns[name] for name in frame.names])
    points = np.clip((raw - frame.middle) / frame.spread, -3.0, 3.0)
    return np.asarray(correction.scales.kernel(points, correction.points) @ correction.weights)  # type: ignore[attr-defined]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.calibration_curve", description=__doc__)
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder with <net>/rows.npz and <net>/net")
    parser.add_argument("--net", action="append", help="only these nets")
    parser.add_argument("--gpu", default="H200")
    parser.add_argument("--rows", type=Path, help="rows.npz of one net, with --run")
    parser.add_argument("--run", type=Path, help="folder with that net's predictions.npz")
    parser.add_argument("--json", type=Path, help="also write the curves here")
    options = parser.parse_args(argv)
    places = {p.parent.name: (p, p.parent / "net") for p in sorted(options.runs.glob("*/rows.npz"))}
    if options.rows:
        places = {options.run.name: (options.rows, options.run)}
    curves = {}
    for net, (rows, run) in places.items():
        if options.net and net not in options.net:
            continue
        if not (run / "predictions.npz").exists():
            print(f"{net}: no run, skipped")
            continue
        sample = sample_of(load_rows(rows), run, options.gpu)
        if sample is None:
            print(f"{net}: no member without {options.gpu}, or none of our rows; skipped")
            continue
        curves[net] = curve(sample)
        print(f"{net}: " + ", ".join(f"{count} rows {error:.2f} %" for count, error in curves[net].items()), flush=True)
    if options.json:
        options.json.write_text(json.dumps(curves, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
