"""Costs of prompts under vLLM's Triton attention on Hopper, for the rule `attention_prompts_alone`.

    python -m bench.kind_kernels_fit

Fitted to measured rows (`bench.kind_kernels`) of all layouts but Gemma 4's two, whose errors and those of each layout
left out of a fit are printed. Least mean absolute logarithm, by steps along one constant at a time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.kind_kernels import GPU, STACK, layout, measured
from pipewave.gpus import find
from pipewave.kernels.attention import prefill
from pipewave.kernels.attention.engine import Alone
from pipewave.kernels.attention.requests import requests_of_one
from pipewave.kernels.attention.setting import setting_of
from pipewave.kernels.attention.shape import Heads, shape_of
from pipewave.kernels.base import Context
from pipewave.physics.overlap import overlapped

Row = dict[str, Any]
Constants = NDArray[np.float64]  # step and wave, each fixed and per element of the head, around what a mask multiplies
GEMMA = ("prefill 16 heads on 8 of 256", "prefill 16 heads on 2 of 512")
START = np.array([60.0, 5.6, 1.67, 2000.0, 40.0])
STRIDES = (0.2, 0.1, 0.05, 0.02, 0.01)
WAVES_MOST = 20


@dataclass(frozen=True, slots=True)
class Load:
    """A row's SM seconds for a cycle of a step and of a wave, and what else its time has."""

    name: str
    measured_s: float
    step_s: float
    wave_s: float
    memory_s: float
    launch_s: float
    dim: int
    masked: bool


def load_of(row: Row) -> Load:
    """What a row's time is made of, from the schedule that predictions use."""
    case = row["case"]
    ctx = Context(find(GPU), "bf16", "cold", STACK, "vllm_triton_attn")
    heads = Heads(float(case["heads"]), float(case["kv_heads"]), float(case.get("window") or 0) or None,
                  float(case["head_dim"]), float(case["head_dim"]), 2.0, 2.0)  # fmt: skip
    shape = shape_of(requests_of_one(case["q_lens"], case["kv_lens"]), heads)
    setting = setting_of(ctx, heads)
    unit = replace(setting, engine=replace(setting.engine, alone=Alone(1.0, 1.0, 1.0)))
    times = prefill.times_of(shape, prefill.work_of(shape, unit), unit)
    launch_s = setting.companions.launches * setting.launch_s
    return Load(layout(row), row["latency_us"] * 1e-6, times.compute, times.fixed, times.memory, launch_s,
                case["head_dim"], bool(case.get("window")))  # fmt: skip


def log_errors(loads: Sequence[Load], constants: Constants) -> NDArray[np.float64]:
    """Logarithm of predicted over measured time of each row."""
    step, step_dim, masked, wave, wave_dim = constants
    out = []
    for one in loads:
        steps = one.step_s * (step + step_dim * one.dim) * (masked if one.masked else 1.0)
        busy = overlapped(3, steps + one.wave_s * (wave + wave_dim * one.dim), one.memory_s)
        out.append(np.log((one.launch_s + busy) / one.measured_s))
    return np.array(out)


def fitted(loads: Sequence[Load]) -> Constants:
    """Constants that minimise the mean over layouts of the mean absolute logarithm."""
    names = np.array([one.name for one in loads])
    weights = np.array([1.0 / (names == name).sum() for name in names])

    def loss(constants: Constants) -> float:
        return float((weights * np.abs(log_errors(loads, constants))).sum())

    best = START.copy()
    for stride in STRIDES:
        for _ in range(WAVES_MOST):
            tried = [best * (1.0 + sign * stride * np.eye(len(best))[i]) for i in range(len(best)) for sign in (1, -1)]
            found = min(tried, key=loss)
            if loss(found) >= loss(best):
                break
            best = found
    return best


def main() -> None:
    """Print the constants, and each layout's error with it left out."""
    rows = [row for row in measured() if row["impl"] == "vllm_triton_attn" and layout(row).startswith("prefill")]
    loads = [load_of(row) for row in rows]
    names = list(dict.fromkeys(one.name for one in loads))
    gemma = {one.name for one in loads if one.name.startswith(GEMMA)}
    shipped = fitted([one for one in loads if one.name not in gemma])
    print(json.dumps([round(float(value), 2) for value in shipped]))
    for name in names:
        own = [one for one in loads if one.name == name]
        left_out = shipped if name in gemma else fitted([one for one in loads if one.name not in gemma | {name}])
        print(f"{name}: {100 * np.abs(np.expm1(log_errors(own, left_out))).mean():.1f} % left out")


if __name__ == "__main__":
    main()
