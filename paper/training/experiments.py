"""Every figure of docs/paper.md as a named experiment: rows, a way to predict them, and a score."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from paper import KERNELS
from paper.demand import MEMORY, TENSOR, Array
from paper.training import baselines, collectives, export, mlp, neusight, public
from paper.training.rows import SEED, SEEN, Rows, Split, fp8_split, moe_rows, split_by_shape
from paper.training.score import coverage, errors, score

Result = dict[str, Any]
Experiment = Callable[[Path, Path], Result]
ALL_FEATURES = KERNELS["gemm_fp8"].order  # the same eleven for fused_moe
SEEDS = (SEED, 1, 2)
MODEL_SHAPE = ("experts", "topk", "hidden", "inter")


def moe_split(data: Path) -> Split:
    """A fifth of the shapes held out; train on the six seen GPUs, test on all eleven."""
    split = split_by_shape(moe_rows(data), ("tokens", *MODEL_SHAPE))
    return Split(split.train.on(SEEN), split.test)


def moe_model_split(data: Path) -> Split:
    """Whole model shapes held out (3 of 16), which no published figure does."""
    split = split_by_shape(moe_rows(data), MODEL_SHAPE)
    return Split(split.train.on(SEEN), split.test)


def moe_all_gpus_split(data: Path) -> Split:
    """The quantile study's rows, all eleven GPUs, with a fifth of the shapes held out."""
    return split_by_shape(moe_rows(data), ("tokens", *MODEL_SHAPE))


def pipeweave(rows: Callable[[Path], Split], data: Path, weights: Path) -> Result:
    """The published estimator, shipped. Of three seeds the one with the least validation loss; no test row chooses."""
    split = rows(data)
    fits = [mlp.fit(split.train, ALL_FEATURES, seed=seed) for seed in SEEDS]
    best = min(fits, key=lambda fitted: fitted.loss)
    result = _result(split, best.perf(split.test)) | _origin(best)
    result["seeds"] = [_origin(fitted) | _groups(score(split.test, fitted.perf(split.test))) for fitted in fits]
    export.save_mlp(best, split.train.kernel, "mean", weights, {"trained on": _describe(split)} | result)
    return result


def one_seed(rows: Callable[[Path], Split], features: tuple[str, ...], data: Path, _weights: Path) -> Result:
    """The published training on some of the features, or on other rows, from the published seed."""
    split = rows(data)
    fitted = mlp.fit(split.train, features)
    return _result(split, fitted.perf(split.test)) | _origin(fitted) | {"features": len(features)}


def on_public_rows(kernel: str, data: Path, weights: Path) -> Result:
    """The published recipe on rows of another origin; every GPU is in training, whole groups are held out."""
    split = public.split(kernel, data)
    fitted = mlp.fit(split.train, KERNELS[kernel].order)
    predicted = fitted.perf(split.test)
    scores = {gpu: errors(split.test.perf[at], predicted[at]) for gpu, at in _by_gpu(split.test)}
    result: Result = {"train_rows": len(split.train), "test_rows": len(split.test), "epoch": fitted.epoch}
    result["scores"] = {"all rows": errors(split.test.perf, predicted)} | scores
    export.save_mlp(fitted, kernel, "public", weights, {"trained on": public.ORIGIN[kernel]} | result)
    return result


def p80(rows: Callable[[Path], Split], ship: bool, data: Path, weights: Path) -> Result:
    """The published quantile model, scored on what it has not seen too."""
    split = rows(data)
    fitted = mlp.fit(split.train, ALL_FEATURES, mlp.P80)
    result: Result = {
        "train_rows": len(split.train),
        "test_rows": len(split.test),
        "epoch": fitted.epoch,
        "coverage in sample": coverage(split.train, fitted.perf(split.train)),
        "coverage out of sample": coverage(split.test, fitted.perf(split.test)),
    }
    if ship:
        export.save_mlp(fitted, split.train.kernel, "p80", weights, {"trained on": _describe(split)} | result)
    return result


def baseline(
    rows: Callable[[Path], Split], latency_us: Callable[[Rows, Rows], Array], data: Path, _weights: Path
) -> Result:
    """A method that answers latencies: (train rows, test rows) -> µs."""
    split = rows(data)
    test = split.test
    return _result(split, test.perf * test.latency_us / latency_us(split.train, test))


def random_forests(data: Path, weights: Path) -> Result:
    """Collectives, a fifth of the sizes held out; the shipped step functions come from all rows."""
    known = collectives.messages(data)
    result = {f"{one.primitive} {one.gpu}": collectives.score(one) for one in known}
    card = {"trained on": "all rows of each GPU and primitive, mean time", "held-out sizes (percent)": result}
    export.save_collectives(known, weights, card)
    return result


def _by_gpu(rows: Rows) -> list[tuple[str, np.ndarray]]:
    return [(gpu, rows.gpu == gpu) for gpu in np.unique(rows.gpu).tolist()]


def _roofline(_train: Rows, test: Rows) -> Array:
    return baselines.roofline_us(test)


def _result(split: Split, predicted: Array) -> Result:
    return {"train_rows": len(split.train), "test_rows": len(split.test), "scores": score(split.test, predicted)}


def _origin(fitted: mlp.Fitted) -> Result:
    return {"seed": fitted.seed, "epoch": fitted.epoch, "validation_loss": round(fitted.loss, 5)}


def _groups(scores: Result) -> Result:
    return {name: scores[name] for name in ("seen GPUs", "unseen GPUs")}


def _describe(split: Split) -> str:
    return f"{len(split.train)} rows on {', '.join(sorted(set(split.train.gpu.tolist())))}"


EXPERIMENTS: dict[str, Experiment] = {"collectives_random_forest": random_forests}
for _name, _rows in (("fp8", fp8_split), ("moe", moe_split)):
    EXPERIMENTS |= {
        f"{_name}_pipeweave": partial(pipeweave, _rows),
        f"{_name}_without_memory": partial(one_seed, _rows, TENSOR),
        f"{_name}_without_math": partial(one_seed, _rows, MEMORY),
        f"{_name}_roofline": partial(baseline, _rows, _roofline),
        f"{_name}_linear": partial(baseline, _rows, baselines.linear_us),
        f"{_name}_neusight": partial(baseline, _rows, neusight.fit_predict_us),
    }
EXPERIMENTS |= {
    "moe_pipeweave_unseen_models": partial(one_seed, moe_model_split, ALL_FEATURES),
    "fp8_p80": partial(p80, fp8_split, True),
    "moe_p80": partial(p80, moe_all_gpus_split, True),
    "moe_p80_seen_gpus": partial(p80, moe_split, False),
    **{f"public_{kernel}": partial(on_public_rows, kernel) for kernel in public.ORIGIN},
}
