"""Sequences of a batch of state-space calls: tokens, chunks and states, counted a call."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipewave.kernels.attention.requests import Requests, requests_of
from pipewave.kernels.base import Columns
from pipewave.physics.demand import Array
from pipewave.physics.launch import log2

STATE_BYTES = {"fp32": 4.0, "bf16": 2.0}


@dataclass(frozen=True, slots=True)
class Sequences:
    """Per call: requests, new tokens of all, of the longest, and chunks of all and of the longest."""

    batch: Array
    tokens: Array
    longest: Array
    chunks: Array
    longest_chunks: Array

    def features(self) -> dict[str, Array]:
        """Sizes every operator over sequences tells its net."""
        return {
            "log_batch": np.minimum(log2(self.batch), 14.0),
            "log_tokens": np.minimum(log2(self.tokens), 22.0),
            "log_longest": np.minimum(log2(self.longest), 18.0),
            "chunk_fill": np.minimum(self.tokens / self.chunks, 256.0) / 64.0,
        }


def sequences(requests: Requests, chunk: float) -> Sequences:
    """Counts of a batch that is cut into chunks of `chunk` tokens."""
    chunks = np.ceil(requests.q / chunk)
    tokens, longest = requests.total(requests.q), requests.largest(requests.q)
    amounts = (requests.batch, tokens, longest, requests.total(chunks), requests.largest(chunks))
    return Sequences(*(np.asarray(amount, float).reshape(requests.calls) for amount in amounts))


def requests_in(cols: Columns) -> Requests:
    """The requests of columns that have no keys."""
    return requests_of({**cols, "kv_lens": cols["q_lens"]})
