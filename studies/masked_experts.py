"""The law of expert layers behind DeepEP against rows: `python -m studies.masked_experts`.

SGLang's layer (`wideep_generation_moe` and `wideep_context_moe` of the corpus, spread evenly), over masked rows in
decode steps and over rows laid out one expert after the other in prompts: its start, and what reading weights and
multiplying take over the times at DRAM's rate and the peak (`step/kernel_latency.py`). Constants fitted on all other
GPUs (prompts: on the other of its generation) are scored on one; those that ship are fitted on all. Prompts shorter
than a millisecond wait for the host.
"""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipewave.calls.families import FusedMoe
from pipewave.gpus import find
from pipewave.software.engine import find as engine
from pipewave.software.engine_parts import DeploymentFacts
from pipewave.step.kernel_latency import masked_parts
from studies.published_rows import corpus

GPUS = {"h100_sxm": "H100", "h200_sxm": "H200", "b200_sxm": "B200", "gb200": "GB200"}
NAMES = {"num_tokens": "tokens", "num_experts": "experts", "hidden_size": "hidden", "inter_size": "inter"}
FIELDS = (*NAMES.values(), "topk", "moe_ep_size", "moe_tp_size")
HOST_MS, MOST_RANKS = 1.0, 16  # of prompts: shorter ones wait for the host; engines of prompts are no wider
PHASES = {"generation": "masked", "context": "laid_out"}  # and the constants of a rule
HOPPER, BLACKWELL = ("h100_sxm", "h200_sxm"), ("b200_sxm", "gb200")
KINDS = {"generation": ((*HOPPER, *BLACKWELL),), "context": (HOPPER, BLACKWELL)}  # GPUs that share constants
Table = NDArray[np.float64]  # a row a measurement: µs to read, µs to multiply, µs measured


def rows(gpu: str, phase: str = "generation") -> Table:
    """Evenly spread rows of a GPU, every version."""
    paths = sorted((corpus() / "aiconfigurator" / gpu / "moe" / "sglang").glob(f"*/wideep_{phase}_moe_perf.parquet"))
    frame = pd.concat([pd.read_parquet(path) for path in paths])
    frame = frame[frame["distribution"] == "uniform"].rename(columns=NAMES)
    if phase == "context":
        frame = frame[(frame["latency"] > HOST_MS) & (frame["moe_ep_size"] <= MOST_RANKS)]
    return np.array([_row(GPUS[gpu], *line) for line in frame[[*FIELDS, "latency"]].itertuples(index=False)])


def _row(gpu: str, *line: float) -> tuple[float, float, float]:
    tokens, experts, hidden, inter, topk, ep, tp = map(int, line[:-1])
    call = FusedMoe(tokens, experts, topk, hidden, inter, ep=ep, tp=tp, dtype="fp8_block")
    active = min(experts, tokens * topk) / ep  # spread evenly
    return *masked_parts(call, active, find(gpu)), 1e3 * line[-1]


def law(constants: Table, table: Table) -> Table:
    """µs by (start, a, b)."""
    start, reading, multiplying = constants
    return np.asarray(start + np.hypot(reading * table[:, 0], multiplying * table[:, 1]))


def fitted(table: Table) -> Table:
    """The constants with the least error of logarithms, outliers counted less."""
    from scipy.optimize import least_squares

    found = least_squares(
        lambda c: np.log(law(c, table) / table[:, 2]), [20.0, 1.3, 1.5], bounds=(0, 1000), loss="soft_l1"
    )
    return np.asarray(found.x)


def error(constants: Table, table: Table) -> float:
    """Mean absolute error, %."""
    return float(100 * np.abs(law(constants, table) / table[:, 2] - 1).mean())


def main() -> None:
    """For each phase and kind of GPU a line for each GPU left out, one for all, and one for the constants that ship."""
    for phase, name in PHASES.items():
        for kind in KINDS[phase]:
            print(phase)
            show(phase, kind, shipped(name, GPUS[kind[-1]]))


def show(phase: str, kind: tuple[str, ...], own: Table) -> None:
    """The lines of a phase and a kind of GPU; own: the constants that ship."""
    tables = {gpu: rows(gpu, phase) for gpu in kind}
    for gpu, table in tables.items():
        others = fitted(np.concatenate([rest for name, rest in tables.items() if name != gpu]))
        print(f"{GPUS[gpu]:6} left out: {others.round(2)}, {error(others, table):.1f} % of {len(table)} rows")
    whole = np.concatenate(list(tables.values()))
    print(f"all: {fitted(whole).round(2)}, {error(fitted(whole), whole):.1f} % of {len(whole)} rows")
    print(f"shipped: {own}, {error(own, whole):.1f} %")


def shipped(name: str, gpu: str) -> Table:
    """Constants of SGLang's rule for experts behind DeepEP on a GPU."""
    setting = DeploymentFacts(gpu, find(gpu).traits.mma, dp=8, ep=8, experts=True, dtype="fp8_block")
    rule = engine("sglang").what_if(exchange="deepep").on(setting).kernel("fused_moe", "fp8_block")
    law = {"masked": rule.masked_gemm, "laid_out": rule.contiguous_gemm}[name] if rule else None
    return np.array(astuple(law)) if law else np.zeros(3)


if __name__ == "__main__":
    main()
