"""Errors of held-out rows per GPU × stack × dtype, and coverage.

Predictions are `(log residual, scale)` of the rows each split scores, as `train.fit` writes them. Latency errors are
|predicted - measured| / measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from pipewave.prediction.kernel_latency import WIDEST
from train.corrected import averaged, corrected
from train.intervals import Flags, Held, held, widths
from train.rows import Floats, Rows
from train.run import Predictions, Run, Scored, load_predictions
from train.splits import meet

OFF = float(np.log(1.5))


@dataclass(frozen=True, slots=True)
class Errors:
    """Percentages: mean, median and signed mean relative error, rows off by 1.5x or more, rows inside the interval,
    median width of the interval over the prediction.
    """

    rows: int
    mape: float
    median: float
    bias: float
    off: float
    coverage: float
    width: float


def errors(log_error: Floats, half: Floats) -> Errors:
    """Figures of `log_error` = log predicted - log measured; coverage is NaN where there are no intervals."""
    relative = np.expm1(log_error)
    figures = (np.abs(relative).mean(), np.median(np.abs(relative)), relative.mean(), (np.abs(log_error) > OFF).mean())
    inside = np.where(np.isnan(half), np.nan, np.abs(log_error) <= half).mean()
    width = np.median(2.0 * np.sinh(np.minimum(half, WIDEST)))
    return Errors(len(log_error), *(round(100 * float(value), 3) for value in (*figures, inside, width)))


def scored(
    kind: str, rows: Rows, predictions: Predictions, keep: Flags | None = None, _members: Run | None = None
) -> list[Scored]:
    """The splits of a kind, each with the intervals that its sisters call for (never its own rows).

    `keep` chooses among the rows that count; the intervals rest on all, as the shipped ones do. `members` are for
    corrections, which look into the nets.
    """
    parts, found = held_out(rows, {name: one for name, one in predictions.items() if _few(name) == _few(kind)}), []
    for name in (name for name in parts if name.partition(":")[0] == kind):
        index, kept = parts[name].index, np.ones(len(rows), bool) if keep is None else keep
        at = np.flatnonzero(kept[index])
        if len(at):
            found.append(Scored(name, index[at], predictions[name][0][at], widths(name, parts)[at]))
    return found


def _few(name: str) -> bool:
    """Draws of a few rows answer for one another, and no other splits do."""
    return name.partition(":")[0] == "few"


def held_out(rows: Rows, predictions: Predictions) -> dict[str, Held]:
    """Rows of every split that is there to be scored; the shipped members score a fold of which there are others, and
    what is wrong of a version that a member does not know says nothing of those it knows.
    """
    kept = {name: one for name, one in predictions.items() if name.partition(":")[0] not in ("ship", "ver")}
    return {name: held(name, mean, scale, rows) for name, (mean, scale) in kept.items()}


def table(parts: Sequence[Scored], rows: Rows, by: Sequence[str]) -> dict[str, Errors]:
    """Errors of each cell, for example `H200 · vllm-0.24.0 · bf16`; draws of one cell answer with their median draw."""
    cells: dict[str, list[Errors]] = {}
    for draw in _draws(parts):
        for cell, figures in _cells(draw, rows, by).items():
            cells.setdefault(cell, []).append(figures)
    ranked = {cell: sorted(draws, key=lambda figures: figures.mape) for cell, draws in sorted(cells.items())}
    return {cell: draws[len(draws) // 2] for cell, draws in ranked.items()}


def _draws(parts: Sequence[Scored]) -> list[list[Scored]]:
    """All parts together, but for repeated draws of a few rows: then one list a draw."""
    numbers = sorted({part.name.rpartition(":")[2] if part.name.startswith("few:") else "" for part in parts})
    return [[part for part in parts if not number or part.name.endswith(f":{number}")] for number in numbers]


def _cells(parts: Sequence[Scored], rows: Rows, by: Sequence[str]) -> dict[str, Errors]:
    index = np.concatenate([part.index for part in parts])
    log_error = np.concatenate([part.mean - rows.residual[part.index] for part in parts])
    half = np.concatenate([part.half for part in parts])
    text = [rows.columns[name].text()[index] for name in by]
    labels = np.array([" · ".join(map(str, values)) for values in zip(*text, strict=True)])
    return {str(label): errors(log_error[labels == label], half[labels == label]) for label in np.unique(labels)}


def macro(cells: Mapping[str, Errors]) -> Errors:
    """Plain mean over cells (over GPUs, when the cells are GPUs)."""
    if not cells:
        return Errors(0, *[float("nan")] * 6)
    figures = np.array([list(asdict(cell).values())[1:] for cell in cells.values()])
    return Errors(sum(cell.rows for cell in cells.values()), *(round(float(v), 3) for v in _means(figures)))


def _means(figures: Floats) -> list[float]:
    """Mean of each column over the cells that have it."""
    return [
        float(np.mean(column[np.isfinite(column)])) if np.isfinite(column).any() else np.nan for column in figures.T
    ]


def formatted(title: str, cells: Mapping[str, Errors]) -> str:
    """A fixed-width table with the macro mean in its last line."""
    shown = {**cells, "macro mean": macro(cells)}
    width = max(len(title), *map(len, shown))
    lines = [
        f"{title:{width}} {'rows':>8} {'MAPE':>6} {'median':>6} {'bias':>6} {'>1.5x':>6} {'cover':>6} {'width':>6}"
    ]
    for cell, e in shown.items():
        numbers = f"{e.mape:6.2f} {e.median:6.2f} {e.bias:6.2f} {e.off:6.2f} {e.coverage:6.1f} {e.width:6.1f}"
        lines.append(f"{cell:{width}} {e.rows:8,} {numbers}")
    return "\n".join(lines)


KINDS: Mapping[str, tuple[str, Callable[..., list[Scored]]]] = {
    "fold": ("unseen shapes", partial(scored, "fold")),
    "logo": ("unseen GPU", partial(scored, "logo")),
    "lofo": ("unseen family", partial(scored, "lofo")),
    "few": ("unseen family, 100 rows in training", partial(scored, "few")),
    "corrected": ("unseen family, corrected by 100 rows", corrected),
    "averaged": ("unseen family, 100 rows in training and correcting", averaged),
}


def report(
    rows: Rows, run: Path, by: Sequence[str] = ("gpu",), where: Sequence[str] = ()
) -> dict[str, dict[str, dict[str, float | None]]]:
    """Print what members of a run say of rows that meet all conditions, and return the figures by kind of split."""
    predictions, keep, found = load_predictions(run), meet(rows, where), {}
    members = Run.read(run) if (run / "weights.npz").exists() else None  # trees have none
    for kind, (title, score) in KINDS.items():
        if parts := score(rows, predictions, keep, members):
            cells = table(parts, rows, by)
            print(formatted(title, cells) + "\n")
            found[kind] = {cell: figures(e) for cell, e in {**cells, "macro mean": macro(cells)}.items()}
    return found


def figures(cell: Errors) -> dict[str, float | None]:
    """Figures as JSON takes them: null for what cannot be had."""
    return {name: value if np.isfinite(value) else None for name, value in asdict(cell).items()}
