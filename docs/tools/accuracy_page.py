"""`python -m docs.tools.accuracy_page [--data DIR] [--write]` makes docs/accuracy.md and studies of committed tables.

Our own rows are scored and drawn anew, those of the public corpus with `--data` (else they stay as kept). The texts are
docs/tools/pages/accuracy*.md, bars and others' figures are in docs/tools/pages/accuracy.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from corpus.cases import held_out_rows
from docs.tools import accuracy_plots as plots
from docs.tools import accuracy_tables as tables
from docs.tools import accuracy_versions_tables as versions
from pipewave.files import manifest
from pipewave.physics.demand import Array
from pipewave.prediction.answers import Predictions
from qa.accuracy import ALL, FIGURES, Cells, Key, cases, left_out, own_rows, read, score, write
from studies import another_day

ROOT = Path(__file__).resolve().parents[2]
PAGES, RESULTS = ROOT / "docs" / "tools" / "pages", ROOT / "studies" / "results"
DOCS = ROOT / "docs"
STUDIES = ("accuracy-collectives", "accuracy-missed", "accuracy-intervals", "accuracy-cells")
SIZES, CURVES, PAPER = (
    RESULTS / "accuracy_sizes.json",
    RESULTS / "calibration_curve.json",
    ROOT / "paper/training/results.json",
)
COLLECTIVES = RESULTS / "collective_sizes.json"
COLLECTIVE_VERSIONS = RESULTS / "collective_versions.json"
COVERAGE = ROOT / "qa" / "results" / "coverage.json"
COLLECTIVE_BARS = {"below 1 MiB": 12.0, "from 1 MiB": 5.0}
NORMS, NORM_BAR = {"rmsnorm": "RMSNorm", "silu_and_mul": "SiLU-and-multiply"}, 4.0
PLOTTED = ("gemm", "attention prefill", "attention decode", "fused_moe", "rmsnorm", "silu_and_mul", "all_reduce")


class Dots:
    """Measured and predicted µs by family, gathered while cells are scored under one protocol."""

    def __init__(self, protocol: str) -> None:
        self.protocol = protocol
        self.found: dict[str, list[tuple[Array, Array]]] = defaultdict(list)

    def __call__(self, key: Key, answers: Predictions, measured: Array) -> None:
        """Keep a cell, but for the second cells of rows of which more was given."""
        if key.protocol == self.protocol and not key.impl.endswith(tables.KNOWN):
            self.found[key.family].append((measured, answers.latency_us))

    def pairs(self) -> dict[str, tuple[Array, Array]]:
        """The families that are plotted, in their order."""
        return {family: _stacked(self.found[family]) for family in PLOTTED if family in self.found}


def _stacked(parts: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    measured, answered = (np.concatenate(side) for side in zip(*parts, strict=True))
    return measured, answered


def draw(data: Path | None) -> dict[str, Cells]:
    """Score and draw our own rows and, where it is given, the corpus; its sizes are kept for next time."""
    parts = {"own": (cases(own_rows()), Dots("cold"))}
    if data is not None:
        parts["public"] = (held_out_rows(data), Dots("graph"))
    kept = json.loads(SIZES.read_text(encoding="utf-8")) if SIZES.exists() else {}
    cells: dict[str, Cells] = {}
    for part, (found, dots) in parts.items():
        cells[part] = score(found, dots)
        plots.scatter(dots.pairs(), f"{part}.svg")
        kept[part] = plots.by_size(dots.pairs())
    SIZES.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    for part, sizes in kept.items():
        plots.sizes(sizes, f"{part}_sizes.svg")
    if away := versions.distances():
        plots.versions(away, "versions.svg")
    if CURVES.exists():
        plots.calibration(json.loads(CURVES.read_text(encoding="utf-8"))["curves"], "calibration.svg")
    return cells


def texts() -> dict[Path, str]:
    """The page for users and its studies by file, from committed files alone."""
    given = json.loads((PAGES / "accuracy.json").read_text(encoding="utf-8"))
    committed = read()
    own, public = committed.get("own", {}), committed.get("public", {})
    filled = {
        "bars": tables.markdown(tables.bars(given)),
        "bf16_bars": tables.markdown(tables.bars(given, "bf16")),
        "own_bars": tables.markdown(tables.own_bars(given, own)),
        "baselines": tables.markdown(_baselines(given)),
        "paper": tables.markdown(_paper()),
        "intervals": tables.markdown(list(tables.coverage(json.loads(COVERAGE.read_text(encoding="utf-8"))))),
        "corrected": tables.markdown(list(tables.corrected(tables.nets(), "graph"))),
        "ceilings": tables.markdown(list(tables.ceilings())),
        "own": tables.markdown(tables.cells_by_family(own, ("cold", "graph"))),
        "public": tables.markdown(tables.cells_by_family(public, ("graph", "profiler_warm"))),
        "worst": tables.markdown(tables.worst(public)),
        "curve": tables.markdown(_curves()),
        "splits": "\n\n".join(_splits()),
        "sizes": tables.markdown(_sizes()),
        "collectives": tables.markdown(_collectives()),
        "collective_versions": tables.markdown(_collective_versions()),
        "norms": _norms(),
        "another_day": tables.markdown(another_day.page_rows()),
        "versions": tables.markdown(versions.bars()),
        "by_version": tables.markdown(versions.by_version()),
        "dropped": tables.markdown(versions.dropped()),
    }
    files = [DOCS / "accuracy.md", *(DOCS / "studies" / f"{name}.md" for name in STUDIES)]
    return {file: _page(file, filled) for file in files}


def _page(file: Path, filled: Mapping[str, str]) -> str:
    """A page's template with its tables."""
    page = (PAGES / file.name).read_text(encoding="utf-8")
    for name, body in filled.items():
        page = page.replace(f"{{{name}}}", body)
    return "\n".join(line for line in page.splitlines() if _drawn(line, file.parent)) + "\n"


