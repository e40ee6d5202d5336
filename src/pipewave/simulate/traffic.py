"""Requests that arrive over time: drawn at a rate, kept at a concurrency, or read from a trace."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.errors import BadFile, BadInput, MissingExtra, MissingField
from pipewave.physics.demand import Array

Ints = NDArray[np.int64]
MOST = 300_000  # requests of a run; the largest published ones have 161,300
BLOCK = 512  # tokens of a hashed block in Mooncake's traces
LONGEST = 1 << 24  # tokens of a prompt or an output
TURNS, REQUESTS = 10, 1000

# What traces in the wild call their columns: Azure/Splitwise, Vidur, Mooncake, SGLang, BurstGPT, ShareGPT dumps.
HASHES = "hash_ids"
ARRIVAL = ("arrived_at", "arrival", "arrival_s", "arrival_time", "timestamp", "TIMESTAMP", "Timestamp")
INPUT = (
    "num_prefill_tokens",
    "input_length",
    "input_len",
    "prompt_len",
    "prompt_tokens",
    "ContextTokens",
    "Request tokens",
    "isl",
)
# PipeWeave's tables hold both a request's own output and the one its batch ran; the latter comes first.
OUTPUT = (
    "output_tokens",
    "num_decode_tokens",
    "output_length",
    "output_len",
    "GeneratedTokens",
    "Response tokens",
    "osl",
)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests in order of arrival: seconds, prompt tokens, generated tokens.

    `concurrency`: instead of at their own time, requests arrive when an earlier one of as many is done.
    `found_len`: tokens of each prompt that the engine's cache holds already; None = none. `blocks`: hashes of each
    prompt's blocks of `block_tokens` tokens, by which the engine finds what it holds. `parting`: what was found is a
    beginning that prompts share and go on from in different ways.
    """

    arrival_s: Array
    input_len: Ints
    output_len: Ints
    concurrency: int | None = None
    found_len: Ints | None = None
    blocks: tuple[tuple[int, ...], ...] | None = None
    block_tokens: int = BLOCK
    parting: bool = False

    def __post_init__(self) -> None:
        for name in ("input_len", "output_len"):
            values = getattr(self, name)
            if len(values) and not 1 <= values.min() <= values.max() <= LONGEST:
                raise BadInput(f"{name}: every request needs 1 to {LONGEST} tokens", field=name)
        if not 0 < len(self.arrival_s) <= MOST:
            raise BadInput(f"requests = {len(self.arrival_s)}: must be 1 to {MOST}", field="requests")
        if not np.isfinite(self.arrival_s).all() or (np.diff(self.arrival_s) < 0).any():
            raise BadInput("arrival times must be finite and sorted", field="arrival_s")

    def __len__(self) -> int:
        return len(self.arrival_s)

    def __str__(self) -> str:
        """How many requests, how they come, and how long they are."""
        span = float(self.arrival_s[-1] - self.arrival_s[0])
        pace = f"over {span:,.4g} s: {(len(self) - 1) / span:,.4g} a second" if span > 0 else "at once"
        pace = f"{self.concurrency:,} in flight" if self.concurrency else pace
        mean = f"{self.input_len.mean():,.4g} + {self.output_len.mean():,.4g} tokens on average"
        return f"{len(self):,} request{'s'[: len(self) != 1]}, {pace}, {mean}"

    def first(self, count: int) -> Traffic:
        """The first so many of them."""
        return replace(
            self,
            arrival_s=self.arrival_s[:count],
            input_len=self.input_len[:count],
            output_len=self.output_len[:count],
            found_len=None if self.found_len is None else self.found_len[:count],
            blocks=self.blocks and self.blocks[:count],
        )

    def with_prefix(self, share: float) -> Traffic:
        """The same requests with this share of every prompt in the cache; the last token is always computed."""
        if not 0 <= share <= 1:
            raise BadInput(f"prefix_share = {share!r}: must be from 0 to 1", field="prefix_share")
        found = np.minimum((share * self.input_len).astype(np.int64), self.input_len - 1)
        return replace(self, found_len=found)

    def with_prefix_tokens(self, shared: int) -> Traffic:
        """The same requests with a prefix of so many tokens more, which all but the first find in the cache."""
        found = np.full(len(self), shared, np.int64)
        found[0] = 0
        return replace(self, input_len=self.input_len + shared, found_len=found, parting=True)

    @property
    def longest(self) -> int:
        """Most tokens any request ends with."""
        return int((self.input_len + self.output_len).max())

    @property
    def sent(self) -> float:
        """Output tokens that a request has been sent when it is sent another one, on average over all tokens."""
        outputs = self.output_len.astype(float)
        return float((outputs * (outputs - 1) / 2).sum() / outputs.sum())


