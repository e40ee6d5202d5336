"""Watts bound a step before clocks do: what its work costs in joules, and how long the board needs to deliver them.

Kernels measured one by one after a flush run at burst clocks. Back to back, the board holds its power limit by lowering
the clock: an H200 multiplies bf16 at 778 TFLOP/s for a few calls and at 660 for good (1470 MHz, 691 W,
`data/measured/h200/microbench.json`). Energy adds up over a step, so kernels that idle the tensor cores pay for those
that do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from pipewave.calls.families import Attention, Call, Collective, Elementwise, FusedMoe, Gemm, Mla, RmsNorm, SiluAndMul
from pipewave.gpus import GPU
from pipewave.physics.demand import Array

IDLE_SHARE = 0.16  # of the board's limit that clocks and leakage draw whatever runs: 110 of 700 W
# Joules of one dense 16-bit FLOP with its operands' way from L2; narrower types cost as their peak is higher.
# Hopper: 660 TFLOP/s in 691 W. The others are not measured: what lets such a part sustain 70 to 80 % of its peak.
JOULES_PER_FLOP = {"hopper": 0.88e-12, "blackwell": 0.5e-12, "ada": 1.0e-12, "blackwell_rtx": 1.0e-12}
JOULES_PER_FLOP_ELSEWHERE = 1.2e-12
# Joules of one byte from DRAM through L2 into an SM: decode steps of dense models on an H200 at 500 to 690 W.
JOULES_PER_BYTE = 60e-12
COLLECTIVE_SHARE = 0.8  # of what the board can deliver, drawn while a collective copies and spins
WIDTH = {"fp8": 1.0, "fp8_block": 1.0, "int8": 1.0, "nvfp4": 0.5625, "mxfp4": 0.53, "int4": 0.53}
ACT = 2.0


def heat_us(calls: Sequence[Call], latency_us: Array, gpu: GPU) -> Array:
    """µs the board needs at its power limit to deliver the energy of each call."""
    flops, moved = np.array([_work(call) for call in calls]).reshape(-1, 2).T
    joules = flops * np.array([_joules_per_flop(gpu, call) for call in calls]) + moved * JOULES_PER_BYTE
    waiting = np.where([isinstance(call, Collective) for call in calls], COLLECTIVE_SHARE * latency_us, 0.0)
    return np.asarray(1e6 * joules / ((1.0 - IDLE_SHARE) * gpu.tdp_w) + waiting)


def _joules_per_flop(gpu: GPU, call: Call) -> float:
    return _joules(gpu, call.dtype) if isinstance(call, Gemm | Attention | Mla | FusedMoe) else 0.0


@lru_cache(maxsize=256)
def _joules(gpu: GPU, dtype: str) -> float:
    wide = gpu.peak_flops("bf16" if gpu.supports("bf16") else "fp16")
    return JOULES_PER_FLOP.get(gpu.architecture, JOULES_PER_FLOP_ELSEWHERE) * wide / gpu.peak_flops(dtype)


def _work(call: Call) -> tuple[float, float]:
    """(tensor FLOPs, bytes moved) of a call; none for a collective."""
    match call:
        case Gemm():
            return _gemm(call)
        case Attention():
            return _attention(call)
        case Mla():
            return _mla(call)
        case FusedMoe():
            return _fused_moe(call)
        case Elementwise():
            return 0.0, float(call.bytes_read + call.bytes_written)
        case RmsNorm():
            return 0.0, ACT * call.rows * call.dim * (4.0 if call.fused_add else 2.0)
        case SiluAndMul():
            return 0.0, 3.0 * ACT * call.rows * call.dim
    return 0.0, 0.0


def _gemm(call: Gemm) -> tuple[float, float]:
    m, n, k = float(call.m), float(call.n), float(call.k)
    return 2.0 * m * n * k, n * k * WIDTH.get(call.dtype, ACT) + ACT * m * (n + k)


def _attention(call: Attention) -> tuple[float, float]:
    width = 1.0 if call.kv_dtype == "fp8" else ACT
    values = call.head_dim_v or call.head_dim
    cached, rows = _cached(call.kv_lens, call.window), float(sum(call.q_lens))
    flops = 2.0 * _pairs(call.q_lens, call.kv_lens, call.window) * call.heads * (call.head_dim + values)
    return flops, cached * call.kv_heads * (call.head_dim + values) * width + 2.0 * ACT * rows * call.heads * values


def _mla(call: Mla) -> tuple[float, float]:
    width = call.kv_lora_rank + call.rope_dim
    flops = 2.0 * _pairs(call.q_lens, call.kv_lens, None) * call.heads * (width + call.kv_lora_rank)
    return flops, sum(call.kv_lens) * width * (1.0 if call.kv_dtype == "fp8" else ACT)


def _fused_moe(call: FusedMoe) -> tuple[float, float]:
    rows, experts = float(call.tokens) * call.topk / call.ep, call.experts / call.ep
    matrices = (3.0 if call.gated else 2.0) * call.hidden * call.inter / call.tp
    touched = experts * -np.expm1(-rows / experts)  # experts that uniformly routed tokens reach
    return 2.0 * rows * matrices, touched * matrices * WIDTH.get(call.dtype, ACT) + 4.0 * ACT * rows * call.hidden


def _pairs(q_lens: Sequence[int], kv_lens: Sequence[int], window: int | None) -> float:
    """Query-key pairs under a causal mask, and a window where there is one."""
    q, kv = np.asarray(q_lens, float), np.asarray(kv_lens, float)
    seen = kv - (q - 1.0) / 2.0
    return float((q * (seen if window is None else np.minimum(seen, window))).sum())


def _cached(kv_lens: Sequence[int], window: int | None) -> float:
    return float(sum(kv_lens) if window is None else sum(min(kv, window) for kv in kv_lens))
