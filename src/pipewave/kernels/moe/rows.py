"""Measured rows of routed experts: implementations, plans, near duplicates, the corpus table."""

from __future__ import annotations

import math
from typing import Any

from pipewave.kernels.faces import Case, Plan, Rows, Runner, table_case

SHAPE = ("experts", "topk", "hidden", "inter", "tp")  # experts' weights are laid out once per shape
_plain = table_case("fused_moe", "tokens", "hidden", "inter", "topk", "experts", "tp", "ep", flags=("gated",))


def _work(case: Case) -> tuple[float, float]:
    inter = case["inter"] // case.get("tp", 1)
    routed = case["tokens"] * case["topk"]
    hit = case["experts"] * -math.expm1(-routed / case["experts"])
    weights = 3.0 * inter * case["hidden"]
    activations = routed * (2 * case["hidden"] + 4 * inter + 2 * case["hidden"])
    return 2.0 * routed * weights, 2.0 * (hit * weights + activations)


def _case(row: Case) -> dict[str, Any]:
    return _plain(row) | {"routing": str(row["routing"]), "part": str(row["part"])}


ROWS = {
    "fused_moe": Rows(
        runners={
            "triton": Runner("pipewave.measure.impls.vllm_moe", "as_served", "vllm"),
            "triton_default": Runner("pipewave.measure.impls.vllm_moe", "default_config", "vllm"),
            "triton_kernels": Runner("pipewave.measure.impls.vllm_mxfp4", "monolithic", "vllm"),
        },
        usual={"": "triton"},
        plans=(
            Plan("pipewave.measure.plans.moe", "jobs", varied=True),
            Plan("pipewave.measure.plans.moe", "quantized"),
        ),
        stream=1,
        work=_work,
        together=SHAPE,
        group=("hidden", "inter", "topk", "experts"),
        table="fused_moe",
        case=_case,
    )
}
