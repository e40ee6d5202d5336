"""Cache lengths of a step's requests where nothing names them: read off the time that its attention took.

More cached tokens take longer, so the predicted time of a step's attention grows with them; the length at which it is
the measured time is what the trace says. It is right as far as the prediction is, and the time of the same attention
cannot be judged by it: such calls are marked as assumed. Steps that follow each other hold the same requests, one
token longer, and answer together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pipewave.kernels import family_of
from pipewave.kernels.attention.metadata import Lengths
from pipewave.models.kernels import Use
from pipewave.physics.demand import Array
from pipewave.prediction.api import predict
from pipewave.traces.group import Group, Where

MOST = 1 << 18  # cached tokens of a request
TRIED = (0, *np.unique(np.geomspace(16, MOST, 43).round().astype(int)).tolist())
FEW = 0.2  # of the new tokens: too few for their time to tell
NOTE = "cache lengths read off the time of attention, about {} tokens each; --kv-lens gives them"
NONE = "no cached tokens, as far as the time of attention tells; --kv-lens gives the cache lengths"


def cached_tokens(found: Lengths, uses: Sequence[Use], members: Sequence[Group], where: Where) -> int | None:
    """Cached tokens of each request by the time of attention; None where the step has none or a cache is no matter.

    `uses`: the model's kernels of the step at `found`, none cached. `members`: the step's traced kernels.
    """
    measured = [one.measured_us for one in members if one.family and "kv_lens" in family_of(one.family).ragged]
    calls = [use for use in uses if "kv_lens" in family_of(use.call.kernel).ragged]
    if not measured or not calls:
        return None
    wanted = sum(measured) * max(1.0, len(calls) / len(measured))
    took, none_at_most = _totals(calls, found, where)
    if wanted <= none_at_most:
        return 0
    length = float(np.interp(np.log(wanted), np.log(np.maximum.accumulate(took)), np.log1p(TRIED)))
    cached = round(float(np.expm1(length)))
    return cached if cached > FEW * max(found.q_lens) else 0


def _totals(calls: Sequence[Use], found: Lengths, where: Where) -> tuple[Array, float]:
    """µs of a step's attention at each of the lengths tried, [length], and at most with nothing cached."""
    alike: Counter[Any] = Counter(use.call for use in calls)
    tried = [replace(call, kv_lens=tuple(q + cached for q in found.q_lens)) for call in alike for cached in TRIED]
    answers = predict(tried, where.gpu, protocol=where.protocol, stack=where.stack)
    counts, shape = np.array(list(alike.values()), float), (len(alike), len(TRIED))
    return counts @ answers.latency_us.reshape(shape), float(counts @ answers.high_us.reshape(shape)[:, 0])


def with_cached(found: Lengths, cached: int, all_steps: Collection[int]) -> Lengths:
    """The lengths of a step whose requests have that many cached tokens each, and what is to be said of it and of
    the other steps, whose cached tokens are `all_steps`: one note for all of them.
    """
    least, most = min(filter(None, all_steps), default=0), max(all_steps)
    note = NOTE.format(f"{least:,}" if least == most else f"{least:,} to {most:,}") if cached else NONE
    return Lengths(found.q_lens, tuple(q + cached for q in found.q_lens), note)


def over_steps(cached: Mapping[int, int], requests: Mapping[int, tuple[int, ...]]) -> dict[int, int]:
    """Cached tokens by step, those of consecutive decode steps of as many requests from all of them together.

    `requests`: new tokens of each request, by step.
    """
    out: dict[int, int] = {}
    run: list[int] = []
    for number in sorted(cached):
        follows = run and number == run[-1] + 1 and requests[number] == requests[run[-1]]
        if not (follows and set(requests[number]) == {1}):
            out |= _joint(run, cached)
            run = []
        run.append(number)
    return out | _joint(run, cached)


def _joint(run: Sequence[int], cached: Mapping[int, int]) -> dict[int, int]:
    if not run:
        return {}
    first = float(np.median([cached[number] - place for place, number in enumerate(run)]))
    return {number: max(round(first) + place, 0) for place, number in enumerate(run)}
