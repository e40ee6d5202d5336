"""How constants of watts are fitted: products share the energy of a FLOP, repeated prompts are found in the cache."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

from train.power import METERED, PARTS, PROMPTS, STRETCHES, Rows, _tied, drawn  # noqa: E402
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


def test_collected_prompts_go_by_a_law_of_their_own_and_by_the_share_that_their_meter_reads() -> None:
    """A collected prompt, our own loop of it, and a collected encoder; the idle board draws 0.171 of its power."""
    known = {"gpu": "H200", "kind": PROMPTS, "stack": "vllm fp16", "generation": "9", "keys": STRETCHES[-1][1]}
    table = pd.DataFrame([known] * 3).assign(causal=[1.0, 0.0, 0.0], own=[False, True, False])
    row = dict.fromkeys(PARTS, 0.5) | {"generations": {}, "collected": {"vllm fp16": 1.2}}
    falls = [(*STRETCHES[-1], float(np.log(0.4)))]
    law = {PROMPTS: row, METERED: row | {"active": 1.0, "falls": {"vllm": falls}}}
    above = drawn(Rows(table, np.tile([1.0, 0.4, 0.2, 0.2, 0.5], (3, 1))), law) - 0.171
    whole, of_base = 1.2 * (1.0 + 0.4), 1.2 * (0.5 + 0.4)
    assert above == pytest.approx([whole - 0.6 * of_base, 0.5 * 1.8, whole])


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
