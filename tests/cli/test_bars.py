"""Progress: told of every split once, seen on a terminal alone, and never among the answers."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipewave.cli.streams import bar, waiting
from pipewave.models import load
from pipewave.planning import Question, Space, plan

MODEL = load("Llama-3.1-8B")
SPACE = Space(("H100",), tps=(1,), engines=("vllm",), disaggregated=False)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_plan_tells_of_every_split(workers: int) -> None:
    told: list[tuple[int, int]] = []
    pool = ThreadPoolExecutor(workers) if workers else None
    found = plan(MODEL, Question(256, 32), SPACE, executor=pool, progress=lambda *one: told.append(one))
    assert all(total > 0 for _, total in told)
    assert sum(done for done, _ in told) >= len(found.looked)
    same = plan(MODEL, Question(256, 32), SPACE)
    assert [row.row(found.question) for row in found.front] == [row.row(same.question) for row in same.front]


def test_nothing_is_shown_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    with bar("splits") as tell, waiting("tables"):
        assert tell is None
    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_it_on_standard_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with bar("splits") as tell:
        assert tell is not None
        tell(3, 4)
    with waiting("tables of a model"):
        pass
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "splits" in shown.err and "3/4" in shown.err and "tables of a model" in shown.err
