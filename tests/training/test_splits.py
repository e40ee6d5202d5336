"""Held out means held out: whole groups, whole GPUs with their twins, whole families."""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np
import pytest
from synthetic import synthetic

from corpus.select import HELD_OUT, LEARNED, ONLY_ONES, fold
from train import splits

ROWS = synthetic()


def text(column: str, index: np.ndarray) -> set[str]:
    return set(ROWS.columns[column].text()[index].tolist())


def test_fold_is_crc32_modulo_ten() -> None:
    assert fold("4096,14336") == zlib.crc32(b"4096,14336") % 10


def test_groups_that_are_all_of_a_kernel_are_held_out_by_no_split() -> None:
    """They would be by their hash; training finds them by their fold."""
    assert {zlib.crc32(group.encode()) % 10 for group in ONLY_ONES} == {HELD_OUT}
    assert {fold(group) for group in ONLY_ONES} == {LEARNED} and LEARNED not in splits.SCORED
    moved = replace(ROWS, fold=np.where(ROWS.fold == HELD_OUT, LEARNED, ROWS.fold))
    assert splits.meet(moved, ["fold=10"]).sum() == (ROWS.fold == HELD_OUT).sum() > 0
    with pytest.raises(ValueError, match="fold, "):
        splits.meet(ROWS, ["folds=10"])


def test_fold_splits_hold_out_whole_groups_and_lose_no_row() -> None:
    names = splits.expand(["fold:*"], ROWS)
    assert len(names) == 5
    for name in names:
        split = splits.by_name(name, ROWS)
        assert not set(ROWS.group[split.train]) & set(ROWS.group[split.score])
        assert sorted([*split.train, *split.score]) == list(range(len(ROWS)))


def test_only_the_scored_folds_are_scored_and_each_once() -> None:
    scored = np.concatenate([splits.by_name(name, ROWS).score for name in splits.expand(["fold:*"], ROWS)])
    assert sorted(scored) == np.flatnonzero(ROWS.fold < 5).tolist()


@pytest.mark.parametrize(
    ("gpu", "together"), [("H100", {"H100", "H800"}), ("B200", {"B200", "GB200"}), ("H200", {"H200"})]
)
def test_a_gpu_is_left_out_with_its_twin(gpu: str, together: set[str]) -> None:
    split = splits.by_name(f"logo:{gpu}", ROWS)
    assert text("gpu", split.score) == together
    assert not text("gpu", split.train) & together


def test_every_gpu_is_scored_by_exactly_one_left_out_split() -> None:
    for kind, expected in (("logo:*", 5), ("lofo:*", 4)):
        names = splits.expand([kind], ROWS)
        scored = np.concatenate([splits.by_name(name, ROWS).score for name in names])
        assert len(names) == expected
        assert sorted(scored) == list(range(len(ROWS)))


def test_a_family_is_left_out_whole() -> None:
    split = splits.by_name("lofo:hopper", ROWS)
    assert text("gpu", split.score) == {"H100", "H200", "H800"}
    assert "hopper" not in text("family", split.train)


def test_few_rows_of_a_gpu_train_and_their_groups_are_not_scored() -> None:
    split = splits.by_name("few:H200:1", ROWS)
    drawn = np.unique(split.train[ROWS.columns["family"].text()[split.train] == "hopper"])
    assert len(drawn) == splits.FEW
    assert text("gpu", drawn) == text("gpu", split.score) == {"H200"}
    assert not set(ROWS.group[drawn]) & set(ROWS.group[split.score])
    assert np.isin(split.train, drawn).mean() == pytest.approx(splits.FEW_SHARE, rel=0.2)


def test_draws_differ_and_repeat() -> None:
    one, again, other = (splits.by_name(f"few:H200:{draw}", ROWS).train for draw in (0, 0, 1))
    assert np.array_equal(one, again)
    assert not np.array_equal(np.unique(one), np.unique(other))


def test_with_few_groups_half_of_them_stay_to_be_scored() -> None:
    rows = synthetic(groups=12)
    split = splits.by_name("few:L40S:0", rows)
    assert len(set(rows.group[split.score])) >= 6


def test_shipped_weights_never_see_the_fold_that_accuracy_scores() -> None:
    split = splits.by_name("ship", ROWS)
    assert set(ROWS.fold[split.train]) == set(range(1, 10))
    assert set(ROWS.fold[split.score]) == {0}


@pytest.mark.parametrize("name", ["shape:0", "logo:H201", "lofo:", "fold:11"])
def test_unknown_splits_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name.partition(":")[0]):
        splits.by_name(name, ROWS)


def test_a_condition_leaves_the_other_rows_out_of_everything() -> None:
    gpu, stack = min(text("gpu", np.arange(len(ROWS)))), max(text("stack", np.arange(len(ROWS))))
    split = splits.by_name(f"few:{gpu}:0@stack={stack}", ROWS)
    assert text("stack", split.train) == text("stack", split.score) == {stack}
    assert text("gpu", split.score) == {gpu}
    drawn = split.train[ROWS.columns["gpu"].text()[split.train] == gpu]
    assert 0 < len(np.unique(drawn)) <= splits.FEW
    assert not set(ROWS.group[drawn]) & set(ROWS.group[split.score])
