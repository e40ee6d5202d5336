"""The batch contract: JSON cases in, JSON answers out, line by line, in order, in bounded memory."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

import numpy as np

from pipewave.calls.dtypes import SPELLINGS
from pipewave.calls.families import class_of, from_dict
from pipewave.calls.fields import required, rules
from pipewave.errors import BadInput, MissingField, NotFinite, PipewaveError
from pipewave.gpus import GPU, find
from pipewave.kernels import family_of
from pipewave.kernels.base import Family
from pipewave.physics.demand import PIPES
from pipewave.prediction.batch import US, Answers
from pipewave.prediction.columns import SHARED, columns, group_key, numeric_fields
from pipewave.prediction.order import answer
from pipewave.prediction.requests import check_protocol

CHUNK_LINES = 32_768
CHUNK_CHARACTERS = 8_000_000  # of text at a time: a parsed list of lengths takes ten times its text
LONGEST_LINE = 4_000_000
TYPES = frozenset({"dtype", "kv_dtype"})
ENVELOPE = frozenset({"id", "kernel", "gpu", "protocol"})

Case = dict[str, Any]


@dataclass(slots=True)
class Counts:
    """How many lines were answered and how many were in error."""

    answered: int = 0
    failed: int = 0


@dataclass(slots=True)
class _Chunk:
    """Lines being answered: groups of line numbers by context, and the text of each answer."""

    cases: list[Case | None]
    texts: list[str]
    groups: dict[tuple[Any, ...], list[int]] = field(default_factory=dict)


def answer_stream(
    lines: Iterable[str],
    out: TextIO,
    *,
    gpu: str | GPU | None = None,
    progress: Callable[[int], None] | None = None,
) -> Counts:
    """Answer every line of `lines` into `out`, in order. Bad lines answer with their error; blank lines are skipped.

    `progress` hears how many lines are done.
    """
    counts = Counts()
    for chunk in chunks(line for line in lines if line.strip()):
        for text in answer_lines(chunk, gpu, counts):
            out.write(text)
        if progress:
            progress(len(chunk))
    return counts


def chunks(lines: Iterable[str]) -> Iterator[list[str]]:
    """Lines in lists that are bounded in number and in size."""
    chunk: list[str] = []
    size = 0
    for line in lines:
        chunk.append(line)
        size += len(line)
        if len(chunk) == CHUNK_LINES or size >= CHUNK_CHARACTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def answer_lines(lines: Sequence[str], gpu: str | GPU | None, counts: Counts) -> Iterator[str]:
    """The answers to some lines, each ended by a newline."""
    chunk = _Chunk([None] * len(lines), [""] * len(lines))
    for i, line in enumerate(lines):
        _sort_in(chunk, i, line, gpu)
    for key, members in chunk.groups.items():
        _answer_group(chunk, key, members)
    for text in chunk.texts:
        failed = '"error": {' in text
        counts.failed += failed
        counts.answered += not failed
        yield text


def _sort_in(chunk: _Chunk, i: int, line: str, gpu: str | GPU | None) -> None:
    """Parse one line and file it under its context, or write its error."""
    case: Case | None = None
    try:
        case = chunk.cases[i] = _parse(line)
        family = family_of(class_of(case.get("kernel")).kernel)
        where = case.get("gpu") or gpu
        if where is None:
            raise MissingField("missing field 'gpu': name a GPU in the case or with --gpu", field="gpu")
        key = (
            family.name,
            find(where),
            check_protocol(case.get("protocol") or "cold"),
            *group_key(family, _lists(case)),
        )
        chunk.groups.setdefault(key, []).append(i)
    except PipewaveError as error:
        chunk.texts[i] = error_text(case, error)
    except (TypeError, ValueError, KeyError):  # a value of the wrong type in the key: let validation name it
        chunk.texts[i] = _explain(case)


def _parse(line: str) -> Case:
    case = json_object(line, LONGEST_LINE)
    check_id(case)
    for name in TYPES & case.keys():
        if isinstance(case[name], str):
            case[name] = SPELLINGS.get(case[name], case[name])
    return case


def json_object(line: str, longest: int) -> dict[str, Any]:
    """The JSON object that a line of at most `longest` characters holds; BadInput where it holds none."""
    if len(line) > longest:
        raise BadInput(f"a line of {len(line):,} characters: at most {longest:,} are read", field=None)
    try:
        case = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"not JSON: {error}", field=None) from error
    if not isinstance(case, dict):
        raise BadInput("a case must be a JSON object on one line", field=None)
    return case


def check_id(case: Mapping[str, Any]) -> None:
    """BadInput for an `id` that cannot be echoed."""
    if not is_id(case.get("id")):
        raise BadInput("id: must be a string or a finite number", field="id")


def is_id(value: Any) -> bool:
    """Whether a value can be echoed as the id of an answer: text, a finite number, or nothing."""
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | int)


def _lists(case: Case) -> Case:
    """Make list and object values hashable, for the group key."""
    if isinstance(case.get("routing"), list) or "config" in case or "tile" in case:
        return {name: _frozen(value) for name, value in case.items()}
    return case


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return tuple(sorted(value.items())) if isinstance(value, Mapping) else value


def _explain(case: Case | None) -> str:
    """The error that full validation finds in a case whose context could not even be read."""
    try:
        from_dict(case or {})
    except PipewaveError as error:
        return error_text(case, error)
    return error_text(case, BadInput("a field holds a value of the wrong type", field=None))


def _answer_group(chunk: _Chunk, key: tuple[Any, ...], members: list[int]) -> None:
    """Validate and answer the cases of one context; what is invalid gets its error."""
    name, gpu, protocol, *rest = key
    family = family_of(name)
    valid, cases = _validated(chunk, family, gpu, tuple(rest), members)
    if not valid:
        return
    try:
        answers = answer(family, columns(family, cases), tuple(rest), gpu, protocol)
    except PipewaveError as error:
        for i in valid:
            chunk.texts[i] = error_text(chunk.cases[i], error)
        return
    for i, text in zip(valid, texts(answers, [case.get("id") for case in cases]), strict=True):
        chunk.texts[i] = text


def _validated(
    chunk: _Chunk, family: Family, gpu: GPU, key: tuple[Any, ...], members: list[int]
) -> tuple[list[int], list[Case]]:
    """Members that are valid, with their cases; errors of the others go to their lines."""
    cases = [case for i in members if (case := chunk.cases[i]) is not None]
    if _plainly_valid(family, key, cases):
        return members, cases
    valid = []
    for i, case in zip(members, cases, strict=True):
        try:
            from_dict(case)
            if family.check_on:
                family.check_on(case, gpu)
            valid.append(i)
        except PipewaveError as error:
            chunk.texts[i] = error_text(case, error)
    return valid, [case for i in valid if (case := chunk.cases[i]) is not None]


def _plainly_valid(family: Family, key: tuple[Any, ...], cases: Sequence[Case]) -> bool:
    """Whether whole columns pass at once; False sends the batch through the careful path, it is no verdict."""
    if "check" in family.call.__dict__ or family.check_on:  # fields that constrain one another
        return False
    allowed, needed, known = rules(family.call), required(family.call), rules(family.call).keys() | ENVELOPE
    if not all(needed <= case.keys() <= known for case in cases):
        return False
    try:
        for name, value in zip((*SHARED, *family.options), key, strict=False):
            allowed[name].check(name, value)
    except PipewaveError:
        return False
    return _columns_valid(family, cases)


def _columns_valid(family: Family, cases: Sequence[Case]) -> bool:
    for name in numeric_fields(family):
        rule = rules(family.call)[name]
        values = [case[name] for case in cases if name in case]
        if values and not (set(map(type, values)) == {int} and rule.low <= min(values) and max(values) <= rule.high):
            return False
    return True


def texts(answers: Answers, ids: Sequence[Any]) -> Iterator[str]:
    """One JSON line an answer."""
    source = answers.source
    notes = f', "notes": {json.dumps(list(source.notes))}' if source.notes else ""
    software = f'"impl": {json.dumps(source.impl)}, "stack": {json.dumps(source.stack)}'
    tail = f', "basis": "{source.basis}", {software}, "software": "{source.software}"{notes}}}\n'
    rows = np.round(answers.seconds.T * US, 6).tolist()
    finite = np.all(np.isfinite(answers.seconds), axis=0)
    for name, row, bound, fine in zip(ids, rows, answers.bound.tolist(), finite.tolist(), strict=True):
        if not fine:
            yield error_text({"id": name}, NotFinite("no finite latency comes out for this case", field=None))
            continue
        latency, low, high, floor, ceiling = row
        yield (
            f'{{"id": {_id(name)}, "latency_us": {latency!r}, "low_us": {low!r}, "high_us": {high!r}, '
            f'"floor_us": {floor!r}, "ceiling_us": {ceiling!r}, "bound": "{PIPES[bound]}"{tail}'
        )


def _id(value: Any) -> str:
    return str(value) if type(value) is int else json.dumps(value)


def error_text(case: Case | None, error: PipewaveError) -> str:
    """The JSON line of a case in error."""
    return json.dumps({"id": case.get("id") if case else None, "error": error.to_dict()}) + "\n"
