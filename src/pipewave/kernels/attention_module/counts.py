"""What a batch of modules works on: tokens, keys and pairs, counted in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pipewave.kernels.attention.requests import Requests
from pipewave.kernels.attention_module.kinds import Module
from pipewave.physics.demand import Array


@dataclass(frozen=True, slots=True)
class Counts:
    """Per call: requests, new tokens, cached tokens, the longest prompt and context, entries and pairs.

    `chosen`: pairs of a query and an entry it attends to; `scored`: pairs the indexer scores; `causal`: pairs without
    any choice; `entries`: distinct entries read where queries choose apart, and `fewest`, where all choose the
    same; `index_entries`: keys the indexer must read; `needed`: scored pairs of requests with something to choose.
    """

    batch: Array
    tokens: Array
    context: Array
    longest: Array
    deepest: Array
    chosen: Array
    scored: Array
    causal: Array
    entries: Array
    fewest: Array
    index_entries: Array
    needed: Array


def counts(requests: Requests, dims: Module) -> Counts:
    """Counts of a batch; entries of several tokens come to be when their last token does."""
    q, kv = requests.q, requests.kv
    ratio, kept, window = (requests_of_call(requests, value) for value in (dims.ratio, dims.kept, dims.window))
    scored = visible(kv, ratio) - visible(kv - q, ratio)
    chosen = visible(kv, ratio, kept) - visible(kv - q, ratio, kept)
    recent = np.where(window > 0.0, visible(kv, 1.0, window) - visible(kv - q, 1.0, window), 0.0)
    all_entries = np.floor(kv / ratio) * (kept > 0.0)
    lately = np.minimum(kv, window + q) * (window > 0.0)
    entries, fewest = (np.minimum(all_entries, most) + lately for most in (q * kept, kept))
    choosing = (all_entries > kept) * np.isfinite(kept)
    amounts = (
        q, kv, chosen + recent, scored, visible(kv, 1.0) - visible(kv - q, 1.0), entries, fewest,
        all_entries * choosing, scored * choosing,
    )  # fmt: skip
    tokens, context, *rest = (_array(requests, requests.total(amount)) for amount in amounts)
    longest, deepest = (_array(requests, requests.largest(each)) for each in (q, kv))
    return Counts(_array(requests, requests.batch), tokens, context, longest, deepest, *rest)


def visible(last: Array, ratio: Any, most: Any = np.inf) -> Array:
    """Sum over positions 1 to `last` of the entries seen from there: ⌊position / ratio⌋, at most `most`."""
    whole = np.minimum(np.floor(last / ratio), most)
    return np.asarray(ratio * whole * (whole - 1.0) / 2.0 + whole * (last - ratio * whole + 1.0))


def requests_of_call(requests: Requests, amount: Array) -> Any:
    """A column of the calls, for each group of requests."""
    return requests.spread(amount) if requests.owner is not None else amount


def _array(requests: Requests, amount: Any) -> Array:
    return np.asarray(amount, float).reshape(requests.calls)
