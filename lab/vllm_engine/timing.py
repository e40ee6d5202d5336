"""Time a point: what arrives, which steps count, and the row they make. Times in milliseconds."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lab.vllm_engine.drive import Driver, Step
from lab.vllm_engine.points import Point

WARM_STEPS = 6
DECODE_STEPS = 25
MIXED_SAMPLES = 4
MIXED_EVERY = 5
SHORT_PREFILL_TOKENS = 4096
Row = dict[str, Any]


class TooLargeError(ValueError):
    """The point does not fit the engine's KV cache or longest request."""


def measure(driver: Driver, point: Point, generate: Callable[[list[list[int]]], None] | None = None) -> Row:
    """The row of a point; `generate(prompts)` runs them through the engine's public entry point, one new token each.

    Raises TooLargeError when it cannot fit, RuntimeError when the engine ran other steps than the point names.
    """
    limits = driver.limits
    longest = max(point.input_len, point.context) + WARM_STEPS + DECODE_STEPS
    if point.kv_tokens > 0.95 * limits.kv_tokens or longest > limits.max_model_len:
        raise TooLargeError(f"{point.kv_tokens} tokens of KV cache needed, {limits.kv_tokens} there")
    if point.phase == "prefill":
        return prefill_row(driver, point, generate)
    return decode_row(driver, point) if point.phase == "decode" else mixed_row(driver, point)


def random_prompts(driver: Driver, count: int, length: int) -> list[list[int]]:
    """`count` prompts of random tokens, other ones at each call."""
    draw = np.random.default_rng().integers(0, driver.limits.vocab, (count, length))
    return [row.tolist() for row in draw]


def prefill_row(driver: Driver, point: Point, generate: Callable[[list[list[int]]], None] | None) -> Row:
    """Prompts arrive in an idle engine; until the last of their first tokens, and until each chunk was done."""
    tokens = point.batch * point.input_len
    runs = [_prefill_once(driver, point) for _ in range(7 if tokens <= SHORT_PREFILL_TOKENS else 4)][1:]
    chunks = list(zip(*(run["chunk_ms"] for run in runs), strict=True))
    return {
        **spread([run["step_ms"] for run in runs]),
        "ttft_ms": _median([run["ttft_ms"] for run in runs]),
        "chunk_tokens": runs[0]["chunk_tokens"],
        "chunk_ms": [_median(times) for times in chunks],
        "generate_ms": None if generate is None else _median(_generated(driver, point, generate)),
    }


def _prefill_once(driver: Driver, point: Point) -> Row:
    prompts = random_prompts(driver, point.batch, point.input_len)
    arrived = driver.clock()
    driver.add(prompts, 1)
    began = driver.clock()
    steps = driver.drain()
    ends = [step.ended_s for step in steps]
    if sum(step.tokens for step in steps) != point.batch * point.input_len:
        raise RuntimeError(f"steps of {[step.tokens for step in steps]} tokens")
    return {
        "step_ms": 1e3 * (ends[-1] - began),
        "ttft_ms": 1e3 * (ends[-1] - arrived),
        "chunk_tokens": [step.tokens for step in steps],
        "chunk_ms": [1e3 * taken for taken in np.diff([began, *ends])],
    }


def _generated(driver: Driver, point: Point, generate: Callable[[list[list[int]]], None]) -> list[float]:
    taken = []
    for _ in range(3):
        prompts = random_prompts(driver, point.batch, point.input_len)
        began = driver.clock()
        generate(prompts)
        taken.append(1e3 * (driver.clock() - began))
    return taken[1:]


def decode_row(driver: Driver, point: Point) -> Row:
    """Time between completions of steps in which every request decoded one token; the first few are dropped."""
    before = WARM_STEPS + DECODE_STEPS // 2
    computed = point.kv == "computed"
    arriving = -(-point.batch * point.context // driver.limits.max_batched_tokens) if computed else 0
    length = max(2, point.context - before - arriving)
    driver.add(
        random_prompts(driver, point.batch, length), WARM_STEPS + DECODE_STEPS + 2 + 2 * arriving, seeded=not computed
    )
    steps = driver.drain()
    steady = [i for i, step in enumerate(steps) if step.tokens == step.requests == point.batch]
    timed = steady[WARM_STEPS : WARM_STEPS + DECODE_STEPS + 1]
    if len(timed) <= DECODE_STEPS or timed[-1] - timed[0] != DECODE_STEPS:
        raise RuntimeError(f"steps of {sorted({step.tokens for step in steps})} tokens, {len(steady)} steady")
    ends = [steps[i].ended_s for i in timed]
    # a seeded request attends to its whole prompt in the first step, and to one token more in each that follows
    first = length + (timed[1] if not computed else timed[1] - arriving)
    return {
        **spread([1e3 * taken for taken in np.diff(ends)]),
        "mean_context": first + (DECODE_STEPS - 1) / 2,
        "distinct_tokens": distinct_tokens(steps),
    }


def mixed_row(driver: Driver, point: Point) -> Row:
    """Time of the steps that carry a whole arriving prompt beside `batch` decoding requests."""
    lasting = WARM_STEPS + MIXED_EVERY * (MIXED_SAMPLES + 2)
    length = max(2, point.context - lasting // 2)
    driver.add(random_prompts(driver, point.batch, length), lasting, seeded=True)
    steps: list[Step] = []
    for number in range(lasting - MIXED_EVERY):
        if number >= WARM_STEPS and number % MIXED_EVERY == 0:
            driver.add(random_prompts(driver, 1, point.input_len), 1)
        steps.append(driver.step())
    steps += driver.drain()
    steps = [step for step in steps if step.tokens]
    whole = point.batch + point.input_len
    taken = [1e3 * (b.ended_s - a.ended_s) for a, b in itertools.pairwise(steps) if b.tokens == whole]
    if len(taken) < 2:
        raise RuntimeError(f"steps of {sorted({step.tokens for step in steps})} tokens")
    return {**spread(taken[1:]), "mean_context": length + lasting / 2}


def distinct_tokens(steps: Sequence[Step]) -> float:
    """Median over steps of how many different tokens a batch decoded: routing of experts depends on it."""
    texts = [output.outputs[0].token_ids for step in steps for output in step.outputs]
    shortest = min((len(text) for text in texts), default=0)
    return statistics.median(len({text[i] for text in texts}) for i in range(shortest)) if shortest else 0


def spread(taken_ms: Sequence[float]) -> Row:
    """Median, mean, extremes and the samples themselves."""
    samples = [round(float(value), 4) for value in taken_ms]
    return {
        "step_ms": _median(samples),
        "mean_ms": round(statistics.fmean(samples), 4),
        "min_ms": min(samples),
        "max_ms": max(samples),
        "n": len(samples),
        "samples_ms": samples,
    }


def _median(values: Sequence[float]) -> float:
    return round(statistics.median(values), 4)
