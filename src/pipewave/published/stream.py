"""`serve --cases`: JSON cases in, JSON answers out, in order and in bounded memory, spread over processes.

Cases of one deployment go to one worker together, which works out its step times once. Workers are processes of this
machine or of a Dask cluster; searches of `plan` run there, too.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import Any, TextIO

from pipewave.errors import BadInput, NotFinite, PipewaveError, extra
from pipewave.files.json_text import dumps
from pipewave.prediction.jsonl import Counts
from pipewave.published.answers import answer
from pipewave.published.cases import Case, parse

CHUNK_LINES = 8192
WATCH_S = 0.5  # between two looks at whether the process that started a worker is still there
Ask = Callable[[Case], dict[str, Any]]
TASK_CASES = 48  # of one deployment, that a worker answers in one go


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
            try:
                text = dumps(found)
            except NotFinite as problem:  # an answer that holds a number that is none is an error of its own line
                found = {"id": found["id"], "error": problem.to_dict()}
                text = dumps(found)
            out.write(text + "\n")
            counts.failed += "error" in found
            counts.answered += "error" not in found
            out.flush()
    return counts


def answer_lines(
    lines: Sequence[str],
    executor: Executor | None = None,
    progress: Callable[[int], None] | None = None,
    ask: Ask = answer,
) -> Iterator[dict[str, Any]]:
    """The answers to some lines, in order."""
    parsed = [parse(line) for line in lines]
    cases = {i: case for i, (_, case) in enumerate(parsed) if isinstance(case, Case)}
    found = {i: {"error": case.to_dict()} for i, (_, case) in enumerate(parsed) if isinstance(case, BadInput)}
    tell = progress or (lambda _done: None)
    tell(len(found))
    at, tasks = 0, [(task, [cases[i] for i in task]) for task in _tasks(cases)]
    asked = [executor.submit(answer_all, those, ask) if executor else None for _, those in tasks]
    for (task, those), future in zip(tasks, asked, strict=True):
        answers = future.result() if future else answer_all(those, ask)
        tell(len(task))
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


def answer_all(cases: Sequence[Case], ask: Ask = answer) -> list[dict[str, Any]]:
    """The unit of work of an executor: answers, or errors in their place."""
    found: list[dict[str, Any]] = []
    for case in cases:
        try:
            found.append(ask(case))
        except PipewaveError as problem:  # as the contract writes it
            found.append({"error": problem.to_dict()})
        except Exception as problem:  # noqa: BLE001  one case must not cost the others their answers
            what = f"{type(problem).__name__}: {problem}"
            found.append({"error": {"code": "internal", "field": None, "message": what}})
    return found


def one_a_core() -> str | None:
    """One process a core of this machine; None where it has one."""
    cores = os.cpu_count() or 1
    return f"processes://{cores}" if cores > 1 else None


@contextmanager
def executor(name: str | None) -> Iterator[Executor | None]:
    """`None` = this process, `processes://N`, or `dask://HOST:PORT`; BadInput for anything else."""
    scheme, _, rest = (name or "").partition("://")
    if not name:
        yield None
    elif scheme == "processes" and rest.isdigit() and int(rest) > 0:
        with ProcessPoolExecutor(int(rest), initializer=_end_with, initargs=(os.getpid(),)) as pool:
            yield pool
    elif scheme == "dask" and rest:
        with _dask(rest) as pool:
            yield pool
    else:
        raise BadInput(f"executor = {name!r}: must be processes://N or dask://HOST:PORT", field="executor")


def _end_with(parent: int) -> None:
    """End this worker soon after the process that started it is gone: a killed one closes no pool."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _dask(address: str) -> Iterator[Executor]:
    distributed = extra("distributed", "a Dask executor", "'pipewave[dask]'")
    try:
        client = distributed.Client(f"tcp://{address}", timeout=10)
    except OSError as problem:
        raise BadInput(f"executor = dask://{address}: no scheduler answers ({problem})", field="executor") from problem
    with client:
        # A worker that dies gives its tasks back; the scheduler runs them elsewhere.
        yield client.get_executor(retries=5)