def lengths(mean: int, count: int, spread: float, rng: np.random.Generator) -> Ints:
    """Token counts uniform within ±`spread` of a mean, as `vllm bench serve --random-range-ratio` draws them."""
    if not 0 <= spread < 1:
        raise BadInput(f"spread = {spread}: must be at least 0 and below 1", field="spread")
    low, high = max(int(mean * (1 - spread)), 1), int(mean * (1 + spread))
    return rng.integers(low, high + 1, count)


def usual_count(concurrency: int | None) -> int:
    """Requests of a run where nothing says how many: ten for each one in flight, or a thousand that come on their
    own."""
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
    """Random requests: `rate` a second with gamma-distributed gaps (burstiness 1 = Poisson), or at a concurrency.

    With neither, all arrive at once.
    """
    sizes = (("requests", requests, MOST), ("input_len", input_len, LONGEST), ("output_len", output_len, LONGEST))
    for name, value, most in sizes:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise BadInput(f"{name} = {value!r}: must be an integer from 1 to {most}", field=name)
    for name, number in (("rate", rate), ("concurrency", concurrency), ("burstiness", burstiness)):
        if number is not None and not 0 < number < 1e9:
            raise BadInput(f"{name} = {number!r}: must be above 0 and below 1e9", field=name)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise BadInput(f"seed = {seed!r}: must be an integer from 0", field="seed")
    if rate is not None and concurrency is not None:
        raise BadInput("give either a rate or a concurrency, not both", field="rate")
    rng = np.random.default_rng(seed)
    gaps = np.zeros(requests) if rate is None else rng.gamma(burstiness, 1 / (rate * burstiness), requests)
    gaps[0] = 0.0
    prompts, outputs = lengths(input_len, requests, spread, rng), lengths(output_len, requests, spread, rng)
    return Traffic(np.cumsum(gaps), prompts, outputs, concurrency)


def read_trace(
    path: str | Path, *, requests: int | None = None, rate: float | None = None, concurrency: int | None = None
) -> Traffic:
    """Requests of a CSV, JSON-lines or parquet trace; `rate` rescales its times to that many requests a second.

    A trace without times arrives at once, unless `rate` or `concurrency` says otherwise. Azure's time stamps and
    epoch milliseconds are understood. Raises BadFile, MissingField or BadInput.
    """
    return _traffic(_read_columns(Path(path)), requests, rate, concurrency)


def parse_trace(
    text: str, name: str, *, requests: int | None = None, rate: float | None = None, concurrency: int | None = None
) -> Traffic:
    """Requests of the text of a CSV or JSON-lines trace, as `read_trace` reads a file; `name` is for messages."""
    return _traffic(_columns(Path(name), text), requests, rate, concurrency)


def _traffic(
    columns: Mapping[str, list[Any]], requests: int | None, rate: float | None, concurrency: int | None
) -> Traffic:
    if requests is not None and requests < 1:
        raise BadInput(f"requests = {requests}: must be at least 1", field="requests")
    prompt, answer = (_numbers(columns, names, what) for names, what in ((INPUT, "prompt"), (OUTPUT, "output")))
    times = _times(columns, len(prompt))
    order = np.argsort(times, kind="stable")[:requests]
    blocks = _blocks(columns, order)
    traffic = Traffic(times[order] - times[order].min(), prompt[order], answer[order], concurrency, blocks=blocks)
    return _rescaled(traffic, rate) if rate is not None else traffic


