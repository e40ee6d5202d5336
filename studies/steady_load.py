"""A load that keeps a number of requests in flight, in the simulator of `pipewave serve`: its mean times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from pipewave.simulate.traffic import Traffic, synthetic

TIMES = ("ttft_ms", "tpot_ms", "e2e_ms")


def held_in_flight(requests: int, held: int, input_len: int, output_len: int) -> Traffic:
    """Requests whose lengths are drawn within half of their mean, `held` at once."""
    return synthetic(requests, input_len=input_len, output_len=output_len, concurrency=held, spread=0.5, seed=1)


def percent_off(plan: Mapping[str, float], serve: Mapping[str, float]) -> dict[str, float]:
    """How far a plan's times are above the simulator's, %."""
    return {name: 100 * (plan[name] / serve[name] - 1) for name in TIMES}


def print_means(compared: Iterable[Mapping[str, float]]) -> None:
    """The mean, the bias and the worst of each time's percent."""
    rows = list(compared)
    for name in TIMES:
        off = np.array([row[name] for row in rows])
        worst = max(off, key=abs)
        print(f"{name}: mean |difference| {np.abs(off).mean():.1f} %, mean {off.mean():+.1f} %, worst {worst:+.1f} %")
