"""Implementations that no shipped plan asks for, measured as `pipewave measure` does:

python -m lab.impls --plan cases.jsonl --store rows        # options as of `pipewave measure`
"""

from __future__ import annotations

from typing import cast

from pipewave.kernels import rows_of
from pipewave.kernels.family_metadata import Runner

RUNNERS = {
    "gemm": {"triton": Runner("lab.impls.own_triton", "matmul", "triton")},
    "attention": {
        "triton": Runner("lab.impls.own_triton", "attention", "triton"),
        "vllm_triton_attn": Runner("lab.impls.paged_attention", "unified", "vllm"),
        "flashinfer_fa2": Runner("lab.impls.paged_attention", "fa2", "flashinfer"),
    },
    "fused_moe": {"triton_kernels": Runner("lab.impls.gpt_oss_moe", "mxfp4", "vllm")},
}


def register() -> None:
    """Give the families these builders."""
    for family, runners in RUNNERS.items():
        cast(dict[str, Runner], rows_of()[family].runners).update(runners)
