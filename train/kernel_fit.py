"""Costs of vLLM's Triton attention on Hopper, for the rules `attention_prefill_cycles` and `attention_decode_cycles`.

    python -m train.kernel_fit

Fitted to measured rows (`studies.kind_kernels`) of all layouts but Gemma 4's two, whose errors and those of each layout
left out of a fit are printed. Least mean absolute logarithm, by steps along one constant at a time.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.gpus import find
from pipewave.kernels.attention import prefill
from pipewave.kernels.attention import prefill as segments
from pipewave.kernels.attention.setting import AttentionSetting, setting_of
from pipewave.kernels.attention.software import Alone
from pipewave.kernels.attention.tasks import Heads, Shape, requests_of_one, shape_of
from pipewave.kernels.base import Context
from pipewave.physics.overlap import overlapped
from pipewave.software.rule_values import BlockCycles, DecodeCycles
from studies.kind_kernels import GPU, STACK, layout, measured

Row = dict[str, Any]
Constants = NDArray[np.float64]
GEMMA = "16 heads on 8 of 256", "16 heads on 2 of 512"
PHASES = "prefill", "decode"
# A step and a wave, each fixed and per element of the head, around what a mask multiplies; fields of `DecodeCycles`.
STARTS = {"prefill": np.array([60.0, 5.6, 1.67, 2000.0, 40.0]), "decode": np.array([1500.0, 4.5, 2.8, 0.2])}
STRIDES = (0.2, 0.1, 0.05, 0.02, 0.01)
MOST_STEPS = 20


@dataclass(frozen=True, slots=True)
class Prompts:
    """A row's SM seconds for a cycle of a step and of a wave, and what else its time has."""

    name: str
    measured_s: float
    step_s: float
    wave_s: float
    memory_s: float
    launch_s: float
    dim: int
    masked: bool

    def predicted_s(self, constants: Constants) -> float:
        """Its time at those costs."""
        step, step_dim, masked, wave, wave_dim = constants
        steps = self.step_s * (step + step_dim * self.dim) * (masked if self.masked else 1.0)
        busy = overlapped(3, steps + self.wave_s * (wave + wave_dim * self.dim), self.memory_s)
        return float(self.launch_s + busy)


@dataclass(frozen=True, slots=True)
class Decode:
    """A row's shape and setting."""

    name: str
    measured_s: float
    shape: Shape
    setting: AttentionSetting

    def predicted_s(self, constants: Constants) -> float:
        """Its time at those costs."""
        fixed, per_element, blocks, share = constants.tolist()
        cycles = DecodeCycles(BlockCycles(fixed, per_element), blocks, share)
        return float(segments.seconds(self.shape, self.setting, cycles))


Load = Prompts | Decode


def load_of(row: Row) -> Load:
    """What a row's time is made of, from the schedule that predictions use."""
    case, name, measured_s = row["case"], layout(row), row["latency_us"] * 1e-6
    ctx = Context(find(GPU), "bf16", "cold", STACK, "vllm_triton_attn")
    heads = _heads(case, 2.0)
    shape, setting = shape_of(requests_of_one(case["q_lens"], case["kv_lens"]), heads), setting_of(ctx, heads)
    if name.startswith("decode"):
        return Decode(name, measured_s, shape, setting)
    unit = copy(setting)
    unit.engine = replace(setting.engine, alone=Alone(1.0, 1.0, 1.0))
    times = prefill.times_of(shape, prefill.work_of(shape, unit), unit)
    launch_s = setting.companions.launches * setting.launch_s
    return Prompts(name, measured_s, times["compute"], times["fixed"], times["memory"], launch_s, case["head_dim"],
                   bool(case.get("window")))  # fmt: skip


def log_errors(loads: Sequence[Load], constants: Constants) -> NDArray[np.float64]:
    """Logarithm of predicted over measured time of each row."""
    return np.array([np.log(one.predicted_s(constants) / one.measured_s) for one in loads])


def fitted(loads: Sequence[Load], start: Constants) -> Constants:
    """Constants that minimise the mean over layouts of the mean absolute logarithm."""
    names = np.array([one.name for one in loads])
    weights = np.array([1.0 / (names == name).sum() for name in names])
    best, wide = start, np.eye(len(start))
    for stride in STRIDES:
        best = _walked(lambda tried: float((weights * np.abs(log_errors(loads, tried))).sum()), best, stride * wide)
    return best


def _walked(loss: Callable[[Constants], float], best: Constants, strides: NDArray[np.float64]) -> Constants:
    """The best point that steps by one constant reach."""
    least = loss(best)
    for _ in range(MOST_STEPS):
        found = min((best * (1.0 + sign * stride) for stride in strides for sign in (1, -1)), key=loss)
        if loss(found) >= least:
            break
        best, least = found, loss(found)
    return best


def loads_of(phase: str) -> list[Load]:
    """The rows of a phase."""
    rows = [row for row in measured() if row["impl"] == "vllm_triton_attn" and layout(row).startswith(phase)]
    return [load_of(row) for row in rows]


def is_gemma(name: str) -> bool:
    """Whether a layout is one of Gemma 4's, which no constant saw."""
    return name.endswith(GEMMA) or any(f"{heads}, " in name for heads in GEMMA)


def shipped(loads: Sequence[Load], phase: str) -> Constants:
    """The constants of a phase from all layouts but Gemma 4's."""
    return fitted([one for one in loads if not is_gemma(one.name)], STARTS[phase])


def _heads(row: Mapping[Any, Any], kv_bytes: float) -> Heads:
    dim, window = float(row["head_dim"]), float(row.get("window") or 0) or None
    return Heads(float(row["heads"]), float(row["kv_heads"]), window, dim, dim, kv_bytes, 2.0)


def main(argv: list[str] | None = None) -> None:
    """Print the constants, and each layout's error with it left out."""
    parser = argparse.ArgumentParser(prog="python -m train.kernel_fit", description=__doc__)
    parser.parse_args(argv)
    for phase in PHASES:
        loads = loads_of(phase)
        known = shipped(loads, phase)
        print(json.dumps([float(f"{value:.3g}") for value in known]))
        for name in dict.fromkeys(one.name for one in loads):
            own, others = ([one for one in loads if (one.name == name) == same] for same in (True, False))
            left_out = known if is_gemma(name) else shipped(others, phase)
            print(f"{name}: {100 * np.abs(np.expm1(log_errors(own, left_out))).mean():.1f} % left out")


if __name__ == "__main__":
    main()