def _blocks(columns: Mapping[str, list[Any]], order: NDArray[np.intp]) -> tuple[tuple[int, ...], ...] | None:
    """Hashes of each prompt's blocks, where every request has a list of them."""
    listed = columns.get(HASHES)
    if listed is None or not all(isinstance(row, list) for row in listed):
        return None
    return tuple(tuple(listed[i]) for i in order.tolist())


def _rescaled(traffic: Traffic, rate: float) -> Traffic:
    """The same requests at another mean rate; without times of its own, evenly spaced."""
    if not 0 < rate < 1e9:
        raise BadInput(f"rate = {rate!r}: must be above 0 and below 1e9", field="rate")
    span, count = float(traffic.arrival_s[-1]), len(traffic)
    own = traffic.arrival_s / span if span > 0 else np.arange(count) / max(count - 1, 1)
    return replace(traffic, arrival_s=own * ((count - 1) / rate))


def _read_columns(path: Path) -> dict[str, list[Any]]:
    try:
        if path.suffix == ".parquet":
            return _parquet(path)
        text = path.read_text("utf-8-sig")
    except OSError as problem:
        raise BadFile(f"{path}: cannot be read ({problem.strerror})", field="trace") from problem
    except UnicodeDecodeError as problem:
        raise BadFile(f"{path}: not text ({problem.reason})", field="trace") from problem
    return _columns(path, text)


def _columns(path: Path, text: str) -> dict[str, list[Any]]:
    return _table(path, _json_rows(path, text) if text.lstrip()[:1] == "{" else csv.DictReader(text.splitlines()))


def _parquet(path: Path) -> dict[str, list[Any]]:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError as problem:
        raise MissingExtra("reading parquet traces needs pyarrow: pip install 'pipewave[train]'") from problem
    try:
        return dict(parquet.read_table(path).to_pydict())
    except ArrowInvalid as problem:
        raise BadFile(f"{path}: not a parquet file ({problem})", field="trace") from problem


def _json_rows(path: Path, text: str) -> Iterable[Mapping[str, Any]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as problem:
            raise BadFile(f"{path}, line {number}: not valid JSON ({problem})", field="trace") from problem
        if not isinstance(row, dict):
            raise BadFile(f"{path}, line {number}: must be an object", field="trace")
        yield row


def _table(path: Path, rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    every = list(rows)
    if not every:
        raise BadFile(f"{path}: holds no requests", field="trace")
    return {name: [row.get(name) for row in every] for name in every[0]}


def _named(columns: Mapping[str, list[Any]], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in columns), None)


def _numbers(columns: Mapping[str, list[Any]], names: tuple[str, ...], what: str) -> Ints:
    name = _named(columns, names)
    if name is None:
        raise MissingField(f"trace has no {what} length: name a column {', '.join(names)}", field="trace")
    try:
        return np.array([int(float(value)) for value in columns[name]], np.int64)
    except (TypeError, ValueError, OverflowError) as problem:
        raise BadInput(f"trace column {name}: every row needs a number ({problem})", field=name) from problem


def _times(columns: Mapping[str, list[Any]], count: int) -> Array:
    name = _named(columns, ARRIVAL)
    if name is None:
        return np.zeros(count)
    try:
        return np.array([float(value) for value in columns[name]]) * (1e-3 if name == "timestamp" else 1.0)
    except (TypeError, ValueError, OverflowError):
        return _dates(name, columns[name])


def _dates(name: str, values: list[Any]) -> Array:
    """Azure's `2023-11-16 18:15:46.6805900`, in seconds after the first."""
    try:
        stamps = np.array([str(value)[:26].replace(" ", "T") for value in values], "datetime64[us]")
    except ValueError as problem:
        raise BadInput(f"trace column {name}: must hold seconds or dates ({problem})", field=name) from problem
    return np.asarray((stamps - stamps.min()) / np.timedelta64(1, "s"), float)
