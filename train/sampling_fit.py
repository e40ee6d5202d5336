"""Laws of kernels that choose tokens, fitted: `python -m train.sampling_fit [--json FILE]`.

Rows: `data/measured/h100/sampling.jsonl.gz` (`python -m lab.sampling_record`), 48 sizes an operation. Errors are of
vocabularies left out of the fit, one at a time. Argmax has a law of its own, fitted to an H100's and an H200's rows.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.gpus import find
from pipewave.kernels.streaming import elementwise as argmax
from pipewave.kernels.streaming import elementwise as sampling
from pipewave.kernels.streaming.elementwise import Law

MEASURED = Path(__file__).parents[1] / "data" / "measured"
GPU = find("H100")
GPUS = ("H100", "H200")
# Operation → what its own kernels' names hold ("" for all of them), values of a block's tile, whether it is spread.
KINDS: dict[str, tuple[str, int, bool]] = {
    "softmax": ("SoftMaxForward", 0, False),
    "log_softmax": ("SoftMaxForward", 0, False),
    "gumbel": ("_gumbel", 1024, False),
    "temperature": ("_temperature", 8192, False),
    "min_p": ("_min_p", 0, False),
    "mask_top_k": ("_topk_topp", 0, False),
    "mask_top_p": ("_topk_topp", 0, False),
    "mask_top_k_top_p": ("_topk_topp", 0, False),
    "exponential": ("distribution", 0, True),
    "aten_topk": ("", 0, True),
    "aten_sort": ("", 0, True),
    "aten_multinomial": ("", 0, True),
}
STARTS = (3.0, 600.0, 600.0, 2.0, 1.0)
AWAY = (
    (1, 1, 1, 1, 1),
    (1, 0.1, 0.1, 1, 1),
    (5, 3, 1, 1, 1),
    (1, 1, 0.1, 1, 4),
    (10, 5, 5, 1, 1),
    (1, 0.2, 0.1, 1, 0.5),
)


def rows(op: str, part: str, gpu: str = GPU.name) -> list[tuple[int, int, float]]:
    """(requests, vocabulary, µs of a call) of an operation."""
    packed = (MEASURED / gpu.lower() / "sampling.jsonl.gz").read_bytes()
    lines = gzip.decompress(packed).decode().splitlines()[1:]
    found = [row for row in map(json.loads, lines) if row["op"] == op.removeprefix("aten_")]
    times = ((r, sum(k["us"] * k["calls"] for k in r["kernels"] if part in k["name"])) for r in found)
    return [(r["rows"], r["vocabulary"], us) for r, us in times if us > 0]


def predicted(op: str, law: Law, sizes: Sequence[tuple[int, int, float]], tile: int) -> Any:
    """µs by a law, [row]."""
    before = sampling.LAWS.get(op)
    sampling.LAWS[op] = law
    read = np.array([4.0 * n * v for n, v, _ in sizes])
    rounds = np.array([float(sampling.rounds_of(v, tile)) for _, v, _ in sizes])
    found = 1e6 * sampling.seconds(op, read, rounds, GPU)
    if before is not None:
        sampling.LAWS[op] = before
    return found


def minimum(f: Callable[[Any], float], starts: Sequence[Any]) -> Any:
    """The best of some descents."""
    from scipy.optimize import minimize

    best = min(starts, key=f)
    for _ in range(4):
        best = minimize(f, best, method="Nelder-Mead", options={"maxiter": 2500, "adaptive": True}).x
    return best


def fit(op: str, sizes: Sequence[tuple[int, int, float]], tile: int, spread: bool) -> Law:
    """The law of least mean |log error|."""
    real = np.array([us for *_, us in sizes])

    def law(x: Any) -> Law:
        return Law(*np.exp(np.clip(x, -12, 15)).tolist(), 0.0, spread)

    def loss(x: Any) -> float:
        return float(np.mean(np.abs(np.log(predicted(op, law(x), sizes, tile) / real))))

    return law(minimum(loss, [np.log(np.array(STARTS) * factor) for factor in AWAY]))


def left_out(op: str, sizes: Sequence[tuple[int, int, float]], tile: int, spread: bool) -> float:
    """Mean |error| in percent over vocabularies left out."""
    errors = []
    for vocabulary in sorted({v for _, v, _ in sizes}):
        inside, outside = ([s for s in sizes if (s[1] == vocabulary) is out] for out in (False, True))
        real = np.array([us for *_, us in outside])
        errors += np.abs(predicted(op, fit(op, inside, tile, spread), outside, tile) / real - 1).tolist()
    return 100 * float(np.mean(errors))


Sizes = dict[str, list[tuple[int, int, float]]]  # of each GPU


def argmax_errors(x: Sequence[float], sizes: Sizes) -> Any:
    """log(predicted / measured) of argmax by its law with these constants, GPU after GPU."""
    names = ("START_S", "SHARED_START_S", "CYCLES_A_VALUE", "MISSED_CYCLES", "DRAM_SHARE", "VALUES_A_CLOCK")
    before = {name: getattr(argmax, name) for name in names}
    for name, value in zip(names, x, strict=True):
        setattr(argmax, name, value)
    found = []
    for gpu, each in sizes.items():
        n, v, us = (np.array([float(size[i]) for size in each]) for i in range(3))
        found.append(np.log(1e6 * argmax.argmax_seconds(4 * n * v, 8 * n, find(gpu)) / us))
    for name, value in before.items():
        setattr(argmax, name, value)
    return np.concatenate(found)


def fit_argmax(sizes: Sizes) -> list[float]:
    """Constants of the law of argmax."""

    def loss(x: Any) -> float:
        return float(np.mean(np.abs(argmax_errors(np.exp(x).tolist(), sizes))))

    starts = [np.log([2.8e-6, 4e-6, 177.0, missed, 0.6, 2.5]) for missed in (10.0, 100.0, 400.0)]
    best = min((minimum(loss, [start]) for start in starts), key=loss)
    return [float(value) for value in np.exp(best)]


def argmax_summary() -> dict[str, Any]:
    """The law of argmax, and its mean error in percent where vocabularies, or the other GPU, are left out."""
    sizes = {gpu: rows("argmax", "reduce_kernel", gpu) for gpu in GPUS}
    words = sorted({v for _, v, _ in sizes[GPUS[0]]})
    unseen = [[{g: [s for s in each if (s[1] == v) is out] for g, each in sizes.items()} for out in (False, True)]
              for v in words]  # fmt: skip
    errors = [error for inside, outside in unseen for error in np.abs(argmax_errors(fit_argmax(inside), outside))]
    across = {}
    for gpu in GPUS:
        others = {name: each for name, each in sizes.items() if name != gpu}
        across[gpu] = np.abs(argmax_errors(fit_argmax(others), {gpu: sizes[gpu]}))
    return {
        "rows": sum(map(len, sizes.values())),
        "law": [float(f"{value:.4g}") for value in fit_argmax(sizes)],
        "error_percent": round(100 * float(np.mean(errors)), 1),
        "gpu_left_out_percent": {gpu: round(100 * float(each.mean()), 1) for gpu, each in across.items()},
    }


def main() -> None:
    """Print every law, and its error where vocabularies are left out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {}
    for op, (part, tile, spread) in KINDS.items():
        sizes = rows(op, part)
        law, error = fit(op, sizes, tile, spread), left_out(op, sizes, tile, spread)
        five = (law.start_us, law.cycles, law.more_cycles, law.passes, law.resident)
        found[op] = {
            "rows": len(sizes),
            "law": [float(f"{value:.4g}") for value in five],
            "error_percent": round(error, 1),
        }
        print(op, json.dumps(found[op]), flush=True)
    found["argmax"] = argmax_summary()
    print("argmax", json.dumps(found["argmax"]))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
