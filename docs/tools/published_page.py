"""Table and scatter plot of published runs for the documentation, from `studies/results/published.json` and `.csv`."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import matplotlib

from studies.published import RESULTS
from studies.published_rows import METRICS

matplotlib.use("svg")
from matplotlib import pyplot as plt

DOCS = Path(__file__).resolve().parents[2] / "docs"
TABLE, PICTURE = DOCS / "generated" / "published.md", DOCS / "img" / "published.svg"
# Of `python -m studies.published --needs --only disaggregated --every 8 --json studies/results/published_pools.json`.
POOLS = RESULTS.with_name("published_pools.json")
TITLES = {
    "ttft_ms": "TTFT, ms",
    "tpot_ms": "TPOT, ms",
    "output_tokens_per_s": "output tokens/s",
    "e2e_ms": "end to end, ms",
}
NAMED = ("engine", "gpu", "model", "precision")
SEPARATE = ("needs", "attention DP", "disaggregated", "speculative")  # kinds of rows that --needs adds


# Bars of the project and AIConfigurator 0.12's errors on rows of the same sources (means over rows, on some of which
# its factors were fitted): TTFT, TPOT.
BARS = {"vllm": (18, 8), "sglang": (25, 10), "trtllm": (30, 14)}
AICONFIGURATOR = {
    "vllm": ("33 dense, 32 MoE", "11, 15"),
    "sglang": ("83 dense, 65 MoE", "25, 24"),
    "trtllm": ("49", "21"),
}


def summary(scores: dict[str, Any]) -> str:
    """One line an engine: errors left out and as shipped, beside bars and AIConfigurator."""
    lines = [
        "| | groups | TTFT | bar | AIConfigurator | within 25 % | TPOT | bar | AIConfigurator | within 25 % |",
        "|" + "---|" * 10,
    ]
    apart, shipped = ({kind["kind"]: kind for kind in scores[side]["kinds"]} for side in ("left_out", "as_shipped"))
    for name in (name for name in BARS if name in apart):
        cells = [_side(apart[name][metric], shipped[name][metric], BARS[name][i], AICONFIGURATOR[name][i])
                 for i, metric in enumerate(("ttft_ms", "tpot_ms"))]  # fmt: skip
        lines.append(f"| {name} | {apart[name]['ttft_ms']['groups']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _side(apart: dict[str, Any], shipped: dict[str, Any], bar: float, aiconfigurator: str) -> str:
    return f"{apart['mape']:.1f} / {shipped['mape']:.1f} | {bar} | {aiconfigurator} | {apart['within']:.0f} %"


def table(scores: dict[str, Any]) -> str:
    """Kinds first, then groups, as Markdown; errors are mean absolute percent, left out / as shipped."""
    lines = [
        "| | rows | in error | " + " | ".join(TITLES[name] for name in METRICS) + " |",
        "|---|---|---|" + "---|" * 4,
    ]
    for part in ("kinds", "groups"):
        for apart, shipped in zip(scores["left_out"][part], scores["as_shipped"][part], strict=True):
            lines.append(_line(apart, shipped, bold=part == "kinds"))
    return "\n".join(lines) + "\n"


def _line(apart: dict[str, Any], shipped: dict[str, Any], *, bold: bool) -> str:
    name = apart["kind"] if bold else " ".join(apart[key] for key in ("engine", "gpu", "model", "precision", "source"))
    cells = [_cell(apart.get(metric), shipped.get(metric)) for metric in METRICS]
    shown = f"**{name}**" if bold else name
    return f"| {shown} | {apart['rows']} | {apart['in error'] or ''} | {' | '.join(cells)} |"


def _cell(apart: dict[str, Any] | None, shipped: dict[str, Any] | None) -> str:
    if not apart or not shipped:
        return ""
    errors = f"{apart['mape']:.1f} / {shipped['mape']:.1f}"
    return f"{errors}; {apart['within']:.0f} % within 25 %"


def deployments(scores: dict[str, Any]) -> str:
    """Disaggregated servers, which --needs adds, as shipped: kinds, then groups."""
    lines = ["| | rows | in error | TTFT, ms | TPOT, ms |", "|" + "---|" * 5]
    for part in ("kinds", "groups"):
        for one in scores["as_shipped"][part]:
            name = f"**{one['kind']}**" if part == "kinds" else " ".join(one[key] for key in NAMED)
            cells = [_one_cell(one.get(metric)) for metric in ("ttft_ms", "tpot_ms")]
            lines.append(f"| {name} | {one['rows']} | {one['in error'] or ''} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _one_cell(score: dict[str, Any] | None) -> str:
    return f"{score['mape']:.1f}; {score['within']:.0f} % within 25 %" if score else ""


def picture(rows: list[dict[str, str]]) -> None:
    """Predicted over measured, one panel a mean, one colour a kind."""
    figure, panels = plt.subplots(1, 4, figsize=(15, 4))
    kinds = [kind for kind in dict.fromkeys(row["kind"] for row in rows) if not any(word in kind for word in SEPARATE)]
    for panel, name in zip(panels, METRICS, strict=True):
        for kind in kinds:
            pairs = [(float(row[f"{name}_measured"]), float(row[f"{name}_predicted"])) for row in rows
                     if row["kind"] == kind and row[f"{name}_measured"]]  # fmt: skip
            if pairs:
                panel.loglog(*zip(*pairs, strict=True), ".", markersize=2, label=kind)
        low, high = panel.get_xlim()
        panel.loglog([low, high], [low, high], color="black", linewidth=0.6)
        panel.set(title=TITLES[name], xlabel="measured", ylabel="predicted")
        panel.legend(fontsize=5)
    figure.tight_layout()
    figure.savefig(PICTURE)


def main() -> None:
    """Write the tables and the plot."""
    scores = json.loads(RESULTS.read_text("utf-8"))
    apart = deployments(json.loads(POOLS.read_text("utf-8"))) if POOLS.exists() else ""
    TABLE.write_text(
        "\n".join(filter(None, (summary(scores), table(scores), apart))),
        "utf-8",
    )
    with RESULTS.with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        picture(list(csv.DictReader(file)))


if __name__ == "__main__":
    main()
