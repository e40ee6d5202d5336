"""Cells of rows that a net learned and misses all the same."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic import synthetic

from corpus.select import HELD_OUT
from qa import learned


def test_a_version_held_to_old_answers_shows_on_its_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = synthetic()
    old = (rows.columns["gpu"].text() == "B200") & (rows.columns["stack"].text() == "vllm-0.24.0")
    asked: list[int] = []

    def answers(card: object, _: object, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        asked.extend(index.tolist())
        return rows.residual[index] + np.where(old[index], np.log(1.5), 0.02), np.ones(len(index))

    monkeypatch.setattr(learned, "as_shipped", answers)
    found = list(learned.cells("gemm", rows))
    assert {(cell.gpu, cell.stack) for cell in found if cell.off > 8.0} == {("B200", "vllm-0.24.0")}
    worst = max(found, key=lambda cell: cell.off)
    assert worst.off == pytest.approx(50.0) and worst.middle == pytest.approx(50.0)
    assert sum(cell.rows for cell in found) == len(asked) == (rows.fold != HELD_OUT).sum()


def test_a_net_that_is_none_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        learned.main(["gem"])
    assert "net gem: must be one of" in capsys.readouterr().err
