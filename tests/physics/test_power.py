"""Laws of the watts that `predict` answers: below the limit, growing with work, joules as watts times time."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import pipewave as pw
from pipewave.calls.families import Call
from pipewave.gpus import find
from pipewave.physics.collected import MOST_SHARE, MOST_TAKEN, READINGS
from pipewave.physics.power import EXTRAPOLATED, KINDRED, LAW, MEASURED, MOST_OVER, Work, board_of, draw_of

GPUS = ("H200", "B200", "H100", "H800", "A100", "L40S", "RTX 4090", "MI300X")
CALLS: list[Call] = [
    pw.gemm(1, 14336, 4096),
    pw.gemm(8192, 8192, 8192),
    pw.gemm(256, 512, 512, dtype="fp16"),
    pw.attention([1] * 8, [16_384] * 8, 32, 8),
    pw.attention([4096], [4096], 32, 8),
    pw.fused_moe(64, 128, 8, 2048, 768),
    pw.rmsnorm(8192, 8192),
    pw.rmsnorm(1, 4096),
    pw.elementwise(1 << 30, 1 << 30),
    pw.all_reduce(1 << 26, 8),
]


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("protocol", ["cold", "graph"])
def test_watts_lie_between_those_of_an_idle_board_and_its_limit(gpu: str, protocol: str) -> None:
    board, tdp = board_of(find(gpu)), find(gpu).tdp_w
    spent = pw.predict(CALLS, gpu, protocol=protocol).spent
    assert np.all(board.idle_w <= spent.power_w) and np.all(spent.power_w <= board.limit_w)
    assert board.limit_w <= MOST_OVER * tdp  # an H100 at its limit was seen to draw 1.02 times it
    assert np.all(board.asleep_w <= spent.power_low_w) and np.all(spent.power_low_w <= spent.power_w)
    assert np.all(spent.power_w <= spent.power_high_w) and np.all(spent.power_high_w <= MOST_OVER * board.limit_w)
    assert np.all(spent.energy_j > 0.0)


def test_joules_are_watts_times_time() -> None:
    """Of the time that a call takes for good, which at the limit is more than that of a few calls."""
    for call in CALLS:
        for protocol in ("cold", "graph"):
            found = pw.predict(call, "H200", protocol=protocol)
            seconds = found.energy_j / found.power_w
            limited = found.power_w > 0.999 * board_of(find("H200")).limit_w
            assert seconds >= 1e-6 * found.latency_us * (1 - 1e-9)
            if protocol == "graph" or not limited:
                assert seconds == pytest.approx(1e-6 * found.latency_us)


def test_more_work_in_the_same_time_draws_more() -> None:
    draw = draw_of(find("H200"), "gemm", "bf16")
    watts = [
        [draw.spent(draw.work_j(Work(f, d, d)), 1e-3).power_w for f in (0, 1e11, 3e11)] for d in (0, 1e8, 1e9, 3e9)
    ]
    assert np.all(np.diff(watts, axis=0) > 0) and np.all(np.diff(watts, axis=1) > 0)
    assert draw.spent(draw.work_j(Work(9e12, 0, 0)), 1e-3).power_w == draw.board.limit_w


@pytest.mark.parametrize("protocol", ["cold", "graph"])
def test_one_call_a_list_and_their_sum_agree(protocol: str) -> None:
    alone, many = (
        [pw.predict(call, "H200", protocol=protocol) for call in CALLS],
        pw.predict(CALLS, "H200", protocol=protocol),
    )
    for one, other in zip(alone, many, strict=True):
        for name in ("power_w", "power_low_w", "power_high_w", "energy_j"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-4)
        assert one.power_basis == other.power_basis == MEASURED
    both = alone[0] + alone[-1]
    assert both.energy_j == alone[0].energy_j + alone[-1].energy_j
    assert min(alone[0].power_w, alone[-1].power_w) < both.power_w < max(alone[0].power_w, alone[-1].power_w)


def test_boards_that_nobody_measured_say_so_and_have_wider_intervals() -> None:
    bases = {gpu: pw.predict(CALLS[0], gpu).power_basis for gpu in GPUS}
    assert bases.pop("H200") == bases.pop("B200") == bases.pop("H100") == MEASURED
    assert bases.pop("H800") == KINDRED
    assert set(bases.values()) == {EXTRAPOLATED}
    spread = [draw_of(find(gpu), "gemm", "bf16").spread for gpu in ("H200", "H800", "A100")]
    assert spread == sorted(spread) and spread[2] > 1.2 * spread[0]


def test_a_lower_limit_caps_the_watts_and_changes_no_joules_of_work() -> None:
    gpu = find("H200")
    lower = gpu.what_if(tdp_w=400)
    for kind in ("gemm", "attention_decode"):
        before, after = draw_of(gpu, kind, "bf16"), draw_of(lower, kind, "bf16")
        assert replace(before, board=after.board).per_flop_j == after.per_flop_j
        assert after.board.idle_w == before.board.idle_w and after.board.limit_w < 401
    hot, held = (pw.predict(CALLS[1], each) for each in (gpu, lower))
    assert held.power_w < 401 < hot.power_w and math.isfinite(held.energy_j)


COLLECTED = {"stack": "vllm-0.22.0", "protocol": "graph", "impl": "vllm_default"}


def test_what_a_collection_s_meter_reads_is_said_of_groups_of_its_rows_alone() -> None:
    assert draw_of(find("H200"), "gemm", "bf16", **COLLECTED).reading
    for gpu, changed in (("H200", {"protocol": "cold"}), ("H200", {"impl": "another"}), ("A100", {})):
        assert draw_of(find(gpu), "gemm", "bf16", **COLLECTED | changed).reading is None
    assert draw_of(find("H200"), "batched_gemm", "bf16", **COLLECTED).reading is None


@pytest.mark.parametrize("gpu", ["H200", "B200"])
def test_a_reading_keeps_watts_between_idle_and_the_limit_whatever_it_is_asked(gpu: str) -> None:
    drawn = np.random.default_rng(0)
    board = board_of(find(gpu))
    for row in json.loads(READINGS.read_text(encoding="utf-8")).values():
        known = [
            group.split(" ")
            for group in row["groups"]
            if group.split(" ")[0] == str(find(gpu).compute_capability // 10)
        ]
        for _, framework, impl, dtype in known:
            draw = draw_of(find(gpu), row["nets"][0], dtype, f"{framework}-1", "graph", impl)
            assert draw.reading
            work = Work(*(10.0 ** drawn.uniform(3, 16, (3, 200))))
            seconds, features = (
                10.0 ** drawn.uniform(-7, 1, 200),
                {name: drawn.uniform(-99, 99, 200) for name in (*row["features"], "keys")},
            )
            features["causal"] = drawn.integers(0, 2, 200).astype(float)
            share = draw.reading.above(np.inf, (work.flops, work.dram, work.l2), seconds, features)
            assert np.all(np.abs(share) <= MOST_SHARE)
            spent = draw.spent(draw.work_j(work, seconds, features), seconds)
            assert np.all((board.idle_w <= spent.power_w) & (spent.power_w <= board.limit_w))
            law_j = draw.active_w * seconds + replace(draw, reading=None).work_j(work, seconds, features)
            left_j = draw.active_w * seconds + draw.work_j(work, seconds, features)
            assert np.all(left_j >= (1 - MOST_TAKEN) * law_j * (1 - 1e-12))


PROMPTS = [4, 64, 128, 1024, 10_240, 12_288, 16_384, 65_536]


@pytest.mark.parametrize("framework", ["vllm", "trtllm"])
@pytest.mark.parametrize("gpu", ["H200", "A100"])
def test_a_collection_s_meter_reads_the_less_of_a_prompt_the_longer_it_is_and_all_of_an_encoder(
    gpu: str, framework: str
) -> None:
    """Long prompts are collected first, on a cold board; on a board that nobody collected on, too."""
    draw = draw_of(find(gpu), "attention_prefill", "fp16", f"{framework}-1", "graph")
    work, seconds = Work(np.full(8, 1e12), np.full(8, 1e8), np.full(8, 1e8)), np.full(8, 4e-3)
    features = {"keys": np.log2(PROMPTS), "causal": np.ones(8)}
    whole, read = (
        draw.active_w * seconds + draw.work_j(work, seconds, features | {"causal": np.full(8, causal)})
        for causal in (0.0, 1.0)
    )
    share = read / whole
    assert share[0] == share[1] == 1.0 and np.all(np.diff(share) <= 0)
    assert 0.3 < share[6] == share[7] < 0.9 * share[3]
    plain = replace(draw, falls=())
    assert np.array_equal(plain.active_w * seconds + plain.work_j(work), whole)


def test_what_a_user_s_prompts_draw_is_not_lowered_by_how_a_collection_meters() -> None:
    for stack, protocol in (("vllm-0.22.0", "cold"), ("vllm-0.22.0", "serving"), ("sglang-0.5.14", "graph")):
        assert not draw_of(find("H200"), "attention_prefill", "fp16", stack, protocol).falls
    assert not draw_of(find("H200"), "attention_decode", "fp16", "vllm-0.22.0", "graph").falls
    law = json.loads(LAW.read_text(encoding="utf-8"))["kinds"]["attention_prefill"]
    used = draw_of(find("H200"), "attention_prefill", "fp16", "vllm-0.22.0", "cold")
    assert used.active_w == pytest.approx(law["active"] * 700.0)


def test_a_byte_of_dram_takes_the_same_joules_on_boards_of_one_memory() -> None:
    """Their power and bandwidth differ; of a generation that nobody measured each board goes by its own."""
    h100, h200, a100 = (draw_of(find(name), "gemm", "bf16").per_dram_byte_j for name in ("H100", "H200", "A100"))
    assert h100 == pytest.approx(h200)
    assert a100 != pytest.approx(h200, rel=0.1)


def test_boards_that_wait_in_a_collective_draw_more_than_at_idle_and_less_than_the_limit() -> None:
    board = board_of(find("H200"))
    gaps, spins = (board.step_w(0.0, seconds, 1.0) for seconds in (0.0, 1.0))
    assert gaps == board.idle_w < spins < board.limit_w
    assert spins - gaps == pytest.approx(draw_of(find("H200"), "all_reduce", "bf16").active_w)
    assert board.step_w(1e4, 0.0, 1.0) == board.limit_w


def test_weights_that_are_unpacked_move_through_an_sm_as_wide_as_they_are_multiplied() -> None:
    """MXFP4 on a Hopper: 4 bits and a scale a value in DRAM, 16 bits behind it."""
    packed, plain = (draw_of(find("H100"), "fused_moe", "bf16", stored=stored) for stored in ("mxfp4", "bf16"))
    assert packed.per_l2_byte_j == pytest.approx(plain.per_l2_byte_j * 2.0 / 0.53125)
    assert (packed.per_dram_byte_j, packed.per_flop_j) == (plain.per_dram_byte_j, plain.per_flop_j)
    narrowed, fp8 = (draw_of(find("H100"), "gemm", "fp8", stored=stored) for stored in ("bf16", ""))
    assert narrowed.per_l2_byte_j == fp8.per_l2_byte_j


def test_a_call_at_the_limit_takes_as_much_longer_as_its_clock_gives_way() -> None:
    """Twice the joules that the board can deliver: 2^(1 / 3.5) times the seconds, at the limit."""
    draw, board = draw_of(find("H200"), "gemm", "bf16"), board_of(find("H200"))
    room = board.limit_w - board.idle_w
    under, over = (draw.spent(share * room - draw.active_w, 1.0 + 2e-6) for share in (0.5, 2.0))
    assert under.power_w < over.power_w == board.limit_w
    assert over.energy_j == pytest.approx(board.limit_w * 2.0 ** (1 / 3.5), rel=1e-5)


def test_a_flop_of_experts_takes_what_a_flop_of_other_products_takes() -> None:
    law = json.loads(LAW.read_text(encoding="utf-8"))["kinds"]
    assert law["fused_moe"]["tensor"] == law["gemm"]["tensor"]
