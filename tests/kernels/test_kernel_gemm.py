"""Laws of the GEMM family: what physics allows, what a schedule costs, and that floats and arrays agree."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipewave as pw
from pipewave.gpus import find, names
from pipewave.kernels import family_of
from pipewave.kernels.base import Context
from pipewave.kernels.gemm.family import NET_OF, parts, unaligned
from pipewave.kernels.gemm.machine import TILES, machine, tiling, traffic
from pipewave.physics.arith import ARRAY, SCALAR
from pipewave.physics.demand import floor_s
from tests.sampled import sampled

FAMILY = family_of("gemm")

SIZES = st.integers(1, 65_536)
PROTOCOLS = ("cold", "serving", "graph", "profiler_warm")


def context(gpu: str = "H200", dtype: str = "bf16", protocol: str = "graph", stack: str = "vllm-0.24.0", **options):
    options = {"quantize": False, "tile": None} | options
    return Context(find(gpu), dtype, protocol, stack, "", tuple(options.items()))


def columns(m, n, k, ctas=0):
    return {name: np.atleast_1d(np.asarray(v, float)) for name, v in {"m": m, "n": n, "k": k, "ctas": ctas}.items()}


def floor_of(cols, ctx):
    return floor_s(FAMILY.analyse(cols, ctx).demand.seconds(ctx.gpu, ctx.dtype))


@given(SIZES, SIZES, SIZES, st.sampled_from(PROTOCOLS), st.sampled_from(["bf16", "fp8", "fp8_block", "int8", "int4"]))
def test_one_call_is_a_batch_of_one(m, n, k, protocol, dtype):
    at = machine(context(dtype=dtype, protocol=protocol, stack="sglang-0.5.14", quantize=dtype.startswith("fp8")))
    scalar = parts(float(m), float(n), float(k), 0.0, None, at, SCALAR)
    arrays = parts(*(np.array([float(v)]) for v in (m, n, k)), np.zeros(1), None, at, ARRAY)
    assert scalar[1].base == pytest.approx(arrays[1].base[0], rel=1e-12)
    for name, value in scalar[2].items():
        assert value == pytest.approx(float(np.asarray(arrays[2][name]).reshape(-1)[0]), rel=1e-9, abs=1e-9), name


@given(SIZES, SIZES, SIZES, st.sampled_from(PROTOCOLS))
def test_estimate_is_never_below_the_floor_by_much(m, n, k, protocol):
    """The base uses datasheet rates, the floor the highest: it may only be above."""
    ctx, cols = context(protocol=protocol), columns(m, n, k)
    assert FAMILY.analyse(cols, ctx).base_s[0] >= floor_of(cols, ctx)[0]


@pytest.mark.parametrize("dtype", ["bf16", "int4", "mxfp4"])
def test_a_product_that_reads_16_bits_quantises_nothing(dtype: str) -> None:
    sizes = {"m": [1, 9, 858], "n": [64, 256, 5760], "k": [128, 1088, 64], "kernel": "gemm", "dtype": dtype}
    plain, more = (pw.predict(sizes | {"quantize": each}, "H200", protocol="graph") for each in (False, True))
    assert np.array_equal(plain.latency_us, more.latency_us) and np.array_equal(plain.floor_us, more.floor_us)


def test_in_serving_activations_beyond_the_l2_come_from_dram() -> None:
    """What the L2 cannot hold of x and y together is read or written besides the weights."""
    at = machine(context(protocol="serving"))
    m, n, k = 65_536.0, 256.0, 8_192.0
    x, weights, y = 2 * m * k, 2 * n * k, 2 * m * n
    assert traffic(m, n, k, at, SCALAR).dram == weights + x + y - at.l2_bytes
    assert y < at.l2_bytes < x


@given(SIZES, SIZES, SIZES, st.sampled_from(PROTOCOLS), st.sampled_from(["m", "n", "k"]))
def test_more_work_never_lowers_the_floor(m, n, k, protocol, grown):
    ctx, sizes = context(protocol=protocol), {"m": m, "n": n, "k": k}
    more = sizes | {grown: sizes[grown] + 64}
    assert floor_of(columns(**more), ctx)[0] >= floor_of(columns(**sizes), ctx)[0] * (1 - 1e-12)


@given(SIZES, SIZES, SIZES)
def test_a_warmer_cache_never_raises_the_floor(m, n, k):
    cols = columns(m, n, k)
    cold, serving = floor_of(cols, context(protocol="cold"))[0], floor_of(cols, context(protocol="serving"))[0]
    assert serving <= cold * (1 + 1e-12)
    assert floor_of(cols, context(protocol="profiler_warm"))[0] <= cold * (1 + 1e-12)


@given(SIZES, SIZES, SIZES)
def test_demand_is_the_arithmetic(m, n, k):
    work = FAMILY.analyse(columns(m, n, k), context(protocol="cold")).demand
    assert work.tensor[0] == 2.0 * m * n * k
    assert work.l2[0] == 2.0 * (m * k + n * k + m * n)
    assert work.dram[0] >= 2.0 * (m * k + n * k)


def test_features_tell_nothing_of_the_gpu_alone():
    """Faster memory changes times, and nothing that is counted in tiles, waves and cache sizes."""
    slow, m = find("H200"), np.array([1.0, 17.0, 512.0, 4096.0])
    fast = slow.what_if(dram_gbps=slow.dram_gbps * 2, l2_gbps=slow.l2_gbps * 2)
    cols = columns(m, 0 * m + 4096, 0 * m + 4096)
    one, other = (
        FAMILY.analyse(cols, Context(gpu, protocol="cold", stack="torch-2.11")).features for gpu in (slow, fast)
    )
    assert one.keys() == other.keys()
    same = [name for name in one if name.startswith(("pad_", "waves_")) or name.endswith("in_l2")]
    for name in same:
        np.testing.assert_array_equal(one[name], other[name])


def test_tile_times_fall_into_waves():
    """One tile more than the SMs hold costs a whole wave more."""
    at = machine(context(dtype="fp8", stack="vllm-0.24.0"))  # a library that never cuts k
    rows, per_row = 128.0, at.sms
    full = tiling(np.array([rows]), np.array([128.0 * per_row]), np.array([8192.0]), at, ARRAY)
    over = tiling(np.array([rows]), np.array([128.0 * per_row + 1]), np.array([8192.0]), at, ARRAY)
    which = TILES.index((128, 128))
    assert over.per_sm[which][0] > 1.0 >= full.per_sm[which][0]
    assert over.seconds[which][0] / full.seconds[which][0] > 1.8


def test_few_tiles_and_a_long_k_are_sliced():
    at = machine(context())
    few = tiling(np.array([16.0]), np.array([512.0]), np.array([65_536.0]), at, ARRAY)
    assert few.best[0] < 0.5 * few.unsliced[0]


def test_a_known_tile_replaces_the_chosen_one():
    free = FAMILY.analyse(columns(4096, 4096, 4096), context())
    tiny = FAMILY.analyse(columns(4096, 4096, 4096), context(tile=(16, 64, 64)))
    same = FAMILY.analyse(columns(4096, 4096, 4096), context(tile=(128, 256, 64)))
    assert tiny.base_s[0] > 1.5 * free.base_s[0]
    assert same.base_s[0] == pytest.approx(free.base_s[0], rel=0.1)


def test_known_ctas_fix_the_slices_of_k():
    one = FAMILY.analyse(columns(16, 512, 32_768, ctas=8), context(tile=(16, 64, 64)))
    many = FAMILY.analyse(columns(16, 512, 32_768, ctas=128), context(tile=(16, 64, 64)))
    assert many.base_s[0] < 0.5 * one.base_s[0]


def test_quantising_costs_a_kernel_and_more_with_more_rows():
    with_it, without = (context(dtype="fp8", quantize=flag) for flag in (True, False))
    extra = [
        FAMILY.analyse(columns(m, 4096, 4096), with_it).base_s[0]
        - FAMILY.analyse(columns(m, 4096, 4096), without).base_s[0]
        for m in (1, 8192)
    ]
    assert 1e-6 < extra[0] < extra[1]


def test_long_products_are_bound_by_power():
    """An L40S has 600 W less than it would need to run its tensor cores at the datasheet peak without pause."""
    ctx = context("L40S")
    at = machine(ctx)
    _, t, _ = parts(8192.0, 8192.0, 8192.0, 0.0, None, at, SCALAR)
    assert t.power > t.tile
    richer = machine(Context(ctx.gpu.what_if(tdp_w=700), "bf16", "graph", ctx.stack, "", ctx.options))
    assert parts(8192.0, 8192.0, 8192.0, 0.0, None, richer, SCALAR)[1].base < t.base


def test_rotating_copies_decide_what_is_warm():
    """Six copies of 17 MB of weights overflow the 60 MB of an H200, a single one does not; so for small weights."""
    large, small = columns(1, 4096, 2048), columns(1, 1024, 512)
    vllm, trtllm = context(stack="vllm-0.24.0"), context(stack="trtllm-1.3.0rc20")
    alone = context(protocol="profiler_warm")
    assert [FAMILY.analyse(large, ctx).features["cached"][0] for ctx in (vllm, trtllm)] == [0.0, 0.0]
    assert FAMILY.analyse(large, alone).features["cached"][0] > 0.9
    assert [FAMILY.analyse(small, ctx).features["cached"][0] for ctx in (vllm, trtllm, alone)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(("gpu", "dtype"), sampled(product(names(), sorted(NET_OF)), 30))
def test_every_gpu_answers_every_type_it_can_run(gpu, dtype):
    spec = find(gpu)
    if not spec.supports(dtype):
        with pytest.raises(pw.PipewaveError):
            pw.predict(pw.gemm(64, 1024, 1024, dtype=dtype), spec)
        return
    for protocol in PROTOCOLS:
        answer = pw.predict(pw.gemm(64, 1024, 1024, dtype=dtype), spec, protocol=protocol)
        assert answer.floor_us <= answer.low_us <= answer.latency_us <= answer.high_us
        assert answer.ceiling_us >= answer.floor_us


def started(m, n, k, protocol="cold", dtype="fp8", impl="cutlass", xp=ARRAY):
    ctx = Context(find("H200"), dtype, protocol, "vllm-0.22.1", impl)
    return unaligned(m, n, k, machine(ctx), ctx, xp)


def test_rows_that_start_inside_a_cache_line_take_longer() -> None:
    """The less of a line their start shares, the longer; whole lines and rows of the graph protocol cost nothing."""
    m, n, k = np.full(5, 4096.0), np.full(5, 8192.0), np.array([0.0, 64.0, 32.0, 16.0, 48.0]) + 4096.0
    factors = started(m, n, k)
    assert factors[0] == 1.0 and (np.diff(factors[:4]) > 0).all()
    assert factors[4] == factors[3]  # 48 bytes in: an odd multiple of 16 too
    assert started(m, n, k, "graph") == 1.0
    for row, factor in zip(k, factors, strict=True):
        assert started(4096.0, 8192.0, float(row), xp=SCALAR) == pytest.approx(factor)
        assert started(8.0, 1024.0, float(row), xp=SCALAR) <= factor
    halves = started(m, n, k / 2.0, dtype="bf16")
    assert (halves > 1.0).tolist() == (factors > 1.0).tolist()  # bytes count, not elements


def test_no_start_inside_a_line_costs_more_than_the_sectors_it_adds() -> None:
    """Five sectors in the place of four at most, whatever the library; cuBLAS hides more of it in FP8."""
    m, n, k = np.array([1.0, 64.0, 2048.0, 65536.0]), np.full(4, 8192.0), np.full(4, 1264.0)
    cutlass, cublas = started(m, n, k), started(m, n, k, impl="torch_scaled_mm")
    assert (np.diff(cutlass) >= 0).all() and (np.diff(cublas) >= 0).all()
    assert cutlass[-1] <= 1.25 * 1.03 and cutlass[-1] > cublas[-1]
