"""KV splits against the kernels that really ran, and against plain loops over the sources' rules."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipewave.kernels.attention.split import RULES, Grid, fa3_splits, part_blocks
from pipewave.measure.row_files import rows
from pipewave.physics.arith import SCALAR

MEASURED = Path(__file__).resolve().parents[2] / "data" / "measured" / "h200" / "attention.json.gz"
SMS = 132


def grid(batch: int, units: int, blocks: int, group: int = 4, windowed: int = 0, sms: int = SMS) -> Grid:
    return Grid(sms, batch, units, batch * units * blocks, blocks, blocks, group, windowed, False, SCALAR)


def tile_of(case: dict[str, int], longest_q: int) -> tuple[int, int]:
    """Rows and keys of FlashAttention 3's paged bf16 tile on Hopper."""
    small = longest_q * case["heads"] // case["kv_heads"] <= 64
    if case["head_dim"] == 64:
        return (64, 192) if small else (192, 128)
    return (64, 128) if small else (128, 128)


@pytest.mark.skipif(not MEASURED.exists(), reason="measured rows are not in this checkout")
def test_flash_attention_3_merges_exactly_when_the_rule_says_so() -> None:
    checked = 0
    for row in rows(MEASURED):
        if row["impl"] != "fa3" or row["protocol"] != "cold" or row["case"]["head_dim"] not in (64, 128):
            continue
        case = row["case"]
        height, keys = tile_of(case, max(case["q_lens"]))
        group = case["heads"] // case["kv_heads"]
        units = case["kv_heads"] * math.ceil(max(case["q_lens"]) * group / height)
        predicted = fa3_splits(grid(len(case["q_lens"]), units, math.ceil(max(case["kv_lens"]) / keys)))
        ran = any("Combine" in kernel["name"] for kernel in row["kernels"])
        assert predicted == ran, case
        checked += 1
    assert checked > 1000


def searched_parts(tasks: int, slots: int, blocks: int) -> int:
    """FlashAttention 2's search: the fewest parts within 85 % of the best wave efficiency."""
    if tasks >= 0.8 * slots:
        return 1
    efficiency = {parts: (w := tasks * parts / slots) / math.ceil(w) for parts in range(1, min(128, slots, blocks) + 1)}
    return next(parts for parts, e in efficiency.items() if e >= 0.85 * max(efficiency.values()))


@given(st.integers(1, 64), st.integers(1, 16), st.integers(40, 400))
def test_flash_attention_2_takes_nearly_the_fewest_parts_that_fill_waves(batch: int, units: int, blocks: int) -> None:
    parts = math.ceil(blocks / part_blocks("fa2", grid(batch, units, blocks)))
    expected = math.ceil(blocks / math.ceil(blocks / searched_parts(batch * units, 2 * SMS, blocks)))
    assert expected / 1.2 - 1 <= parts <= expected * 1.2 + 1


@pytest.mark.parametrize(("group", "windowed"), [(1, 0), (8, 1)])
def test_flash_attention_2_never_splits_plain_heads_or_windows(group: int, windowed: int) -> None:
    assert part_blocks("fa2", grid(1, 8, 100, group, windowed)) == 100


@given(st.sampled_from(RULES), st.integers(1, 512), st.integers(1, 64), st.integers(1, 2000))
def test_a_part_holds_one_block_at_least_and_all_at_most(rule: str, batch: int, units: int, blocks: int) -> None:
    part = part_blocks(rule, grid(batch, units, blocks))
    assert 1 <= part <= blocks


@given(st.sampled_from(RULES), st.integers(1, 2000))
def test_a_full_machine_is_not_split(rule: str, blocks: int) -> None:
    crowd = grid(8 * SMS, 8, blocks)
    assert part_blocks(rule, crowd) == blocks
