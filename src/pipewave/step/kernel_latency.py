"""Latency, energy and launches of a step's kernels as an engine runs them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipewave.calls.dtypes import ACTIVATION_BYTES, OPERAND_BYTES
from pipewave.calls.families import Attention, Call, Collective, Elementwise, FusedMoe, Gemm, Mla
from pipewave.calls.operators import AttentionModule, DeltaNet, Mamba2
from pipewave.gpus import GPU
from pipewave.models.expert_parallel import FEW_TOKENS, HIGH_THROUGHPUT, LOW_LATENCY, NARROW
from pipewave.physics.cache import SERVING, l2_bytes
from pipewave.physics.demand import Array
from pipewave.physics.power import Work, draw_of
from pipewave.prediction.answers import Predictions
from pipewave.prediction.api import Group, group_on, predict_grouped
from pipewave.prediction.notes import Note
from pipewave.software.engine import Engine
from pipewave.software.engine_parts import GroupedGemmTime, KernelRule
from pipewave.software.rules import constant
from pipewave.step.overlap import with_fused_norms

MOE_LAUNCHES = 10
# A prompt's scan: six kernels (vLLM 0.22.1 model_executor/layers/fla/ops/chunk.py) and four that fetch and keep states
# (mamba/gdn/qwen_gdn_linear_attn.py _forward_core).
SCAN_LAUNCHES = 10
# Five kernels (mamba/ops/ssd_combined.py) and four that fetch and keep states (mamba_mixer2.py conv_ssm_forward).
MAMBA_LAUNCHES = 9
WIDE, HALF = "bf16", "fp16"
UNSAID = "random"  # routing of a call that says nothing
CHOSEN = (Gemm, Attention, Mla, AttentionModule, FusedMoe, DeltaNet)  # families that engines have several kernels for
PRODUCTS, SCANS = (Gemm, FusedMoe), (DeltaNet, Mamba2)
Rules = dict[tuple[str, str, str], KernelRule | None]  # of an engine, by family, type and phase
# Cards without NVLink reach one another at a tenth of their link on some hosts (rows of four and eight L40S), at most
# of it on others; a call short enough to be all start-up says nothing of it.
FAR_BELOW_LINK, ALL_BYTES_US = 5.0, 500.0
SLOW_LINK = "several times what the GPU's link would take, as on the host of its rows: another host may be far faster"
NODES: dict[type[Call], int] = {FusedMoe: 6, Mla: 2}  # of other families one


@dataclass(frozen=True, slots=True)
class Kernel:
    """A call as an engine runs it on a GPU, with what its prediction needs to know beside."""

    asked: Call
    call: Call  # by another implementation than its rows say, or from another stack's rows
    rule: KernelRule | None  # of the engine
    group: Group
    general: tuple[Note, ...]  # notes on the engine and the GPU
    own: tuple[Note, ...]  # what the rule says of it


@dataclass(frozen=True, slots=True)
class KernelLatencies:
    """Distinct calls of a step."""

    found: Predictions
    nodes: Array  # kernels each launches
    launches: Array  # launches whose host time it takes to launch them one by one
    notes: Sequence[Sequence[Note]]  # of each call: what was substituted, for the call and in general

    @property
    def columns(self) -> tuple[Array, ...]:
        """Columns that add up over a step: µs, kernels, launches, joules above idle."""
        return self.found.latency_us, self.nodes, self.launches, self.found.above_idle_j


def kernel_latencies(calls: Sequence[Call], gpu: GPU, engine: Engine) -> KernelLatencies:
    """Predict calls as they run inside a step of an engine, without their ceilings. Raises what `predict` raises."""
    return latencies_of(kernels_of(calls, gpu, engine), gpu, engine)


def kernels_of(calls: Sequence[Call], gpu: GPU, engine: Engine, known: Rules | None = None) -> list[Kernel]:
    """Calls as an engine runs them; `known`: its rules as far as they were looked up. Raises what `predict` raises."""
    known, kernels, has_wide = {} if known is None else known, list[Kernel](), gpu.supports(WIDE)
    said = tuple(("", note) for note in (engine.unsupported_model, engine.substituted) if note)
    for asked in calls:
        call, fallen_back = (asked, "") if has_wide or asked.dtype != WIDE else _in_half(asked, gpu)
        rule = _rule(call, engine, known)
        call = _as_run(call, rule, gpu, engine)
        general = (*said, ("", fallen_back)) if fallen_back else said
        own = ((call.kernel, rule.note),) if rule and rule.note else ()
        kernels.append(Kernel(asked, call, rule, group_on(call, gpu, engine.stack), general, own))
    return kernels


def latencies_of(kernels: Sequence[Kernel], gpu: GPU, engine: Engine) -> KernelLatencies:
    """Predict kernels as they run inside a step of their engine, without their ceilings."""
    calls, rules = [one.call for one in kernels], [one.rule for one in kernels]
    found = predict_grouped(calls, [one.group for one in kernels], gpu, SERVING)
    found, gone, called = with_fused_norms(calls, within_rules(calls, rules, found, gpu, engine), gpu, engine)
    launches = np.array([launches_of(one.call, one.rule) for one in kernels], float)
    launches = np.where(called, engine.kernels.fused_norm_launches, launches)
    nodes = np.ones(len(calls))  # gaps between a call's own kernels are in its measured time
    slow = (found.floor_us > ALL_BYTES_US) & (found.latency_us > FAR_BELOW_LINK * found.floor_us)
    notes = [
        [*one.general, *((one.call.kernel, note) for note in found.sources[group].notes), *one.own]
        for one, group in zip(kernels, found.group.tolist(), strict=True)
    ]
    for at in np.flatnonzero(slow):
        if isinstance(calls[at], Collective):
            notes[at].append((calls[at].kernel, SLOW_LINK))
    return KernelLatencies(found, np.where(gone, 0.0, nodes), np.where(gone, 0.0, launches), notes)


def _in_half(call: Call, gpu: GPU) -> tuple[Call, str]:
    """The call in fp16 on a GPU that lacks bf16, and a note on it.

    So fall back vLLM 0.22.1 (vllm/config/model.py, _resolve_auto_dtype) and SGLang 0.5.14
    (srt/model_executor/model_runner.py, below compute capability 8).
    """
    copies = isinstance(call, Elementwise)  # which have no type
    note = "" if copies else f"{gpu.name} has no {WIDE}: answered in {HALF}, to which engines fall back"
    return call.changed(dtype=HALF), note


def _rule(call: Call, engine: Engine, known: Rules) -> KernelRule | None:
    """The engine's rule for a call that names no stack and no implementation."""
    if not isinstance(call, CHOSEN) or call.stack or call.impl:
        return None
    if isinstance(call, DeltaNet) and (call.kind, call.phase) != ("gdn", "context"):  # others have one kernel
        return None
    asked = (call.kernel, call.dtype, getattr(call, "phase", ""))
    if asked not in known:
        known[asked] = engine.kernel(*asked)
    return known[asked]


