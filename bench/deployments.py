"""How long whole deployments take to answer: `python -m bench.deployments`.

1,000 requests of Llama-3.1-70B that share prefixes, with drafts, through the simulator, its step tables made before as
a server keeps them: CPU seconds of this process, the best of three. And the default plan of DeepSeek-V3 over four
GPUs: seconds on the clock, its designs in one process a core.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import numpy as np

from pipewave.models import load
from pipewave.planning import Demand, Question, Space, plan
from pipewave.published.stream import executor, one_a_core
from pipewave.simulate.pools import Pools
from pipewave.simulate.setup import Setup
from pipewave.simulate.shared_tokens import of_hashes
from pipewave.simulate.speculative import of
from pipewave.simulate.traffic import Traffic

GPUS = ("H200", "B200", "GB200", "MI355X")
FAMILIES, BLOCKS = 20, 4  # of prompts, and blocks of 512 tokens of each
BARS = {"serve_s": 1.0, "plan_s": 20.0}


def shared_prefixes(requests: int) -> Traffic:
    """Requests in families that share all blocks of their prompts but the last, 40 ms apart."""
    rng = np.random.default_rng(0)
    family = rng.integers(0, FAMILIES, requests)
    listed = tuple((*(1000 * int(f) + b for b in range(BLOCKS - 1)), 10**6 + i) for i, f in enumerate(family))
    sizes = np.full(requests, 512 * BLOCKS)
    outputs = rng.integers(64, 192, requests)
    return Traffic(np.arange(requests) / 25, sizes, outputs, shared=of_hashes(listed, sizes, outputs))


def serve_s() -> float:
    """1,000 requests of Llama-3.1-70B on four H200s."""
    traffic = shared_prefixes(1000)
    engines = Pools.of("Llama-3.1-70B", "H200", Setup(tp=4, speculative=of("mtp,tokens=3")), traffic.longest)
    return _best(lambda: engines.record(traffic, keep_steps=True))


def plan_s() -> float:
    """The default search of DeepSeek-V3 on `GPUS` for 20 requests a second."""
    question, began = Question(2000, 500, ttft_ms=2000, tpot_ms=50), time.perf_counter()
    with executor(one_a_core()) as pool:
        plan(load("DeepSeek-V3"), question, Space(GPUS), demand=Demand(rate=20.0), executor=pool)
    return round(time.perf_counter() - began, 2)


def _best(run: Callable[[], object]) -> float:
    took = []
    for _ in range(3):
        began = time.process_time()
        run()
        took.append(time.process_time() - began)
    return round(min(took), 2)


def main() -> None:
    """Print both figures beside their bars."""
    for name, figure in (("serve_s", serve_s()), ("plan_s", plan_s())):
        print(json.dumps({"figure": name, "cpu_s": figure, "bar": BARS[name]}))


if __name__ == "__main__":
    main()
