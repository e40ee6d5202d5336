"""The trainer: it learns a known law, members are independent of one another and of the rows they do not train on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from synthetic import synthetic  # noqa: E402

from train import fit, rows  # noqa: E402
from train.cards import plan_of  # noqa: E402
from train.descent import Loss  # noqa: E402
from train.ensemble import Ensemble, Shape  # noqa: E402
from train.run import load_predictions  # noqa: E402
from train.splits import by_name  # noqa: E402

SMALL = fit.Plan(hidden=(32, 32), epochs=40, batch=256, categories=("stack",), splits=("fold:0", "fold:1"))


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def held_out_error(data: rows.Rows, fitted: fit.Fitted, name: str) -> np.ndarray:
    return fitted.predictions[name][0] - data.residual[by_name(name, data).score]


def test_it_learns_a_smooth_law_and_the_stacks_to_near_the_noise() -> None:
    data = synthetic(noise=0.02)
    fitted = fit.fit(data, replace(SMALL, epochs=80, seeds=2))
    assert fitted.members == ("fold:0", "fold:0", "fold:1", "fold:1")
    for name in ("fold:0", "fold:1"):
        assert np.abs(held_out_error(data, fitted, name)).mean() < 0.035  # the noise alone costs 0.016


def test_scale_follows_the_noise_of_the_rows() -> None:
    data = synthetic(noise=0.0)
    rng = np.random.default_rng(1)
    loud = data.columns["stack"].codes == 1
    wobble = np.where(loud, 0.2, 0.02) * rng.laplace(size=len(data))
    fitted = fit.fit(replace(data, latency_us=data.latency_us * np.exp(wobble)), SMALL)
    score = by_name("fold:0", data).score
    scale = fitted.predictions["fold:0"][1]
    assert scale[loud[score]].mean() > 3 * scale[~loud[score]].mean()


def test_only_masked_rows_train_what_stands_for_an_unknown_gpu() -> None:
    plan = replace(
        SMALL, epochs=5, categories=("gpu", "family"), category_dropout=0.0, splits=("fold:0",), keep_family=0.0
    )
    never, often = (fit.fit(synthetic(), replace(plan, mask_gpu=share)).tensors for share in (0.0, 0.5))
    assert not never["table0"][:, 0].any() and not never["table1"][:, 0].any()
    assert often["table0"][:, 0].any() and often["table1"][:, 0].any()


def test_hidden_codes_follow_the_plan() -> None:
    codes = torch.ones(1, 40_000, 3, dtype=torch.int64)
    plan = replace(SMALL, categories=("gpu", "family", "impl"), category_dropout=0.0, mask_gpu=0.4, keep_family=0.25)
    seen = fit._hidden_at_random(codes, plan)[0].numpy().astype(bool)
    gpu, family, impl = (~seen).T
    assert gpu.mean() == pytest.approx(0.4, abs=0.01)
    assert not (family & ~gpu).any() and not (impl & ~gpu).any()
    assert family[gpu].mean() == pytest.approx(0.75, abs=0.01)
    assert impl[gpu].mean() == pytest.approx(0.5, abs=0.01)


def test_a_share_of_the_residual_is_learned_of_rows_without_gpu_and_architecture() -> None:
    plan = replace(SMALL, categories=("stack", "gpu", "family"), trust=0.25)
    shown = torch.tensor([[[1, 1, 1], [1, 0, 1], [0, 0, 0], [3, 0, 0]]])
    assert fit._trusted(shown, torch.full((1, 4), 8.0), plan).tolist() == [[8.0, 8.0, 2.0, 2.0]]
    assert fit._trusted(shown, torch.full((1, 4), 8.0), replace(plan, categories=("stack",))).tolist() == [[8.0] * 4]


def test_a_new_architecture_is_answered_from_the_physical_estimate_in_part() -> None:
    """Every row takes e times its estimate: of an architecture left out, the members say so in part."""
    data = synthetic()
    slow = replace(data, latency_us=data.base_us * np.e)
    plan = replace(SMALL, categories=("gpu", "family"), mask_gpu=0.5, keep_family=0.0, splits=("lofo:ada",), epochs=20)
    whole, part = (fit.fit(slow, replace(plan, trust=trust)).predictions["lofo:ada"][0].mean() for trust in (1.0, 0.5))
    assert whole == pytest.approx(1.0, abs=0.1)
    assert part == pytest.approx(0.5, abs=0.15)


def test_held_out_rows_touch_neither_training_nor_scaling() -> None:
    data, plan = synthetic(size=800), replace(SMALL, epochs=3, splits=("fold:0",))
    score = by_name("fold:0", data).score
    latency, features = data.latency_us.copy(), data.features.copy()
    latency[score] *= 1000
    features[score] += 1e6
    before = fit.fit(data, plan).tensors
    after = fit.fit(replace(data, latency_us=latency, features=features), plan).tensors
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_members_do_not_feel_one_another() -> None:
    net = ensemble(members=3, codes=(4,))
    net(torch.randn(3, 5, 2), torch.randint(0, 4, (3, 5, 1)))[1].sum().backward()
    gradients = [parameter.grad for parameter in net.parameters()]
    assert all(gradient[[0, 2]].abs().sum() == 0 for gradient in gradients)
    assert sum(gradient[1].abs().sum() for gradient in gradients) > 0


def test_a_member_is_the_same_alone_and_in_company() -> None:
    alone, company = ensemble(seeds=(7,)), ensemble(seeds=(3, 7))
    x = torch.randn(1, 6, 2)
    codes = torch.zeros(1, 6, 0, dtype=torch.long)
    both = company(x.expand(2, -1, -1), codes.expand(2, -1, -1))
    torch.testing.assert_close(alone(x, codes)[0], both[1])


def test_folding_the_standardisation_changes_nothing() -> None:
    net = ensemble(members=2, codes=(3,))
    net.mean.copy_(torch.tensor([[1.0, -2.0], [0.5, 3.0]]))
    net.std.copy_(torch.tensor([[2.0, torch.inf], [0.1, 5.0]]))
    torch.nn.init.normal_(net.tables[0])
    folded, x, codes = net.folded(), torch.randn(2, 9, 2), torch.randint(0, 3, (2, 9, 1))
    picked = folded["table0"][torch.arange(2)[:, None], codes[..., 0]]
    hidden = torch.baddbmm(folded["b0"][:, None], x, folded["w0"]) + picked
    out = torch.baddbmm(folded["b1"][:, None], torch.nn.functional.silu(hidden), folded["w1"])
    torch.testing.assert_close(out, net(x, codes), rtol=1e-4, atol=1e-5)


def test_codes_never_seen_answer_as_unknown() -> None:
    net = ensemble(members=1, codes=(3,))
    torch.nn.init.normal_(net.tables[0])
    known = net.tables[0].detach().clone()
    net.forget([torch.tensor([[True, True, False]])])
    torch.testing.assert_close(net.tables[0][0, 2], known[0, 0])
    torch.testing.assert_close(net.tables[0][0, 1], known[0, 1])


def test_a_category_of_the_left_out_gpu_alone_does_not_break_the_answer() -> None:
    data = synthetic(size=1500)
    own = np.where(data.columns["gpu"].text() == "A100", "only-there", data.columns["stack"].text())
    data = replace(data, columns={**data.columns, "stack": rows.Column.of(own)})
    fitted = fit.fit(data, replace(SMALL, splits=("logo:A100",)))
    assert np.abs(held_out_error(data, fitted, "logo:A100")).mean() < 0.15  # the offset of the stack stays unknown


@pytest.mark.parametrize(("kind", "level"), [("log_l1", 0.5), ("pinball", 0.2)])
def test_the_best_constant_is_the_quantile(kind: str, level: float) -> None:
    target = torch.tensor(np.random.default_rng(0).exponential(size=2000), dtype=torch.float32)
    grid = torch.linspace(0, 3, 601)
    costs = torch.stack([Loss(kind, 0.2).point(guess - target).mean() for guess in grid])
    assert grid[costs.argmin()] == pytest.approx(torch.quantile(target, level).item(), abs=0.05)


def test_the_scale_head_does_not_pull_the_estimate() -> None:
    out = torch.tensor([[[0.3, -1.0]]], requires_grad=True)
    Loss()(out, torch.zeros(1, 1), torch.ones(1, 1)).backward()
    assert out.grad[0, 0, 0] == 1.0


def test_unknown_fields_of_a_plan_are_refused() -> None:
    with pytest.raises(ValueError, match="epoch"):
        plan_of(fit.Plan, {"epoch": 3})


def test_features_that_are_not_numbers_are_refused() -> None:
    data = synthetic(size=50)
    data.features[3, 1] = np.nan
    with pytest.raises(ValueError, match="b"):
        data.check()


def test_a_run_writes_what_evaluation_reads(tmp_path: Path) -> None:
    data = synthetic(size=600)
    fit.run(data, {"splits": ["fold:0"], "epochs": 1, "hidden": [8], "batch": 64}, tmp_path, "cpu")
    mean, scale = load_predictions(tmp_path)["fold:0"]
    assert len(mean) == len(scale) == len(by_name("fold:0", data).score)


def test_rows_survive_the_file(tmp_path: Path) -> None:
    data = synthetic(size=100)
    data.save(tmp_path / "rows.npz")
    read = rows.load(tmp_path / "rows.npz")
    assert np.array_equal(read.features, data.features)
    assert np.allclose(read.residual, data.residual)
    assert all(np.array_equal(read.columns[name].text(), data.columns[name].text()) for name in data.columns)


def ensemble(members: int = 1, codes: tuple[int, ...] = (), seeds: tuple[int, ...] | None = None) -> Ensemble:
    seeds = seeds or tuple(range(members))
    size = len(seeds)
    shape = Shape(features=2, codes=codes, hidden=(4,))
    return Ensemble(shape, seeds, torch.zeros(size, 2), torch.ones(size, 2), torch.zeros(size, 2))


def test_splits_may_have_plans_of_their_own() -> None:
    data = synthetic(size=800)
    plan = replace(SMALL, epochs=2, splits=("ship", "fold:0", "fold:1", "fold:2"), seeds=2)
    plan = replace(plan, by_kind={"fold": {"seeds": 1, "rows": 100}, "fold:2": {"seeds": 3}})
    fitted = fit.fit(data, plan)
    assert fitted.members == ("ship", "ship", "fold:1", "fold:2", "fold:2", "fold:2")
    assert np.array_equal(fitted.predictions["fold:0"][0], fitted.predictions["ship"][0])


def test_a_member_predicted_far_too_low_finds_its_way_back() -> None:
    """A plain relative error has next to no slope there."""
    error = torch.tensor([-8.0, -0.1, 0.1, 8.0], requires_grad=True)
    Loss("mape").point(error).sum().backward()
    assert (error.grad.abs() > 0.3).all()
    assert torch.allclose(Loss("mape").point(error.detach())[1:3], torch.expm1(error.detach())[1:3].abs())
