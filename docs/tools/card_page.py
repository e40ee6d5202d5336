"""`python -m docs.tools.card_page H200` writes docs/h200.md: peaks, spread, noise, protocols from our rows of a card.

The text is docs/tools/pages/card_h200.md; figures need the `plot` extra. Errors of predictions made before any row of
the card was in training come from `studies.card_blind`.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

import pipewave as pw
from docs.tools.card_noise import call, cold
from docs.tools.card_noise import table as noise
from pipewave.measure.plan import PAGE_ORDERS as ORDERS
from pipewave.measure.row_files import clock_mhz, rows
from studies.counters import compare
from studies.counters import rows as counter_rows

matplotlib.use("svg")
from matplotlib import pyplot as plt

ROOT = Path(__file__).resolve().parents[2]
DATA, PAGES, DOCS = ROOT / "data" / "measured", ROOT / "docs" / "tools" / "pages", ROOT / "docs"
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666")
Row = dict[str, Any]


def table(found: Sequence[Mapping[str, object]]) -> str:
    """Markdown, columns from the first row."""
    names = list(found[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return "\n".join([*lines, *("| " + " | ".join(_text(row[name]) for name in names) + " |" for row in found)])


def _text(value: object) -> str:
    if not isinstance(value, float):
        return "–" if value is None else str(value)
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def peaks(card: str, reached: Mapping[str, Any]) -> list[Row]:
    """Datasheet, burst and sustained of every rate."""
    gpu = pw.find(card)
    found: list[Row] = []
    for dtype in ("bf16", "fp16", "fp8", "tf32"):
        sheet = float(getattr(gpu, f"{dtype}_tflops"))
        burst, held = reached[f"{dtype}_burst_tflops"], reached[f"{dtype}_sustained_tflops"]
        found.append(_peak(f"{dtype} tensor, TFLOP/s", sheet, burst, held, reached[f"{dtype}_sustained_clock_mhz"]))
    found += [
        _peak(f"DRAM {kind}, GB/s", float(gpu.dram_gbps), reached[f"dram_{kind}_gbps"], None, None)
        for kind in ("read", "copy", "write")
    ]
    found.append(_peak("L2 copy, GB/s", None, reached["l2_copy_gbps"], None, None))
    return found


def _peak(name: str, sheet: float | None, burst: float, held: float | None, clock: float | None) -> Row:
    return {
        "rate": name, "datasheet": sheet, "burst": burst, "sustained": held,
        "share reached": f"{100 * (held or burst) / sheet:.0f} %" if sheet else None,
        "clock, MHz": float(clock) if clock else None,
    }  # fmt: skip


def spread(found: Iterable[Row]) -> list[Row]:
    """Quartiles of (max - min) / median by latency."""
    edges = (0, 5, 20, 100, 1000, np.inf)
    timed = [row for row in found if row["protocol"] == "cold" and "max_us" in row]
    out = []
    for low, high in pairwise(edges):
        shares = [_spread(row) for row in timed if low <= row["latency_us"] < high]
        quarter, half, most = np.percentile(shares, (25, 50, 90))
        name = f"{low:g} to {high:g}" if np.isfinite(high) else f"over {low:g}"
        out.append({"latency, µs": name, "rows": str(len(shares)), "25 %": f"{100 * quarter:.1f} %",
                    "median": f"{100 * half:.1f} %", "90 %": f"{100 * most:.1f} %"})  # fmt: skip
    return out


def _spread(row: Row) -> float:
    return float((row["max_us"] - row["min_us"]) / row["latency_us"])


def pairs(base: Iterable[Row], others: Iterable[Row]) -> dict[str, list[tuple[float, float]]]:
    """(cold with a write flush, the other way) of the same calls in the same run, by family."""
    first = cold(base)
    out: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for key, row in ((call(row), row) for row in others):
        if key in first:
            out[row["case"]["kernel"]].append((first[key]["latency_us"], row["latency_us"]))
    return dict(sorted(out.items()))


def ratios(found: Mapping[str, Sequence[tuple[float, float]]], name: str) -> list[Row]:
    """Percentiles of other over cold, one row a family."""
    out = []
    for family, values in found.items():
        first, other = np.array(values).T
        low, half, high = np.percentile(other / first, (10, 50, 90))
        out.append({"family": family, "calls": str(len(first)), f"{name} / cold, median": f"{half:.2f}",
                    "10 %": f"{low:.2f}", "90 %": f"{high:.2f}"})  # fmt: skip
    return out


def counters() -> list[Row]:
    """The comparison of `studies.counters`, columns for reading."""
    return [
        {
            "family": row["family"], "calls": str(row["calls"]), "DRAM": row["DRAM"],
            "DRAM Δ %": row["DRAM, |difference| %"], "whole tiles": row["tensor, whole tiles"],
            "whole tiles Δ %": row["tensor, whole tiles, |difference| %"], "useful": row["tensor, useful"],
        }
        for row in compare(counter_rows())
    ]  # fmt: skip


def draw(
    found: Sequence[Row], loaded: Sequence[Row], graph: Mapping[str, Sequence[tuple[float, float]]], folder: Path
) -> None:
    """The three figures."""
    folder.mkdir(parents=True, exist_ok=True)
    figure, axes = _axes("latency, µs", "SM clock after the kernel, MHz")
    drawn = [("64 calls at a time", loaded, COLORS[1])] * bool(loaded) + [("with rests", found, COLORS[0])]
    for name, some, color in drawn:
        clocked = _some(row for row in some if row["protocol"] == "cold" and row.get("spin_us"))
        latency, clock = np.array([[row["latency_us"], clock_mhz(row)] for row in clocked]).T
        axes.scatter(latency, clock, s=4, alpha=0.35, color=color, label=name, rasterized=True)
    axes.set_xscale("log")
    axes.legend(frameon=False, fontsize=8, markerscale=2, loc="lower right")
    _save(figure, folder / "clock.svg")
    some = _some(row for row in found if row["protocol"] == "cold" and "max_us" in row)
    latency, share = np.array([[row["latency_us"], 100 * _spread(row)] for row in some]).T
    _scatter(folder / "spread.svg", latency, np.maximum(share, 0.1), "latency, µs", "(max − min) / median, %", log="xy")
    figure, axes = _axes("cold latency, µs", "graph / cold")
    for (family, values), color in zip(graph.items(), COLORS, strict=False):
        x, y = np.array(values).T
        axes.scatter(x, y / x, s=5, alpha=0.5, color=color, label=family, rasterized=True)
    axes.set_xscale("log")
    axes.axhline(1, color="#888888", linewidth=0.8)
    axes.legend(frameon=False, fontsize=8, markerscale=2)
    _save(figure, folder / "protocols.svg")


def _some(found: Iterable[Row]) -> list[Row]:
    """4,000 of them, or all."""
    rows_ = list(found)
    return [rows_[i] for i in np.random.default_rng(0).permutation(len(rows_))[:4000]]


def _axes(x: str, y: str) -> tuple[Any, Any]:
    figure, axes = plt.subplots(figsize=(7, 3.4))
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _scatter(path: Path, x: Any, y: Any, x_name: str, y_name: str, *, log: str) -> None:
    figure, axes = _axes(x_name, y_name)
    axes.scatter(x, y, s=4, alpha=0.35, color=COLORS[0], rasterized=True)
    axes.set_xscale("log")
    if "y" in log:
        axes.set_yscale("log")
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Date": None})
    plt.close(figure)


def counts(card: str, found: Sequence[Row], loaded: Sequence[Row]) -> dict[str, str]:
    """How many rows of one card are cold, which share of either set was marked as throttled, and clocks, in words."""
    rested = [row for row in cold(found).values() if "world" not in row["case"]]
    out = {"rested": f"{len(rested):,}"}
    for name, some in [("rested", rested)] + [("loaded", list(loaded))] * bool(loaded):
        out[f"throttled_{name}"] = f"{100 * sum(bool(row.get('throttled')) for row in some) / len(some):.0f} %"
        clock = np.array([clock_mhz(row) for row in some if row.get("spin_us") and row["case"]["kernel"] == "gemm"])
        low, half = np.percentile(clock / pw.find(card).boost_clock_mhz, (10, 50))
        out[f"clock_{name}"] = f"{half:.2f} of boost (median; a tenth below {low:.2f})"
    return out


def ragged(folder: Path) -> dict[str, str]:
    """What the place of the pages costs: the same calls with their pages in every order, over pages in order."""
    places: dict[str, dict[str, float]] = defaultdict(dict)
    for row in rows(folder / "ragged"):
        places[json.dumps(row["case"], sort_keys=True)][row.get("pages", "random")] = row["latency_us"]
    every = [times for times in places.values() if len(times) == len(ORDERS)]
    out = []
    for order in ("random", "scattered"):
        over = np.array([times[order] / times["in_order"] for times in every])
        low, half, high = np.percentile(over, (10, 50, 90))
        out.append({"pages": order, "calls": str(len(over)), "over in order, median": f"{half:.3f}",
                    "10 %": f"{low:.3f}", "90 %": f"{high:.3f}", "mean": f"{over.mean():.3f}"})  # fmt: skip
    return {"ragged": f"{sum(map(len, places.values())):,}", "orders": table(out)}


def blind(card: str) -> dict[str, str]:
    """The table of `studies.card_blind`, as it was committed before rows of the card came into training."""
    found = json.loads((ROOT / "studies" / "results" / f"blind_{card.lower()}.json").read_text())
    shown = [{name: value if isinstance(value, str | float) else str(value) for name, value in line.items()}
             for line in found["calibrated"]]  # fmt: skip
    return {"blind": table(found["rows"]), "weights": found["weights"], "calibrated": table(shown)}


def only_h200() -> dict[str, object]:
    """What no other card has: counters."""
    return {"kernels": sum(len(row["kernels"]) for row in counter_rows()), "counters": table(counters())}


def write(card: str) -> None:
    """Write the page of a card and its figures."""
    name = card.lower()
    folder, page = DATA / name, DOCS / f"{name}.md"
    found = rows(folder)
    loaded = rows(folder / "loaded") if (folder / "loaded").exists() else []
    reached = json.loads((folder / "microbench.json").read_text())
    base = loaded or found  # the same run as the replays
    graph = pairs(base, [row for row in found if row["protocol"] == "graph"])
    read = pairs(base, [row for row in found if row.get("flush") == "read"])
    draw(found, loaded, graph, DOCS / "img" / name)
    text = (PAGES / f"card_{name}.md").read_text(encoding="utf-8").format(
        count=f"{len(found):,}", peaks=table(peaks(card, reached)), noise=table(noise(folder)),
        **counts(card, found, loaded), **(only_h200() if card == "H200" else {}), **ragged(folder), **blind(card),
        spread=table(spread(found)), protocols=table(ratios(graph, "graph")), flush=table(ratios(read, "read flush")),
        **{key: reached["environment"][key] for key in ("driver", "torch", "vllm", "triton")},
        **{key: reached[key] for key in ("empty_kernel_us", "spin_overhead_us")},
    )  # fmt: skip
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:] or ("H200", "H100"):
        plt.rcParams["svg.hashsalt"] = "pipewave"
        write(name)
