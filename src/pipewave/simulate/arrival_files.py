"""Arrival files: requests of a CSV, JSON, JSON-lines or parquet file of a kind that `arrival_kinds` knows."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.calls.fields import check_whole
from pipewave.errors import BadFile, BadInput, MissingField, extra
from pipewave.files import whole
from pipewave.physics.demand import Array
from pipewave.simulate.arrival_kinds import DATES, SECONDS, TELLS_ITSELF, ArrivalKind, kind_of
from pipewave.simulate.shared_tokens import HASHED, SharedTokens, of_hashes, of_sessions
from pipewave.simulate.traffic import LONGEST, Ints, Traffic

# Since 1970, of the years 2001 to 2286.
EPOCHS = ((1e9, 1e10, "seconds"), (1e12, 1e13, "milliseconds"))
CHARACTERS = 4  # of a token, where a file has texts alone
Columns = dict[str, list[Any]]


def read_trace(
    path: str | Path,
    text: str | None = None,
    *,
    requests: int | None = None,
    rate: float | None = None,
    concurrency: int | None = None,
    block_tokens: int = HASHED,
) -> Traffic:
    """Requests of a file, or of its `text`; sessions and hashes of blocks tell what they share.

    Args:
        requests: only the first so many in order of arrival.
        rate: rescale its times to so many requests (or sessions) a second; inf: all arrive at once.
        concurrency: most requests (or sessions) in flight; without a rate each is sent as soon as there is room.
        block_tokens: tokens of a block of `hash_ids`.

    Raises BadFile: it cannot be read; MissingField, BadInput: it is of no known kind, or a value cannot be.
    """
    columns = _columns(Path(path), text)
    return _traffic(Rows(columns, kind_of(columns), block_tokens), requests, rate, concurrency)


def _columns(path: Path, text: str | None) -> Columns:
    """Of a text, else of the file."""
    if text is None and path.suffix == ".parquet":
        return _parquet(path)
    text = whole.read(path, "trace") if text is None else text
    rows = list((_json_rows if text.lstrip()[:1] in ("{", "[") else _csv_rows)(path, text))
    if not rows:
        raise BadFile(f"{path}: holds no requests", field="trace")
    return {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}


def _parquet(path: Path) -> Columns:
    parquet = extra("pyarrow.parquet", "reading parquet traces", "'pipewave[train]'")
    try:
        return dict(parquet.read_table(path).to_pydict())
    except (OSError, ValueError) as problem:  # pyarrow's own are of these kinds
        raise BadFile(f"{path}: not a parquet file ({problem})", field="trace") from problem


def _csv_rows(path: Path, text: str) -> Iterator[Mapping[str, Any]]:
    """A row a request of a table with a header, whose commas, semicolons or tabs part the columns."""
    parting = max(",;\t", key=text.partition("\n")[0].count)
    table = csv.DictReader(text.splitlines(), delimiter=parting, skipinitialspace=True)
    try:
        for row in table:
            if None in row:
                raise BadFile(f"{path}, line {table.line_num}: more values than columns", field="trace")
            yield row
    except csv.Error as problem:
        raise BadFile(f"{path}: no table ({problem})", field="trace") from problem


def _json_rows(path: Path, text: str) -> Iterator[Mapping[str, Any]]:
    """A row a request of JSON lines, or of one document of a tool."""
    for number, document in _documents(path, text):
        if not isinstance(document, dict):
            raise BadFile(f"{path}, {number}: must be an object", field="trace")
        if "resourceSpans" in document:
            yield from _spans(document)
        elif "benchmarks" in document:
            runs = list(_under(document, "benchmarks"))
            if len(runs) != 1:
                why = f"holds {len(runs)} benchmarks; keep one, each is a load of its own"
                raise BadInput(f"{path}: {why}", field="trace")
            yield from (dict(_flat(row)) for row in _under(runs[0].get("requests"), "successful"))
        elif "conversations" in document:
            yield from _turns(str(number), document["conversations"])
        elif isinstance(lengths := document.get("input_lens"), list):
            lists = {k: v for k, v in document.items() if isinstance(v, list) and len(v) == len(lengths)}
            for index in range(len(lengths)):
                yield {name: lists[name][index] if name in lists else value for name, value in document.items()}
        else:
            yield dict(_flat(document))


def _documents(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    with suppress(ValueError, RecursionError):  # else it is one a line
        document = json.loads(text)
        entries = document if isinstance(document, list) else [document]
        yield from ((f"entry {i}", one) for i, one in enumerate(entries, 1))
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield f"line {number}", json.loads(line)
            except (ValueError, RecursionError) as problem:
                raise BadFile(f"{path}, line {number}: not valid JSON ({problem})", field="trace") from problem


def _flat(row: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Entries of nested objects under names such as `metadata.turn_index`."""
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield before + name, value


