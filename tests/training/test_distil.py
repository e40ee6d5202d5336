"""A narrower net: as wide as its teacher it answers the same, narrower it starts nearby and learns the rest."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from synthetic import synthetic  # noqa: E402

from pipewave.nets.nets import load  # noqa: E402
from train import distil, fit  # noqa: E402
from train.export import export, replace_net  # noqa: E402

DATA = synthetic()


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    plan = fit.Plan(hidden=(16, 16), epochs=4, batch=256, categories=("stack", "impl"), splits=("ship",), seeds=2,
                    activation="relu")  # fmt: skip
    fit.save(fit.fit(DATA, plan), plan, DATA, folder / "run")
    return export("toy", DATA, folder / "run", folder / "weights")


def questions(card: Path) -> tuple[distil.Ensemble, distil.Questions]:
    net = load(card).net
    x, codes = torch.tensor(DATA.features), distil.codes_of(net, DATA, np.arange(len(DATA)))
    teacher = distil.teacher_of(net, card, x.mean(0), x.std(0) + 1e-3)
    return teacher, distil.put(teacher, x, codes)


def off(student: distil.Ensemble, asked: distil.Questions) -> float:
    found = distil.answers(student, asked.features, asked.codes) - asked.answers
    return float(found[..., 0].square().mean().sqrt())


def test_the_teacher_answers_as_its_weights(card: Path) -> None:
    _, asked = questions(card)
    net, stack, impl = load(card).net, DATA.columns["stack"].text(), DATA.columns["impl"].text()
    chosen = (stack == stack[0]) & (impl == impl[0])
    features = {name: DATA.features[chosen, i].astype(float) for i, name in enumerate(DATA.names)}
    expected = net(features, {"stack": str(stack[0]), "impl": str(impl[0])}).mean
    assert np.allclose(asked.answers[:, torch.tensor(chosen), 0].mean(0), expected, atol=1e-4)


def test_with_every_unit_kept_the_answers_stay(card: Path) -> None:
    teacher, asked = questions(card)
    assert off(distil.narrowed(teacher, (16, 16), asked.features, asked.codes), asked) < 1e-4


def test_a_narrower_one_learns_what_it_lost(card: Path) -> None:
    teacher, asked = questions(card)
    student = distil.narrowed(teacher, (6, 6), asked.features, asked.codes)
    lost = off(student, asked)
    measured = distil.Questions(asked.features, asked.codes, asked.answers, torch.tensor(DATA.residual).float())
    learned = off(distil.taught(student, measured, asked, distil.Plan("toy", "ship", (6, 6), 300, 256), 3e-3), asked)
    assert 0.0 < learned < 0.6 * lost
    blank = distil._blank(student.shape, len(student.mean), teacher.mean[0], teacher.std[0])
    assert lost < off(blank, asked)  # the units kept are worth something before any step


def test_a_run_becomes_weights_that_name_their_teacher(
    card: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = (DATA.features[:50], np.zeros((50, 2), np.int64))
    monkeypatch.setattr(distil, "drawn", lambda *_: calls)
    distil.distil(distil.Plan("toy", "ship", (6, 6), 40, 64), card, DATA, tmp_path / "run")
    made = replace_net(card, DATA, tmp_path / "run", tmp_path / "weights")
    net, said = load(made).net, json.loads(made.read_text())
    assert [weight.shape[2] for weight in net.weights] == [6, 6, 2]
    assert said["training"]["started_from_sha256"] == json.loads(card.read_text())["sha256"]
    assert said["training"]["distilled"]["hidden"] == [6, 6]
    assert said["intervals"] == json.loads(card.read_text())["intervals"]
