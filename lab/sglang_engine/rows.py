"""Notes of batches to rows of points, in the fields of `lab.vllm_engine`. Times in milliseconds."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab.sglang_engine.plan import Arrival, Staircase
from lab.vllm_engine.timing import spread

WARM_STEPS = 6
FEWEST_STEPS = 15
Row = dict[str, Any]


class NotesFile:
    """Reads what the scheduler process has appended since the last reading."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def new(self) -> list[Row]:
        """Whole lines not read before."""
        text = self._path.read_text() if self._path.exists() else ""
        fresh = text[self._read : text.rfind("\n") + 1]
        self._read += len(fresh)
        return [json.loads(line) for line in fresh.splitlines()]


def prefill_row(arrival: Arrival, runs: Sequence[Sequence[Row]], generate_ms: Sequence[float]) -> Row:
    """Prompts that arrived in an idle engine, from queue to last first token; the first run is dropped."""
    whole = arrival.batch * arrival.input_len
    timed = [[row for row in run if row["mode"] == "prefill"] for run in runs][1:]
    if any(sum(row["tokens"] for row in run) != whole for run in timed):
        raise RuntimeError(f"batches of {[[row['tokens'] for row in run] for run in timed]} tokens, {whole} wanted")
    ends = [[run[0]["queued_s"], *(row["ended_s"] for row in run)] for run in timed]
    same = [run for run, row in zip(ends, timed, strict=True) if len(row) == len(timed[0])]
    return {
        "phase": "prefill", "batch": arrival.batch, "input_len": arrival.input_len, "context": 0, "kv": "computed",
        "status": "ok",
        **spread([1e3 * (run[-1] - run[0]) for run in ends]),
        "launch_ms": _median(1e3 * (run[0]["launched_s"] - run[0]["began_s"]) for run in timed),
        "queue_ms": _median(1e3 * (run[0]["queued_s"] - run[0]["received_s"]) for run in timed),
        "chunk_tokens": [row["tokens"] for row in timed[0]],
        "chunk_ms": [_median(times) for times in zip(*(1e3 * np.diff(run) for run in same), strict=True)],
        "generate_ms": _median(generate_ms[1:]),
    }  # fmt: skip


def decode_rows(stairs: Staircase, run: Sequence[Row], texts: Sequence[Sequence[int]]) -> list[Row]:
    """A row for each batch size of a staircase: time between the ends of steps that all its requests shared."""
    return [row for size in stairs.batches if (row := _decode_row(stairs, size, run, texts)) is not None]


def _decode_row(stairs: Staircase, size: int, run: Sequence[Row], texts: Sequence[Sequence[int]]) -> Row | None:
    pairs = [
        (a, b)
        for a, b in itertools.pairwise(run)
        if a["mode"] == b["mode"] == "decode" and a["requests"] == b["requests"] == size
    ]
    timed = pairs[WARM_STEPS:-1]  # the last step of a stage is launched while requests leave
    if len(timed) < FEWEST_STEPS:
        return None
    return {
        "phase": "decode", "batch": size, "input_len": 0, "context": stairs.context, "kv": "computed", "status": "ok",
        **spread([1e3 * (after["ended_s"] - before["ended_s"]) for before, after in timed]),
        "launch_ms": _median(1e3 * (row["launched_s"] - row["began_s"]) for _, row in timed),
        "mean_context": statistics.fmean(row["context"] for _, row in timed),
        "distinct_tokens": _distinct([text for text in texts if len(text) >= _stays(stairs, size)]),
    }  # fmt: skip


def _stays(stairs: Staircase, size: int) -> int:
    return sorted(stairs.new_tokens())[-size]


def _distinct(texts: Sequence[Sequence[int]]) -> float:
    """Median over steps of how many different tokens the requests decode."""
    shortest = min((len(text) for text in texts), default=0)
    return statistics.median(len({text[i] for text in texts}) for i in range(shortest)) if shortest else 0


def _median(values: Iterable[float]) -> float:
    return round(statistics.median(values), 4)
