"""The paper's simple baselines on the same rows: a roofline, and a line through the roofline's two times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.linear_model import LinearRegression

from paper.demand import Array
from paper.training.rows import Rows

TENSOR_RATE = {"gemm_fp8": "tensor_fp8_ops_per_clk_per_sm", "fused_moe": "tensor_bf16_ops_per_clk_per_sm"}


@dataclass(frozen=True, slots=True)
class Work:
    """What the mathematics asks for, without padding: operations, and bytes that must move at least once."""

    ops: Array
    moved_bytes: Array


def work(rows: Rows) -> Work:
    """Operations and compulsory bytes, output included."""
    return {"gemm_fp8": _gemm_fp8, "fused_moe": _fused_moe}[rows.kernel](rows)


def _gemm_fp8(rows: Rows) -> Work:
    m, n, k = (rows.shape[name].astype(np.float64) for name in ("m", "n", "k"))
    return Work(2 * m * n * k, (m + n) * k + 2 * m * n)


def _fused_moe(rows: Rows) -> Work:
    tokens, experts, topk, hidden, inter = (column.astype(np.float64) for column in rows.shape.values())
    width, routed = 2 * inter, tokens * topk
    weights = np.minimum(experts, routed) * hidden * width
    return Work(2 * routed * hidden * width, 2 * (tokens * hidden + weights + routed * width))


def peak_ops_per_us(rows: Rows) -> Array:
    """Tensor peak of each row's GPU."""
    return rows.hardware(TENSOR_RATE[rows.kernel]) * rows.hardware("sms") * rows.hardware("clock_mhz")


def times_us(rows: Rows) -> tuple[Array, Array]:
    """Compute and memory time at peak rates."""
    needed = work(rows)
    return needed.ops / peak_ops_per_us(rows), needed.moved_bytes / (rows.hardware("dram_gbps") * 1e3)


def roofline_us(rows: Rows) -> Array:
    """The longer of compute and memory time."""
    return np.maximum(*times_us(rows))


def linear_us(train: Rows, test: Rows) -> Array:
    """latency = a·compute time + b·memory time + c with a, b, c >= 0, fitted to relative errors."""
    design = np.stack([*times_us(train), np.ones(len(train))], axis=1) / train.latency_us[:, None]
    line = LinearRegression(fit_intercept=False, positive=True).fit(design, np.ones(len(train)))
    predicted: Array = np.stack([*times_us(test), np.ones(len(test))], axis=1) @ line.coef_
    return predicted
