"""Lengths of recorded conversations, shipped as counts: how many had so many prompt and so many output tokens.

`python -m bench.text_lengths` made them. A request is drawn from the cells by their counts, evenly within its cell.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.errors import BadInput, did_you_mean
from pipewave.files import packaged
from pipewave.simulate.traffic import Traffic, synthetic

FILE = Path(__file__).with_name("lengths.json")


@cache
def _datasets() -> dict[str, Any]:
    return dict(packaged.document(FILE))


def names() -> tuple[str, ...]:
    """Datasets whose lengths are known."""
    return tuple(_datasets())


def drawn(name: str, requests: int, *, seed: int = 0, output_len: int | None = None, **pace: Any) -> Traffic:
    """Requests with the lengths of a dataset, sent at `rate` or kept at `concurrency` as `synthetic` does.

    output_len: of all requests, in place of the dataset's. Raises BadInput for a name that is not known.
    """
    if name not in _datasets():
        raise BadInput(
            f"dataset = {name!r}: lengths are known of {', '.join(names())};{did_you_mean(name, names())}".rstrip(";"),
            field="dataset",
        )
    known, rng = _datasets()[name], np.random.default_rng(seed)
    counts = np.array(known["counts"], float)
    cells = rng.choice(counts.size, requests, p=counts.ravel() / counts.sum())
    sides = zip(np.unravel_index(cells, counts.shape), (known["prompt_edges"], known["output_edges"]), strict=True)
    prompts, outputs = (_within(np.array(edges), at, rng) for at, edges in sides)
    paced = synthetic(requests, input_len=1, output_len=1, seed=seed, **pace)
    outputs = outputs if output_len is None else np.full(requests, output_len)
    return Traffic(paced.arrival_s, prompts, outputs, paced.concurrency)


def _within(edges: np.ndarray[Any, Any], at: np.ndarray[Any, Any], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """A whole number of each cell, all of them as likely."""
    return np.asarray(rng.integers(edges[at], edges[at + 1]))
