"""Members that start from weights that ship, versions tied to their neighbours, splits without some software."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from synthetic import synthetic  # noqa: E402

from pipewave.nets.nets import load  # noqa: E402
from train import fit  # noqa: E402
from train.export import export, replace_net  # noqa: E402
from train.rows import Column, Rows  # noqa: E402
from train.splits import by_name, left_out_software  # noqa: E402
from train.start import Start, neighbours, tension, ties  # noqa: E402

DATA = synthetic()
STACKS = ("?", "sglang-0.5.9", "vllm-0.19.0", "vllm-0.22.0", "vllm-0.24.0")


def exported(folder: Path) -> Path:
    plan = fit.Plan(hidden=(16, 16), epochs=2, batch=256, categories=("stack", "impl"), splits=("ship",), seeds=2)
    fit.save(fit.fit(DATA, plan), plan, DATA, folder / "run")
    return export("toy", DATA, folder / "run", folder / "weights")


def test_members_start_with_the_answers_of_the_weights(tmp_path: Path) -> None:
    card = exported(tmp_path)
    plan = fit.Plan(hidden=(16, 16), epochs=0.001, batch=256, categories=("stack", "impl"), splits=("ship",), seeds=2,
                    learning_rate=0.0)  # fmt: skip
    mean, _ = fit.fit(DATA, plan, start=card).predictions["ship"]
    held, net = DATA.take(by_name("ship", DATA).score), load(card).net
    for stack, impl in (("vllm-0.24.0", "cutlass"), ("sglang-0.5.14", "triton")):
        chosen = held.columns["stack"].text() == stack
        features = {name: held.features[chosen, i].astype(float) for i, name in enumerate(held.names)}
        assert np.allclose(net(features, {"stack": stack, "impl": impl}).mean, mean[chosen], atol=1e-4)


def test_a_version_the_weights_do_not_know_starts_as_its_neighbour(tmp_path: Path) -> None:
    start = Start.of(exported(tmp_path), DATA.names, {"stack": ("?", "vllm-0.25.0", "tvm-1.0")})
    known = start.net.categories["stack"]
    assert start._codes("stack", ("?", "vllm-0.25.0", "tvm-1.0")) == [0, known["vllm-0.24.0"], 0]


def test_neighbours_of_a_framework_are_tied() -> None:
    assert set(ties(STACKS)) == {(3, 2), (4, 3)}
    table = torch.tensor([[[0.0], [5.0], [1.0], [1.0], [3.0]]])
    assert tension(table, torch.tensor(ties(STACKS))).tolist() == [4.0]


def test_an_unseen_version_answers_as_the_nearest_seen_one() -> None:
    seen = torch.tensor([True, False, True, False, True])
    assert neighbours(STACKS, seen).tolist() == [0, 0, 2, 4, 4]


def older() -> Rows:
    """Rows of which vLLM's older version and SGLang on one GPU are counted by no table."""
    stack, gpu = DATA.columns["stack"].text(), DATA.columns["gpu"].text()
    new = (stack == "vllm-0.24.0") | ((stack == "sglang-0.5.14") & (gpu == "H200"))
    return replace(DATA, columns={**DATA.columns, "counted": Column.of(np.where(new, "yes", "no"))})


def test_versions_that_tables_count_stay_in_and_others_are_left_out_once() -> None:
    rows = older()
    parts = np.stack([left_out_software(rows, part) for part in range(3)])
    stack, counted = rows.columns["stack"].text(), rows.columns["counted"].text() == "yes"
    assert not parts[:, counted].any()
    assert parts[:, stack == "vllm-0.22.1"].any(axis=0).all()


def test_members_without_software_see_neither_it_nor_the_shapes_that_stay_unseen() -> None:
    rows = older()
    part = next(number for number in range(3) if (left_out_software(rows, number)).any())
    split = by_name(f"ver:{part}", rows)
    assert not (rows.fold[split.train] == 0).any()
    assert not left_out_software(rows, part)[split.train].any()


def test_weights_without_a_version_do_not_know_its_name(tmp_path: Path) -> None:
    rows, card = older(), exported(tmp_path)
    part = next(
        n for n in range(3) if (rows.columns["stack"].text()[left_out_software(rows, n)] == "vllm-0.22.1").any()
    )
    plan = fit.Plan(hidden=(16, 16), epochs=1, batch=256, categories=("stack", "impl"), splits=("ship", f"ver:{part}"))
    fit.save(fit.fit(rows, plan, start=card), plan, rows, tmp_path / "again")
    path = replace_net(card, rows, tmp_path / "again", tmp_path / "without", split=f"ver:{part}")
    known = load(path).card
    assert "vllm-0.22.1" not in known.known.stacks() and "vllm-0.24.0" in known.known.stacks()
    assert not any(key.startswith("vllm-0.22.1") for key in known.default_impl)
    both = load(replace_net(card, rows, tmp_path / "again", tmp_path / "with")).card
    assert "vllm-0.22.1" in both.known.stacks()