def _as_run(call: Call, rule: KernelRule | None, gpu: GPU, engine: Engine) -> Call:
    """The call as the engine runs it: by another implementation than its rows say, or from another stack's rows."""
    if isinstance(call, FusedMoe) and call.routing == UNSAID and not call.stack and not call.impl:
        call = replace(call, routing=engine.kernels.routing or UNSAID)
    if rule is None or not isinstance(call, CHOSEN):
        return call
    rows = call.tokens * call.topk / call.experts if isinstance(call, FusedMoe) else getattr(call, "m", 0)
    dtype = WIDE if 0 < rule.wide_rows <= rows else rule.runs_as_dtype or call.dtype
    call = replace(call, stack=rule.stack or None, impl=rule.impl or None, dtype=dtype)
    if isinstance(call, Attention | Mla | AttentionModule) and rule.cache_dtype and call.kv_dtype:
        call = replace(call, kv_dtype=rule.cache_dtype)
    if not isinstance(call, Gemm):
        return call
    # A product pays for quantising its rows, which come in 16 bits, by a kernel, or by reading more than the L2 holds.
    twice = rule.norm_reads_twice and ACTIVATION_BYTES * call.m * call.k > l2_bytes(gpu)
    return replace(call, quantize=call.quantize and (rule.quantize_kernel or twice))


