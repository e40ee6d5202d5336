"""A table on several threads: the same answers, in order, and the first error as on one."""

from __future__ import annotations

import numpy as np
import pytest

import pipewave as pw
from pipewave.prediction import arrays, threads

ROWS = 5 * arrays.CHUNK_ROWS + 17


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
    for name in ("latency_us", "low_us", "high_us", "floor_us", "ceiling_us", "bound", "joules"):
        assert np.array_equal(getattr(several, name), getattr(alone, name)), name


@pytest.mark.usefixtures("_alone")
def test_parts_keep_their_order_and_the_first_error_is_raised() -> None:
    assert threads.each(lambda part: part * part, range(50)) == [n * n for n in range(50)]
    with pytest.raises(ZeroDivisionError):
        threads.each(lambda part: 1 / (part - 3), range(8))


@pytest.mark.parametrize(
    ("blas", "asked", "cores"), [("1", "", 4), ("1", "2", 2), ("1", "9", 4), ("1", "x", 4), ("4", "", 1), ("", "", 1)]
)
@pytest.mark.usefixtures("_alone")
def test_threads_stay_within_what_was_asked(monkeypatch: pytest.MonkeyPatch, blas: str, asked: str, cores: int) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", blas)
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert threads.cores() == cores
