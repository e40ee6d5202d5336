"""Launches of our own kernels counted with pencil and paper, and what engines run without a file, as tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipewave.tune.law.wave import TERMS, LaunchCounts, law_us, terms, work
from pipewave.tune.shipped_kernels import (
    active_experts,
    default,
    defaults,
    expert_rows,
    flops,
    is_up,
    routed,
    stated,
)

PREFILL = {"batch": 2, "q_len": 100, "kv_len": 300, "heads": 8, "kv_heads": 2}
DECODE = {"batch": 4, "kv_len": 1000, "heads": 8, "kv_heads": 2}
FOUR = (1, 17, 0, 22)  # tokens of four experts: one is idle, the others fill 1 + 2 + 2 blocks of 16 rows
TILE = {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 32}


@pytest.mark.parametrize(
    ("kernel", "shape", "config", "counts"),
    [
        # Rows of 130 bytes begin inside a line of 128: one line more a trip. (3·257 + 3·130) rows of tiles are asked.
        ("gemm", {"m": 130, "n": 257, "k": 65}, {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 64},
         (9, 2, 2, 2 * (8450 + 16705 + 33410), 1161 * (130 + 256), 0)),
        # Rows of 256 bytes of FP8 do not; the output has two bytes.
        ("gemm_fp8", {"m": 64, "n": 256, "k": 256}, {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 64},
         (2, 4, 4, 64 * 256 + 256 * 256 + 2 * 64 * 256, (256 + 2 * 64) * 256, 0)),
        # Three experts of 192 gate and up columns; (40 + 4·15) // 16 + 1 = 7 rows of blocks are launched, 5 work.
        ("moe_w13", {"m": 40, "e": 4, "top_k": 1, "hidden": 64, "inter": 96} | routed(FOUR, (16,)), TILE,
         (15, 2, 2, 2 * (3 * 192 * 64 + 40 * 64 + 40 * 192), 2 * (5 * 192 + 3 * 40) * 64, 6)),
        # The second product reads a row of 96 for each of 40 pairs and writes 64 columns.
        ("moe_w2", {"m": 20, "e": 4, "top_k": 2, "hidden": 64, "inter": 96} | routed(FOUR, (16,)), TILE,
         (5, 3, 3, 2 * (3 * 64 * 96 + 40 * 96 + 40 * 64), 2 * (5 * 64 + 40) * 96, 2)),
        # Nobody told the routing: 4·(1 − (3/4)²) = 1.75 experts are chosen by two tokens, which begin a block each.
        ("moe_w2", {"m": 2, "e": 4, "top_k": 1, "hidden": 64, "inter": 96}, TILE,
         (1.75, 3, 3, 2 * (1.75 * 64 * 96 + 2 * 96 + 2 * 64), 2 * (1.75 * 64 + 2) * 96, 3 - 1.75)),
        # 300 keys end inside a step of 128: that step is masked; 256 do not.
        ("prefill_full_64", PREFILL, {"BLOCK_M": 64, "BLOCK_N": 128}, (32, 3, 3, 256 * 2 * 1400, 0, 32)),
        ("prefill_full_64", PREFILL | {"kv_len": 256}, {"BLOCK_M": 64, "BLOCK_N": 128},
         (32, 2, 2, 256 * 2 * (800 + 512), 0, 0)),
        # Under a causal mask a block sees 200 keys before, and its rows' own: (200 + (32 + 100) / 2) / 128 + 1/2 trips.
        ("prefill_causal_128", PREFILL, {"BLOCK_M": 32, "BLOCK_N": 128},
         (64, 266 / 128 + 0.5, 3, 512 * 2 * 1400, 0, 64 * 0.75)),
        ("prefill_causal_128", PREFILL, {"BLOCK_M": 128, "BLOCK_N": 128},
         (16, 300 / 128 + 0.5, 3, 512 * 2 * 1400, 0, 16 * (100 / 128 + 0.5))),
        # 1,000 keys are 16 steps of 64, four a split; rows of 32 heads are reduced over 4 splits.
        ("decode_128", DECODE, {"BLOCK_N": 64, "SPLITS": 4}, (32, 4, 4, 512 * 8000, 32, 128)),
        ("decode_64", DECODE, {"BLOCK_N": 64, "SPLITS": 1}, (8, 16, 16, 256 * 8000, 8, 0)),
        # Lengths of 600 to 1,400: 10, 13, 16, 19 and 22 steps, of which 5, 7, 8, 7 and 8 of 8 splits have some.
        ("decode_64", DECODE | {"longest": 1500}, {"BLOCK_N": 64, "SPLITS": 8},
         (56, 16 / 7, 3, 256 * 8000, 64, 256)),
    ],
)  # fmt: skip
def test_counts_of_a_launch(kernel: str, shape: Any, config: Any, counts: tuple[float, ...]) -> None:
    assert tuple(stated(kernel)(shape, config)) == pytest.approx(counts, rel=1e-6)


def test_experts_and_rows_in_expectation() -> None:
    assert active_experts(2, 4, 1) == pytest.approx(1.75)
    assert active_experts(1000, 4, 2) == pytest.approx(4)
    assert (expert_rows(100, 4, 16), expert_rows(8, 4, 16)) == (8.25, 4)
    assert routed(FOUR, (16, 32)) == {"active": 3, "rows_16": 5, "rows_32": 3}
    assert [is_up(kernel) for kernel in ("moe_w13", "moe_w2", "gemm")] == [True, False, False]


@pytest.mark.parametrize(
    ("kernel", "config", "wanted"),
    [
        ("gemm", TILE, 2 * 16 * 64 * 32 * 30),
        ("moe_w2", TILE, 2 * 16 * 64 * 32 * 30),
        ("prefill_causal_64", {"BLOCK_M": 128, "BLOCK_N": 32}, 4 * 64 * 128 * 32 * 30),
        ("decode_128", {"BLOCK_N": 32}, 4 * 128 * 16 * 32 * 30),  # queries are padded to 16 rows
    ],
)
def test_flops_of_ten_blocks_of_three_trips(kernel: str, config: Any, wanted: float) -> None:
    assert flops(kernel, config, LaunchCounts(10, 3, 3, 0, 0)) == wanted


@pytest.mark.parametrize(
    ("m", "n", "values"),
    [
        (1, 8191, (64, 64, 256, 4, 3, 1)), (32, 8191, (64, 64, 256, 4, 3, 1)), (32, 8192, (64, 128, 256, 4, 3, 1)),
        (33, 8192, (64, 64, 256, 4, 3, 1)), (64, 64, (64, 64, 256, 4, 3, 1)), (65, 64, (64, 128, 128, 4, 3, 1)),
        (128, 64, (64, 128, 128, 4, 3, 1)), (129, 64, (128, 128, 128, 4, 3, 1)),
    ],
)  # fmt: skip
def test_the_tile_of_an_fp8_product_without_a_file(m: int, n: int, values: tuple[int, ...]) -> None:
    assert default("gemm_fp8", {"m": m, "n": n, "k": 64}) == values


@pytest.mark.parametrize(
    ("m", "e", "values"),
    [
        (32, 8, (16, 64, 128, 4, 4, 1)), (33, 8, (32, 64, 128, 4, 3, 1)), (64, 8, (32, 64, 128, 4, 3, 1)),
        (65, 8, (32, 128, 64, 4, 3, 1)), (96, 8, (32, 128, 64, 4, 3, 1)), (97, 8, (64, 128, 64, 4, 3, 1)),
        (128, 1, (64, 128, 64, 4, 3, 1)), (129, 1, (64, 128, 64, 8, 3, 16)), (512, 4, (64, 128, 64, 8, 3, 1)),
        (513, 8, (128, 128, 64, 8, 3, 1)), (1031, 8, (128, 128, 64, 8, 3, 1)), (1032, 8, (128, 128, 64, 8, 3, 16)),
    ],
)  # fmt: skip
def test_the_tile_of_experts_without_a_file(m: int, e: int, values: tuple[int, ...]) -> None:
    assert default("moe_w13", {"m": m, "e": e}) == default("moe_w2", {"m": m, "e": e}) == values


def test_fixed_tiles_and_their_places_among_configurations() -> None:
    assert default("gemm", {"m": 1, "n": 1, "k": 1}) == (128, 128, 64, 8, 3, 8)
    assert default("prefill_full_64", PREFILL) == (128, 128, 4, 1, 0)
    assert default("prefill_causal_128", PREFILL) == (128, 128, 8, 1, 0)
    assert default("decode_64", DECODE) == (32, 4, 2, 8)
    names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages", "GROUP_M")
    rows = [(64, 64, 256, 4, 3, 1), (64, 128, 128, 4, 3, 1), (128, 128, 128, 4, 3, 1)]
    config = {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    shape = {"m": np.array([300, 40, 100]), "n": np.array([64, 64, 64]), "k": np.array([64, 64, 64])}
    assert defaults("gemm_fp8", config, shape).tolist() == [2, 0, 1]


TWO_WAVES = LaunchCounts(265, 6.0, 10.0, 4e6, 3e7, 66)  # three blocks on the busiest of 132 SMs, two at once
ONE_WAVE = LaunchCounts(200, 6.0, 10.0, 0.0, 0.0)  # two blocks on the busiest SM of four that fit


@pytest.mark.parametrize(
    ("counts", "resident", "wanted"),
    [
        (TWO_WAVES, 2, {"launch": 1, "longest": 10, "waves": 1, "wave_trips": 6, "filled": 6, "busiest": 3,
                        "busiest_trips": 18, "tail": (1 - 265 / 528) * 6, "blocks": 265 / 132,
                        "block_trips": 265 * 6 / 132, "memory": 1, "l2": 3, "idle": 0.5, "uneven": 0, "crowded": 0,
                        "late": 10}),
        (ONE_WAVE, 4, {"launch": 1, "longest": 10, "waves": 0, "wave_trips": 0, "filled": 3, "busiest": 2,
                       "busiest_trips": 12, "tail": (1 - 200 / 528) * 6, "blocks": 200 / 132,
                       "block_trips": 200 * 6 / 132, "memory": 0, "l2": 0, "idle": 0,
                       "uneven": 4 * 2 * (1 - 132 / 200), "crowded": 4 * 2 / 4, "late": 0}),
    ],
)  # fmt: skip
def test_terms_of_a_launch(counts: LaunchCounts, resident: int, wanted: dict[str, float]) -> None:
    assert list(wanted) == list(TERMS)
    found = terms(counts, 132, resident)
    assert dict(zip(TERMS, found, strict=True)) == pytest.approx(wanted)
    law = np.arange(1.0, 1 + len(TERMS))
    row = (*counts[:5], 0.0, counts.idle)  # as formulas have it: FLOPs before idle blocks
    assert law_us(row, 132, resident, law.tolist()) == pytest.approx(sum(law * list(wanted.values())))


def test_a_launch_has_a_block_and_no_block_is_shorter_than_the_mean() -> None:
    found = work(np.array([[0.5, 4.0, 3.0, 7.0, 9.0, 1.0], [8.0, 4.0, 5.0, 7.0, 9.0, 1.0]]))
    assert [np.asarray(one).tolist() for one in found[:5]] == [[1, 8], [4, 4], [4, 5], [7, 7], [9, 9]]
    assert np.all(np.asarray(found.idle) == 0)
