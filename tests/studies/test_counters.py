"""The simulated demand against hardware counters of 94 calls on an H200."""

from __future__ import annotations

from typing import Any

import pytest

from studies.counters import compare, ratios, rows


@pytest.fixture(scope="module")
def table() -> dict[str, dict[str, Any]]:
    return {row["family"]: row for row in compare(rows())}


@pytest.mark.parametrize("family", ["gemm bf16 cublas", "gemm fp16 cublas"])
def test_whole_tiles_are_what_the_tensor_pipe_executes(table: dict[str, dict[str, Any]], family: str) -> None:
    assert table[family]["tensor, whole tiles, |difference| %"] < 1.0


@pytest.mark.parametrize("family", ["gemm bf16 cublas", "gemm fp16 cublas", "attention bf16 fa3"])
def test_dram_bytes_are_those_simulated(table: dict[str, dict[str, Any]], family: str) -> None:
    assert table[family]["DRAM, |difference| %"] < 4.0


def test_no_kernel_executes_fewer_useful_operations_than_the_floor_rests_on() -> None:
    useful = [found["tensor, useful"] for row in rows() if row["case"]["kernel"] == "gemm" and (found := ratios(row))]
    counted = [ratio for ratio in useful if ratio]
    assert len(counted) >= 20
    assert min(counted) > 0.999
