"""Norms and the gated activation: block geometry, residency, laws, and our own rows held out of training."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipewave as pw
from pipewave.gpus import find
from pipewave.kernels import family_of
from pipewave.kernels.base import Context, Family
from pipewave.kernels.streaming.norm import blocks, row_start
from pipewave.nets.nets import trained
from pipewave.software.rules import constant
from studies import norm_lines

RMSNORM, SILU = map(family_of, ("rmsnorm", "silu_and_mul"))

OWN = Path(__file__).parents[2] / "data" / "measured" / "h200"
SIZES = st.integers(1, 1 << 17), st.integers(1, 1 << 15)
GPUS = st.sampled_from(("A100", "H200", "L40S", "B200", "RTX 4090", "A10"))


def _columns(**columns: float) -> dict[str, np.ndarray]:
    return {name: np.array([float(value)]) for name, value in columns.items()}


def test_a_block_a_row_with_a_vector_a_thread() -> None:
    found = blocks(find("H200"), *_columns(rows=64, dim=4096).values(), smaller=True)
    assert (found.threads[0], found.loops[0], found.per_sm[0], found.rounds[0]) == (512, 1, 4, 1)
    many = blocks(find("H200"), *_columns(rows=4096, dim=4096).values(), smaller=True)
    assert (many.threads[0], many.loops[0], many.per_sm[0]) == (256, 2, 8)
    assert many.rounds[0] == np.ceil(4096 / (8 * 132))


def test_short_rows_fill_an_sm_up_to_its_block_limit() -> None:
    assert blocks(find("H200"), *_columns(rows=1e5, dim=64).values(), smaller=True).per_sm[0] == 32


def test_cold_norm_reads_all_and_may_leave_results_in_l2() -> None:
    gpu = find("H200")
    work = RMSNORM.analyse(_columns(rows=1000, dim=4096), Context(gpu, protocol="cold")).demand
    assert work.dram[0] == 2.0 * 1000 * 4096 + 2.0 * 4096
    assert work.l2[0] == 2 * 2.0 * 1000 * 4096 + 2.0 * 4096


def test_a_warm_norm_that_fits_needs_no_dram() -> None:
    warm = Context(find("L40S"), protocol="graph")
    assert RMSNORM.analyse(_columns(rows=1000, dim=4096), warm).demand.dram[0] == 0.0
    assert RMSNORM.analyse(_columns(rows=100_000, dim=4096), warm).demand.dram[0] > 0.0


def test_the_gated_activation_moves_three_values_an_output() -> None:
    work = SILU.analyse(_columns(rows=8, dim=14336), Context(find("A100"))).demand
    assert work.l2[0] == 3 * 2.0 * 8 * 14336
    assert work.xu[0] == 2 * 8 * 14336


@given(*SIZES, GPUS)
def test_fusing_the_addition_asks_for_more(rows: int, dim: int, gpu: str) -> None:
    plain, fused = (
        RMSNORM.analyse(_columns(rows=rows, dim=dim), Context(find(gpu), options=(("fused_add", f),)))
        for f in (False, True)
    )
    assert (fused.demand.amounts >= plain.demand.amounts).all()
    assert fused.base_s[0] >= plain.base_s[0]


@given(*SIZES, GPUS, st.sampled_from(("cold", "serving", "graph", "profiler_warm")))
def test_twice_the_rows_ask_for_more_and_take_about_twice_as_long_at_most(
    rows: int, dim: int, gpu: str, protocol: str
) -> None:
    ctx = Context(find(gpu), protocol=protocol)
    once, twice = (RMSNORM.analyse(_columns(rows=n * rows, dim=dim), ctx) for n in (1, 2))
    assert (twice.demand.amounts >= once.demand.amounts).all()
    if protocol == "cold":  # a little more where results begin to overflow the L2; much more where inputs do too
        assert twice.base_s[0] <= 2.5 * once.base_s[0]


@given(*SIZES, GPUS, st.booleans())
def test_no_norm_is_predicted_below_its_floor(rows: int, dim: int, gpu: str, fused: bool) -> None:
    for call in (pw.rmsnorm(rows, dim, fused_add=fused), pw.silu_and_mul(rows, dim)):
        found = pw.predict(call, gpu)
        assert found.floor_us <= found.low_us <= found.latency_us <= found.high_us


@given(*SIZES, GPUS)
def test_features_are_finite_and_bounded(rows: int, dim: int, gpu: str) -> None:
    found = SILU.analyse(_columns(rows=rows, dim=dim), Context(find(gpu))).features
    assert all(abs(values[0]) < 64 for values in found.values())


@pytest.mark.parametrize("kernel", ["rmsnorm", "silu_and_mul"])
def test_widths_of_our_rows_held_out_of_training(kernel: str) -> None:
    from pipewave.calls.families import from_dict
    from pipewave.measure.row_files import rows

    if trained(kernel) is None:
        pytest.skip("no weights")
    held = [
        row
        for row in rows(OWN / f"{kernel}.json.gz")
        if row["protocol"] == "cold" and zlib.crc32(str(row["case"]["dim"]).encode()) % 10 == 0
    ]
    assert len(held) > 10
    predicted = pw.predict([from_dict(row["case"]) for row in held], "H200").latency_us
    measured = np.array([row["latency_us"] for row in held])
    assert np.abs(predicted / measured - 1).mean() < 0.05
    assert (measured >= pw.predict([from_dict(row["case"]) for row in held], "H200").floor_us).all()


@pytest.mark.parametrize("gpu", ["A100", "A40", "H100"])
@pytest.mark.parametrize(("family", "impl"), [(RMSNORM, "sarathi_rms_norm"), (SILU, "sarathi_silu_and_mul")])
def test_one_element_a_thread_waits_in_every_loop(gpu: str, family: Family, impl: str) -> None:
    """Such a kernel is never faster than one with 16-byte loads, and takes as long a loop whatever the columns."""

    def took(rows: int, dim: int, name: str) -> float:
        ctx = Context(find(gpu), protocol="profiler_warm", impl=name)
        return float(family.analyse(_columns(rows=rows, dim=dim), ctx).base_s[0])

    for rows in (1, 200, 20_000):
        assert took(rows, 8192, impl) > took(rows, 8192, "")
    assert took(20_000, 8192, impl) == pytest.approx(2.0 * took(20_000, 4096, impl), rel=0.05)


def test_blocks_that_share_an_sm_issue_in_turn() -> None:
    """An A40 holds one block an SM, an A100 two, which wait together: a loop of both takes less than two of one."""
    loop = Context(find("A40"), impl="sarathi_rms_norm").rule("norm_scalar")
    alone, both = loop.l2_cycles + loop.issue_cycles, loop.l2_cycles + 2.0 * loop.issue_cycles
    assert alone < both < 2.0 * alone


def test_only_norms_in_place_lose_time_to_rows_inside_a_line() -> None:
    many, dims = np.array([1024.0, 1024.0, 8.0]), np.array([8192.0, 8200.0, 8200.0])
    in_place, elsewhere = (row_start(many, dims, fused, "cold") for fused in (True, False))
    assert in_place[0] == in_place[2] == 1.0
    assert in_place[1] > 1.1
    assert (elsewhere == 1.0).all()
    assert (row_start(many, dims, True, "graph") == 1.0).all()


def test_the_rule_of_row_starts_is_the_mean_of_its_committed_fits() -> None:
    fits = []
    for card, second in norm_lines.CARDS[:2]:
        cases, off = norm_lines.below(card, second)
        at = [norm_lines.concerned(case) for case in cases]
        fits.append(float(np.median(off[at])))
    assert constant("norm_row_start", protocol="cold", in_place=True) == pytest.approx(np.mean(fits), abs=0.03)
