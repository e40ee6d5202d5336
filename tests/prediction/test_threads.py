"""A table on several threads: the same answers, in order, and the first error as on one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import threadpoolctl

import pipewave as pw
from pipewave.errors import PipewaveError
from pipewave.prediction import api, columns, threads
from pipewave.prediction.threads import blas_alone, parts_of

ROWS = 5 * columns.CHUNK_ROWS + 17


@pytest.fixture
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.mark.usefixtures("_alone")
def test_a_table_answers_alike_on_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = np.random.default_rng(3).integers(1, 20_000, (3, ROWS))
    table = {"kernel": "gemm"} | dict(zip("mnk", sizes, strict=True))
    assert threads.cores() == 4
    several = pw.predict(table, "H200")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    alone = pw.predict(table, "H200")
    for name in ("latency_us", "low_us", "high_us", "floor_us", "ceiling_us", "bound", "work_j"):
        assert np.array_equal(getattr(several, name), getattr(alone, name)), name


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("calls", [1, 99, 100, 101, 1000, 12345])
def test_parts_are_all_of_the_calls_in_nearly_equal_shares(calls: int) -> None:
    parts = parts_of(calls, 100)
    assert [i for ends in parts for i in range(*ends)] == list(range(calls))
    sizes = {last - first for first, last in parts}
    assert max(sizes) <= 100
    assert max(sizes) - min(sizes) <= 1
    assert len(parts) == 1 or len(parts) % 2 == 0


def test_parts_keep_their_order_and_the_first_error_is_raised() -> None:
    assert threads.each(lambda part: part * part, range(50)) == [n * n for n in range(50)]
    with pytest.raises(ZeroDivisionError):
        threads.each(lambda part: 1 / (part - 3), range(8))


@pytest.mark.parametrize(("asked", "cores"), [("", 4), ("2", 2), ("9", 4), ("x", 4), ("0", 4)])
@pytest.mark.usefixtures("_alone")
def test_threads_stay_within_what_was_asked(monkeypatch: pytest.MonkeyPatch, asked: str, cores: int) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert threads.cores() == cores


def blas_threads() -> set[int]:
    return {library["num_threads"] for library in threadpoolctl.threadpool_info() if library["user_api"] == "blas"}


@pytest.fixture
def _shared_out(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        if blas_threads() != {2}:
            pytest.skip("a BLAS whose threads nobody sets")
        yield


@pytest.mark.usefixtures("_shared_out")
def test_blas_keeps_to_one_thread_during_a_table_and_not_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[set[int]]()
    answer = api.answer
    monkeypatch.setattr(api, "answer", lambda *a, **b: (seen.append(blas_threads()), answer(*a, **b))[1])
    for rows in (threads.WORTH_IT, 2):
        pw.predict({"kernel": "gemm", "m": np.arange(1, rows + 1), "n": 512, "k": 512}, "H200")
    assert seen == [{1}, {2}]
    with pytest.raises(PipewaveError):
        pw.predict([pw.gemm(1, 1, 1, dtype="nvfp4")] * threads.WORTH_IT, "A100")
    assert blas_threads() == {2}


@pytest.mark.usefixtures("_shared_out")
def test_the_last_of_several_callers_lifts_the_limit() -> None:
    with blas_alone(1000):
        with blas_alone(1000):
            assert blas_threads() == {1}
        assert blas_threads() == {1}
    assert blas_threads() == {2}
