"""The schedule of B equal requests that arrive together, without simulating every step.

vLLM fills a step with one token for each running request, then with prompt tokens up to its budget; SGLang runs prompt
chunks alone, then decodes. Which step does what does not depend on how long steps take, so all latencies can be
predicted at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipewave.errors import BadInput

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Uniform:
    """B requests of equal prompt and output length under a token budget a step."""

    batch: int
    input_len: int
    output_len: int
    budget: int
    mixed: bool = True  # decode tokens ride along with prompt chunks (vLLM)

    def plan(self) -> Plan:
        """Walk the prompt phase; the decode phase follows from when each prompt ended."""
        if self.mixed and self.batch >= self.budget:
            raise BadInput(
                f"batch = {self.batch}: must be below the {self.budget} tokens of a step (max_num_batched_tokens)",
                field="batch",
            )
        chunks: list[list[tuple[int, int]]] = []
        ended: list[int] = []  # prompts completed by each step
        running = 0  # decoding requests
        left, offset = self.batch, 0
        while left:
            expired = len(chunks) - self.output_len
            if expired >= 0:
                running -= ended[expired]
            room = self.budget - (running if self.mixed else 0)
            pieces, left, offset = self._fill(room, left, offset)
            chunks.append(pieces)
            ended.append(sum(end == self.input_len for _, end in pieces))
            running += ended[-1]
        return Plan(self, chunks, np.array(ended, np.int64))

    def _fill(self, room: int, left: int, offset: int) -> tuple[list[tuple[int, int]], int, int]:
        """Prompt pieces (tokens, end) that fit in `room`, and what remains."""
        pieces = []
        while left and room > 0:
            take = min(room, self.input_len - offset)
            pieces.append((take, offset + take))
            room, offset = room - take, offset + take
            if offset == self.input_len:
                left, offset = left - 1, 0
        return pieces, left, offset


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of a run: prompt pieces (tokens, end) of each prompt step, and prompts that end in each."""

    run: Uniform
    chunks: Sequence[Sequence[tuple[int, int]]]
    ended: Ints

    @property
    def prompt_steps(self) -> int:
        """Steps until every request has its first token."""
        return len(self.chunks)

    @property
    def starts(self) -> Ints:
        """For each request, the step of its first token, or for SGLang the last prompt step."""
        steps = np.repeat(np.arange(self.prompt_steps), self.ended)
        return steps if self.run.mixed else np.full_like(steps, self.prompt_steps - 1)

    @property
    def total_steps(self) -> int:
        """Steps until the last request is done."""
        return int(self.starts[-1]) + self.run.output_len

    def decode_lens(self, step: int) -> list[int]:
        """Cache lengths, new token included, of the requests that decode in a step."""
        age = step - self.starts
        active = (age > 0) & (age < self.run.output_len)
        return list((self.run.input_len + age[active]).tolist())

    def lengths(self, step: int) -> tuple[list[int], list[int]]:
        """(q_lens, kv_lens) of a step, decoding requests first."""
        pieces = self.chunks[step] if step < self.prompt_steps else ()
        decoding = self.decode_lens(step) if self.run.mixed or not pieces else []
        q_lens = [1] * len(decoding) + [tokens for tokens, _ in pieces]
        return q_lens, decoding + [end for _, end in pieces]

    def full_range(self) -> tuple[int, int]:
        """[first, last) of the steps in which all requests decode; may be empty."""
        return self.prompt_steps, int(self.starts[0]) + self.run.output_len


def sample(first: int, last: int, most: int) -> Ints:
    """At most `most` steps of [first, last), ends included, spread without a period that chunks could share."""
    size = last - first
    if size <= most:
        return np.arange(first, last)
    golden = (np.arange(most - 2) * 0.6180339887498949) % 1.0
    inner = first + 1 + (np.sort(golden) * (size - 2)).astype(np.int64)
    return np.unique(np.concatenate(([first], inner, [last - 1])))