def _drawn(line: str, folder: Path) -> bool:
    """False for a figure of rows that were never at hand."""
    return not line.startswith("![") or (folder / line.partition("](")[2].rstrip(")")).exists()


def _collective_versions() -> list[dict[str, Any]]:
    """Errors of older versions, sizes held out and versions left out, by `studies.collective_versions`."""
    lines = json.loads(COLLECTIVE_VERSIONS.read_text(encoding="utf-8"))
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        shown = found.setdefault(line["net"], {"net": line["net"]})
        shown[f"{line['left out']} left out: MAPE %; inside %"] = f"{line['mape']:.1f}; {line['inside']:.0f}"
    return list(found.values())


def _collectives() -> list[dict[str, Any]]:
    """Errors on message sizes held out, beside their bars, by `studies.collective_sizes`."""
    lines = json.loads(COLLECTIVES.read_text(encoding="utf-8"))
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for line in lines:
        shown = found.setdefault((line["net"], line["protocol"]), {"net": line["net"], "protocol": line["protocol"]})
        bar, mark = COLLECTIVE_BARS[line["side"]], "**" if line["mape"] > COLLECTIVE_BARS[line["side"]] else ""
        shown[f"{line['side']}, MAPE % / bar"] = f"{mark}{line['mape']:.2f}{mark} / {bar:g}"
        shown[f"{line['side']}, worst GPU"] = f"{line['worst']} {line['worst_mape']:.1f}"
    return list(found.values())


def _norms() -> str:
    """Unseen shapes of our cold rows."""
    means = {net: left_out(net, "cold")["fold"][ALL]["mape"] for net in NORMS}
    return ", ".join(f"{title} {means[net]:.2f} / {NORM_BAR:g}" for net, title in NORMS.items())