def nodes_of(call: Call) -> int:
    """Kernels one call launches: nodes of a CUDA graph."""
    return 1 + call.quantize if isinstance(call, Gemm) else NODES.get(type(call), 1)


def launches_of(call: Call, rule: KernelRule | None) -> int:
    """Launches whose host time equals that of a call launched kernel by kernel; a MoE layer runs much Python."""
    if rule and rule.host_launches:
        return rule.host_launches
    if isinstance(call, SCANS) and call.phase == "context":
        return SCAN_LAUNCHES if isinstance(call, DeltaNet) else MAMBA_LAUNCHES
    return MOE_LAUNCHES if isinstance(call, FusedMoe) else nodes_of(call)


# Lower bounds and laws that an engine's rules set for kernels whose own rows are missing.

TILE = 128  # columns of a block
MOST_VERIFIED = 16  # tokens of a request that a decode step verifies; a prompt brings more
MULTIPLIES_ALL = "tcgen05"  # DeepGEMM's products by these instructions do not ask whether a block holds a row
WIDTH = {"fp8": 1.0, "fp8_block": 1.0}  # bytes of an operand's element; of others two


def every_block(call: FusedMoe, rows: int, gpu: GPU) -> Work:
    """What DeepGEMM does for a block of `rows` rows for every expert of this rank.

    Its contiguous layout lays the rows of each expert out in whole blocks; an engine that does not know on the host how
    many tokens came to each asks for a block of every one. Tiles of both operands are loaded into the SMs, however few
    the tokens, and multiplied: on Hopper those of blocks that hold a row, on Blackwell all (`sm90_fp8_gemm_1d2d.cuh`
    asks, `sm100_fp8_gemm_1d1d.cuh` does not): its time is theirs. Weights of experts without rows come from the L2.
    """
    experts, inter = call.experts / call.ep, call.inter / call.tp
    gate_up = 2.0 * inter / TILE * (rows + TILE) * call.hidden
    down = call.hidden / TILE * (rows + TILE) * inter
    each, width, active = 3.0 * call.hidden * inter, WIDTH.get(call.dtype, 2.0), active_experts(call)
    flops = 2.0 * each * rows * (experts if gpu.traits.mma == MULTIPLIES_ALL else active)
    return Work(flops, each * width * active, experts * (gate_up + down) * width)


def every_block_us(call: FusedMoe, rows: int, gpu: GPU) -> float:
    """µs to load the tiles of `every_block`, so that no step is faster. How fast one block an SM loads tiles is
    `bytes_per_clk` of the rule `attention_costs`, of kernels that load by TMA, too: FlashAttention 3's (rows of an
    H200), on Blackwell those of TensorRT-LLM's generated kernels (rows of a B200).
    """
    engine = "trtllm_gen" if gpu.traits.mma == "tcgen05" else "fa3"
    costs = constant("attention_costs", engine=engine, mma=gpu.traits.mma, fp8=False, latent=False)
    return float(every_block(call, rows, gpu).l2 / (costs.bytes_per_clk * gpu.sms * gpu.sustained_clock_mhz))


def one_block(call: FusedMoe, rule: KernelRule) -> bool:
    """Whether an engine walks a block for every expert, which then holds all its rows."""
    return call.tokens * call.topk <= rule.rows_per_expert * call.experts


def active_experts(call: FusedMoe) -> float:
    """Experts of a rank that get any token, chosen at random."""
    return call.experts / call.ep * (1.0 - (1.0 - call.topk / call.experts) ** call.tokens)


def flops_of(call: Gemm | Mla) -> float:
    """A product's 2 m n k, or those of latent attention: 2 × (2 kv_lora_rank + rope_dim) a head and visible pair."""
    if isinstance(call, Gemm):
        return 2.0 * call.m * call.n * call.k
    pairs = sum(q * (kv - 0.5 * (q - 1)) for q, kv in zip(call.q_lens, call.kv_lens, strict=True))
    return 2.0 * call.heads * (2 * call.kv_lora_rank + call.rope_dim) * pairs


