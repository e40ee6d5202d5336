"""Rows of routed experts whose collector did not run what they say."""

from __future__ import annotations

import pytest

pd = pytest.importorskip("pandas")
as_run = pytest.importorskip("corpus.as_run").as_run

ROW = {"protocol": "graph", "framework": "sglang", "version": "0.5.12", "impl": "sglang_fused_moe_triton", "gated": False, "flagged": False,
       "partial": False, "ep": 4, "experts": 128, "inter": 768, "raw_gpu": "h200_sxm", "dtype": "bf16"}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "gated", "flagged"),
    [
        ({}, True, True),
        ({"version": "0.5.14"}, False, False),
        ({"version": "0.5.14", "experts": 8}, False, True),  # later rows of some models are still of that kind
        ({"version": "0.5.14", "experts": 8, "ep": 1}, False, False),
        ({"ep": 1}, True, False),
        ({"raw_gpu": "b200_sxm"}, True, False),  # collected anew
        ({"framework": "vllm", "version": "0.22.0", "impl": "vllm_fused_moe"}, True, False),
        ({"framework": "vllm", "version": "0.24.0", "impl": "vllm_fused_moe"}, False, False),
        ({"protocol": "cold", "framework": "vllm", "version": "0.22.1", "impl": "triton"}, False, False),
    ],
)
def test_rows_as_they_ran(change: dict[str, object], gated: bool, flagged: bool) -> None:
    rows = pd.DataFrame([ROW | change, ROW | change | {"gated": True}], index=[7, 3])
    found = as_run(rows)
    assert found["gated"].tolist() == [gated, True] and found["flagged"].tolist() == [flagged] * 2
    assert list(found.index) == [7, 3] and not rows["flagged"].any()


@pytest.mark.parametrize(
    ("version", "said", "ran"),
    [
        ("0.5.9", "fp8_block", "fp8"),
        ("0.5.6.post2", "fp8_block", "fp8"),
        ("0.5.10", "fp8_block", "fp8_block"),
        ("0.5.9", "bf16", "bf16"),
    ],
)
def test_scales_of_whole_matrices_are_not_called_blocks(version: str, said: str, ran: str) -> None:
    rows = pd.DataFrame([ROW | {"version": version, "dtype": said, "ep": 1}]).astype({"dtype": "category"})
    found = as_run(rows)
    assert found["dtype"].tolist() == [ran] and rows["dtype"].tolist() == [said]
    assert found["partial"].tolist() == [ran != said]
