"""A server in SimPy on `pw.step_time`: `python lab/simpy_run.py`, where simpy and pipewave are installed together.

Requests that all arrive at once, all decoded together: the simulated total is the sum of the steps' times, and the
estimate of the same static batch, within 2 %.
"""

import sys
from collections.abc import Iterator

import simpy

import pipewave as pw
from pipewave.simulate.step_time import StepTime

MODEL, GPU, BATCH, PROMPT, OUTPUT = "Llama-3.1-8B", "H200", 8, 512, 64


def server(env: simpy.Environment, step: StepTime) -> Iterator[simpy.events.Event]:
    """The prompts in one step, then every token."""
    yield env.timeout(step([PROMPT] * BATCH, [PROMPT] * BATCH))
    for token in range(1, OUTPUT):
        yield env.timeout(step([1] * BATCH, [PROMPT + token] * BATCH))


def main() -> int:
    """Print both; 1 where they differ by more than 2 %."""
    env = simpy.Environment()
    env.process(server(env, pw.step_time(MODEL, GPU)))
    env.run()
    asked = pw.estimate(MODEL, GPU, batch=BATCH, input_len=PROMPT, output_len=OUTPUT)
    print(f"SimPy {1e3 * env.now:.2f} ms, estimate {asked.e2e_ms:.2f} ms")
    return 0 if abs(1e3 * env.now / asked.e2e_ms - 1) < 0.02 else 1


if __name__ == "__main__":
    sys.exit(main())
