"""Kernels of today's kinds whose rows no public table holds on Hopper, predicted and measured on an H100.

    python -m studies.kind_kernels [--rows]          errors by kernel and layout
    python -m studies.kind_kernels --cases FILE      the cases, for `pipewave measure --plan FILE --store
    ROWS`

vLLM 0.22.1's Triton attention (Gemma 4, and any model whose heads differ in size), gpt-oss's experts in MXFP4 by
`triton_kernels`, and Triton experts of layers without a tuned file, with vLLM's default block sizes.
"""

from __future__ import annotations

import argparse
import json
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
LARGEST_CACHE = 3_000_000_000  # elements of keys and values
# heads, KV heads, head size, window (0: none), sinks; Gemma 4's are the first two
LAYOUTS = (
    (16, 8, 256, 1024, False), (16, 2, 512, 0, False), (8, 4, 256, 0, False), (8, 1, 256, 512, False),
    (16, 16, 256, 0, False), (8, 1, 512, 0, False), (32, 4, 512, 1024, False), (32, 8, 128, 0, False),
    (28, 4, 128, 4096, False), (64, 8, 64, 128, True),
)  # fmt: skip
PROMPTS = ((1, 256), (1, 1024), (1, 2048), (1, 4096), (1, 8192), (4, 2048), (16, 256))
CHUNKS = ((1, 1024, 8192), (4, 512, 2048))
DECODES = tuple((batch, kv) for batch in (1, 8, 32, 128) for kv in (1024, 8192))
# tokens of gpt-oss's experts; experts and top-k of its two sizes
MXFP4_TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192)
MXFP4_EXPERTS = (32, 128)
# experts, top-k, hidden and inner width of layers without a tuned file on an H100
UNTUNED = ((128, 8, 2816, 704), (16, 1, 5120, 8192), (256, 8, 3072, 1536))
UNTUNED_TOKENS = (1, 16, 64, 128, 512, 2048, 8192)
Case = dict[str, Any]
Row = dict[str, Any]


def cases() -> Iterator[Case]:
    """All cases, each with its implementation."""
    for layout in LAYOUTS:
        yield from _attention(*layout)
    shape = {"topk": 4, "hidden": 2880, "inter": 2880}
    for experts in MXFP4_EXPERTS:
        for tokens in MXFP4_TOKENS:
            yield _experts(tokens, "mxfp4", "triton_kernels", experts=experts, **shape)
    for experts, topk, hidden, inter in UNTUNED:
        for tokens in UNTUNED_TOKENS:
            yield _experts(tokens, "bf16", "triton", experts=experts, topk=topk, hidden=hidden, inter=inter)


def _attention(heads: int, kv_heads: int, head_dim: int, window: int, sinks: bool) -> Iterator[Case]:
    layout: Case = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    layout |= ({"window": window} if window else {}) | ({"sinks": True} if sinks else {})
    prompts = [([length] * batch, [length] * batch) for batch, length in PROMPTS]
    chunks = [([new] * batch, [kv] * batch) for batch, new, kv in CHUNKS]
    for q_lens, kv_lens in (*prompts, *chunks, *(([1] * batch, [kv] * batch) for batch, kv in DECODES)):
        if 2 * sum(kv_lens) * kv_heads * head_dim <= LARGEST_CACHE:
            common = {"kernel": "attention", "dtype": "bf16", "page_size": 16, "impl": "vllm_triton_attn"}
            yield common | layout | {"q_lens": q_lens, "kv_lens": kv_lens}


def _experts(tokens: int, dtype: str, impl: str, **shape: int) -> Case:
    return {"kernel": "fused_moe", "dtype": dtype, "impl": impl, "tokens": tokens, "tp": 1, **shape}


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
    """Print errors, or write the cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, help="write the cases here and stop")
    parser.add_argument("--rows", action="store_true", help="print every row")
    given = parser.parse_args()
    if given.cases:
        given.cases.write_text("".join(json.dumps(case) + "\n" for case in cases()))
        return
    found = measured()
    print("| kernel | rows | error % | bias % |\n|---|---|---|---|")
    for name, count, mape, bias in scores(found):
        print(f"| {name} | {count} | {mape:.1f} | {bias:+.1f} |")
    for row, us in zip(found, predicted_us(found), strict=True) if given.rows else ():
        print(f"{layout(row)}: {_load(row['case'])}: {row['latency_us']:.1f} us, predicted {us:.1f}")


def _load(case: Case) -> str:
    if case["kernel"] == "fused_moe":
        return f"{case['tokens']} tokens"
    return f"{len(case['q_lens'])} of {case['q_lens'][0]} on {case['kv_lens'][0]}"


if __name__ == "__main__":
    main()
