"""Figures of docs/accuracy.md; need the `plot` extra."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from pipewave.physics.demand import Array

matplotlib.use("svg")
from matplotlib import pyplot as plt

FIGURES = Path(__file__).resolve().parents[2] / "docs" / "img" / "accuracy"
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666")
EDGES_US = (0, 3, 10, 30, 100, 300, 1000, 10_000, np.inf)
Pairs = Mapping[str, tuple[Array, Array]]  # family → measured and predicted µs
MOST_DOTS = 2500


def scatter(found: Pairs, name: str) -> None:
    """Predicted over measured against measured, one colour a family."""
    figure, axes = _axes("measured, µs", "predicted / measured")
    for (family, (measured, answered)), color in zip(found.items(), COLORS, strict=False):
        some = np.random.default_rng(0).permutation(len(measured))[:MOST_DOTS]
        axes.scatter(
            measured[some], (answered / measured)[some], s=3, alpha=0.4, color=color, label=family, rasterized=True
        )
    axes.set(
        xscale="log",
        yscale="log",
        ylim=(0.5, 2.0),
        yticks=(0.5, 0.8, 1, 1.25, 2),
        yticklabels=("0.5", "0.8", "1", "1.25", "2"),
    )
    axes.minorticks_off()
    axes.axhline(1, color="#888888", linewidth=0.8)
    axes.legend(frameon=False, fontsize=8, markerscale=3, ncols=2)
    _save(figure, name)


def by_size(found: Pairs) -> dict[str, list[dict[str, Any]]]:
    """Rows and mean error in % of each range of measured latency, family by family."""
    out = {}
    for family, (measured, answered) in found.items():
        error = np.abs(answered / measured - 1)
        within = [(low, high, (measured >= low) & (measured < high)) for low, high in pairwise(EDGES_US)]
        out[family] = [
            {"from_us": low, "rows": int(mine.sum()), "mape": round(100 * float(error[mine].mean()), 2)}
            for low, _, mine in within
            if mine.sum() >= 20
        ]
    return out


def sizes(found: Mapping[str, Sequence[Mapping[str, Any]]], name: str) -> None:
    """Mean error against latency."""
    figure, axes = _axes("measured latency from, µs", "mean error, %")
    for (family, bins), color in zip(found.items(), COLORS, strict=False):
        axes.plot(
            [max(b["from_us"], 1) for b in bins],
            [b["mape"] for b in bins],
            "o-",
            color=color,
            label=family,
            ms=3,
            lw=1.2,
        )
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8, ncols=2)
    _save(figure, name)


def versions(found: Mapping[str, Sequence[tuple[int, float]]], name: str) -> None:
    """Error against places between the version that was measured and the one asked for."""
    figure, axes = _axes("versions between the one measured and the one asked for", "mean error, %")
    for at, (family, points) in enumerate(found.items()):
        x, y = zip(*sorted(points), strict=True)
        style = "o-" if at < len(COLORS) else "s--"
        axes.plot(x, y, style, color=COLORS[at % len(COLORS)], label=family, ms=4, lw=1.2)
    axes.set(xticks=(0, 1, 2, 3))
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8, ncols=2)
    _save(figure, name)


def calibration(curves: Mapping[str, Sequence[Mapping[str, float]]], name: str) -> None:
    """Error against calibration rows; zero stands at 3 on the logarithmic axis."""
    figure, axes = _axes("own rows of the card", "mean error, %")
    for (net, points), color in zip(curves.items(), COLORS, strict=False):
        x = [max(point["rows"], 3) for point in points]
        axes.plot(x, [point["mape"] for point in points], "o-", color=color, label=net, ms=4)
        axes.fill_between(x, [p["best"] for p in points], [p["worst"] for p in points], color=color, alpha=0.12, lw=0)
    axes.set(xscale="log", xticks=(3, 10, 30, 100, 1000), xticklabels=("0", "10", "30", "100", "1000"))
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)
    _save(figure, name)


def _axes(x: str, y: str) -> tuple[Any, Any]:
    plt.rcParams["svg.hashsalt"] = "pipewave"
    figure, axes = plt.subplots(figsize=(7, 3.4))
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(figure: Any, name: str) -> None:
    FIGURES.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(FIGURES / name, dpi=100, metadata={"Date": None})
    plt.close(figure)
