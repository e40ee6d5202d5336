"""A net after a law has changed: it learns the rows of one kernel anew and keeps its answers to all others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from synthetic import synthetic  # noqa: E402

from pipewave.nets.nets import load  # noqa: E402
from train import fit, relearn  # noqa: E402
from train.export import export, replace_net  # noqa: E402
from train.splits import meet  # noqa: E402

DATA = synthetic()
LEARN = ("impl=triton",)
CHANGED = meet(DATA, LEARN)
AFTER = replace(DATA, base_us=np.where(CHANGED, DATA.base_us / 2.0, DATA.base_us))  # the new law says half as much


@pytest.fixture(scope="module")
def cards(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The card before and after."""
    folder = tmp_path_factory.mktemp("law")
    plan = fit.Plan(hidden=(32, 32), epochs=40, batch=256, categories=("stack", "impl"), splits=("ship",), seeds=2,
                    activation="relu")  # fmt: skip
    fit.save(fit.fit(DATA, plan), plan, DATA, folder / "run")
    card, other = (export("toy", DATA, folder / "run", folder / name) for name in ("before", "after"))
    wanted = relearn.Plan(learn=LEARN, steps=600, batch=256, epochs=10_000)
    relearn.relearn("toy", AFTER, card, folder / "again", wanted)
    return card, replace_net(other, AFTER, folder / "again", other.parent)


def answers(card: Path, chosen: np.ndarray) -> np.ndarray:
    net, found = load(card).net, np.full(len(DATA), np.nan)
    columns = {name: DATA.columns[name].text() for name in ("stack", "impl")}
    for stack, impl in set(zip(columns["stack"][chosen], columns["impl"][chosen], strict=True)):
        at = chosen & (columns["stack"] == stack) & (columns["impl"] == impl)
        features = {name: DATA.features[at, i].astype(float) for i, name in enumerate(DATA.names)}
        found[at] = net(features, {"stack": str(stack), "impl": str(impl)}).mean
    return found[chosen]


def test_the_kernel_of_the_new_law_is_answered_by_its_measured_times(cards: tuple[Path, Path]) -> None:
    before, after = (np.abs(answers(card, CHANGED) - AFTER.residual[CHANGED]).mean() for card in cards)
    assert before > 0.6
    assert after < 0.1


def test_other_kernels_are_answered_as_they_were(cards: tuple[Path, Path]) -> None:
    before, after = (answers(card, ~CHANGED) for card in cards)
    assert np.abs(after - before).mean() < 0.02
