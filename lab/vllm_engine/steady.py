"""Joules of steps that repeat for seconds, by the board's own counter."""

from __future__ import annotations

from typing import Any

from lab.vllm_engine.drive import Driver
from lab.vllm_engine.points import Point, decode, prefill
from lab.vllm_engine.sessions import joules
from lab.vllm_engine.timing import random_prompts

SETTLE_S, COUNT_S = 1.0, 4.0
PROMPTS = ((1, 512), (1, 2048), (1, 8192), (1, 16384), (4, 512), (8, 1024))  # prompts together, tokens of each
DECODES = ((1, 1024), (8, 1024), (32, 1024), (128, 1024), (256, 1024), (8, 8192), (32, 8192), (64, 4096), (16, 16384))


def points() -> tuple[Point, ...]:
    """Prompts that follow one another, and decode steps of as many requests throughout."""
    return (*(decode(*one) for one in DECODES), *(prefill(*one) for one in PROMPTS))


def measure(driver: Driver, point: Point) -> dict[str, Any]:
    """Watts, ms and joules of a step (of a whole batch of prompts), after a second that does not count.

    Raises RuntimeError where the board has no counter.
    """
    if point.phase == "decode":
        longest = driver.limits.max_model_len - point.context - 1
        driver.add(random_prompts(driver, point.batch, point.context), longest, seeded=True)
    settled = _repeated(driver, point, SETTLE_S)
    before, began = joules(), driver.clock()
    steps = _repeated(driver, point, COUNT_S)
    seconds, after = driver.clock() - began, joules()
    if point.phase == "decode":
        driver.abandon()
    if before is None or after is None:
        raise RuntimeError("the board does not count joules")
    return {
        "step_ms": round(1e3 * seconds / steps, 4),
        "power_w": round((after - before) / seconds, 2),
        "joules": round((after - before) / steps, 5),
        "steps": steps,
        "mean_context": point.context + settled + steps / 2 if point.phase == "decode" else point.input_len,
    }


def _repeated(driver: Driver, point: Point, seconds: float) -> int:
    """Steps, or batches of prompts, of about so many seconds."""
    until, done = driver.clock() + seconds, 0
    while driver.clock() < until:
        if point.phase == "prefill":
            driver.add(random_prompts(driver, point.batch, point.input_len), 1)
            driver.drain()
            done += 1
        else:
            done += driver.step().tokens > 0
    return done
