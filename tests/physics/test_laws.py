"""Laws of physics/, each against an independent form: misses by a simulated cache, overlap by limits, starts, energy."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from pipewave.gpus import find
from pipewave.physics.arith import SCALAR, log2
from pipewave.physics.cache import MISSES, MULTICAST, l2_bytes, least_dram, missing_share, walked
from pipewave.physics.demand import PIPES, busiest, demand, floor_s, pipe_rates
from pipewave.physics.overlap import LAUNCHES, launch_s, overlapped
from pipewave.physics.power import LIMIT_EXPONENT, board_of, draw_of, flop_j, joules_per_flop, limited_us

SIZES = np.geomspace(0.01, 100.0, 400)  # footprints in sizes of the L2


@pytest.mark.parametrize("name", sorted(MISSES))
def test_misses_grow_from_none_to_all(name: str) -> None:
    share = missing_share(MISSES[name], 1e6, 1e6 * SIZES)
    assert np.all(np.diff(share) >= 0)
    assert share[0] < 0.01
    assert share[-1] > 0.97
    assert np.all((share >= 0) & (share <= 1))
    alone = [missing_share(MISSES[name], 1e6, 1e6 * float(size), SCALAR) for size in SIZES]
    assert share == pytest.approx(alone)


def test_an_sm_without_multicast_loads_its_own_operands_and_pairs_share_more_than_clusters() -> None:
    assert 1.0 == MULTICAST["mma"] < MULTICAST["wgmma"] < MULTICAST["tcgen05"]


@pytest.mark.parametrize(("name", "at", "share"), [
    ("least", 1.0, 0.0), ("least", 2.0, 0.5), ("least", 4.0, 0.75),
    ("halves", 0.3, 0.0), ("halves", 0.66, 0.5), ("halves", 1.02, 1.0),
    ("one_piece", 0.85, 0.0), ("one_piece", 0.975, 0.5), ("one_piece", 1.1, 1.0),
    ("expert_weights", 0.7, 0.5), ("expert_weights", 1.4, 16 / 17), ("between_kernels", 2.0, 0.5),
    ("between_kernels", 6.0, 0.75),
])  # fmt: skip
def test_each_row_of_misses_says_what_it_means(name: str, at: float, share: float) -> None:
    assert missing_share(MISSES[name], 50e6, 50e6 * at, SCALAR) == pytest.approx(share)


def test_no_replacement_beats_the_least_row_and_lru_loses_everything() -> None:
    """A simulated walk over a cache of 64 lines: the best that keeps lines, and LRU."""
    lines, capacity = 96, 64
    kept = set(range(capacity))
    best = sum(line not in kept for line in range(lines)) / lines
    assert missing_share(MISSES["least"], capacity, float(lines), SCALAR) == pytest.approx(best)
    lru: OrderedDict[int, None] = OrderedDict()
    missed = 0
    for line in list(range(lines)) * 4:
        missed += line not in lru
        lru.pop(line, None)
        lru[line] = None
        if len(lru) > capacity:
            lru.popitem(last=False)
    assert missed == 4 * lines
    assert missing_share(MISSES["one_piece"], capacity, float(lines), SCALAR) == 1.0


def test_halves_are_for_caches_of_two_pieces() -> None:
    assert walked(find("A100")) is MISSES["halves"]
    assert walked(find("H200")) is MISSES["halves"]
    assert walked(find("L40S")) is MISSES["one_piece"]
    assert l2_bytes(find("H100")) == 50 * 2**20


@pytest.mark.parametrize("power", [2, 3, 4, 20])
def test_overlap_lies_between_the_longest_and_the_sum(power: int) -> None:
    pick = np.random.default_rng(1)
    first, second = pick.lognormal(-12, 3, (2, 200))
    found = overlapped(power, first, second)
    assert np.all(found >= np.maximum(first, second) * (1 - 1e-12))
    assert np.all(found <= first + second)
    norm = [
        np.linalg.norm([a / max(a, b), b / max(a, b)], power) * max(a, b) for a, b in zip(first, second, strict=True)
    ]
    assert found == pytest.approx(norm, rel=1e-12)
    assert overlapped(power, 3.0, 3.0, xp=SCALAR) == pytest.approx(3.0 * 2 ** (1 / power))
    assert overlapped(power, 0.0, 0.0, xp=SCALAR) == 0.0


@pytest.mark.parametrize("power", [2, 3, 4])
def test_overlap_of_three_is_a_norm_too(power: int) -> None:
    assert overlapped(power, 1.0, 2.0, 3.0, xp=SCALAR) == pytest.approx(np.linalg.norm([1.0, 2.0, 3.0], power))


@pytest.mark.parametrize("kind", sorted(LAUNCHES))
def test_a_start_costs_microseconds_and_fewer_at_higher_clocks(kind: str) -> None:
    gpu = find("H200")
    assert 1.2e-6 < launch_s(gpu, kind) < 3e-6
    assert launch_s(gpu.what_if(boost_clock_mhz=2 * gpu.boost_clock_mhz), kind) < launch_s(gpu, kind)
    row = LAUNCHES[kind]
    assert launch_s(gpu, kind) == pytest.approx(row.fixed_s + row.cycles / (gpu.sustained_clock_mhz * 1e6))


def test_an_h200_at_its_limit_multiplies_as_its_microbenchmark_measured() -> None:
    """778 TFLOP/s for a few calls, 660 for good."""
    gpu, draw = find("H200"), draw_of(find("H200"), "gemm", "bf16")
    joules = draw.active_w + 778e12 * draw.per_flop_j
    assert 778 / limited_us(1.0, 1e-6 * draw.board.at_limit_us(joules), SCALAR) == pytest.approx(660, rel=0.04)
    assert joules_per_flop(gpu, "fp8") == pytest.approx(joules_per_flop(gpu, "bf16") / 2, rel=0.01)
    assert joules_per_flop(gpu, "int4") == joules_per_flop(gpu, "bf16")


@pytest.mark.parametrize("gpu", ["H200", "L40S", "B200"])
def test_a_board_delivers_in_a_second_what_its_limit_leaves_for_work(gpu: str) -> None:
    board = board_of(find(gpu))
    joules = (board.limit_w - board.idle_w) * np.array([1.0, 2.5])
    assert board.at_limit_us(joules) == pytest.approx([1e6, 2.5e6], rel=1e-12)


def test_a_flop_takes_what_the_architecture_takes_and_no_more_than_the_board_has() -> None:
    assert flop_j(find("H20"), "bf16") == pytest.approx(flop_j(find("H200"), "bf16"))
    for name in ("RTX 4090", "RTX 3090", "H100 PCIe", "MI300X"):
        gpu = find(name)
        most = gpu.tdp_w / gpu.peak_flops("bf16")
        assert (
            flop_j(gpu, "bf16") < 0.4 * most if name.startswith("RTX") else flop_j(gpu, "bf16") == pytest.approx(most)
        )


def test_clocks_give_way_to_the_limit() -> None:
    assert limited_us(100.0, 0.0, SCALAR) == pytest.approx(100.0)
    assert limited_us(100.0, 100.0, SCALAR) == pytest.approx(100.0 * 2 ** (1 / 20 / LIMIT_EXPONENT))
    assert limited_us(np.array([1.0]), np.array([1e6]))[0] == pytest.approx(1e6 ** (1 / LIMIT_EXPONENT))
    assert limited_us(0.0, 0.0, SCALAR) == 0.0
    a_burst = limited_us(50e3, 75e3, SCALAR, 10e3)
    assert a_burst == pytest.approx(limited_us(50e3, 62.5e3, SCALAR)) and a_burst < limited_us(50e3, 75e3, SCALAR)


def test_every_row_names_its_source() -> None:
    for row in (*MISSES.values(), *LAUNCHES.values()):
        assert len(row.source) > 20


def test_pipes_of_an_h100_run_at_the_rates_of_its_lanes() -> None:
    """132 SMs at 1980 MHz: 128 FMA lanes, 16 of the special unit, 128 bytes of shared memory and 64 of L2 a clock."""
    gpu = find("H100")
    rates = dict(zip(PIPES, pipe_rates(gpu, "bf16")[:, 0].tolist(), strict=True))
    clocks = 132 * 1.98e9
    by_hand = {
        "tensor": 4096 * clocks, "dram": 3.3523e12, "l2": 64 * clocks, "smem": 128 * clocks, "fma": 2 * 128 * clocks,
        "xu": 16 * clocks, "link": 450e9, "launch": 1 / 0.3e-6,
    }  # fmt: skip
    assert rates == pytest.approx(by_hand, rel=2e-3)


def test_demands_add_and_scale_and_the_busiest_pipe_is_the_floor() -> None:
    gpu = find("H100")
    one = demand(2, dram=3.3523e6, fma=np.array([0.0, 6.69e10]), launch=1.0)
    both = one + one * 3.0
    assert both.dram == pytest.approx([4 * 3.3523e6] * 2)
    assert both.fma == pytest.approx([0.0, 4 * 6.69e10])
    seconds = one.seconds(gpu, "bf16")
    assert floor_s(seconds) == pytest.approx([1e-6, 1e-3], rel=2e-3)
    assert [PIPES[pipe] for pipe in busiest(seconds)] == ["dram", "fma"]
    with pytest.raises(AttributeError, match="no pipe 'disk'"):
        _ = one.disk


def test_least_bytes_from_dram_by_protocol() -> None:
    """50 MiB of L2: cold loads all, serving what no kernel just wrote, a warm call what the L2 cannot keep."""
    gpu, mib = find("H100"), 2.0**20
    assert least_dram(gpu, "cold", 10 * mib, 20 * mib, 60 * mib) == 40 * mib
    assert least_dram(gpu, "serving", 10 * mib, 20 * mib, 20 * mib) == 10 * mib
    assert least_dram(gpu, "serving", 10 * mib, 40 * mib, 30 * mib) == 30 * mib
    assert least_dram(gpu, "graph", 10 * mib, 20 * mib, 1 * mib) == 0.0
    assert least_dram(gpu, "graph", 60 * mib, 40 * mib, 1 * mib) == pytest.approx(50 * mib)


def test_logarithms_of_parts_are_negative_and_that_of_nothing_is_finite() -> None:
    """Features are ratios, below one as often as above; a ratio of nothing is small and finite."""
    ratios = np.array([2.0**-20, 0.25, 1.0, 8.0])
    assert log2(ratios) == pytest.approx([-20, -2, 0, 3])
    assert -np.inf < float(log2(np.zeros(1))[0]) < float(log2(ratios)[0])
