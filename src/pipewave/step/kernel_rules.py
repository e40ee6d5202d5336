"""Lower bounds and laws that an engine's rules set for kernels whose own rows are missing.

Grouped products may walk a block of rows for every expert, whether tokens came to it or not.

DeepGEMM's contiguous layout lays the rows of each expert out in whole blocks; an engine that does not know on the host
how many tokens came to each asks for a block of every one. Blocks that hold none are not multiplied, but their tiles of
both operands are loaded all the same, so that no step is faster than it takes to load

    bytes = experts × [2 inter / tile × (block + tile) × hidden + hidden / tile × (block + tile) × inter] × width
          = experts × 6 inter × hidden × width          (block = tile = 128)

into the SMs, however few the tokens. How fast one block an SM loads tiles is FlashAttention 3's `bytes_per_clk` of the
rule `attention_costs`, which rests on rows of an H200.

Products of a kernel made for few rows may leave most of the tensor cores idle however many rows there are.

Prompts behind a cached prefix may attend in latent space, where a pair of query and key takes

    2 × (2 kv_lora_rank + rope_dim)          FLOPs a head

instead of 640 or so, by a kernel of older tensor instructions: no row is of such, only its rate is known.

Where DeepEP brings tokens to experts, in buffers of one size each in decode steps (grouped products skip the rows that
a mask says are empty), one expert after the other in prompts:

    time = start + ((a · read)² + (b · multiplied)²)^½

read: weights of the experts that have a token, from DRAM; multiplied: the products of their rows at the peak.
`python -m studies.masked_experts` fits the three constants of either to rows of four GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeGuard

import numpy as np

from pipewave.calls.dtypes import OPERAND_BYTES
from pipewave.calls.families import Call, FusedMoe, Gemm, Mla
from pipewave.gpus import GPU
from pipewave.models.expert_parallel import FEW_TOKENS, HIGH_THROUGHPUT, LOW_LATENCY, NARROW
from pipewave.prediction.answers import Predictions
from pipewave.software.engine import Engine
from pipewave.software.engine_parts import GroupedGemmTime, KernelRule
from pipewave.software.rules import constant

TILE = 128  # columns of a block
MOST_VERIFIED = 16  # tokens of a request that a decode step verifies; a prompt brings more
WIDTH = {"fp8": 1.0, "fp8_block": 1.0}  # bytes of an operand's element; of others two


def every_block_us(call: FusedMoe, rows: int, gpu: GPU) -> float:
    """µs to load the tiles of a block of `rows` rows for every expert of this rank."""
    experts, inter = call.experts / call.ep, call.inter / call.tp
    gate_up = 2.0 * inter / TILE * (rows + TILE) * call.hidden
    down = call.hidden / TILE * (rows + TILE) * inter
    costs = constant("attention_costs", engine="fa3", mma=gpu.traits.mma, fp8=False, latent=False)
    bytes_per_us = costs.bytes_per_clk * gpu.sms * gpu.sustained_clock_mhz
    return float(experts * (gate_up + down) * WIDTH.get(call.dtype, 2.0) / bytes_per_us)


def slow_product_us(call: Gemm, flops_per_clk: float, gpu: GPU) -> float:
    """µs of a product whose kernel does so many FLOPs a clock on each SM: 2 m n k over the rate of all SMs."""
    return 2.0 * call.m * call.n * call.k / (flops_per_clk * gpu.sms * gpu.sustained_clock_mhz)


def slow_latent_us(call: Mla, flops_per_clk: float, gpu: GPU) -> float:
    """The same of latent attention's visible pairs."""
    pairs = sum(q * (kv - 0.5 * (q - 1)) for q, kv in zip(call.q_lens, call.kv_lens, strict=True))
    flops = 2.0 * call.heads * (2 * call.kv_lora_rank + call.rope_dim) * pairs
    return float(flops / (flops_per_clk * gpu.sms * gpu.sustained_clock_mhz))


def _prompts_stay_latent(call: Call) -> TypeGuard[Mla]:
    return isinstance(call, Mla) and call.phase == "generation" and max(call.q_lens) > MOST_VERIFIED


def masked_us(call: FusedMoe, law: GroupedGemmTime, gpu: GPU) -> float:
    """µs of an expert layer behind DeepEP, by the law of `GroupedGemmTime`; experts chosen at random."""
    active = call.experts / call.ep * (1.0 - (1.0 - call.topk / call.experts) ** call.tokens)
    read_us, multiplied_us = masked_parts(call, active, gpu)
    return law.start_us + math.hypot(law.read_factor * read_us, law.math_factor * multiplied_us)


def masked_parts(call: FusedMoe, active: float, gpu: GPU) -> tuple[float, float]:
    """µs to read the weights of so many experts of a rank at DRAM's rate, and to multiply its rows at the peak."""
    each = 3.0 * call.hidden * call.inter / call.tp
    read_us = 1e-3 * active * each * OPERAND_BYTES[call.dtype] / gpu.dram_gbps
    return read_us, 2e6 * each * call.tokens * call.topk / call.ep / gpu.peak_flops(call.dtype)


def law_of(call: FusedMoe, rule: KernelRule, exchange: str) -> GroupedGemmTime | None:
    """The law that answers a call; None where none does. What a low-latency exchange sends comes
    masked, as do few tokens of each rank where the exchange goes by their number.
    """
    fixed = {LOW_LATENCY: True, HIGH_THROUGHPUT: False}.get(exchange.removesuffix(NARROW))
    few = call.tokens <= FEW_TOKENS * call.ep if fixed is None else fixed
    return rule.masked_gemm if few else rule.contiguous_gemm


def least_us(call: Call, rule: KernelRule, gpu: GPU) -> float:
    """Least µs of a call by the engine's rule for it; 0 without one."""
    if isinstance(call, FusedMoe) and rule.rows_per_expert:
        return every_block_us(call, rule.rows_per_expert, gpu)
    if isinstance(call, Gemm) and rule.max_flops_per_clk:
        return slow_product_us(call, rule.max_flops_per_clk, gpu)
    if _prompts_stay_latent(call) and rule.max_flops_per_clk:
        return slow_latent_us(call, rule.max_flops_per_clk, gpu)
    return 0.0


def within_rules(
    calls: Sequence[Call], rules: Sequence[KernelRule | None], found: Predictions, gpu: GPU, engine: Engine
) -> Predictions:
    """Predictions as the engine's rules say its kernels run: so many times as long as the fastest that are known, never
    below what they cannot do without, and with the small kernels that come with them.
    """
    factor = np.where([isinstance(call, Gemm | FusedMoe) for call in calls], engine.kernels.best_kernel_ratio, 1.0)
    for i, (call, rule) in enumerate(zip(calls, rules, strict=True)):
        if rule:
            factor[i] = _ruled(call, rule, float(factor[i]), float(found.latency_us[i]), engine, gpu)
    return found if np.all(factor == 1.0) else found.scaled(factor)


def _ruled(call: Call, rule: KernelRule, ratio: float, us: float, engine: Engine, gpu: GPU) -> float:
    """How many times its prediction of so many µs a call takes under its rule; `ratio`: without one."""
    factor = max(ratio, least_us(call, rule, gpu) / us)
    if isinstance(call, FusedMoe) and (law := law_of(call, rule, engine.expert_parallel.exchange)):
        factor = masked_us(call, law, gpu) / us
    return factor + rule.extra_kernels * engine.kernels.extra_kernel_clk / gpu.sustained_clock_mhz / us
