"""The loop's tables in Markdown and its figure, which needs the `plot` extra."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from studies.moe_loop.layers import Layer, column

HASH = "pipewave"  # the same figure is the same file
PARTS = ("products", "sum", "activation", "sort")
TUNED, OURS = "#0072b2", "#d55e00"


def markdown(found: Mapping[str, Any]) -> str:
    """The page's tables, each a section that the page takes in by name."""
    groups = found["groups"] | found["tokens"]
    made = {"gaps": _gaps(groups), "gains": _gains(groups), "bins": _bins(found["by_gap"]),
            "separation": _separation(found), "parts": _parts(found["parts"])}  # fmt: skip
    marked = (
        f"<!-- --8<-- [start:{name}] -->\n{table}\n<!-- --8<-- [end:{name}] -->\n" for name, table in made.items()
    )
    return "\n".join(marked)


def _table(head: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in (head, ["---"] * len(head), *lines))


def _gaps(groups: Mapping[str, Any]) -> str:
    head = ("layers", "number", "vLLM's default", "vLLM as served", "its kernel, our choice", "our layer")
    lines = [(name, part["layers"], *(f"{100 * gap:+.1f} %" for gap in part["mean_gap"].values()))
             for name, part in groups.items()]  # fmt: skip
    return _table(head, lines)


def _gains(groups: Mapping[str, Any]) -> str:
    head = ("layers", "its kernel, our choice", "our layer", "its products alone", "our layer over vLLM as served",
            "slower: choice, worst", "slower: our layer, worst")  # fmt: skip
    lines = []
    for name, part in groups.items():
        over = part["over_default"]
        fast = (over["tuned"], over["ours"], part["products"], part["over_served"]["ours"])
        ups = (f"{of['geomean']:.2f} / {of['median']:.2f} / {of['max']:.2f}" for of in fast)
        lines.append((name, *ups, _slower(over["tuned"]), _slower(over["ours"])))
    return _table(head, lines)


def _slower(of: Mapping[str, float]) -> str:
    return f"{of['slower']}, {of['min']:.2f} ×" if of["slower"] else "0"


def _bins(bins: Sequence[Mapping[str, float]]) -> str:
    head = ("gap of vLLM as served", "layers", "tokens, median", "its kernel, our choice", "our layer", "at best")
    lines = [(f"{100 * part['from']:+.1f} to {100 * part['to']:+.1f} %", part["layers"], f"{part['median_tokens']:.0f}",
              *(f"{part[name]:.2f} ×" for name in ("tuned", "ours", "most"))) for part in bins]  # fmt: skip
    return _table(head, lines)


def _separation(found: Mapping[str, Any]) -> str:
    head = ("layers", *(f"{what}, {kind}" for what in ("choice", "our layer")
                        for kind in ("flag r", "gap r", "gap ρ")))  # fmt: skip
    every = {"all": found["separation"]} | found["separation_by_tokens"]
    return _table(head, [(name, *(_signed(way[kind]) for way in part.values() for kind in ("flag", "gap", "gap_rank")))
                         for name, part in every.items()])  # fmt: skip


def _parts(by_tokens: Mapping[str, Any]) -> str:
    head = ("layers", *(f"{name}, %" for name in PARTS), "speed-up", "room")
    lines = [(name, *(f"{100 * part['default_parts'][of]:.0f} → {100 * part['our_parts'][of]:.0f}" for of in PARTS),
              f"{part['ours']:.2f} ×", f"{part['room']:.2f} ×") for name, part in by_tokens.items()]  # fmt: skip
    return _table(head, lines)


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.2f}"


def plot(of: Sequence[Layer], path: Path) -> None:
    """Draw the gain against the gap, and the speed-up against tokens."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    with plt.rc_context({"svg.hashsalt": HASH, "svg.fonttype": "path", "axes.spines.top": False,
                         "axes.spines.right": False}):  # fmt: skip
        figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained")
        _gap_and_gain(figure, left, of)
        _by_tokens(right, of)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def _gap_and_gain(figure: Any, axes: Any, of: Sequence[Layer]) -> None:
    gap = 100 * (column(of, lambda layer: layer.served / layer.ceiling) - 1)
    gain = column(of, lambda layer: layer.served / layer.ours)
    dots = axes.scatter(gap, gain, c=np.log2(column(of, "m")), s=9, cmap="viridis")
    axes.axvline(0, color="#888888", linewidth=0.8)
    axes.axhline(1, color="#888888", linewidth=0.8)
    axes.set(xlabel="vLLM as served above its ceiling, %", ylabel="our layer, × over vLLM as served")
    bar = figure.colorbar(dots, ax=axes, label="tokens", ticks=[0, 4, 8, 12])
    bar.ax.set_yticklabels(["1", "16", "256", "4096"])


def _by_tokens(axes: Any, of: Sequence[Layer]) -> None:
    m = column(of, "m")
    for name, color, label in (("tuned", TUNED, "its kernel, our choice"), ("ours", OURS, "our layer")):
        axes.scatter(m, column(of, "default") / column(of, name), s=8, alpha=0.7, color=color, label=label)
    axes.axhline(1, color="#888888", linewidth=0.8)
    axes.set(xscale="log", xlabel="tokens", ylabel="× over vLLM's default configuration")
    axes.legend(frameon=False, fontsize=8, loc="upper right")
