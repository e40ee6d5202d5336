"""Measured rows of attention: implementations, plan, near duplicates, the corpus table."""

from __future__ import annotations

from typing import Any

from pipewave.kernels.faces import Case, Plan, Rows, Runner, table_case

_plain = table_case("attention", "heads", "kv_heads", "head_dim", flags=("causal", "sinks"))


def _work(case: Case) -> tuple[float, float]:
    pairs = sum(q * (kv - (q - 1) / 2) for q, kv in zip(case["q_lens"], case["kv_lens"], strict=True))
    width = case["head_dim"]
    kv_bytes = 4.0 * sum(case["kv_lens"]) * case["kv_heads"] * width
    return 4.0 * pairs * case["heads"] * width, kv_bytes + 4.0 * sum(case["q_lens"]) * case["heads"] * width


def lens(row: Case) -> dict[str, Any]:
    """Lengths of a table's row, whose requests are all alike."""
    batch = int(row["batch"])
    return {"q_lens": [int(row["q_len"])] * batch, "kv_lens": [int(row["kv_len"])] * batch}


def _case(row: Case) -> dict[str, Any]:
    return _plain(row) | lens(row) | {"window": int(row["window"]) or None, "kv_dtype": str(row["kv_dtype"])}


def _phase(case: Case) -> str:
    """Decode when every request brings one token."""
    return "decode" if set(case["q_lens"]) == {1} else "prefill"


ROWS = {
    "attention": Rows(
        runners={
            "fa3": Runner("pipewave.measure.impls.paged_attention", "fa3", "vllm"),
            "vllm_triton_attn": Runner("pipewave.measure.impls.paged_attention", "unified", "vllm"),
            "triton": Runner("pipewave.measure.impls.own_triton", "attention", "triton"),
            "sdpa_flash": Runner("pipewave.measure.impls.torch_kernels", "flash", "torch"),
            "sdpa_cudnn": Runner("pipewave.measure.impls.torch_kernels", "cudnn", "torch"),
            "flashinfer_fa2": Runner("pipewave.measure.impls.paged_attention", "fa2", "flashinfer"),
        },
        usual={"": "fa3"},
        plans=(Plan("pipewave.measure.plans.attention", "jobs", varied=True),),
        stream=0,
        work=_work,
        group=("heads", "kv_heads", "head_dim", "window"),
        table="attention",
        case=_case,
        phase=_phase,
    )
}
