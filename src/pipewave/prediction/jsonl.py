"""The batch contract: JSON cases in, JSON answers out, line by line, in order, in bounded memory."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple, TextIO
from uuid import uuid4

import numpy as np

from pipewave.calls.dtypes import SPELLINGS
from pipewave.calls.families import ENVELOPE, class_of, from_dict
from pipewave.calls.fields import SHARED, required, rules
from pipewave.errors import BadInput, PipewaveError
from pipewave.gpus import GPU
from pipewave.kernels import family_of
from pipewave.kernels.base import Family
from pipewave.physics.demand import PIPES
from pipewave.prediction.answers import no_latency, usable
from pipewave.prediction.columns import columns, given, group_key, numeric_fields
from pipewave.prediction.kernel_latency import LATENCY, US, WORK_J, Answers, answer
from pipewave.prediction.requests import where

CHUNK_LINES = 32_768
CHUNK_CHARACTERS = 8_000_000  # of text at a time: a parsed list of lengths takes ten times its text
LONGEST_LINE = 4_000_000
PLACED = ("kernel", "gpu", "protocol", "dtype", "kv_dtype")  # words of a case that say where and as what it is asked
MARK = uuid4().hex  # that no file of cases can know
BETWEEN = f',"{MARK}",'

FIELDS = (
    '{"id": %s, "latency_us": %.6f, "low_us": %.6f, "high_us": %.6f, "floor_us": %.6f, "ceiling_us": %.6f, '
    '"bound": "%s", "power_w": %.2f, "power_low_w": %.2f, "power_high_w": %.2f, "energy_j": %.9g'
)

Case = dict[str, Any]


@dataclass(slots=True)
class Counts:
    """How many lines were answered and how many were in error."""

    answered: int = 0
    failed: int = 0


class _Place(NamedTuple):
    """What the `PLACED` words of a case name: a family, a GPU, a protocol, and types where another word says them."""

    family: Family
    gpu: GPU
    protocol: str
    spelt: Mapping[str, str]


@dataclass(slots=True)
class _Chunk:
    """Lines being answered: groups of line numbers by context, and the text of each answer."""

    cases: list[Case | None]
    texts: list[str]
    gpu: str | GPU | None  # of cases that name none
    places: dict[tuple[Any, ...], tuple[int, _Place]] = field(default_factory=dict)  # by the words that name them
    groups: dict[tuple[Any, ...], list[int]] = field(default_factory=dict)  # by number of place and group key
    failed: int = 0

    def fail(self, i: int, error: PipewaveError) -> None:
        """Answer a line with an error."""
        self.texts[i] = error_text(self.cases[i], error)
        self.failed += 1


def answer_stream(
    lines: Iterable[str], out: TextIO, *, gpu: str | GPU | None = None, progress: Callable[[int], None] | None = None
) -> Counts:
    """Answer every line into `out`, in order, bad ones by their error, no blank one; `progress` hears of them."""
    counts = Counts()
    for chunk in chunks(line for line in lines if line.strip()):
        out.writelines(answer_lines(chunk, gpu, counts))
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


def answer_lines(lines: Sequence[str], gpu: str | GPU | None, counts: Counts) -> list[str]:
    """The answers to some lines, each ended by a newline."""
    chunk = _Chunk([None] * len(lines), [""] * len(lines), gpu)
    for i, found in enumerate(_objects(lines)):
        _sort_in(chunk, i, found)
    places = [place for _, place in chunk.places.values()]
    for key, members in chunk.groups.items():
        _answer_group(chunk, places[key[0]], key[1:], members)
    counts.failed += chunk.failed
    counts.answered += len(lines) - chunk.failed
    return chunk.texts


def _objects(lines: Sequence[str]) -> Iterable[Case | BadInput]:
    """What each line holds. All at once, which is faster, unless one of them is not what it should be."""
    if max(map(len, lines), default=0) <= LONGEST_LINE:
        with suppress(ValueError, RecursionError):
            found = json.loads(f"[{BETWEEN.join(lines)}]")  # no line can hold what stands between two
            cases: list[Case] = found[::2]
            if found[1::2] == [MARK] * (len(lines) - 1) and set(map(type, cases)) == {dict}:
                return cases
    return map(_object, lines)


def _object(line: str) -> Case | BadInput:
    try:
        return json_object(line, LONGEST_LINE)
    except BadInput as error:
        return error


def _sort_in(chunk: _Chunk, i: int, case: Case | BadInput) -> None:
    """File a case under its context, or write its error."""
    if isinstance(case, BadInput):
        chunk.fail(i, case)
        return
    try:
        if type(case.get("id")) is not int:  # most are
            check_id(case)
        chunk.cases[i] = case
        number, place = _place(chunk, tuple(map(case.get, PLACED)))
        if place.spelt:
            case.update(place.spelt)
        _group(chunk, number, place.family, case).append(i)
    except PipewaveError as error:
        chunk.fail(i, error)
    except (TypeError, ValueError, KeyError):  # a value of the wrong type in the key: let validation name it
        chunk.fail(i, _explain(case))


def _place(chunk: _Chunk, said: tuple[Any, ...]) -> tuple[int, _Place]:
    """Where a case is asked for, looked up once for each way to say it. Raises what the names raise."""
    try:
        return chunk.places[said]
    except (KeyError, TypeError):  # new, or of no type that names anything
        kernel, gpu, protocol, *types = said
        family = family_of(class_of(kernel).kernel)
    spelt = {name: SPELLINGS[word] for name, word in zip(PLACED[3:], types, strict=True) if word in SPELLINGS}
    place = _Place(family, *where(chunk.gpu if gpu is None else gpu, protocol), spelt)
    return chunk.places.setdefault(said, (len(chunk.places), place))


def _group(chunk: _Chunk, number: int, family: Family, case: Case) -> list[int]:
    """The lines that share a place and a group key with a case."""
    try:
        return chunk.groups[(number, *group_key(family, case))]
    except (KeyError, TypeError):  # a new group, or a list or an object among the options
        hashable = {name: tuple(value) for name, value in case.items() if isinstance(value, list)}
        hashable |= {name: tuple(sorted(value.items())) for name, value in case.items() if isinstance(value, Mapping)}
    return chunk.groups.setdefault((number, *group_key(family, case | hashable)), [])


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
    """BadInput for an `id` that cannot be echoed: it is text, a finite number, or nothing."""
    value = case.get("id")
    if not (math.isfinite(value) if isinstance(value, float) else value is None or isinstance(value, str | int)):
        raise BadInput("id: must be a string or a finite number", field="id")


def _explain(case: Case) -> PipewaveError:
    """The error that full validation finds in a case whose context could not even be read."""
    try:
        from_dict(case)
    except PipewaveError as error:
        return error
    return BadInput("a field holds a value of the wrong type", field=None)


def _answer_group(chunk: _Chunk, place: _Place, key: tuple[Any, ...], members: list[int]) -> None:
    """Validate and answer the cases of one context; what is invalid gets its error."""
    family, gpu, protocol, _ = place
    valid, cases = _validated(chunk, family, gpu, key, members)
    if not valid:
        return
    try:
        answers = answer(family, columns(family, cases), key, gpu, protocol)
    except PipewaveError as error:
        for i in valid:
            chunk.fail(i, error)
        return
    chunk.failed += int((~usable(answers.seconds)).sum())
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
            chunk.fail(i, error)
    return valid, [case for i in valid if (case := chunk.cases[i]) is not None]


def _plainly_valid(family: Family, key: tuple[Any, ...], cases: Sequence[Case]) -> bool:
    """Whether whole columns pass at once; False sends the batch through the careful path, it is no verdict."""
    if "check" in family.call.__dict__ or family.check_on:  # fields that constrain one another
        return False
    allowed, needed, known = rules(family.call), required(family.call), rules(family.call).keys() | ENVELOPE
    said = Counter(chain.from_iterable(cases))
    if not said.keys() <= known or any(said[name] < len(cases) for name in needed):
        return False
    try:
        for name, value in zip((*SHARED, *family.options), key, strict=False):
            allowed[name].check(name, value)
    except PipewaveError:
        return False
    for name in numeric_fields(family):
        rule = allowed[name]
        values = given(name, cases) if said[name] == len(cases) else [case[name] for case in cases if name in case]
        if values and not (set(map(type, values)) == {int} and rule.low <= min(values) and max(values) <= rule.high):
            return False
    return True


def texts(answers: Answers, ids: Sequence[Any]) -> list[str]:
    """One JSON line an answer, all written by one template."""
    source = answers.source
    notes = f', "notes": {json.dumps(list(source.notes))}' if source.notes else ""
    software = f'"impl": {json.dumps(source.impl)}, "stack": {json.dumps(source.stack)}'
    bases = f'"power_basis": "{answers.draw.board.basis}", "basis": "{source.basis}"'
    tail = f', {bases}, {software}, "software": "{source.software}"{notes}}}\n'.replace("%", "%%")
    echoed = [name if type(name) is int else json.dumps(name) for name in ids]
    spent = np.broadcast_arrays(*answers.draw.spent(answers.numbers[WORK_J], answers.seconds[LATENCY]))
    columns_of = (*(answers.seconds * US).tolist(), [PIPES[at] for at in answers.bound.tolist()])
    found = list(map((FIELDS + tail).__mod__, zip(echoed, *columns_of, *map(np.ndarray.tolist, spent), strict=True)))
    for at in np.flatnonzero(~usable(answers.seconds)).tolist():
        found[at] = error_text({"id": ids[at]}, no_latency())
    return found


def error_text(case: Case | None, error: PipewaveError) -> str:
    """The JSON line of a case in error."""
    return json.dumps({"id": case.get("id") if case else None, "error": error.to_dict()}) + "\n"
