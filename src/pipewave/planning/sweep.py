"""Every split of a space evaluated, here or by an executor, in the order of the splits whoever computed them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, as_completed
from functools import partial

from pipewave.models import ModelSpec
from pipewave.planning.disaggregated import designs as disaggregated
from pipewave.planning.disaggregated import pairs
from pipewave.planning.space import Question, Space, Split
from pipewave.planning.steady import Evaluated, evaluate

CHUNK = 8  # splits a task of an executor evaluates

Progress = Callable[[int, int], None]  # how many more splits are done, and how many there are


def sweep(
    model: ModelSpec, question: Question, space: Space, executor: Executor | None, progress: Progress | None
) -> list[Evaluated]:
    """All designs of a space, those with prefill and decode apart at the end where they are asked for."""
    splits = list(space.splits(model))
    apart = sum(map(pairs, splits)) if space.disaggregated else 0
    tell = partial(_tell, progress, len(splits) + apart)
    found = _aggregated(model, question, space, splits, executor, tell)
    return found + (disaggregated(model, question, space, tell) if apart else [])


def _tell(progress: Progress | None, total: int, done: int) -> None:
    if progress:
        progress(done, total)


def evaluate_many(
    model: ModelSpec, splits: Sequence[Split], question: Question, budgets: Sequence[int], batches: Sequence[int]
) -> list[Evaluated]:
    """The unit of work of an executor."""
    return [evaluate(model, split, question, budgets, batches) for split in splits]


def _aggregated(
    model: ModelSpec,
    question: Question,
    space: Space,
    splits: Sequence[Split],
    executor: Executor | None,
    tell: Callable[[int], None],
) -> list[Evaluated]:
    """Results in the order of the splits, each exactly once, whoever computed it."""
    chunks = [splits[i : i + CHUNK] for i in range(0, len(splits), CHUNK)]
    if executor is None:
        return [one for chunk in chunks for one in _evaluated(model, chunk, question, space, tell)]
    futures = {
        executor.submit(evaluate_many, model, chunk, question, space.budgets, space.batches): number
        for number, chunk in enumerate(chunks)
    }
    done: dict[int, list[Evaluated]] = {}
    for future in as_completed(futures):
        done[futures[future]] = future.result()
        tell(len(chunks[futures[future]]))
    return [one for number in range(len(chunks)) for one in done[number]]


def _evaluated(
    model: ModelSpec, chunk: Sequence[Split], question: Question, space: Space, tell: Callable[[int], None]
) -> list[Evaluated]:
    found = evaluate_many(model, chunk, question, space.budgets, space.batches)
    tell(len(chunk))
    return found
