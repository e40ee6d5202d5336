"""The README's table of results, written from committed results: `python -m docs.tools.readme [--write]`.

A test holds the README to what this writes, so no figure of it can differ from the files it is taken from.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
BEGIN, END = "<!-- results: written by python -m docs.tools.readme --write -->", "<!-- end of results -->"
KERNELS = {
    "GEMM bf16, fp16, int4": "gemm",
    "GEMM fp8, int8": "gemm_fp8",
    "attention prefill": "attention_prefill",
    "attention decode": "attention_decode",
    "fused MoE": "fused_moe",
}
HEAD = ("what", "pipewave", "others on the same points")


def read(path: str) -> Any:
    """A committed result."""
    return json.loads((ROOT / path).read_text(encoding="utf-8"))


def rows() -> Iterator[tuple[str, str, str]]:
    """What was measured, ours, and others'."""
    yield from _runs()
    yield from _steps()
    yield from _kernels()
    yield from _published_system()
    yield from _tuner()


def _runs() -> Iterator[tuple[str, str, str]]:
    found = read("studies/results/e2e_pipeweave.json")
    ours, theirs = found["pipewave, fitted on other GPUs"]["mean"], found["PipeWeave, published"]["mean"]
    roofline = found["roofline, fitted on other GPUs"]["mean"]
    what = "Whole SGLang runs: 32 published configurations on ten GPUs, error %"
    yield what, f"**{ours:.1f}**", f"PipeWeave {theirs:.1f}, roofline with two fitted scalars {roofline:.1f}"


def _steps() -> Iterator[tuple[str, str, str]]:
    found = read("studies/results/e2e_vllm.json")["rows"]
    for phase in ("prefill", "decode"):
        both = [row for row in found if row["phase"] == phase and row.get("AIConfigurator 0.12") is not None]
        ours, theirs = (sum(abs(row[name]) for row in both) / len(both) for name in ("held out", "AIConfigurator 0.12"))
        what = f"vLLM 0.22.1 on H200, {phase} steps, {len(both)} points, error %"
        yield what, f"**{ours:.1f}**", f"AIConfigurator 0.12: {theirs:.1f}"


def _kernels() -> Iterator[tuple[str, str, str]]:
    for name, net in KERNELS.items():
        table = read(f"train/tables/{net}.graph.json")
        shapes, family = table["fold"]["macro mean"]["mape"], table["lofo"]["macro mean"]["mape"]
        what = f"Kernels, {name}: shapes / architecture never seen, error %"
        yield what, f"{shapes:.1f} / {family:.1f}", ""


def _published_system() -> Iterator[tuple[str, str, str]]:
    gemm = read("train/tables/gemm_block.pipeweave.json")
    what = "FP8 GEMM, PipeWeave's own rows and split: GPUs seen / unseen, error %"
    yield what, f"**{gemm['seen']['mape']:.1f} / {gemm['unseen']['mape']:.1f}**", "PipeWeave 2.6 / 4.3"


def _tuner() -> Iterator[tuple[str, str, str]]:
    for kernel, name in (("gemm", "GEMM bf16"), ("moe_w13", "grouped GEMM of a MoE layer")):
        found = read("studies/results/tune_evaluate.json")["kernels"][kernel]["selectors"]
        ours, theirs, trees = (100 * found[who]["mean_regret"] for who in ("pipewave", "published", "xgboost"))
        what = f"Triton configuration, {name}, H200: mean loss against the best of all, %"
        yield what, f"**{ours:.1f}**", f"WaveTune {theirs:.1f}, XGBoost {trees:.1f}"


def table() -> str:
    """The results as a Markdown table."""
    lines = [HEAD, ("---", "---:", "---"), *rows()]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def written(text: str) -> str:
    """The README with today's results between its marks."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}"


def main() -> int:
    """Write the table into the README, or say whether it is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--write", action="store_true")
    text = README.read_text(encoding="utf-8")
    if parser.parse_args().write:
        README.write_text(written(text), encoding="utf-8")
        return 0
    print(table())
    return int(written(text) != text)


if __name__ == "__main__":
    sys.exit(main())
