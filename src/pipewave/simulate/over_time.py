"""A simulated run over time: requests in a step, requests that wait, and how full the cache is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pipewave.physics.demand import Array
from pipewave.simulate.replica import Step
from pipewave.simulate.simulate import Record
from pipewave.simulate.traffic import Traffic

DIGITS = 4


def over_time(record: Record, traffic: Traffic, pages: int, points: int) -> dict[str, list[float]]:
    """Means over `points` equal stretches of a run, from its first request to its last token.

    Args:
        record: a run whose steps were kept.
        traffic: its requests.
        pages: of the caches of all engines together.
        points: stretches at most; no more than there are steps.

    Returns:
        `time_s`: the end of each stretch; `running`: requests in a step, of all engines; `waiting`: requests in queues;
        `kv_share`: pages in use over all; `output_tokens_per_s`: first tokens and later ones.
    """
    begin = float(record.arrival_s.min())
    edges = np.linspace(begin, float(record.done_s.max()), max(min(points, len(record.steps)), 1) + 1)
    width = np.diff(edges)
    mean = {name: _integral(record, read, edges) / width for name, read in READ.items()}
    made = _integral(record, lambda step: (step.decoding + len(step.first)) / step.seconds, edges) / width
    lists = {
        "time_s": edges[1:] - begin,
        "running": mean["running"],
        "waiting": mean["waiting"],
        "kv_share": mean["pages"] / max(pages, 1),
        "output_tokens_per_s": made,
    }
    return {name: [round(one, DIGITS) for one in values.tolist()] for name, values in lists.items()}


READ: dict[str, Callable[[Step], float]] = {
    "running": lambda step: step.decoding + len({request for request, _, _ in step.pieces}),
    "waiting": lambda step: step.waiting,
    "pages": lambda step: step.pages,
}


def _integral(record: Record, read: Callable[[Step], float], edges: Array) -> Array:
    """Value × seconds of every stretch; between its steps an engine is idle and has nothing."""
    whole = np.zeros(len(edges))
    for which in {which for which, _ in record.steps}:
        steps: list[Any] = [step for engine, step in record.steps if engine == which]
        start = np.array([step.start_s for step in steps])
        seconds = np.array([step.seconds for step in steps])
        area = seconds * np.array([read(step) for step in steps])
        ends = np.ravel(np.column_stack((start, start + seconds)))
        before = np.concatenate(([0.0], np.cumsum(area)))
        whole += np.interp(edges, ends, np.ravel(np.column_stack((before[:-1], before[1:]))))
    return np.diff(whole)
