"""Disaggregated designs of `pipewave plan` in closed form beside the simulator: `python -m studies.plan_pools`.

Each design keeps the requests of its decode engines in flight, as `studies.steady_load` does. First tokens wait as in
M/D/x in the closed form; in the simulator prompts come when requests end, in groups and not at random.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass

from pipewave.models import load as model_of
from pipewave.planning import Question, Space, Split
from pipewave.planning.disaggregated import designs
from pipewave.simulate.disaggregated import Disaggregated, Side
from pipewave.simulate.run_window import steady_ms
from pipewave.simulate.setup import Setup
from pipewave.simulate.speculative import of
from studies.steady_load import TIMES, held_in_flight, percent_off, print_means

ROUNDS, BUDGET = 8, 8192
DRAFTS = "method=mtp,tokens=3,acceptance=0.62"


@dataclass(frozen=True, slots=True)
class Load:
    """A model, where and under what, requests of a decode rank, tokens in and out; tp, or ranks of data-parallel
    attention.
    """

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
    traffic = held_in_flight(ROUNDS * held, held, load.isl, load.osl)
    setup = Setup(engine=load.engine, speculative=of(load.drafts) if load.drafts else None)
    record = Disaggregated.of(load.model, load.gpu, setup, sides, traffic.longest).record(traffic)
    return steady_ms(record, traffic)


def main(loads: Iterable[Load] = LOADS) -> None:
    """Print every design, and the mean of what lies between both."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    percent = []
    for load in loads:
        plan, serve, pools = compare(load)
        cells = [f"{name} {plan[name]:8.1f} {serve[name]:8.1f}" for name in TIMES]
        print(f"{load.model:14} {load.gpu} {load.engine:7} {pools:28} {'drafts' if load.drafts else '':6}", *cells)
        percent.append(percent_off(plan, serve))
    print_means(percent)


if __name__ == "__main__":
    main()
