"""Tables of docs/paper.md from results.json: `python -m paper.training.report` rewrites the part between its marks."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "paper.md"
RESULTS = ROOT / "paper" / "training" / "results.json"
BEGIN, END = "<!-- begin: python -m paper.training.report -->", "<!-- end -->"
METHODS = {
    "pipeweave": "PipeWeave, best of three seeds by validation",
    "without_memory": "without memory features",
    "without_math": "without math features",
    "neusight": "NeuSight's tile recipe",
    "linear": "linear in compute and memory time",
    "roofline": "roofline",
}
Results = dict[str, Any]


def tables(results: Results) -> str:
    """All tables as Markdown."""
    parts = [
        *(_methods(results, rows, title) for rows, title in (("fp8", "FP8 GEMM"), ("moe", "Fused MoE, w13"))),
        _seeds(results),
        _per_gpu(results),
        _quantiles(results),
        _collectives(results),
        _public(results),
    ]
    return "\n\n".join(parts)


def _methods(results: Results, rows: str, title: str) -> str:
    first = results[f"{rows}_pipeweave"]
    lines = [
        (label, *_four(results[f"{rows}_{method}"]["scores"]))
        for method, label in METHODS.items()
        if f"{rows}_{method}" in results
    ]
    if rows == "moe":
        unseen = results["moe_pipeweave_unseen_models"]["scores"]
        lines.append(("PipeWeave, 3 of 16 model shapes held out", *_four(unseen)))
    caption = f"**{title}** ({first['train_rows']:,} rows to learn from, {first['test_rows']:,} scored; MAPE %)"
    header = (caption, "efficiency, seen", "efficiency, unseen", "latency, seen", "latency, unseen")
    return _table(header, lines)


def _four(scores: Results) -> tuple[float, ...]:
    groups = scores["seen GPUs"], scores["unseen GPUs"]
    return tuple(group[metric] for metric in ("efficiency_mape", "latency_mape") for group in groups)


def _seeds(results: Results) -> str:
    lines = []
    for rows, title in (("fp8", "FP8 GEMM"), ("moe", "Fused MoE")):
        shipped = results[f"{rows}_pipeweave"]
        for fit in shipped["seeds"]:
            label = f"{title}, seed {fit['seed']}" + (" (shipped)" if fit["seed"] == shipped["seed"] else "")
            lines.append((label, fit["epoch"], round(100 * fit["validation_loss"], 2), *_four(fit)))
    names = ("epoch kept", "validation", "eff. seen", "eff. unseen", "latency seen", "latency unseen")
    header = ("**Luck of the seed**", *names)
    return _table(header, lines)


def _per_gpu(results: Results) -> str:
    fp8, moe = (results[f"{rows}_pipeweave"]["scores"] for rows in ("fp8", "moe"))
    keys = ("latency_mape", "latency_median", "latency_bias")
    lines = [
        (gpu, *(fp8[gpu][key] if gpu in fp8 else "" for key in keys), *(moe[gpu][key] for key in keys))
        for gpu in moe
        if not gpu.endswith("GPUs")
    ]
    names = ("MAPE", "median", "bias")
    header = ("**Latency %**", *(f"FP8 {name}" for name in names), *(f"MoE {name}" for name in names))
    return _table(header, lines)


def _quantiles(results: Results) -> str:
    names = {
        "moe_p80": "MoE, all eleven GPUs in training",
        "moe_p80_seen_gpus": "MoE, six GPUs in training",
        "fp8_p80": "FP8, two GPUs in training",
    }
    lines = [
        (label, *(results[name][f"coverage {where} sample"]["all rows"] for where in ("in", "out of")))
        for name, label in names.items()
    ]
    return _table(("**P80 model: rows at or below it, %**", "in sample", "out of sample"), lines)


def _collectives(results: Results) -> str:
    scores = results["collectives_random_forest"]
    lines = [(name, score["all"], score["below 1 MiB"], score["from 1 MiB"]) for name, score in scores.items()]
    return _table(("**Collectives, sizes held out, MAPE %**", "all", "below 1 MiB", "from 1 MiB"), lines)


def _public(results: Results) -> str:
    lines = []
    for kernel in ("attention", "rmsnorm", "silu_and_mul"):
        result = results[f"public_{kernel}"]
        total = result["scores"]["all rows"]
        rows = f"{result['train_rows']:,} / {result['test_rows']:,}"
        lines.append((kernel, rows, total["efficiency_mape"], total["latency_mape"], total["latency_median"]))
    header = ("**On public rows, groups held out**", "rows", "efficiency MAPE", "latency MAPE", "latency median")
    return _table(header, lines)


def _table(header: tuple[str, ...], lines: Iterable[tuple[object, ...]]) -> str:
    rows = [header, ("---", *("---:" for _ in header[1:])), *lines]
    return "\n".join("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)


def page(text: str, results: Results) -> str:
    """The page with its tables renewed."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{tables(results)}\n\n{END}{rest.split(END, 1)[1]}"


if __name__ == "__main__":
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
