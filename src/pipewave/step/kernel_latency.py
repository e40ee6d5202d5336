"""Latency, energy and launches of a step's kernels as an engine runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from pipewave.calls.dtypes import ACTIVATION_BYTES
from pipewave.calls.families import Attention, Call, Collective, Elementwise, FusedMoe, Gemm, Mla
from pipewave.calls.operators import AttentionModule, DeltaNet, Mamba2
from pipewave.gpus import GPU
from pipewave.physics.cache import SERVING
from pipewave.physics.demand import Array
from pipewave.physics.energy import delivered_us
from pipewave.prediction.answers import Predictions
from pipewave.prediction.api import predict_list
from pipewave.prediction.notes import said_of
from pipewave.software.engine import Engine
from pipewave.software.engine_parts import KernelRule
from pipewave.step.kernel_rules import within_rules
from pipewave.step.overlap import MIB, with_fused_norms

COLLECTIVE_SHARE = 0.8  # of what the board can deliver, drawn while a collective copies and spins
MOE_LAUNCHES = 10
# A prompt's scan: six kernels (vLLM 0.22.1 model_executor/layers/fla/ops/chunk.py) and four that fetch and keep states
# (mamba/gdn/qwen_gdn_linear_attn.py _forward_core).
SCAN_LAUNCHES = 10
# Five kernels (mamba/ops/ssd_combined.py) and four that fetch and keep states (mamba_mixer2.py conv_ssm_forward).
MAMBA_LAUNCHES = 9
WIDE, HALF = "bf16", "fp16"
UNSAID = "random"  # routing of a call that says nothing
CHOSEN = (Gemm, Attention, Mla, AttentionModule, FusedMoe, DeltaNet)  # families that engines have several kernels for
NODES: dict[type[Call], int] = {FusedMoe: 6, Attention: 1, Mla: 2}


@dataclass(frozen=True, slots=True)
class KernelLatencies:
    """Distinct calls of a step."""

    found: Predictions
    heat_us: Array  # µs that their energy takes at the power limit
    nodes: Array  # kernels each launches
    launches: Array  # launches whose host time it takes to launch them one by one
    notes: tuple[str, ...]  # what was substituted, with the families

    @property
    def columns(self) -> tuple[Array, ...]:
        """Columns that add up over a step: µs, µs at the power limit, kernels, launches, joules above idle."""
        return self.found.latency_us, self.heat_us, self.nodes, self.launches, self.found.above_idle_j


def kernel_latencies(calls: Sequence[Call], gpu: GPU, engine: Engine) -> KernelLatencies:
    """Predict calls as they run inside a step of an engine, without their ceilings. Raises what `predict` raises."""
    calls, fallen_back = _in_types_of(gpu, calls)
    rule_of = cache(engine.kernel)
    rules = [_rule(call, rule_of) for call in calls]
    calls = [_as_run(call, rule, gpu, engine) for call, rule in zip(calls, rules, strict=True)]
    found = predict_list(calls, gpu, SERVING, engine.stack, ceilings=False)
    heat = heat_us(calls, found, gpu)
    found, gone = with_fused_norms(calls, within_rules(calls, rules, found, gpu, engine), gpu, engine)
    launches = np.array([launches_of(call, rule) for call, rule in zip(calls, rules, strict=True)], float)
    nodes = np.ones(len(calls))  # gaps between a call's own kernels are in its measured time
    notes = tuple(
        filter(None, (engine.unsupported_model, engine.substituted, fallen_back, *_notes(calls, found, rules)))
    )
    return KernelLatencies(found, heat, np.where(gone, 0.0, nodes), np.where(gone, 0.0, launches), notes)


def _in_types_of(gpu: GPU, calls: Sequence[Call]) -> tuple[Sequence[Call], str]:
    """The calls in fp16 where the GPU lacks bf16, and a note on it.

    So fall back vLLM 0.22.1 (vllm/config/model.py, _resolve_auto_dtype) and SGLang 0.5.14
    (srt/model_executor/model_runner.py, below compute capability 8).
    """
    if gpu.supports(WIDE):
        return calls, ""
    changed = [_in_half(call) for call in calls]
    pairs = zip(calls, changed, strict=True)
    said = any(new is not old and not isinstance(old, Elementwise) for old, new in pairs)  # copies have no type
    return changed, f"{gpu.name} has no {WIDE}: answered in {HALF}, to which engines fall back" if said else ""


def _in_half(call: Any) -> Any:
    return replace(call, dtype=HALF) if call.dtype == WIDE else call


def _rule(call: Call, rule_of: Callable[[str, str, str], KernelRule | None]) -> KernelRule | None:
    """The engine's rule for a call that names no stack and no implementation."""
    if not isinstance(call, CHOSEN) or call.stack or call.impl or not _has_choice(call):
        return None
    return rule_of(call.kernel, call.dtype, getattr(call, "phase", ""))


