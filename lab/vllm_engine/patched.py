"""What `pipewave.tune.patch()` changes in a vLLM engine: `python -m lab.vllm_engine.patched --model NAME --out ROWS`.

One engine answers batches of prompts with Triton's own autotuner, then with ours, then with Triton's again, each after
rounds that do not count: milliseconds until the last first token. Hosts warm up in the first turn, so that ours is
compared with the last. A profile at the end says what share of the GPU's time kernels under `triton.autotune` have: all
that `patch` can move. One JSON line a prompt length, and one that says how often our choices came from where.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lab.vllm_engine import launch
from lab.vllm_engine.drive import Driver
from lab.vllm_engine.launch import Setup
from lab.vllm_engine.moe_config import BATCH, PROMPTS, ttft_ms

WARM, ROUNDS = 3, 7
TURNS = ("triton", "pipewave", "triton again")
Row = dict[str, Any]


def autotuned() -> set[str]:
    """Kernels under `triton.autotune` that are alive in this process, by the name that a profile has for them."""
    import gc

    from triton.runtime.autotuner import Autotuner

    from pipewave.tune.source.formula import unwrapped

    tuners = [one for one in gc.get_objects() if issubclass(type(one), Autotuner)]
    return {str(unwrapped(one.fn)[0].__name__) for one in tuners}


def shares(driver: Driver, length: int) -> dict[str, float]:
    """Share of the GPU's time that each kernel has in one batch of prompts, where it has 0.2 % or more."""
    import torch

    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile:
        ttft_ms(driver, length)
        torch.cuda.synchronize()
    times: dict[str, float] = {}
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times[event.name] = times.get(event.name, 0.0) + event.self_device_time_total
    whole = sum(times.values())
    return {name: us / whole for name, us in times.items() if us >= 0.002 * whole}


def timed(driver: Driver, lengths: tuple[int, ...]) -> dict[int, list[float]]:
    """Milliseconds of every round at every length, after rounds of all lengths that do not count."""
    for _ in range(WARM):
        for length in lengths:
            ttft_ms(driver, length)
    return {length: [ttft_ms(driver, length) for _ in range(ROUNDS)] for length in lengths}


def rows(driver: Driver, name: str, lengths: tuple[int, ...]) -> Iterator[Row]:
    """Time the three turns, and put each length's medians beside one another."""
    from pipewave.tune import patch

    taken = {TURNS[0]: timed(driver, lengths)}
    ours = patch(report=False, cache=False)
    taken[TURNS[1]] = timed(driver, lengths)
    yield {"model": name, "kernels": [str(kernel) for kernel in ours.report()]}
    ours.undo()
    taken[TURNS[2]] = timed(driver, lengths)
    names = autotuned()
    for length in lengths:
        medians = {turn: statistics.median(taken[turn][length]) for turn in TURNS}
        share = shares(driver, length)
        yield {"model": name, "batch": BATCH, "input_len": length, "rounds": ROUNDS, "ms": medians,
               "times_as_fast": medians[TURNS[2]] / medians[TURNS[1]],
               "autotuned_share": sum(part for one, part in share.items() if one in names), "share": share}  # fmt: skip


def main() -> None:
    """Start an engine of one model, time it, and append the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--layers", type=int, help="keep only the model's first layers")
    parser.add_argument("--prompts", type=int, nargs="+", default=PROMPTS)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=JSON", help="an argument of vllm.LLM")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    launch.prepare_environment()
    more = {name: json.loads(value) for name, value in (one.split("=", 1) for one in options.set)}
    llm, _ = launch.start(Setup(options.model, layers=options.layers, max_batched_tokens=16384, more=more))
    try:
        for row in rows(Driver(launch.engine_of(llm)), options.model, tuple(options.prompts)):
            row |= {"layers": options.layers, "versions": dict(launch.versions())}
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            sys.stderr.write(json.dumps(row) + "\n")
    finally:
        llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
