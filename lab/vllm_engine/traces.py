"""Profiler traces of whole steps, by the profiler that vLLM itself offers, as its users record them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.vllm_engine.drive import Driver
from lab.vllm_engine.points import Point, decode
from lab.vllm_engine.timing import random_prompts

DECODE_TOKENS = 3
PATTERN = "*.pt.trace.json.gz"


def warm_up(driver: Driver, folder: Path) -> None:
    """Use the profiler once and throw its trace away: its first use loads CUPTI, which the first trace would show."""
    _traced(driver.limits.engine, folder, lambda: _steps(driver, decode(1, 64))).unlink()


def record(driver: Driver, point: Point, folder: Path, name: str) -> dict[str, Any]:
    """Trace the steps of a point from an idle engine to an idle engine, after the same steps untraced.

    Returns the fields of a row; raises RuntimeError when the profiler wrote nothing.
    """
    engine: Any = driver.limits.engine
    _steps(driver, point)
    tokens: list[int] = []
    found = _traced(engine, folder, lambda: tokens.extend(_steps(driver, point)))
    target = folder / f"{name}.json.gz"
    shutil.move(found, target)
    return {"file": target.name, "bytes": target.stat().st_size, "step_tokens": tokens}


def _steps(driver: Driver, point: Point) -> list[int]:
    """Run the point's requests to their end; tokens of each step."""
    decoding = point.phase == "decode"
    length = point.context if decoding else point.input_len
    prompts = random_prompts(driver, point.batch, length)
    driver.add(prompts, DECODE_TOKENS if decoding else 1, seeded=decoding)
    return [step.tokens for step in driver.drain()]


def _traced(engine: Any, folder: Path, run: Callable[[], object]) -> Path:
    """The trace file of the first rank of what `run` does; other new files are removed."""
    before = set(folder.glob(PATTERN))
    engine.start_profile()
    run()
    engine.stop_profile()
    new = sorted(set(folder.glob(PATTERN)) - before)
    if not new:
        raise RuntimeError(f"the profiler wrote no trace into {folder.name}")
    for other in new[1:]:
        other.unlink()
    return new[0]
