"""Fit an engine's constants to measured steps; what is left over is the kernels' error, not the engine's.

    python -m train.step_fit [--write]

fits vLLM's to the committed H200 rows and prints them, with `--write` into software/times.json. Every constant is a
time with a meaning (see `pipewave.software.engine_parts`), kept inside the range that traces and common sense allow.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict

import numpy as np

from pipewave.software.engine import FILE
from pipewave.step import Engine, find_engine
from studies.e2e_steps import Measured, measure_loads, points
from train.cards import read, ship

# µs. Traces: 0.4 between the kernels of a graph, of which there are a third more than modelled (split-K and split-KV
# reductions); 1 to 3 in streams; 100 to 140 of copies and sampling a decode step. A launch: what prompts of nine other
# models on another card and host allow (`python -m studies.kind_launches`). The rest: what Python can take.
RANGES = {
    "graph_gap_us": (0.4, 0.8),
    "stream_gap_us": (1.0, 3.0),
    "step_us": (500.0, 6000.0),
    "launch_us": (55.0, 71.0),
    "layer_us": (20.0, 600.0),
    "decode_host_us": (80.0, 200.0),
    "prefill_host_us": (200.0, 4000.0),
    "request_host_us": (0.1, 10.0),
}
# SGLang schedules a step ahead: small models decode in steps of 2 ms, of which the host takes 0.7 to 1.4 (`launch_ms`).
# Results are copied on a stream of their own, and kernels of its graphs start before the last one ends. Its measured
# steps all replay graphs, so that kernels launched one by one (before 0.5.10) keep an assumed time.
SGLANG = RANGES | {
    "graph_gap_us": (0.2, 0.8),
    "stream_gap_us": (1.8, 1.8),
    "step_us": (500.0, 1300.0),
    "launch_us": (20.0, 20.0),
    "decode_host_us": (10.0, 200.0),
}
STEPS = (1.5, 1.2, 1.07, 1.02)
STARTS = (0.0, 0.25, 0.5, 0.75)  # how far up its range every constant is, on a log scale


def fit(measured: Measured, engine: Engine) -> Engine:
    """The constants with the least loss that coordinate descent reaches from several starts, whatever `engine` has."""
    ranges = SGLANG if engine.name == "sglang" else RANGES
    starts = [{name: low * (high / low) ** share for name, (low, high) in ranges.items()} for share in STARTS]
    ends = [_descended(measured, engine.what_if(**start), ranges) for start in starts]
    return min(ends, key=lambda one: loss(measured, one))


def _descended(measured: Measured, engine: Engine, ranges: Mapping[str, tuple[float, float]]) -> Engine:
    best = loss(measured, engine)
    for ratio in STEPS:
        improved = True
        while improved:
            improved = False
            for name, (low, high) in ranges.items():
                for factor in (ratio, 1.0 / ratio):
                    value = float(np.clip(getattr(engine.host, name) * factor, low, high))
                    tried = engine.what_if(**{name: value})
                    found = loss(measured, tried)
                    if found < best - 1e-7:
                        engine, best, improved = tried, found, True
    return engine


def loss(measured: Measured, engine: Engine) -> float:
    """Mean over phases of the mean over models, on each GPU, of absolute log errors: no model counts for its number of
    points.
    """
    real = np.array([point.measured_ms for point in measured.points])
    wrong = np.abs(np.log(measured.predict_ms(engine) / real))
    groups: dict[str, dict[str, list[float]]] = {}
    for point, error in zip(measured.points, wrong, strict=True):
        groups.setdefault(point.phase, {}).setdefault(f"{point.card} {point.model}", []).append(float(error))
    return float(np.mean([np.mean([np.mean(v) for v in models.values()]) for models in groups.values()]))


def constants(engine: Engine) -> dict[str, float]:
    """The fitted fields, rounded."""
    return {name: float(f"{asdict(engine.host)[name]:.3g}") for name in RANGES}


def write(name: str, values: Mapping[str, float]) -> None:
    """Replace an engine's constants in the shipped table."""
    table = read(FILE)
    table[name] |= values
    ship(FILE, table, indent=2)


def main() -> None:
    """Fit to all models and print or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="store the constants in software/times.json")
    given = parser.parse_args()
    start = find_engine("vllm")
    measured = measure_loads(points())
    found = fit(measured, start)
    print(f"mean absolute log error {100 * loss(measured, start):.2f} % → {100 * loss(measured, found):.2f} %")
    print(json.dumps(constants(found), indent=1))
    if given.write:
        write("vllm", constants(found))


if __name__ == "__main__":
    main()
