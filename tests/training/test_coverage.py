"""Samples of held-out rows, and the shares that are counted on them: nested, every GPU and stack alike, with chance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from synthetic import synthetic

from qa.coverage import Cell, cells_of, table, usual
from train import kept
from train.evaluate import held_out
from train.intervals import widths
from train.rows import Floats
from train.splits import by_name, expand

DATA = synthetic()


def said(*patterns: str, noise: float = 0.1, seed: int = 0) -> dict[str, tuple[Floats, Floats]]:
    """Members that are off by so much, and know it."""
    rng = np.random.default_rng(seed)
    index = {name: by_name(name, DATA).score for name in expand(patterns, DATA)}
    return {
        name: (DATA.residual[at] + noise * rng.standard_normal(len(at)), np.full(len(at), noise))
        for name, at in index.items()
    }


def test_a_sample_holds_out_what_the_run_held_out(tmp_path: Path) -> None:
    every = said("fold:*", "logo:*", "lofo:*")
    kept.save("net", *kept.thinned(DATA, every), tmp_path)
    rows, found = kept.load("net", tmp_path)
    index = kept.sample(DATA)
    assert len(rows) == len(index) < len(DATA) and set(found) == set(every)
    for name, (mean, scale) in found.items():
        at = by_name(name, DATA).score
        mine = np.isin(at, index)
        assert mean - rows.residual[by_name(name, rows).score] == pytest.approx(
            every[name][0][mine] - DATA.residual[at[mine]], abs=2e-3
        )
        assert scale == pytest.approx(every[name][1][mine], rel=1e-3)
    assert list(kept.nets(tmp_path)) == ["net"]


def test_every_gpu_and_stack_has_as_many_rows_in_a_sample() -> None:
    rows = DATA.take(kept.sample(DATA, 50))
    pairs = rows.columns["gpu"].codes * 100 + rows.columns["stack"].codes
    assert set(np.bincount(pairs)[np.unique(pairs)]) == {50}


@pytest.mark.parametrize("unit", ["logo:A100", "logo:H200", "lofo:hopper", "fold:2"])
def test_what_is_scored_had_no_part_in_its_interval(unit: str) -> None:
    """However wrong members are of a card, an architecture or shapes, their own widths do not move."""
    fair = said("fold:*", "logo:*", "lofo:*")
    mine = by_name(unit, DATA).score
    wrong = {}
    for name, (mean, scale) in fair.items():
        at = np.isin(by_name(name, DATA).score, mine)
        wrong[name] = (mean + 5.0 * at, scale)
    found = [widths(unit, held_out(DATA, one)) for one in (fair, wrong)]
    assert np.array_equal(*found)
    assert np.isfinite(found[0]).all()


def test_honest_members_are_held(tmp_path: Path) -> None:
    kept.save("net", *kept.thinned(DATA, said("fold:*", "logo:*", "lofo:*")), tmp_path)
    found = list(cells_of("net", tmp_path))
    assert {cell.kind for cell in found} == {"fold", "logo", "lofo"}
    assert [cell.mean for cell in found] == pytest.approx([90.0] * len(found), abs=6.0)
    assert "OUTSIDE" not in table(found)


def cell(*inside: float) -> Cell:
    return Cell("net", "graph", "logo", tuple(map(str, inside)), np.array(inside), np.ones(len(inside)), 10.0)


def test_fewer_cards_leave_more_to_chance() -> None:
    few, many = cell(60.0, 100.0), cell(*[60.0, 100.0] * 8)
    assert few.chance(15.0) > 2.0 * many.chance(15.0) > 0.0
    assert cell(80.0).chance(15.0) > 15.0  # one card tells nothing of how far cards differ
    assert usual([few, cell(90.0)]) == pytest.approx(np.sqrt(800.0))


def test_only_what_chance_does_not_allow_is_outside() -> None:
    assert "chance" in table([cell(60.0, 100.0)]).splitlines()[1]
    assert "OUTSIDE" in table([cell(*[40.0, 42.0] * 20)]).splitlines()[1]
    shown = table([cell(90.0, 91.0), cell(30.0, 40.0)], outside=True).splitlines()
    assert len(shown) == 3 and "35.0" in shown[1]
