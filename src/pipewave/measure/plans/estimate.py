"""Rough latencies that keep a plan affordable: a roofline at half of an H100's rates, never a published number."""

from __future__ import annotations

import math

from pipewave.measure.job import Case

FLOPS = {"bf16": 500e12, "fp16": 500e12, "fp8": 900e12, "fp8_block": 700e12}
DRAM_BYTES_PER_S = 2.5e12
LAUNCH_S = 3e-6
OPERAND_BYTES = {"bf16": 2, "fp16": 2, "fp8": 1, "fp8_block": 1}


def rough_us(case: Case) -> float:
    """Order-of-magnitude latency of a case in microseconds, for skipping long ones and for the ETA."""
    flops, bytes_moved = _work(case)
    seconds = max(flops / FLOPS[case.get("dtype", "bf16")], bytes_moved / DRAM_BYTES_PER_S)
    return (seconds + LAUNCH_S) * 1e6


def _work(case: Case) -> tuple[float, float]:
    kernel = case["kernel"]
    if kernel == "gemm":
        return _gemm(case)
    if kernel == "attention":
        return _attention(case)
    if kernel == "fused_moe":
        return _moe(case)
    return 0.0, _pointwise_bytes(case)


def _gemm(case: Case) -> tuple[float, float]:
    m, n, k = case["m"], case["n"], case["k"]
    size = OPERAND_BYTES[case.get("dtype", "bf16")]
    quantize = 3 * m * k if case.get("quantize") else 0
    return 2.0 * m * n * k, size * (m * k + n * k) + 2.0 * m * n + quantize


def _attention(case: Case) -> tuple[float, float]:
    pairs = sum(q * (kv - (q - 1) / 2) for q, kv in zip(case["q_lens"], case["kv_lens"], strict=True))
    width = case["head_dim"]
    kv_bytes = 4.0 * sum(case["kv_lens"]) * case["kv_heads"] * width
    return 4.0 * pairs * case["heads"] * width, kv_bytes + 4.0 * sum(case["q_lens"]) * case["heads"] * width


def _moe(case: Case) -> tuple[float, float]:
    inter = case["inter"] // case.get("tp", 1)
    routed = case["tokens"] * case["topk"]
    hit = case["experts"] * -math.expm1(-routed / case["experts"])
    weights = 3.0 * inter * case["hidden"]
    activations = routed * (2 * case["hidden"] + 4 * inter + 2 * case["hidden"])
    return 2.0 * routed * weights, 2.0 * (hit * weights + activations)


def _pointwise_bytes(case: Case) -> float:
    kernel, rows = case["kernel"], float(case.get("rows", 0))
    width = case.get("dim", 0)
    if kernel == "rmsnorm":
        return float(rows * width * (8 if case.get("fused_add") else 4))
    if kernel == "silu_and_mul":
        return float(rows * width * 6)
    if kernel in ("rope", "kv_write"):
        moved_heads = case["heads"] + case["kv_heads"] if kernel == "rope" else 2 * case["kv_heads"]
        return float(rows * moved_heads * case["head_dim"] * 4)
    return float(case.get("bytes", 0))