def _spans(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Spans of an OTLP document that count tokens."""
    for span in _under(document, "resourceSpans", "scopeSpans", "spans"):
        told = [(each.get("key"), each.get("value")) for each in _under(span, "attributes")]
        named = {f"attributes.{key}": next(iter(v.values()), None) for key, v in told if isinstance(v, dict)}
        if any("tokens" in name for name in named):
            yield {key: value for key, value in span.items() if key != "attributes"} | named


def _under(entry: Any, name: str, *deeper: str) -> Iterator[Mapping[str, Any]]:
    """Objects of nested lists of these names, where they are there."""
    found = entry.get(name) if isinstance(entry, dict) else None
    for each in found if isinstance(found, list) else ():
        if isinstance(each, dict):
            yield from _under(each, *deeper) if deeper else (each,)


def _turns(session: str, said: Any) -> Iterator[Mapping[str, Any]]:
    """A ShareGPT conversation: each answer a turn, after all that was said before."""
    before = turn = 0
    for entry in said if isinstance(said, list) else [said]:
        if not isinstance(entry, dict) or not {"from", "value"} <= set(entry):
            raise MissingField(f"{session}: each entry of a conversation needs from and value", field="conversations")
        tokens = max(math.ceil(len(str(entry["value"])) / CHARACTERS), 1)
        if entry["from"] in ("gpt", "assistant", "chatgpt", "bing", "bard") and before:
            counts = {"conversations.prompt_tokens": before, "conversations.answer_tokens": tokens}
            yield {"id": session, "conversations.session": session, "conversations.turn": turn} | counts
            turn += 1
        before += tokens


def _traffic(rows: Rows, requests: int | None, rate: float | None, concurrency: int | None) -> Traffic:
    check_whole("requests", 1 if requests is None else requests)
    if rate is not None and not 0 < rate < 1e9 and rate != math.inf:
        raise BadInput(f"rate = {rate!r}: must be above 0 and below 1e9", field="rate")
    kind, clock = rows.kind, rows.one_of(rows.kind.times)
    prompt, answer = (rows.tokens(str(rows.one_of(names))) for names in (kind.prompt, kind.answer))
    if clock is None and rate is None and concurrency is None:
        raise MissingField(
            f"trace has no column of times ({kind.name}): give --request-rate (inf: all at once) or --concurrency",
            field="arrival_time",
        )
    times, unit = rows.times(clock) if clock and rate != math.inf else (np.zeros(len(prompt)), "")
    before, think = rows.waits(times, waits=concurrency is not None or clock is None)
    order, start = _in_order(times, before, requests)
    timed = rate is not None or concurrency is None
    said = f"{clock} {unit}" if clock and unit and timed else "its times do not count"
    notes = (f"read as {kind.name}: {said}", *filter(None, [kind.note]))
    traffic = Traffic(start * timed, prompt[order], answer[order], concurrency, notes=notes)
    if (before >= 0).any():
        place = {row: at for at, row in enumerate(order.tolist())}
        after = np.array([place.get(row, -1) for row in before[order].tolist()])
        traffic = replace(traffic, after=after, think_s=think[order])
    traffic = replace(traffic, shared=rows.shared(prompt, answer, order))
    return traffic if rate in (None, math.inf) else _rescaled(traffic, float(rate or 0))


def _in_order(times: Array, before: Ints, requests: int | None) -> tuple[Ints, Array]:
    """The first so many rows in the order in which their sessions begin, and when these do: seconds after the first.
    `before`: the row whose answer each waits for, -1 for none.
    """
    root = np.where(before < 0, np.arange(len(before)), before)  # its first row, in the end
    depth = (before >= 0).astype(np.int64)  # answers between
    while (before[root] >= 0).any():  # strides double: a session of many turns takes few rounds
        depth, root = depth + depth[root], root[root]
    start = times[root]
    order = np.lexsort((depth, start))[:requests]
    return order, start[order] - start[order].min()


def _rescaled(traffic: Traffic, rate: float) -> Traffic:
    """The same requests, or sessions, at another mean rate; without times of their own, evenly spaced."""
    span, count, after = float(traffic.arrival_s[-1]), traffic.sessions, traffic.after
    even = np.arange(count) if after is None else np.cumsum(after < 0) - 1
    own = traffic.arrival_s / span if span > 0 else even / max(count - 1, 1)
    return replace(traffic, arrival_s=own * ((count - 1) / rate))


@dataclass(frozen=True, slots=True)
class Rows:
    """A request a row: the columns of a file, and what its kind says of them."""

    columns: Columns
    kind: ArrivalKind
    block_tokens: int  # of a block of hashes

    def one_of(self, names: Iterable[str]) -> str | None:
        """The first of some names that is a column; an empty one is none."""
        return next((name for name in names if name and name in self.columns), None)

    def tokens(self, name: str) -> Ints:
        """Whole numbers of a column."""
        try:
            return np.array([int(float(value)) for value in self.columns[name]], np.int64)
        except (TypeError, ValueError, OverflowError) as problem:
            raise BadInput(f"trace column {name}: every row needs a number ({problem})", field=name) from problem

    def numbers(self, name: str) -> Array | None:
        """Numbers of a column, not-a-number where a row has none; None in a file without it."""
        if not self.one_of([name]):
            return None
        try:
            return np.array([math.nan if value in (None, "") else float(value) for value in self.columns[name]])
        except (TypeError, ValueError) as problem:
            raise BadInput(f"trace column {name}: must hold numbers ({problem})", field=name) from problem

    def times(self, name: str) -> tuple[Array, str]:
        """Seconds of each arrival, not-a-number where a row has none, and the unit in words."""
        unit = self.kind.times[name]
        try:
            values = np.asarray(self.numbers(name))
        except BadInput:
            if unit not in (DATES, TELLS_ITSELF):
                raise
            return _dates(name, self.columns[name]), "as dates"
        known = values[np.isfinite(values)]
        if unit == TELLS_ITSELF and known.size:
            unit = next((unit for low, high, unit in EPOCHS if low <= known.min() <= known.max() < high), DATES)
        if unit == DATES:
            wrong = "its unit is not known; name it arrival_time (seconds) or timestamp_ms"
            raise BadInput(f"trace column {name}: {wrong}", field=name)
        return (values - known.min()) * SECONDS[unit] if known.size else values, f"in {unit}"

    def sessions(self) -> tuple[list[int], Array] | None:
        """The session of each row from 0 up, and its place there; None where nothing tells."""
        if not self.one_of([self.kind.session]):
            return None
        _check_plain(self.kind.session, self.columns[self.kind.session])
        numbers = dict[Any, int]()
        named = [numbers.setdefault(name, len(numbers)) for name in self.columns[self.kind.session]]
        turns = self.numbers(self.kind.turn)
        if turns is not None and not np.isfinite(turns).all():
            raise BadInput(f"trace column {self.kind.turn}: every row needs a number", field=self.kind.turn)
        return named, np.arange(len(named), dtype=float) if turns is None else turns

    def waits(self, times: Array, *, waits: bool) -> tuple[Ints, Array]:
        """The row whose answer each row waits for (-1: none), and seconds after it; `waits`: all turns do.

        A turn waits where it has `think_s`. Raises MissingField for a row with neither that nor a time.
        """
        count, think, told = len(times), self.numbers(self.kind.think), self.sessions()
        before, think = np.full(count, -1), np.full(count, math.nan) if think is None else think
        if told is not None:
            sessions, turns = told
            last = dict[int, int]()
            for row in np.lexsort((np.arange(count), turns)).tolist():
                earlier = last.get(sessions[row], -1)
                if earlier >= 0 and turns[row] == turns[earlier]:
                    twice = f"row {row + 1}: turn {turns[row]:g} of its session comes twice"
                    raise BadInput(twice, field=self.kind.turn)
                if earlier >= 0 and (waits or math.isfinite(think[row])):
                    before[row] = earlier
                last[sessions[row]] = row
        if (late := np.flatnonzero((before < 0) & ~np.isfinite(times))).size:
            raise MissingField(f"row {late[0] + 1}: has no time to arrive at, and no answer to wait for", field="trace")
        return before, np.where((before >= 0) & np.isfinite(think), think, 0.0)

    def shared(self, prompt: Ints, answer: Ints, order: Ints) -> SharedTokens | None:
        """Which tokens the requests share, by sessions and common prefixes or by hashes; None where nothing tells."""
        rows, told, prefix = order.tolist(), self.sessions(), self.numbers(self.kind.prefix)
        prefix = np.zeros(len(prompt)) if prefix is None else np.nan_to_num(prefix)
        if not ((prefix >= 0) & (prefix <= LONGEST)).all():
            raise BadInput(f"trace column {self.kind.prefix}: must be from 0 to {LONGEST}", field=self.kind.prefix)
        if told is not None or prefix.any():
            sessions, turns = told or (list(range(len(prompt))), np.zeros(len(prompt)))
            kept = set(rows)
            walked = [row for row in np.lexsort((turns, np.asarray(sessions))).tolist() if row in kept]
            lengths = list(zip(prompt[walked].tolist(), answer[walked].tolist(), strict=True))
            prefixes = prefix[walked].astype(int).tolist()
            tree = of_sessions([sessions[row] for row in walked], lengths, prefixes, [row + 1 for row in walked])
            place = {row: at for at, row in enumerate(walked)}
            at = [place[row] for row in rows]
            return replace(tree, paths=tuple(tree.paths[i] for i in at), known=tuple(tree.known[i] for i in at))
        column = self.one_of([self.kind.hashes])
        listed = self.columns[column] if column else []
        if not any(isinstance(row, list) for row in listed):
            return None
        hashes = [listed[row] if isinstance(listed[row], list) else [] for row in rows]
        _check_plain(self.kind.hashes, chain.from_iterable(hashes))
        return of_hashes(hashes, prompt[order], answer[order], self.block_tokens)


def _check_plain(name: str, values: Iterable[Any]) -> None:
    """Raises BadInput for a list or an object where a number or a text names something."""
    if {list, dict} & set(map(type, values)):
        raise BadInput(f"trace column {name}: must hold numbers or texts", field=name)


def _dates(name: str, values: list[Any]) -> Array:
    """Azure's `2023-11-16 18:15:46.6805900`, in seconds after the first; not-a-number where a row has none."""
    texts = ["NaT" if value in (None, "") else str(value)[:26].replace(" ", "T") for value in values]
    try:
        stamps = np.array(texts, "datetime64[us]")
    except ValueError as problem:
        raise BadInput(f"trace column {name}: must hold seconds or dates ({problem})", field=name) from problem
    return np.asarray((stamps - np.fmin.reduce(stamps)) / np.timedelta64(1, "s"), float)
