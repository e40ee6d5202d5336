"""Figures of held-out rows, by hand and by law; export that answers as the trainer did."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from synthetic import synthetic

from pipewave.nets.weights_metadata import (
    BASES,
    Interval,
    TrainingRow,
    from_nested,
    half_width,
    intervals_of,
)
from train import evaluate
from train.export import nested
from train.run import save_predictions
from train.splits import by_name, expand, meet

DATA = synthetic()


def guesses(kind: str, error: float = 0.0, scale: float = 0.05) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Predictions off by `error` in log time."""
    out = {}
    for name in expand([kind], DATA):
        score = by_name(name, DATA).score
        out[name] = (DATA.residual[score] + error, np.full(len(score), scale))
    return out


def test_figures_of_four_rows_by_hand() -> None:
    figures = evaluate.errors(np.log([1.1, 0.8, 2.0, 1.0]), np.full(4, np.log(1.5)))
    width = pytest.approx(100 * (1.5 - 1 / 1.5), abs=1e-3)
    assert figures == evaluate.Errors(4, mape=32.5, median=15.0, bias=22.5, off=25.0, coverage=75.0, width=width)


def test_coverage_is_unknown_where_no_interval_is() -> None:
    figures = evaluate.errors(np.log([1.1, 0.8]), np.full(2, np.nan))
    assert np.isnan(figures.coverage)
    assert evaluate.figures(figures)["coverage"] is None
    assert evaluate.macro({"a": figures, "b": replace(figures, coverage=80.0)}).coverage == 80.0


def test_perfect_answers_have_no_error_in_any_cell() -> None:
    parts = evaluate.scored("fold", DATA, guesses("fold:*"))
    cells = evaluate.table(parts, DATA, ("gpu", "stack"))
    assert len(cells) == 7 * 3
    assert all(cell.mape == 0.0 for cell in cells.values())
    assert sum(cell.rows for cell in cells.values()) == int((DATA.fold < 5).sum())


def test_a_constant_factor_is_the_bias() -> None:
    parts = evaluate.scored("logo", DATA, guesses("logo:*", error=float(np.log(1.2))))
    macro = evaluate.macro(evaluate.table(parts, DATA, ("gpu",)))
    assert macro.mape == pytest.approx(20.0)
    assert macro.bias == pytest.approx(20.0)


def test_intervals_cover_as_promised_when_sisters_are_alike() -> None:
    rng = np.random.default_rng(0)
    noisy = {name: (m + 0.1 * rng.standard_normal(len(m)), s) for name, (m, s) in guesses("fold:*").items()}
    parts = evaluate.scored("fold", DATA, noisy)
    assert evaluate.macro(evaluate.table(parts, DATA, ("gpu",))).coverage == pytest.approx(90, abs=3)


def test_a_split_does_not_set_its_own_interval() -> None:
    wild = guesses("fold:*")
    mean, scale = wild["fold:2"]
    wild["fold:2"] = (mean + 5.0, scale)
    parts = {part.name: part for part in evaluate.scored("fold", DATA, wild)}
    assert parts["fold:2"].half == pytest.approx(0.0, abs=1e-9)
    assert parts["fold:1"].half.min() > 1.0


def test_rows_chosen_by_protocol_keep_the_intervals_of_all() -> None:
    keep = meet(DATA, ["gpu=H200"])
    only = evaluate.scored("logo", DATA, guesses("logo:*", error=0.1), keep)
    assert [part.name for part in only] == ["logo:H200"]
    assert np.isfinite(only[0].half).all()


def test_draws_answer_with_their_median() -> None:
    shifted = {}
    for name, (mean, scale) in guesses("few:*").items():
        shifted[name] = (mean + float(np.log1p(int(name[-1]) / 100)), scale)
    cells = evaluate.table(evaluate.scored("few", DATA, shifted), DATA, ("gpu",))
    assert all(cell.mape == pytest.approx(2.0, abs=1e-6) for cell in cells.values())


def test_conditions_choose_rows_and_unknown_columns_are_refused() -> None:
    keep = meet(DATA, ["gpu=H200", "stack=vllm-0.24.0"])
    assert set(DATA.columns["gpu"].text()[keep]) == {"H200"}
    assert set(DATA.columns["stack"].text()[keep]) == {"vllm-0.24.0"}
    with pytest.raises(ValueError, match="column"):
        meet(DATA, ["card=H100"])


