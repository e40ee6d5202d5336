"""Ceilings held to their word: what a low-quantile net must be moved by so that four held-out rows in five are slower.

Each fold is judged with the shifts of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from pipewave.nets.nets import Ceiling
from train.intervals import balance
from train.rows import Floats, Ints, Rows
from train.run import Predictions, load_predictions
from train.splits import UNSEEN, by_name
from train.two_levels import weighted_quantile

QUANTILE = 0.2
ENOUGH_ROWS, ENOUGH_GROUPS = 300, 12  # of one GPU under one protocol for a shift of its own
Excess = tuple[Ints, Floats]  # rows, and log measured over the net's answer


def excess(rows: Rows, predictions: Predictions) -> dict[str, Excess]:
    """Of each fold's rows, how far above the net's answer they lie."""
    found = {}
    for name, (mean, _) in predictions.items():
        if name.startswith("fold:"):
            index = by_name(name, rows).score
            found[name] = (index, rows.residual[index] - mean)
    return found


def shifts(rows: Rows, parts: Iterable[Excess]) -> dict[str, float]:
    """Shift of each protocol, GPUs counting alike, and of each `protocol|gpu` with enough rows; {} without parts."""
    joined = list(parts)
    if not joined:
        return {}
    index = np.concatenate([index for index, _ in joined])
    above = np.concatenate([above for _, above in joined])
    gpu, protocol = (rows.columns[name].codes[index] for name in ("gpu", "protocol"))
    found = {"": weighted_quantile(above, balance(gpu), QUANTILE)}
    for code in np.unique(protocol):
        name, mine = rows.columns["protocol"].values[code], protocol == code
        found[name] = weighted_quantile(above[mine], balance(gpu[mine]), QUANTILE)
        for card in np.unique(gpu[mine]):
            own = mine & (gpu == card)
            if own.sum() >= ENOUGH_ROWS and len(np.unique(rows.group[index[own]])) >= ENOUGH_GROUPS:
                found[f"{name}|{rows.columns['gpu'].values[card]}"] = float(np.quantile(above[own], QUANTILE))
    return {key: round(value, 4) for key, value in found.items()}


def shipped_shifts(rows: Rows, predictions: Predictions) -> dict[str, float]:
    """What a card carries: from all folds but the one that shipped weights are scored on."""
    return shifts(rows, [part for name, part in excess(rows, predictions).items() if name != UNSEEN])


def slower(rows: Rows, predictions: Predictions) -> dict[str, tuple[int, float]]:
    """Rows and share in % slower than the ceiling, per GPU, each fold with the shifts of the others."""
    parts = excess(rows, predictions)
    index, above = [], []
    for name, (mine, own) in parts.items():
        others = shifts(rows, [part for other, part in parts.items() if other != name])
        index.append(mine)
        above.append(own - _shift(rows, mine, others))
    if not index:
        return {}
    at, over = np.concatenate(index), np.concatenate(above)
    gpu = rows.columns["gpu"].text()[at]
    of_gpu = {str(card): over[gpu == card] > 0 for card in np.unique(gpu)}
    return {card: (len(each), round(100.0 * float(each.mean()), 2)) for card, each in of_gpu.items()}


def _shift(rows: Rows, index: Ints, known: Mapping[str, float]) -> Floats:
    """The most specific shift for each row, as the estimator looks it up."""
    texts = [rows.columns[name].text()[index].tolist() for name in ("protocol", "gpu")]
    return np.array([Ceiling.most_specific(known, protocol, gpu) for protocol, gpu in zip(*texts, strict=True)])


def report(rows: Rows, run: Path) -> dict[str, dict[str, float]]:
    """Print the share of rows slower than the ceiling per GPU, and return it."""
    found = slower(rows, load_predictions(run))
    for gpu, (count, share) in found.items():
        print(f"{gpu:24} {count:8,} rows {share:6.1f} % slower")
    return {gpu: {"rows": count, "slower": share} for gpu, (count, share) in found.items()}
