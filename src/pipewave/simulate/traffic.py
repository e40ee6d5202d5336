"""Requests that arrive over time: drawn at a rate or kept at a concurrency, with given lengths or those of a dataset.

Datasets are shipped as counts: how many recorded conversations had so many prompt and so many output tokens
(`python -m lab.text_lengths` made them). A request is drawn from the cells by their counts, evenly within its cell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.calls.fields import check_whole, is_number
from pipewave.errors import BadInput, did_you_mean
from pipewave.files import packaged
from pipewave.physics.demand import Array
from pipewave.simulate.shared_tokens import SharedTokens

Ints = NDArray[np.int64]
MOST = 2_000_000  # requests of a run; the largest published ones have 161,300
LONGEST = 1 << 24  # tokens of a prompt or an output
WIDE, SPREAD = 0.2, 0.25  # deviation of lengths over their mean from which they differ widely; the spread then
TURNS, REQUESTS = 10, 1000  # of a run where nothing says how many: for each in flight, or in all
LENGTHS_FILE = Path(__file__).with_name("lengths.json")


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """Requests in order of arrival: seconds, prompt tokens, generated tokens.

    `concurrency`: most in flight; a request whose time has come waits to be sent until one of as many is done.
    `found_len`: tokens of each prompt that the engine's cache holds already; None = none. `parting`: what was found is
    a beginning that prompts share and go on from in different ways. `shared`: which tokens requests have in common, by
    which the engine finds what it holds. `after`: for each request the one whose answer its client waits for, -1 for
    none; it is sent `think_s` seconds after that answer.
    """

    arrival_s: Array
    input_len: Ints
    output_len: Ints
    concurrency: int | None = None
    found_len: Ints | None = None
    parting: bool = False
    shared: SharedTokens | None = None
    after: Ints | None = None
    think_s: Array | None = None
    notes: tuple[str, ...] = ()  # how a file was read

    def __post_init__(self) -> None:
        for name in ("input_len", "output_len"):
            values = getattr(self, name)
            if len(values) and not 1 <= values.min() <= values.max() <= LONGEST:
                raise BadInput(f"{name}: every request needs 1 to {LONGEST} tokens", field=name)
        if not 0 < len(self.arrival_s) <= MOST:
            raise BadInput(f"requests = {len(self.arrival_s)}: must be 1 to {MOST}", field="requests")
        if not np.isfinite(self.arrival_s).all() or (np.diff(self.arrival_s) < 0).any():
            raise BadInput("arrival times must be finite and sorted", field="arrival_s")
        if self.think_s is not None and not (np.isfinite(self.think_s).all() and (self.think_s >= 0).all()):
            raise BadInput("think_s: must be finite and from 0", field="think_s")

    def __len__(self) -> int:
        return len(self.arrival_s)

    def __str__(self) -> str:
        """How many requests, how they come, and how long they are."""
        span, begin = float(self.arrival_s[-1] - self.arrival_s[0]), len(self) if self.after is None else self.sessions
        turns, each = ("", "") if self.after is None else (f" in {begin:,} sessions that wait for answers", " sessions")
        pace = f"over {span:,.4g} s: {(begin - 1) / span:,.4g}{each} a second" if span > 0 else "at once"
        held = f"{self.concurrency:,} in flight" if self.concurrency else ""
        pace = held if self.closed else f"{pace}, at most {held}" if held else pace
        mean = f"{round(self.input_len.mean(), 1):,g} + {round(self.output_len.mean(), 1):,g} tokens on average"
        return f"{len(self):,} request{'s'[: len(self) != 1]}{turns}, {pace}, {mean}"

    @property
    def closed(self) -> int | None:
        """Clients that each send a request as soon as their last one is done; None where requests have times."""
        return None if self.arrival_s[-1] else self.concurrency

    @property
    def sessions(self) -> int:
        """Requests that wait for no answer: one of each session."""
        return len(self) if self.after is None else int((self.after < 0).sum())

    def first(self, count: int) -> Traffic:
        """The first so many of them."""
        names = ("arrival_s", "input_len", "output_len", "found_len", "after", "think_s")
        cut = {name: getattr(self, name)[:count] for name in names if getattr(self, name) is not None}
        return replace(self, **cut, shared=self.shared and self.shared.first(count))

    def with_prefix(self, share: float) -> Traffic:
        """The same requests with this share of every prompt in the cache; the last token is always computed."""
        if not (is_number(share) and 0 <= share <= 1):
            raise BadInput(f"prefix_share = {share!r}: must be from 0 to 1", field="prefix_share")
        if self.shared is not None:
            raise BadInput("prefix_share: the requests' sessions or hashes say what they share", field="prefix_share")
        found = np.minimum((share * self.input_len).astype(np.int64), self.input_len - 1)
        return replace(self, found_len=found)

    def with_prefix_tokens(self, shared: int, groups: int = 1) -> Traffic:
        """The same requests after so many tokens that a group, of mixed order, shares: all but its first find them."""
        found, group = np.full(len(self), shared), np.random.default_rng(0).permutation(len(self)) % groups
        found[np.unique(group, return_index=True)[1]] = 0
        return replace(self, input_len=self.input_len + shared, found_len=found, parting=True)

    @property
    def longest(self) -> int:
        """Most tokens any request ends with."""
        return int((self.input_len + self.output_len).max())

    @property
    def spread(self) -> float:
        """How far cache lengths in a step lie from their mean, as a share of it: 0 for requests about as long."""
        held = self.input_len + 0.5 * self.output_len
        return SPREAD if held.std() > WIDE * held.mean() else 0.0

    @property
    def sent(self) -> float:
        """Output tokens that a request has been sent when it is sent another one, on average over all tokens."""
        outputs = self.output_len.astype(float)
        return float((outputs * (outputs - 1) / 2).sum() / outputs.sum())


def lengths(mean: int, count: int, spread: float, rng: np.random.Generator) -> Ints:
    """Token counts uniform within ±`spread` of a mean, as `vllm bench serve --random-range-ratio` draws them."""
    check_spread(spread)
    low, high = max(int(mean * (1 - spread)), 1), int(mean * (1 + spread))
    return rng.integers(low, high + 1, count)


def check_spread(spread: Any) -> None:
    """Raise BadInput unless lengths can be uniform within ± this share of their mean."""
    if not (is_number(spread) and 0 <= spread < 1):
        raise BadInput(f"spread = {spread}: must be at least 0 and below 1", field="spread")


def usual_count(concurrency: int | None) -> int:
    """Requests of a run where nothing says how many: ten for each one in flight, or a thousand in all."""
    return REQUESTS if concurrency is None else TURNS * concurrency


def synthetic(
    requests: int,
    *,
    input_len: int,
    output_len: int,
    rate: float | None = None,
    concurrency: int | None = None,
    burstiness: float = 1.0,
    spread: float = 0.0,
    seed: int = 0,
) -> Traffic:
    """Random requests: `rate` a second with gamma-distributed gaps (burstiness 1 = Poisson), at most `concurrency` of
    them in flight. Without a rate all arrive at once, or as soon as they may be in flight. Gaps are scaled to the rate,
    as vLLM's benchmark does: a few hundred drawn ones are off by up to a tenth.
    """
    for name, number in (("rate", rate), ("concurrency", concurrency), ("burstiness", burstiness)):
        if number is not None and not (is_number(number) and 0 < number < 1e9):
            raise BadInput(f"{name} = {number!r}: must be above 0 and below 1e9", field=name)
    sizes = (("requests", requests, MOST), ("input_len", input_len, LONGEST), ("output_len", output_len, LONGEST))
    for name, value, most in sizes:
        check_whole(name, value, high=most)
    check_whole("seed", seed, 0)
    rng = np.random.default_rng(seed)
    gaps = np.zeros(requests) if rate is None else rng.gamma(burstiness, 1 / (rate * burstiness), requests)
    gaps[0] = 0.0
    if rate is not None and gaps.any():
        gaps *= (requests - 1) / (rate * gaps.sum())
    prompts, outputs = lengths(input_len, requests, spread, rng), lengths(output_len, requests, spread, rng)
    return Traffic(np.cumsum(gaps), prompts, outputs, concurrency)


def datasets() -> Mapping[str, Any]:
    """Lengths by the name of their dataset."""
    return packaged.shared(LENGTHS_FILE)  # type: ignore[no-any-return]


def drawn_from(name: str, requests: int, *, seed: int = 0, output_len: int | None = None, **pace: Any) -> Traffic:
    """Requests with the lengths of a dataset, sent at `rate` or kept at `concurrency` as `synthetic` does.

    output_len: of all requests, in place of the dataset's. Raises BadInput for a name that is not known.
    """
    if name not in datasets():
        known_of = f"lengths are known of {', '.join(datasets())};{did_you_mean(name, datasets())}".rstrip(";")
        raise BadInput(f"dataset = {name!r}: {known_of}", field="dataset")
    known, rng = datasets()[name], np.random.default_rng(seed)
    counts = np.array(known["counts"], float)
    cells = rng.choice(counts.size, requests, p=counts.ravel() / counts.sum())
    sides = zip(np.unravel_index(cells, counts.shape), (known["prompt_edges"], known["output_edges"]), strict=True)
    ends = ((np.array(edges), at) for at, edges in sides)  # any whole number of a cell is as likely
    prompts, outputs = (rng.integers(edge[at], edge[at + 1]) for edge, at in ends)
    paced = synthetic(requests, input_len=1, output_len=1, seed=seed, **pace)
    outputs = outputs if output_len is None else np.full(requests, output_len)
    return Traffic(paced.arrival_s, prompts, outputs, paced.concurrency)
