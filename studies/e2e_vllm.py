"""Predicted and measured steps of vLLM 0.22.1 on an H200, with random weights: whole models held out.

    python -m studies.e2e_vllm [--rows] [--json FILE] [--baseline FILE]
    python -m studies.e2e_vllm --version 0.26.0 [--rows]

"held out": engine constants fitted to the other models (`train.step_fit`). `--baseline`: answers of AIConfigurator
for the same points (`lab/e2e_aiconfigurator.py`). `--version`: another one, to which nothing was ever fitted.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.step import Engine, find_engine
from pipewave.step.memory import budget
from studies import rounded
from studies.e2e_steps import FOLDER, PHASES, Measured, Point, engines, measure_loads, points, runner_of
from studies.e2e_traces import traced
from train.step_fit import constants, fit

Errors = NDArray[np.float64]


def leave_one_model_out(measured: Measured, start: Engine) -> Errors:
    """Predicted ms of every point under constants fitted to the other models."""
    models = np.array([point.model for point in measured.points])
    out = np.zeros(len(models))
    for model in dict.fromkeys(models.tolist()):
        engine = fit(measured.only(models != model), start)
        out[models == model] = measured.only(models == model).predict_ms(engine)
    return out


def score(chosen: Sequence[Point], errors: Errors) -> dict[str, dict[str, float]]:
    """Points, mean absolute error and bias in percent: by phase, and by phase and model."""
    models = dict.fromkeys(point.model for point in chosen)
    groups = {}
    for phase in PHASES:
        groups[phase] = [p.phase == phase for p in chosen]
        groups |= {f"{phase} {m}": [p.phase == phase and p.model == m for p in chosen] for m in models}
    found = {name: errors[np.array(mask) & np.isfinite(errors)] for name, mask in groups.items()}
    return {
        name: {"points": len(some), "mape": float(np.abs(some).mean()), "bias": float(some.mean())}
        for name, some in found.items()
        if len(some)
    }


def print_scores(tables: dict[str, dict[str, dict[str, float]]]) -> None:
    """A line a phase and model, a column pair a method."""
    print("| points of | n | " + " | ".join(f"{name}: MAPE | bias" for name in tables) + " |")
    print("|---|---|" + "---|---|" * len(tables))
    first = next(iter(tables.values()))
    for key, figures in first.items():
        found = [table.get(key) for table in tables.values()]
        cells = [f"{one['mape']:.2f} | {one['bias']:+.2f}" if one else "– | –" for one in found]
        print(f"| {key} | {figures['points']} | " + " | ".join(cells) + " |")


def print_rows(chosen: Sequence[Point], tables: dict[str, Errors]) -> None:
    """Every point with its errors."""
    print("\n| model | phase | batch | prompt | context | measured ms | " + " | ".join(tables) + " |")
    print("|---" * (6 + len(tables)) + "|")
    for index, p in enumerate(chosen):
        cells = " | ".join(f"{errors[index]:+.1f}" for errors in tables.values())
        print(f"| {p.model} | {p.phase} | {p.batch} | {p.input_len} | {p.context} | {p.measured_ms:.2f} | {cells} |")


def memory(version: str = "") -> list[dict[str, Any]]:
    """Tokens of KV cache that vLLM logged and that we predict."""
    out = []
    for row in engines(version):
        runner = runner_of(row["model"], row["tp"], f"vllm:{version}".rstrip(":"))
        ours = budget(runner.deployment, runner.gpu, runner.engine).kv_tokens
        logged = row["kv_tokens_logged"]
        out.append({"model": row["model"], "tp": row["tp"], "logged": logged, "predicted": ours,
                    "error_percent": 100 * (ours / logged - 1)})  # fmt: skip
    return out


def baseline_errors(chosen: Sequence[Point], path: Path) -> Errors:
    """Signed errors in percent of another tool's answers; NaN where it gave none."""
    table = json.loads(path.read_text())
    known = {
        (r["model"], r["tp"], r["phase"], r["batch"], r["input_len"], r["context"]): r["ms"] for r in table["rows"]
    }
    keys = [(p.model, p.tp, p.phase, p.batch, p.input_len, p.context) for p in chosen]
    real = [p.measured_ms for p in chosen]
    return np.array([100 * ((known.get(key) or np.nan) / ms - 1) for key, ms in zip(keys, real, strict=True)])


def main() -> None:
    """Print the tables; write them with `--json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", action="store_true", help="print every point")
    parser.add_argument("--json", type=Path, help="write the evaluation here")
    parser.add_argument("--baseline", type=Path, help="answers of AIConfigurator")
    versions = sorted(path.name for path in (FOLDER / "engine").iterdir() if path.is_dir())
    parser.add_argument("--version", default="", choices=versions, help="steps inside this version")
    given = parser.parse_args()
    name = f"vllm:{given.version}".rstrip(":")
    chosen, shipped = points(given.version), find_engine(name)
    measured = measure_loads(chosen, partial(runner_of, name=name))
    real = np.array([point.measured_ms for point in chosen])
    answers = {"shipped": measured.predict_ms(shipped)}
    if not given.version:
        answers["held out"] = leave_one_model_out(measured, shipped)
    errors = {name: 100 * (ms / real - 1) for name, ms in answers.items()}
    if given.baseline:
        errors["AIConfigurator 0.12"] = baseline_errors(chosen, given.baseline)
    scores = {name: score(chosen, part) for name, part in errors.items()}
    print_scores(scores)
    if given.rows:
        print_rows(chosen, errors)
    families, kv = [] if given.version else traced(), memory(given.version)
    if families:
        print("\n| trace | family | real µs | predicted µs | error % |\n|---|---|---|---|---|")
    for row in families:
        cells = f"{row['real_us']:.0f} | {row['predicted_us']:.0f} | {row['error_percent']:+.1f}"
        print(f"| {row['model']} {row['phase']} | {row['family']} | {cells} |")
    print("\n| model | KV tokens logged | predicted | error % |\n|---|---|---|---|")
    for row in kv:
        print(f"| {row['model']} tp{row['tp']} | {row['logged']} | {row['predicted']} | {row['error_percent']:+.2f} |")
    if given.json:
        fields = [name for name in Point.__slots__ if name != "chunks"]
        rows = [{name: getattr(p, name) for name in fields} | {name: float(e[i]) for name, e in errors.items()}
                for i, p in enumerate(chosen)]  # fmt: skip
        out = {"scores": scores, "constants": constants(fit(measured, shipped)), "families": families, "memory": kv,
               "rows": rows}  # fmt: skip
        given.json.write_text(json.dumps(rounded(out, None, 3), indent=1) + "\n")


if __name__ == "__main__":
    main()
