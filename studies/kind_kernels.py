"""Kernels of today's kinds whose rows no public table holds on Hopper, predicted and measured on an H100.

    python -m studies.kind_kernels [--rows]          errors by kernel and layout; `lab.kind_kernels` draws the cases

vLLM 0.22.1's Triton attention (Gemma 4, and any model whose heads differ in size), gpt-oss's experts in MXFP4 by
`triton_kernels`, and Triton experts of layers without a tuned file, with vLLM's default block sizes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import pipewave as pw
from pipewave.calls.families import from_dict
from pipewave.measure.row_files import rows

GPU, STACK = "H100", "vllm-0.22.1"
# what public rows call the kernel that an implementation runs
ASKED: dict[str, dict[str, str]] = {
    "vllm_triton_attn": {"impl": "vllm_triton_attn"},
    "triton_kernels": {
        "stack": "vllm-0.24.0",
        "impl": "vllm_gptossmxfp4moe_triton_oaitritonmxfp4expertsmonolithic",
    },
    "triton": {},
}
FOLDER = Path(__file__).resolve().parents[1] / "data" / "measured" / "h100" / "kind_kernels"
Row = dict[str, Any]


def measured() -> list[Row]:
    """The rows, by kernel and layout in the order of the cases."""
    return sorted(rows(FOLDER), key=lambda row: (row["case"]["kernel"], layout(row)))


def layout(row: Row) -> str:
    """What its group is called: the kernel and the sizes that its weights or heads have."""
    case = row["case"]
    if case["kernel"] == "fused_moe":
        return f"{row['impl']} {case['experts']} experts of {case['inter']}, top {case['topk']}"
    window = f", window {case['window']}" if case.get("window") else ""
    phase = "decode" if max(case["q_lens"]) == 1 else "prefill"
    return f"{phase} {case['heads']} heads on {case['kv_heads']} of {case['head_dim']}{window}"


def predicted_us(found: Sequence[Row]) -> NDArray[np.float64]:
    """Each row's prediction, of vLLM 0.22.1; of MXFP4 experts, whose public rows are replays, as in a step."""
    out = np.zeros(len(found))
    for protocol, impls in (("cold", ("vllm_triton_attn", "triton")), ("serving", ("triton_kernels",))):
        chosen = [index for index, row in enumerate(found) if row["impl"] in impls]
        asked = [found[i]["case"] | {"stack": STACK, **ASKED[found[i]["impl"]]} for i in chosen]
        out[chosen] = pw.predict([from_dict(case) for case in asked], GPU, protocol=protocol).latency_us
    return out


def scores(found: Sequence[Row]) -> Iterator[tuple[str, int, float, float]]:
    """Layout, rows, mean absolute error and bias in %."""
    error = 100 * (predicted_us(found) / [row["latency_us"] for row in found] - 1)
    names = np.array([layout(row) for row in found])
    for name in dict.fromkeys(names.tolist()):
        part = error[names == name]
        yield name, len(part), float(np.abs(part).mean()), float(part.mean())


def main() -> None:
    """Print errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", action="store_true", help="print every row")
    given = parser.parse_args()
    found = measured()
    print("| kernel | rows | error % | bias % |\n|---|---|---|---|")
    for name, count, mape, bias in scores(found):
        print(f"| {name} | {count} | {mape:.1f} | {bias:+.1f} |")
    for row, us in zip(found, predicted_us(found), strict=True) if given.rows else ():
        print(f"{layout(row)}: {_load(row['case'])}: {row['latency_us']:.1f} us, predicted {us:.1f}")


def _load(case: Row) -> str:
    if case["kernel"] == "fused_moe":
        return f"{case['tokens']} tokens"
    return f"{len(case['q_lens'])} of {case['q_lens'][0]} on {case['kv_lens'][0]}"


if __name__ == "__main__":
    main()
