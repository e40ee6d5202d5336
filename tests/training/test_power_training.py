"""How constants of watts are fitted: products share the energy of a FLOP, repeated prompts are found in the cache."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from train.power import PARTS, _tied  # noqa: E402
from train.power_serving import _repeats  # noqa: E402

KINDS = ["gemm", "attention_prefill", "fused_moe"]


def test_experts_take_the_products_energy_of_a_flop_and_keep_their_other_constants() -> None:
    law = torch.arange(12.0).reshape(3, 4).requires_grad_()
    found = _tied(law, KINDS)
    expected = law.detach().clone()
    expected[2, PARTS.index("tensor")] = expected[0, PARTS.index("tensor")]
    assert torch.equal(found, expected)
    found.sum().backward()
    assert law.grad is not None and law.grad[2, PARTS.index("tensor")] == 0.0
    assert torch.equal(_tied(law[1:2], KINDS[1:2]), law[1:2])


@pytest.mark.parametrize(
    ("dataset", "most", "repeats"),
    [
        ("lm-arena human preference, 1,024 turns with their history", 1023, False),
        ("lm-arena human preference, 1,024 turns with their history", 1024, True),
        ("GPQA diamond (198 questions, reasoning on)", 128, False),
        ("GPQA diamond (198 questions, reasoning on)", 256, True),
    ],
)
def test_prompts_repeat_where_a_server_runs_as_many_as_a_data_set_holds(dataset: str, most: int, repeats: bool) -> None:
    assert _repeats({"dataset": dataset, "max_num_seqs": most}) is repeats
