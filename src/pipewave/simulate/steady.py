"""The middle of a run: figures of requests that neither find the deployment empty nor leave it so.

A closed loop begins with all its requests at once, whose prompts wait for one another; no such crowd comes again. What
`plan` answers is a deployment that has been loaded for long, which is this middle (`python -m bench.plan_steady`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.errors import BadInput
from pipewave.simulate.report import ANY, Sla, summary
from pipewave.simulate.simulate import Record
from pipewave.simulate.traffic import Traffic

Mask = NDArray[np.bool_]
EDGE = 0.1  # of open-loop requests, at either end


def middle(record: Record, traffic: Traffic) -> Mask:
    """Which requests are in the middle, [request]: all but the first two rounds of a closed loop and its last one, or
    but the first and last tenth of those that come on their own.

    Raises BadInput where no request is left.
    """
    count, held = len(traffic), traffic.concurrency
    first, last = (2 * held, count - held) if held else (int(EDGE * count), count - int(EDGE * count))
    if last <= first:
        most = f"at least {3 * (held or 1) + 1}" if held else "more"
        raise BadInput(f"requests = {count}: too few for a middle; ask for {most}", field="requests")
    order = np.argsort(record.arrival_s, kind="stable")
    kept = np.zeros(count, bool)
    kept[order[first:last]] = True
    return kept


def summary_of(record: Record, traffic: Traffic, gpus: int, sla: Sla = ANY, kept: Mask | None = None) -> dict[str, Any]:
    """`report.summary` of the requests kept; None keeps all.

    Rates of a middle are those at which its requests were done, and the share of requests that meets the limits.
    """
    if kept is None:
        return summary(record, traffic, gpus, sla)
    begin, end = float(record.arrival_s[kept].min()), float(record.done_s[kept].max())
    part = Record(record.first_s[kept], record.done_s[kept], record.arrival_s[kept])
    part.steps = [(which, step) for which, step in record.steps if begin <= step.start_s < end]
    requests = replace(
        traffic,
        arrival_s=np.sort(part.arrival_s),
        input_len=traffic.input_len[kept],
        output_len=traffic.output_len[kept],
        found_len=None,
        blocks=None,
    )
    found = summary(part, requests, gpus, sla)
    return found | _rates(part, requests, found["good_share"], gpus)


def _rates(part: Record, requests: Traffic, good: float, gpus: int) -> dict[str, float]:
    done = np.sort(part.done_s)
    span = float(done[-1] - done[0])
    if span <= 0:
        return {}
    each = (len(done) - 1) / span
    out, whole = float(requests.output_len.mean()), float((requests.output_len + requests.input_len).mean())
    return {
        "requests_per_s": each,
        "output_tokens_per_s": each * out,
        "total_tokens_per_s": each * whole,
        "output_tokens_per_s_per_gpu": each * out / gpus,
        "goodput_per_s": each * good,
    }