def slow_us(call: Gemm | Mla, flops_per_clk: float, gpu: GPU) -> float:
    """µs of a kernel that does so many FLOPs a clock on each SM, as of older tensor instructions: no row is of such,
    only its rate is known.
    """
    return flops_of(call) / (flops_per_clk * gpu.sms * gpu.sustained_clock_mhz)


def masked_us(call: FusedMoe, law: GroupedGemmTime, gpu: GPU) -> float:
    """µs of an expert layer behind DeepEP, by the law of `GroupedGemmTime`; experts chosen at random.

        time = start + ((a · read)² + (b · multiplied)²)^½

    Buffers are of one size each in decode steps (grouped products skip the rows that a mask says are empty), one expert
    after the other in prompts. `python -m studies.masked_experts` fits the constants of either to rows of four GPUs.
    """
    read_us, multiplied_us = masked_parts(call, active_experts(call), gpu)
    return law.start_us + math.hypot(law.read_factor * read_us, law.math_factor * multiplied_us)


def masked_parts(call: FusedMoe, active: float, gpu: GPU) -> tuple[float, float]:
    """µs to read the weights of so many experts of a rank at DRAM's rate, and to multiply its rows at the peak."""
    each = 3.0 * call.hidden * call.inter / call.tp
    read_us = 1e-3 * active * each * OPERAND_BYTES[call.dtype] / gpu.dram_gbps
    return read_us, 2e6 * each * call.tokens * call.topk / call.ep / gpu.peak_flops(call.dtype)


def law_of(call: FusedMoe, rule: KernelRule, exchange: str) -> GroupedGemmTime | None:
    """The law of a call, None without one: masked where a low-latency exchange sends, or few tokens of a rank."""
    fixed = {LOW_LATENCY: True, HIGH_THROUGHPUT: False}.get(exchange.removesuffix(NARROW))
    few = call.tokens <= FEW_TOKENS * call.ep if fixed is None else fixed
    return rule.masked_gemm if few else rule.contiguous_gemm


def least_us(call: Call, rule: KernelRule, gpu: GPU) -> float:
    """Least µs of a call by the engine's rule for it; 0 without one."""
    if not isinstance(call, Gemm | Mla) or not rule.max_flops_per_clk:
        return 0.0
    # Of latent attention, prompts behind a cached prefix alone: decode steps have rows.
    if isinstance(call, Mla) and (call.phase != "generation" or max(call.q_lens) <= MOST_VERIFIED):
        return 0.0
    return slow_us(call, rule.max_flops_per_clk, gpu)


def within_rules(
    calls: Sequence[Call], rules: Sequence[KernelRule | None], found: Predictions, gpu: GPU, engine: Engine
) -> Predictions:
    """Predictions under the engine's rules: over the fastest known, within bounds, with small kernels beside."""
    factor = np.where([isinstance(call, PRODUCTS) for call in calls], engine.kernels.best_kernel_ratio, 1.0)
    work_j = found.work_j.copy()
    for i, (call, rule) in enumerate(zip(calls, rules, strict=True)):
        if rule:
            factor[i] = _ruled(call, rule, float(factor[i]), float(found.latency_us[i]), engine, gpu)
            if isinstance(call, FusedMoe) and one_block(call, rule):
                work_j[i] = draw_of(gpu, "gemm", call.dtype).work_j(every_block(call, rule.rows_per_expert, gpu))
    return found if np.all(factor == 1.0) else replace(found.scaled(factor), work_j=work_j)


def _ruled(call: Call, rule: KernelRule, ratio: float, us: float, engine: Engine, gpu: GPU) -> float:
    """How many times its prediction of so many µs a call takes under its rule; `ratio`: without one."""
    factor = max(ratio, least_us(call, rule, gpu) / us)
    if isinstance(call, FusedMoe) and rule.rows_per_expert:
        walked = every_block_us(call, rule.rows_per_expert, gpu) / us
        factor = walked if one_block(call, rule) and gpu.traits.mma == MULTIPLIES_ALL else max(factor, walked)
    if isinstance(call, FusedMoe) and (law := law_of(call, rule, engine.expert_parallel.exchange)):
        factor = masked_us(call, law, gpu) / us
    return factor + rule.extra_kernels * engine.kernels.extra_kernel_clk / gpu.sustained_clock_mhz / us