def test_a_report_prints_and_gives_the_same_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_predictions(tmp_path, guesses("lofo:*", error=0.1))
    macro = evaluate.report(DATA, tmp_path)["lofo"]["macro mean"]
    assert macro["mape"] == pytest.approx(100 * np.expm1(0.1), abs=0.01)
    assert f"{macro['mape']:6.2f}" in capsys.readouterr().out


def test_exported_weights_answer_as_the_trainer_did(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from pipewave.nets.nets import load
    from train import fit
    from train.export import export

    splits = ("ship", "fold:*", "logo:*", "lofo:*")
    plan = fit.Plan(hidden=(16, 16), epochs=2, batch=256, categories=("stack", "impl"), splits=splits, seeds=2)
    fitted = fit.fit(DATA, plan)
    fit.save(fitted, plan, DATA, tmp_path / "run")
    low = replace(plan, loss="pinball", categories=(), splits=("ship",))
    fit.save(fit.fit(DATA, low), low, DATA, tmp_path / "low")
    export("toy", DATA, tmp_path / "run", tmp_path / "weights", ceiling=tmp_path / "low")
    shipped = load(tmp_path / "weights" / "toy.json")

    held = DATA.take(by_name("ship", DATA).score)
    mean, scale = fitted.predictions["ship"]
    for stack, impl in (("vllm-0.24.0", "cutlass"), ("sglang-0.5.14", "triton")):
        chosen = held.columns["stack"].text() == stack
        features = {name: held.features[chosen, i].astype(float) for i, name in enumerate(held.names)}
        answer = shipped.net(features, {"stack": stack, "impl": impl})
        assert np.allclose(answer.mean, mean[chosen], atol=2e-4)
        assert np.allclose(answer.scale, scale[chosen], rtol=2e-3)
    assert shipped.ceiling is not None
    assert not shipped.ceiling.net.tables
    assert shipped.ceiling.plain is None
    assert shipped.ceiling.shifts == {}  # its plan held out no fold that could tell


def test_rows_that_a_card_holds_are_read_again() -> None:
    rows = [TrainingRow(*one, "impl") for one in (("cold", "a-1.0", "bf16", "H200"), ("cold", "a-1.0", "bf16", "L40S"))]
    rows += [rows[0]._replace(impl="other"), rows[0]._replace(kind="bf16,fp8"), rows[0]]  # the last is no new one
    assert from_nested(nested(rows)).rows == set(rows)
    assert nested(rows)["cold"]["a-1.0"]["bf16"] == {"H200": ["impl", "other"], "L40S": ["impl"]}


def test_the_card_says_where_it_was_trained_and_what_stands_in(tmp_path: Path) -> None:
    from train.export import intervals, software

    card = software(DATA)
    assert ["H100", 90, "bf16", "graph"] in card["trained"]
    assert card["default_stack"] == {"graph": "vllm-0.24.0"}
    assert card["default_impl"]["sglang-0.5.14|90|bf16"] == "triton"
    wide = guesses("fold:*", 0.05) | guesses("logo:*", 0.1) | guesses("lofo:*", 0.02)
    save_predictions(tmp_path, wide)
    found = {basis: Interval(**given) for basis, given in intervals(DATA, tmp_path).items()}
    scale = np.array([0.05])
    assert found["measured_gpu"](scale) == pytest.approx(0.05, rel=1e-3)
    widths = [half_width(intervals_of(found, basis), scale)[0] for basis in BASES]
    assert widths == sorted(widths)


def test_members_without_a_gpu_renew_what_is_said_of_gpus_never_seen_alone(tmp_path: Path) -> None:
    from train.export import replace_unseen

    known = {"measured_gpu": {"multiple": 1.5, "power": 0.0}, "nearest_version": {"multiple": 2.0, "power": 0.0}}
    card = tmp_path / "card.json"
    card.write_text(json.dumps({"intervals": known | {"new_architecture": {"multiple": 9.0, "power": 0.0}}}))
    replace_unseen(card, DATA, guesses("logo:*", 0.1) | guesses("lofo:*", 0.3))
    found = json.loads(card.read_text(encoding="utf-8"))["intervals"]
    assert {name: found[name] for name in known} == known
    assert found["new_architecture"]["multiple"] != 9.0
    assert all(name.partition("|")[0] in (*known, *BASES) for name in found)


def test_versions_that_members_do_not_know_say_nothing_of_known_ones() -> None:
    found = guesses("fold:*", 0.1)
    unknowing = {"ver:0": found["fold:1"]}
    assert set(evaluate.held_out(DATA, found | unknowing)) == set(found)
