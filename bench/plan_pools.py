"""Disaggregated designs of `pipewave plan` in closed form beside the simulator: `python -m bench.plan_pools`.

Each design keeps the requests of its decode engines in flight; times of the simulator are means over the requests that
came after the first batches and before the last, lengths within half of their mean. First tokens wait as in M/D/x in
the closed form; in the simulator prompts come when requests end, in groups and not at random.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pipewave.models import load as model_of
from pipewave.planning import Question, Space, Split
from pipewave.planning.disaggregated import designs
from pipewave.serving.disaggregated import Disaggregated, Side
from pipewave.serving.setup import Setup
from pipewave.serving.speculative import of
from pipewave.serving.traffic import synthetic

TIMES = ("ttft_ms", "tpot_ms", "e2e_ms")
ROUNDS, BUDGET = 8, 8192
DRAFTS = "method=mtp,tokens=3,acceptance=0.62"


@dataclass(frozen=True, slots=True)
class Load:
    """A model, where and under what, requests of a decode rank, tokens in and out; tp, or ranks of data-parallel
    attention."""

    model: str
    gpu: str
    engine: str
    batch: int
    isl: int
    osl: int
    tp: int = 1
    dp: int = 1
    drafts: str | None = None


LOADS = (
    Load("Llama-3.1-70B", "H100", "vllm", 32, 3000, 300, tp=4),
    Load("Llama-3.1-70B", "H100", "sglang", 16, 3000, 300, tp=4),
    Load("Qwen3-30B-A3B", "H200", "vllm", 64, 1000, 200),
    Load("Qwen3-30B-A3B", "H100", "sglang", 16, 2000, 200, dp=4),
    Load("DeepSeek-V3", "H200", "sglang", 8, 2000, 500, dp=8),
    Load("DeepSeek-V3", "H200", "sglang", 16, 2000, 500, dp=8),
    Load("DeepSeek-V3", "H200", "vllm", 32, 4000, 200, dp=8),
    Load("DeepSeek-V3", "B200", "trtllm", 64, 1000, 500, dp=8),
    Load("DeepSeek-V3", "B200", "trtllm", 32, 2000, 500, tp=8, drafts=DRAFTS),
)


def compare(load: Load) -> tuple[dict[str, float], dict[str, float], str]:
    """Times by the closed form and by the simulator, and the pools."""
    space = Space(
        (load.gpu,), tps=(load.tp,), dps=(load.dp,), engines=(load.engine,), speculative=(None, load.drafts),
        budgets=(BUDGET,), batches=(load.batch,), gpus_most=128,
    )  # fmt: skip
    found = designs(model_of(load.model), Question(load.isl, load.osl), space)
    one = next(one for one in found if one.split.dp == load.dp and one.split.speculative == load.drafts)
    plan = {name: float(one.columns[name][0]) for name in TIMES}
    workers, prefill = one.split.workers, one.split.prefill
    assert prefill is not None
    sides = tuple(_side(split, n) for split, n in zip((prefill, one.split), workers, strict=True))
    pools = f"{workers[0]} tp{prefill.tp} dp{prefill.dp} + {workers[1]} tp{one.split.tp} dp{one.split.dp}"
    return plan, simulated(load, (sides[0], sides[1]), int(one.batches[0])), pools


def _side(split: Split, workers: int) -> Side:
    return Side(workers=workers, tp=split.tp, ep=split.ep, dp=split.dp)


def simulated(load: Load, sides: tuple[Side, Side], held: int) -> dict[str, float]:
    """Mean times in ms of the requests of the middle."""
    traffic = synthetic(ROUNDS * held, input_len=load.isl, output_len=load.osl, concurrency=held, spread=0.5, seed=1)
    setup = Setup(engine=load.engine, speculative=of(load.drafts) if load.drafts else None)
    record = Disaggregated.of(load.model, load.gpu, setup, sides, traffic.longest).record(traffic)
    middle = slice(2 * held, -held)
    first, whole = ((end - record.arrival_s)[middle] for end in (record.first_s, record.done_s))
    later = (whole - first) / (traffic.output_len[middle] - 1)
    return dict(zip(TIMES, (1e3 * float(np.mean(times)) for times in (first, later, whole)), strict=True))


def main(loads: Iterable[Load] = LOADS) -> None:
    """Print every design, and the mean of what lies between both."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    off: dict[str, list[float]] = {name: [] for name in TIMES}
    for load in loads:
        plan, serve, pools = compare(load)
        cells = [f"{name} {plan[name]:8.1f} {serve[name]:8.1f}" for name in TIMES]
        print(f"{load.model:14} {load.gpu} {load.engine:7} {pools:28} {'drafts' if load.drafts else '':6}", *cells)
        for name in TIMES:
            off[name].append(100 * (plan[name] / serve[name] - 1))
    for name, percent in off.items():
        worst = max(percent, key=abs)
        mean, bias = np.abs(percent).mean(), np.mean(percent)
        print(f"{name}: mean |difference| {mean:.1f} %, mean {bias:+.1f}, worst {worst:+.1f}")


if __name__ == "__main__":
    main()
