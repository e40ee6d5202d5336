"""Measured rows of matrix products: implementations, plan, near duplicates, the corpus table."""

from __future__ import annotations

from pipewave.kernels.faces import Case, Plan, Rows, Runner, table_case

OPERAND_BYTES = {"bf16": 2, "fp16": 2, "fp8": 1, "fp8_block": 1, "int8": 1}


def _work(case: Case) -> tuple[float, float]:
    m, n, k = case["m"], case["n"], case["k"]
    size = OPERAND_BYTES[case.get("dtype", "bf16")]
    quantize = 3 * m * k if case.get("quantize") else 0
    return 2.0 * m * n * k, size * (m * k + n * k) + 2.0 * m * n + quantize


ROWS = {
    "gemm": Rows(
        runners={
            "cublas": Runner("pipewave.measure.impls.torch_kernels", "linear", "torch"),
            "torch_scaled_mm": Runner("pipewave.measure.impls.torch_kernels", "scaled_mm", "torch"),
            "torch_scaled_mm_rowwise": Runner("pipewave.measure.impls.torch_kernels", "scaled_mm_rowwise", "torch"),
            "cutlass": Runner("pipewave.measure.impls.vllm_layers", "cutlass", "vllm"),
            "triton": Runner("pipewave.measure.impls.own_triton", "matmul", "triton"),
        },
        usual={"": "cublas", "fp8": "cutlass", "fp8_block": "cutlass", "int8": "cutlass"},
        plans=(Plan("pipewave.measure.plans.layers", "jobs", varied=True),),
        stream=2,
        work=_work,
        group=("n", "k"),
        table="gemm",
        case=table_case("gemm", "m", "n", "k", flags=("quantize",)),
    )
}
