"""Errors as the paper reports them (on efficiency) and as users feel them (on latency)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paper.demand import Array
from paper.training.rows import SEEN, Rows

Scores = dict[str, dict[str, float]]


def score(rows: Rows, predicted_perf: Array) -> Scores:
    """Percent errors per GPU, over all rows, and the means over seen and unseen GPUs."""
    table = {gpu: errors(rows.perf[rows.gpu == gpu], predicted_perf[rows.gpu == gpu]) for gpu in np.unique(rows.gpu)}
    seen = [row for gpu, row in table.items() if gpu in SEEN]
    unseen = [row for gpu, row in table.items() if gpu not in SEEN]
    summary = {"all rows": errors(rows.perf, predicted_perf)}
    for name, group in (("seen GPUs", seen), ("unseen GPUs", unseen)):
        if group:
            summary[name] = {key: round(float(np.mean([row[key] for row in group])), 2) for key in group[0]}
    return summary | table


def errors(perf: Array, predicted: Array) -> dict[str, float]:
    """MAPE on efficiency and on latency, median and signed mean of the latency error; all in percent."""
    latency_ratio = perf / predicted - 1
    values = {
        "efficiency_mape": np.mean(np.abs(predicted / perf - 1)),
        "latency_mape": np.mean(np.abs(latency_ratio)),
        "latency_median": np.median(np.abs(latency_ratio)),
        "latency_bias": np.mean(latency_ratio),
    }
    return {key: round(100 * float(value), 2) for key, value in values.items()}


def coverage(rows: Rows, predicted_perf: Array) -> dict[str, float]:
    """Percent of rows whose measured efficiency does not exceed the predicted one, per GPU and over all."""
    below: NDArray[np.bool_] = rows.perf <= predicted_perf
    share = {"all rows": below.mean()} | {gpu: below[rows.gpu == gpu].mean() for gpu in np.unique(rows.gpu).tolist()}
    return {name: round(100 * float(value), 2) for name, value in share.items()}
