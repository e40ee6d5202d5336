"""Rows of routed experts whose collector did not run what they say."""

from __future__ import annotations

import pytest

pd = pytest.importorskip("pandas")
as_run = pytest.importorskip("train.corpus.as_run").as_run

ROW = {"protocol": "graph", "framework": "sglang", "version": "0.5.12", "impl": "sglang_fused_moe_triton", "gated": False, "flagged": False,
       "ep": 4, "experts": 128, "inter": 768, "raw_gpu": "h200_sxm"}  # fmt: skip


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
