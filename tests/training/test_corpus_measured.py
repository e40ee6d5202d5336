"""Our own rows: from a store through packing to corpus columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pandas")

from corpus.frame import finish
from corpus.measured import reader
from lab.pack import pack
from pipewave.files import store


def packed(folder: Path, *cases: dict[str, Any], **extra: Any) -> Path:
    time = {"latency_us": 10.0, "min_us": 9.0, "max_us": 12.0, "n": 7, "status": "ok"}
    with store.Store(folder / "rows.store") as kept:
        for number, case in enumerate(cases):
            row = {"t": "row", "key": str(number), "case": case, "impl": "fa3", "protocol": "cold"}
            kept.append({**row, "stack": "vllm-0.22.1", "env": "e", **time, **extra})
    pack(folder / "rows.store", folder / "h200")
    return folder / "h200" / f"{cases[0]['kernel']}.json.gz"


def attention(q_lens: list[int], kv_lens: list[int], **extra: Any) -> dict[str, Any]:
    layout = {"kernel": "attention", "heads": 32, "kv_heads": 8, "head_dim": 128}
    return {**layout, "q_lens": q_lens, "kv_lens": kv_lens, **extra}


def test_uniform_batches_become_columns_and_ragged_ones_stay_out(tmp_path: Path) -> None:
    cases = (attention([1, 1], [9, 9]), attention([4], [8], window=16), attention([1, 1], [8, 9]))
    rows = finish(reader("attention", "h200")(packed(tmp_path, *cases), tmp_path), "attention", "h200")
    columns = ["batch", "q_len", "kv_len", "window", "phase", "kv_dtype"]
    expected = [[1, 4, 8, 16, "prefill", "bf16"], [2, 1, 9, 0, "decode", "bf16"]]
    assert rows[columns].sort_values("batch").to_numpy().tolist() == expected
    assert rows["window"].dtype == "int64"
    assert rows["stack"].tolist() == ["vllm-0.22.1"] * 2
    assert rows["noise"].tolist() == pytest.approx([0.15] * 2)


def test_moe_defaults_and_histograms(tmp_path: Path) -> None:
    shape = {"kernel": "fused_moe", "tokens": 4, "experts": 2, "topk": 1, "hidden": 64, "inter": 32}
    file = packed(tmp_path, shape, {**shape, "tp": 2, "gated": False, "routing": [1, 3]})
    rows = finish(reader("fused_moe", "h200")(file, tmp_path), "fused_moe", "h200")
    assert sorted(zip(rows["tp"], rows["gated"], rows["routing"], strict=True)) == [
        (1, True, "random"),
        (2, False, "[1, 3]"),
    ]


@pytest.mark.parametrize(("mark", "flagged"), [({"flush": "read"}, True), ({"throttled": True}, False), ({}, False)])
def test_only_rows_flushed_another_way_are_flagged(tmp_path: Path, mark: dict[str, Any], flagged: bool) -> None:
    file = packed(tmp_path, {"kernel": "gemm", "m": 1, "n": 2, "k": 3}, **mark)
    assert finish(reader("gemm", "h200")(file, tmp_path), "gemm", "h200")["flagged"].tolist() == [flagged]
