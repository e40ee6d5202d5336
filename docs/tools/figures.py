"""Draw the pages' figures from real predictions and rows: `python -m docs.tools.figures` writes docs/img/*.svg."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

import pipewave as pw
from docs.tools.session import ROOT
from pipewave.calls.families import Call, Gemm
from pipewave.measure import rows
from pipewave.physics.demand import Array
from pipewave.physics.overlap import waves
from pipewave.prediction.api import answer_one

FOLDER = ROOT / "docs" / "img"
GPU = "H200"
SHOWN_ROWS = 6  # thousands of dots make a large file
# Okabe and Ito's colours, which people with any colour vision tell apart.
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#777777"
plt.rcParams |= {
    "svg.hashsalt": "pipewave",  # the same figure is the same file
    "svg.fonttype": "path",  # no fonts are looked for where it is read
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "axes.axisbelow": True,
    "legend.frameon": False,
}


def _canvas(**setting: Any) -> tuple[Figure, Any]:
    figure, axes = plt.subplots(layout="constrained", **setting)
    return figure, axes


def measured(n: int | None = None, k: int | None = None) -> tuple[list[Gemm], Array]:
    """Our cold bf16 products (of one weight shape, where given) and their latencies in µs."""
    found = [row for row in rows(ROOT / "data" / "measured" / "h200" / "gemm.json.gz") if _plain(row["case"], row)]
    chosen = [r for r in found if (n in (None, r["case"]["n"])) and (k in (None, r["case"]["k"]))]
    calls = [pw.gemm(r["case"]["m"], r["case"]["n"], r["case"]["k"]) for r in chosen]
    return calls, np.array([r["latency_us"] for r in chosen], float)


def _plain(case: dict[str, Any], row: dict[str, Any]) -> bool:
    usual = row["impl"] == "cublas" and row["protocol"] == "cold" and row.get("flush", "write") == "write"
    return bool(usual and case.get("dtype", "bf16") == "bf16")


def staircase() -> Figure:
    """Latency of a product against its rows: floor, interval, prediction, measured."""
    n = k = 4096
    m = np.unique(np.concatenate([np.arange(1, 2049, 8), [2048]]))
    answers = pw.predict({"kernel": "gemm", "m": m, "n": n, "k": k}, GPU)
    figure, axes = _canvas(figsize=(7.6, 4.0))
    axes.fill_between(m, answers.low_us, answers.high_us, color=BLUE, alpha=0.18, lw=0, label="90 % interval")
    axes.plot(m, answers.latency_us, color=BLUE, lw=1.6, label="predicted")
    axes.plot(m, answers.ceiling_us, color=GREEN, lw=1.0, ls="--", label="ceiling")
    axes.plot(m, answers.floor_us, color=GREY, lw=1.2, label="floor")
    _dots(axes, n, k, m[-1])
    axes.set(xlabel="m, tokens", ylabel="µs", title=f"y[m, {n}] = x[m, {k}] · Wᵀ, bf16, {GPU}, cold", xlim=(0, m[-1]))
    axes.set_ylim(0)
    axes.legend(loc="upper left")
    return figure


def _dots(axes: Any, n: int, k: int, most: int) -> None:
    calls, latency_us = measured(n, k)
    at = np.array([call.m for call in calls])
    axes.scatter(at[at <= most], latency_us[at <= most], color=RED, s=26, zorder=3, label="measured")


def roofline() -> Figure:
    """Rate against intensity: every measured product, the roofline, and predictions along one weight shape."""
    calls, latency_us = measured()
    gpu = pw.find(GPU)
    figure, axes = _canvas(figsize=(7.6, 4.4))
    label = f"measured, every {SHOWN_ROWS}th of {len(calls):,} products"
    axes.scatter(*_rates(calls[::SHOWN_ROWS], latency_us[::SHOWN_ROWS]), s=6, color=GREY, alpha=0.45, lw=0, label=label)
    intensity = np.geomspace(0.5, 6000, 200)
    roof = np.minimum(intensity * gpu.dram_gbps / 1e3, gpu.peak_flops("bf16") / 1e12)
    axes.plot(intensity, roof, color="black", lw=1.4, label="roofline, datasheet")
    line = [pw.gemm(int(m), 8192, 8192) for m in np.unique(np.geomspace(1, 16384, 90).astype(int))]
    answers = pw.predict(line, GPU)
    axes.plot(*_rates(line, answers.latency_us), color=BLUE, lw=1.8, label="predicted, n = k = 8192")
    axes.plot(*_rates(line, answers.floor_us), color=BLUE, lw=1.0, ls=":", label="its floor")
    labels = {"xlabel": "FLOP per byte of operands and result", "ylabel": "TFLOP/s"}
    axes.set(xscale="log", yscale="log", ylim=(0.2, 1500), **labels, title=f"bf16 products on an {GPU}, cold L2")
    axes.legend(loc="lower right")
    return figure


def _rates(calls: list[Gemm], latency_us: Array) -> tuple[Array, Array]:
    shape = np.array([(c.m, c.n, c.k) for c in calls], float)
    m, n, k = shape.T
    flops = 2 * m * n * k
    return flops / (2 * (m * k + n * k + m * n)), flops / latency_us / 1e6


def stages() -> Figure:
    """What each stage adds for four calls, in multiples of the floor."""
    calls: dict[str, Call] = {
        "product, m = 4096": pw.gemm(4096, 4096, 4096),
        "product, m = 64": pw.gemm(64, 4096, 14336),
        "prompt attention, 2 × 4096": pw.attention([4096] * 2, [4096] * 2, 32, 8),
        "decode attention, 32 × 2048": pw.attention([1] * 32, [2048] * 32, 32, 8),
    }
    figure, axes = _canvas(figsize=(7.6, 3.4))
    floors: dict[str, float] = {}
    for row, (name, call) in enumerate(calls.items()):
        batch = answer_one(call, pw.find(GPU), "cold")
        latency, low, high, floor, _ceiling = batch.seconds[:, 0] / batch.seconds[3, 0]
        floors[name] = batch.seconds[3, 0] * 1e6
        base = float(batch.analysis.base_s[0] / batch.seconds[3, 0])
        axes.plot([low, high], [row, row], color=BLUE, alpha=0.3, lw=9, solid_capstyle="butt")
        axes.plot(floor, row, "|", color="black", ms=16, mew=2)
        axes.plot(base, row, "D", color=ORANGE, ms=7)
        axes.plot(latency, row, "o", color=BLUE, ms=7)
    axes.set_yticks(range(len(calls)), [f"{name}\nfloor {floor_us:.3g} µs" for name, floor_us in floors.items()])
    axes.set(xlabel="multiples of the floor", ylim=(len(calls) - 0.4, -1.6), xlim=(0.95, None))
    marks = ("90 % interval", "floor", "physical estimate", "after the learned residual")
    axes.legend(axes.lines[:4], marks, loc="upper center", ncols=2, fontsize=9)
    return figure


def wave_charts() -> Figure:
    """Equal tiles on eight SMs: two full waves, and one tile more."""
    figure, pair = _canvas(ncols=2, figsize=(7.6, 2.6), sharey=True)
    for axes, tiles in zip(pair, (16, 17), strict=True):
        count = int(waves(tiles / 8))
        for tile in range(tiles):
            axes.barh(tile % 8, 0.96, left=tile // 8, height=0.8, color=BLUE if tile < 16 else RED)
        axes.set(title=f"{tiles} tiles: {count} waves", xlim=(0, 3), xticks=range(4), xlabel="time, in tiles")
        axes.set_yticks([])
    pair[0].set_ylabel("8 SMs")
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {
    "staircase": staircase,
    "roofline": roofline,
    "stages": stages,
    "waves": wave_charts,
}


def main() -> None:
    """Write every figure."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in FIGURES.items():
        draw().savefig(FOLDER / f"{name}.svg", metadata={"Date": None})
        plt.close("all")


if __name__ == "__main__":
    main()