def _as_run(call: Call, rule: KernelRule | None, gpu: GPU, engine: Engine) -> Call:
    """The call as the engine runs it: by another implementation than its rows say, or from another stack's rows."""
    if isinstance(call, FusedMoe) and call.routing == UNSAID and not call.stack and not call.impl:
        call = replace(call, routing=engine.kernels.routing or UNSAID)
    if rule is None or not isinstance(call, CHOSEN):
        return call
    call = replace(call, stack=rule.stack or None, impl=rule.impl or None, dtype=rule.runs_as_dtype or call.dtype)
    if isinstance(call, Attention | Mla) and rule.cache_dtype and call.kv_dtype:
        call = replace(call, kv_dtype=rule.cache_dtype)
    return replace(call, quantize=call.quantize and _pays(call, rule, gpu)) if isinstance(call, Gemm) else call


def _pays(call: Gemm, rule: KernelRule, gpu: GPU) -> bool:
    """Whether a product pays for quantising its rows, which come in 16 bits."""
    return rule.quantize_kernel or (rule.norm_reads_twice and ACTIVATION_BYTES * call.m * call.k > MIB * gpu.l2_mb)


def _notes(calls: Sequence[Call], found: Predictions, rules: Sequence[KernelRule | None]) -> tuple[str, ...]:
    """Notes of predictions and of the rules behind them, each once, with the families it concerns."""
    return said_of(
        (call.kernel, note)
        for call, group, rule in zip(calls, found.group.tolist(), rules, strict=True)
        for note in (*found.sources[group].notes, *([rule.note] if rule and rule.note else []))
    )


def _has_choice(call: Call) -> bool:
    """Of delta nets, only scans of gated ones have several kernels."""
    return not isinstance(call, DeltaNet) or (call.kind, call.phase) == ("gdn", "context")


def nodes_of(call: Call) -> int:
    """Kernels one call launches: nodes of a CUDA graph."""
    if isinstance(call, Gemm):
        return 2 if call.quantize else 1
    return NODES.get(type(call), 1)


def launches_of(call: Call, rule: KernelRule | None) -> int:
    """Launches whose host time equals that of a call launched kernel by kernel; a MoE layer runs much Python."""
    if rule and rule.host_launches:
        return rule.host_launches
    if isinstance(call, DeltaNet | Mamba2) and call.phase == "context":
        return SCAN_LAUNCHES if isinstance(call, DeltaNet) else MAMBA_LAUNCHES
    return MOE_LAUNCHES if isinstance(call, FusedMoe) else nodes_of(call)


def heat_us(calls: Sequence[Call], found: Predictions, gpu: GPU) -> Array:
    """µs the board needs at its power limit to deliver the energy of each call, from their predictions.

    A collective draws by its time, not by its bytes: its SMs spin until the link has carried them.
    """
    waits = np.array([isinstance(call, Collective) for call in calls], bool)
    return np.where(waits, COLLECTIVE_SHARE * found.latency_us, delivered_us(found.joules, gpu))
