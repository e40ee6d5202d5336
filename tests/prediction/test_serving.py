"""Protocol `serving`: what a step spares a kernel, and what stands in where no cold call was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipewave as pw
from pipewave.gpus import find
from pipewave.kernels import family_of
from pipewave.physics.arith import SCALAR
from pipewave.prediction.kernel_latency import OWN_REPLAYED, REPLAYED, write_back_s
from pipewave.software.rules import constant
from tests.sampled import examples

STREAMING = (pw.gemm(1, 14336, 4096), pw.fused_moe(32, 128, 8, 2048, 768), pw.attention((1,) * 8, (16384,) * 8, 32, 8))


@pytest.mark.parametrize("call", STREAMING)
def test_what_streams_is_spared_a_write_back_but_never_its_floor(call: pw.Call) -> None:
    cold, serving = (pw.predict(call, "H200", protocol=protocol) for protocol in ("cold", "serving"))
    assert serving.floor_us <= serving.low_us <= serving.latency_us <= serving.high_us
    assert serving.floor_us <= serving.ceiling_us
    assert cold.latency_us - 15 < serving.latency_us < cold.latency_us


def test_a_large_product_is_spared_next_to_nothing() -> None:
    call = pw.gemm(8192, 14336, 4096, sm_clock_mhz=1700.0)
    cold, serving = (pw.predict(call, "H200", protocol=protocol).latency_us for protocol in ("cold", "serving"))
    assert serving == pytest.approx(cold, rel=0.01)


@given(busy=st.floats(0.0, 1.0), size=st.floats(0.0, 1e12), family=st.sampled_from(["gemm", "attention", "rmsnorm"]))
@examples(60)
def test_a_write_back_is_bounded_by_the_cache(busy: float, size: float, family: str) -> None:
    gpu = find("H200")
    spared = write_back_s(busy, size, family_of(family), gpu, SCALAR)
    assert (
        0.0
        <= spared
        <= constant("step_write_back")["of_l2"] * gpu.l2_mb * 2**20 / (1e9 * gpu.dram_peak_gbps) * (1 + 1e-9)
    )
    assert family != "rmsnorm" or spared == 0.0


def test_only_an_engine_that_prepares_attention_once_a_step_is_spared_its_preparation() -> None:
    call = pw.attention((1,) * 4, (64,) * 4, 32, 8)
    vllm, sglang = (
        pw.predict(call, "H200", protocol="serving", stack=name) for name in ("vllm-0.22.1", "sglang-0.5.14")
    )
    assert vllm.latency_us == pytest.approx(sglang.latency_us - 2.2, abs=0.05)


def test_a_card_without_cold_rows_says_what_stands_in() -> None:
    found = pw.predict(pw.gemm(64, 4096, 4096), "L40S", protocol="serving")
    assert REPLAYED in found.notes
    assert found.basis == pw.predict(pw.gemm(64, 4096, 4096), "L40S", protocol="graph", stack="vllm-0.22.1").basis
    assert REPLAYED not in pw.predict(pw.gemm(64, 4096, 4096), "H200", protocol="serving").notes


@pytest.mark.parametrize("gpu", ["H200", "A100"])
@pytest.mark.parametrize("call", [pw.rmsnorm(2048, 4096), pw.rmsnorm(2048, 4096, fused_add=True), pw.silu_and_mul(64, 14336),
                                  pw.elementwise(1 << 20, 1 << 20)])  # fmt: skip
def test_in_a_step_a_well_made_streaming_kernel_gains_what_the_predicted_one_does(call: pw.Call, gpu: str) -> None:
    cold, serving = (pw.predict(call, gpu, protocol=protocol) for protocol in ("cold", "serving"))
    assert serving.latency_us < cold.latency_us
    assert serving.ceiling_us / serving.latency_us == pytest.approx(cold.ceiling_us / cold.latency_us)


@pytest.mark.parametrize(
    "call",
    [
        pw.attention((1,) * 64, (2048,) * 64, 32, 8, kv_dtype="fp8"),
        pw.gemm(64, 8192, 8192, dtype="fp8_block"),
        pw.fused_moe(64, 128, 8, 2048, 768),
    ],
)
@pytest.mark.parametrize("stack", ["trtllm-1.3.0rc20", "sglang-0.5.14"])
def test_replays_of_an_engines_own_kernel_come_before_cold_calls_of_another(call: pw.Call, stack: str) -> None:
    own = replace(call, stack=stack)
    serving, graph = (pw.predict(own, "H200", protocol=protocol) for protocol in ("serving", "graph"))
    cold = pw.predict(call, "H200", protocol="serving")
    if graph.impl == cold.impl:
        assert serving.impl == cold.impl
        assert OWN_REPLAYED not in serving.notes
    else:
        assert serving.latency_us == pytest.approx(graph.latency_us)
        assert OWN_REPLAYED in serving.notes
    many = pw.predict([own, own], "H200", protocol="serving")
    assert many.latency_us == pytest.approx([serving.latency_us] * 2)


def test_products_of_libraries_keep_their_cold_rows() -> None:
    call = pw.gemm(64, 8192, 8192, stack="trtllm-1.3.0rc20")
    assert OWN_REPLAYED not in pw.predict(call, "H200", protocol="serving").notes


LINKS_APART = (
    pw.gemm(64, 4096, 4096),
    pw.gemm(4096, 4096, 4096, dtype="fp8"),
    pw.attention([1] * 32, [4096] * 32, 32, 8),
    pw.attention([2048] * 4, [2048] * 4, 32, 8),
    pw.fused_moe(64, 128, 8, 2048, 768, dtype="fp8"),
)


@pytest.mark.parametrize("call", LINKS_APART, ids=lambda call: f"{call.kernel}-{call.dtype}")
@pytest.mark.parametrize("stack", [None, "vllm-0.24.0", "sglang-0.5.14"])
def test_a_gpu_that_differs_in_its_links_alone_takes_as_long_in_a_step(call: pw.Call, stack: str | None) -> None:
    """An H800, of which neither cold calls nor replays were measured, is answered as an H100 is."""
    own, twin = (pw.predict(call, gpu, protocol="serving", stack=stack) for gpu in ("H800", "H100"))
    assert own.impl == twin.impl
    assert own.latency_us == pytest.approx(twin.latency_us, rel=0.15)
