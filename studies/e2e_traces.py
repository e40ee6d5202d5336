"""Kernel times in profiler traces of whole vLLM steps beside their prediction, family by family.

Families are distinguished by the names vLLM's, cuBLAS's, FlashAttention's and Inductor's kernels have. What belongs to
none (input copies, sampling, fills) is what the engine's constants stand for and is listed as `other`.
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

from lab.vllm_engine.points import TRACED_BATCH, TRACED_CONTEXT, TRACED_PROMPT
from pipewave.step.predict import detail
from studies.e2e_steps import FOLDER, runner_of

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
NAMES = (
    ("all_reduce", r"all_?reduce|ncclDevKernel_AllReduce|cross_device_reduce"),
    ("all_gather", r"AllGather"),
    ("fused_moe", r"fused_moe_kernel|moe_align|count_and_sort|topkGating|act_and_mul|reduce_kernel<128"),
    ("attention", r"FlashAttnFwd|flash_fwd|unified_attention"),
    ("gemm", r"nvjet|splitKreduce|cutlass.*[gG]emm|sm90_xmma"),
    ("rmsnorm", r"fused_add_rms_norm|embedding_rms_norm"),
    ("silu_and_mul", r"mul_silu"),
    ("kv_write", r"reshape_and_cache"),
    ("rope", r"triton_(poi|red)_fused_\d"),
)
# Our names of streaming kernels; rotations are fused with the norms of heads where a model has those.
STREAMS = {"kv_write": "kv_write", "rope": "rope", "qk_norm": "rope", "topk": "fused_moe"}


def traced() -> list[dict[str, Any]]:
    """One row a family of each traced step of a whole model under graphs: µs of a step, real and predicted."""
    rows = (json.loads(line) for path in sorted((FOLDER / "engine").glob("*.jsonl")) for line in path.open())
    wanted = [r for r in rows if r["kind"] == "trace" and r["mode"] == "graph" and r["status"] == "ok"]
    present = [r for r in wanted if (FOLDER / "traces" / r["file"]).exists()]
    return [row for trace in present for row in _compare(trace, FOLDER / "traces" / trace["file"])]


def _compare(trace: dict[str, Any], path: Path) -> list[dict[str, Any]]:
    real = family_us(path, len(trace["step_tokens"]))
    ours = predicted_us(trace["model"], trace["tp"], trace["phase"])
    named = [family for family in dict.fromkeys([*ours, *real]) if family != "other"]
    rows = [
        {"model": trace["model"], "phase": trace["phase"], "family": family, "real_us": real.get(family, 0.0),
         "predicted_us": ours.get(family, 0.0)}
        for family in [*named, "other"]
    ]  # fmt: skip
    return [row | {"error_percent": 100 * (row["predicted_us"] / max(row["real_us"], 1e-9) - 1)} for row in rows
            if row["real_us"] > 0]  # fmt: skip


def family_us(path: Path, steps: int) -> dict[str, float]:
    """µs a step spends in each family of kernels."""
    with gzip.open(path, "rt") as file:
        events = json.load(file)["traceEvents"]
    totals: dict[str, float] = {}
    for event in events:
        if event.get("cat") in DEVICE:
            family = family_of(event["name"])
            totals[family] = totals.get(family, 0.0) + event["dur"] / steps
    return totals


def family_of(name: str) -> str:
    """The family of a kernel's name."""
    return next((family for family, pattern in NAMES if re.search(pattern, name)), "other")


def predicted_us(model: str, tp: int, phase: str) -> dict[str, float]:
    """Our kernels of the traced step by the same families, at the clock the step's power allows."""
    runner = runner_of(model, tp)
    lengths = ([1] * TRACED_BATCH, [TRACED_CONTEXT] * TRACED_BATCH) if phase == "decode" else ([TRACED_PROMPT],) * 2
    parts = detail(runner, runner.batch(*lengths))
    kernels = [part for part in parts if part.family != "gap"]
    slower = 1 + next(p.total_us for p in parts if p.name == "power_throttling") / sum(p.total_us for p in kernels)
    totals: dict[str, float] = {}
    for part in kernels:
        family = STREAMS.get(part.name, "other") if part.family == "elementwise" else part.family
        totals[family] = totals.get(family, 0.0) + slower * part.total_us
    return totals
