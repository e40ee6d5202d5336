"""`serve --cases`: JSON cases in, JSON answers out, in order and in bounded memory, spread over processes.

Cases of one deployment go to one worker together, which works out its step times once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from itertools import islice
from typing import Any, TextIO

from pipewave.errors import BadInput, NotFinite, PipewaveError
from pipewave.files.json_text import dumps
from pipewave.published.answers import answer
from pipewave.published.cases import Case, parse

CHUNK_LINES = 8192
Ask = Callable[[Case], dict[str, Any]]
TASK_CASES = 48  # of one deployment, that a worker answers in one go


@dataclass(slots=True)
class Counts:
    """How many lines were answered and how many were in error."""

    answered: int = 0
    failed: int = 0


def answer_stream(
    lines: Iterable[str],
    out: TextIO,
    *,
    executor: Executor | None = None,
    progress: Callable[[int], None] | None = None,
    ask: Ask = answer,
) -> Counts:
    """Answer every line of `lines` into `out`, in order; bad lines answer with their error, blank ones are skipped.

    `executor`: where cases are answered, this process without one. `progress` hears how many lines are done. `ask`:
    what answers a case.
    """
    counts = Counts()
    stream = (line for line in lines if line.strip())
    while chunk := list(islice(stream, CHUNK_LINES)):
        for found in answer_lines(chunk, executor, progress, ask):
            out.write(_text(found) + "\n")
            counts.failed += "error" in found
            counts.answered += "error" not in found
            out.flush()
    return counts


def _text(found: dict[str, Any]) -> str:
    """An answer as JSON; one that holds a number that is none becomes an error of its own line."""
    try:
        return dumps(found)
    except NotFinite as problem:
        found.update(error(problem))
        return dumps({"id": found["id"], **error(problem)})


def answer_lines(
    lines: Sequence[str],
    executor: Executor | None = None,
    progress: Callable[[int], None] | None = None,
    ask: Ask = answer,
) -> Iterator[dict[str, Any]]:
    """The answers to some lines, in order."""
    parsed = [parse(line) for line in lines]
    cases = {i: case for i, (_, case) in enumerate(parsed) if isinstance(case, Case)}
    found = {i: error(case) for i, (_, case) in enumerate(parsed) if isinstance(case, BadInput)}
    tell = progress or (lambda _done: None)
    tell(len(found))
    at = 0
    for task, answers in _run(_tasks(cases), cases, executor, tell, ask):
        found.update(zip(task, answers, strict=True))
        while at in found:  # as soon as all before it are there, so that an interrupted run loses little
            yield {"id": parsed[at][0], **found[at]}
            at += 1
    for i in range(at, len(parsed)):
        yield {"id": parsed[i][0], **found[i]}


def _tasks(cases: dict[int, Case]) -> list[list[int]]:
    """Line numbers by deployment, at most `TASK_CASES` together, the largest first."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, case in cases.items():
        groups.setdefault(case.deployment, []).append(i)
    parts = [group[k : k + TASK_CASES] for group in groups.values() for k in range(0, len(group), TASK_CASES)]
    return sorted(parts, key=len, reverse=True)


def _run(
    tasks: Sequence[list[int]],
    cases: dict[int, Case],
    executor: Executor | None,
    tell: Callable[[int], None],
    ask: Ask,
) -> Iterator[tuple[list[int], list[dict[str, Any]]]]:
    asked: list[tuple[list[int], Future[list[dict[str, Any]]] | None]] = [
        (task, executor.submit(answer_all, [cases[i] for i in task], ask) if executor else None) for task in tasks
    ]
    for task, future in asked:
        answers = future.result() if future else answer_all([cases[i] for i in task], ask)
        tell(len(task))
        yield task, answers


def answer_all(cases: Sequence[Case], ask: Ask = answer) -> list[dict[str, Any]]:
    """The unit of work of an executor: answers, or errors in their place."""
    found: list[dict[str, Any]] = []
    for case in cases:
        try:
            found.append(ask(case))
        except PipewaveError as problem:
            found.append(error(problem))
        except Exception as problem:  # noqa: BLE001 one case must not cost the others their answers
            what = f"{type(problem).__name__}: {problem}"
            found.append({"error": {"code": "internal", "field": None, "message": what}})
    return found


def error(problem: PipewaveError) -> dict[str, Any]:
    """An error as the contract writes it."""
    return {"error": problem.to_dict()}