def _baselines(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Others' figures above ours on the same kind of split."""
    names = list(given["families"])
    rows = [
        {"method": r["method"], "evaluation": r["evaluation"]} | dict(zip(names, map(float, r["mape"]), strict=True))
        for r in given["baselines"]
    ]
    for row in tables.bars(given):
        measured = {name: str(row[name]).partition(" / ")[0].strip("*") for name in names}
        rows.append({"method": "pipewave", "evaluation": row["evaluation"]} | measured)
    return rows


def _paper() -> list[dict[str, Any]]:
    """PipeWeave as published on its own rows, by our pipeline, and ours trained on the same ones."""
    found = json.loads(PAPER.read_text(encoding="utf-8"))
    rows = []
    for name, title in (("fp8_pipeweave", "FP8 GEMM"), ("moe_pipeweave", "fused MoE, w13")):
        scores = found.get(name, {}).get("scores", {})
        for which in ("seen GPUs", "unseen GPUs"):
            if which in scores:
                one = scores[which]
                rows.append({"method": "PipeWeave as published", "rows": f"{title}, {which}",
                             "latency MAPE %": one["latency_mape"], "median %": one["latency_median"],
                             "bias %": one["latency_bias"]})  # fmt: skip
    return rows + _ours()


def _ours() -> list[dict[str, Any]]:
    """Our nets on PipeWeave's splits (`python -m paper.training.ours`)."""
    folder = ROOT / "train" / "tables"
    fp8, moe = (json.loads((folder / f"{n}.pipeweave.json").read_text("utf-8")) for n in ("gemm_block", "fused_moe"))
    by_rows = {f"FP8 GEMM, {name} GPUs": fp8[name] for name in ("seen", "unseen")} | {
        "FP8 GEMM, H200 alone": fp8["H200"]
    }
    for split, found in moe.items():
        by_rows |= {f"fused MoE, w13, {split} held out, {name} GPUs": found[name] for name in ("seen", "unseen")}
    shown = {"mape": "latency MAPE %", "median": "median %", "bias": "bias %"}
    return [
        {"method": "pipewave", "rows": rows} | {title: one[name] for name, title in shown.items()}
        for rows, one in by_rows.items()
    ]


def _curves() -> list[dict[str, Any]]:
    if not CURVES.exists():
        return []
    curves = json.loads(CURVES.read_text(encoding="utf-8"))["curves"]
    return [{"net": net} | {f"{p['rows']} rows": float(p["mape"]) for p in points} for net, points in curves.items()]


def _splits() -> list[str]:
    return [
        f"### {net}, {protocol}\n\n{tables.markdown(found)}"
        for net in tables.nets()
        for protocol in ("graph", "cold", "profiler_warm")
        if (found := tables.splits(net, protocol))
    ]


def _sizes() -> list[dict[str, Any]]:
    """Mean error by range of latency, of the largest part that was kept."""
    kept = json.loads(SIZES.read_text(encoding="utf-8")) if SIZES.exists() else {}
    rows = []
    for part, found in kept.items():
        for family, bins in ((family, bins) for family, bins in found.items() if bins):
            by_bin = {f"from {b['from_us']:g} µs": f"{b['mape']:.1f} ({b['rows']:,})" for b in bins}
            rows.append(
                dict[str, str | None](family=f"{family}, {part}")
                | {f"from {low:g} µs": by_bin.get(f"from {low:g} µs") for low in plots.EDGES_US[:-1]}
            )
    return rows


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m docs.tools.accuracy_page", description=__doc__)
    parser.add_argument("--data", type=Path, help="also draw the public corpus that lies here")
    parser.add_argument("--write", action="store_true", help="also make these the figures that accuracy publishes")
    options = parser.parse_args(argv)
    published = FIGURES
    cells = draw(options.data)
    if options.write:
        write(published, read(published) | cells)
        manifest.write()
    for file, text in texts().items():
        file.write_text(text, encoding="utf-8")
        print(f"{file.relative_to(ROOT)}: {len(text):,} characters")
    return 0


if __name__ == "__main__":
    sys.exit(main())
