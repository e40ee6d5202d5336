"""What versions of a framework run beside a kernel: writes of the cache, casts, quantisation that nothing fuses."""

from __future__ import annotations

import numpy as np
import pytest

import pipewave as pw
from pipewave.kernels import family_of
from pipewave.kernels.attention.family import DECODE, analyse
from pipewave.kernels.attention.tasks import Requests
from pipewave.kernels.base import Context
from pipewave.nets.weights_metadata import changes
from pipewave.physics.cache import PRODUCT_DRAM_SHARE
from pipewave.physics.overlap import launch_s
from pipewave.prediction.resolve import resolve
from pipewave.software import stacks

PRODUCTS = family_of("gemm")

WRITES, READS = "vllm-0.24.0", "vllm-0.22.0"
GPUS = ("H100", "H200", "B200")


def _product(stack: str, gpu: str, m: float, k: float, dtype: str = "fp8") -> float:
    ctx = Context(pw.find(gpu), dtype, "graph", stack, "vllm_default", (("quantize", True), ("tile", None)))
    columns = {name: np.array([value]) for name, value in (("m", m), ("n", 4096.0), ("k", k), ("sm_clock_mhz", 0.0))}
    return float(PRODUCTS.analyse(columns, ctx).base_s[0])


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize(("dtype", "kernels", "cycles", "moved"), [("fp8", 4.2, 1.5, 29), ("fp8_block", 7.5, 2.1, 36)])
@pytest.mark.parametrize(("m", "k", "fits"), [(8.0, 2048.0, True), (16384.0, 16384.0, False)])
def test_quantisation_that_nothing_fuses_walks_over_x_again(
    gpu: str, dtype: str, kernels: float, cycles: float, moved: float, m: float, k: float, fits: bool
) -> None:
    """So many cycles an element while the L2 holds it; beyond, DRAM's time where that is longer."""
    spec = pw.find(gpu)
    on_sms = cycles / (spec.sms * spec.sustained_clock_mhz * 1e6)
    element = on_sms if fits else max(on_sms, moved / (PRODUCT_DRAM_SHARE * spec.dram_gbps * 1e9))
    apart = _product("vllm-0.14.0", gpu, m, k, dtype) - _product("vllm-0.19.0", gpu, m, k, dtype)
    assert apart == pytest.approx(kernels * launch_s(spec, "product") + element * m * k, rel=1e-9)


@pytest.mark.parametrize(("gpu", "slow", "plain"), [("H100", "0.5.10", "0.5.9"), ("B200", "0.5.9", "0.5.14")])
def test_a_slow_cast_grows_with_the_elements_alone(gpu: str, slow: str, plain: str) -> None:
    apart = [
        _product(f"sglang-{slow}", gpu, m, k, "fp8_block") - _product(f"sglang-{plain}", gpu, m, k, "fp8_block")
        for m, k in ((512.0, 2048.0), (1024.0, 4096.0), (4096.0, 4096.0))
    ]
    assert apart[0] > 0 and [one / apart[0] for one in apart[1:]] == pytest.approx([4.0, 16.0])


def _decode(stack: str, impl: str, gpu: str, batch: float, kv_dtype: str = "bf16") -> float:
    options = {"kv_dtype": kv_dtype, "causal": True, "head_dim": 128, "variant": DECODE}
    ctx = Context(pw.find(gpu), "bf16", "graph", stack, impl, tuple(options.items()))
    heads = {"heads": np.array([32.0]), "kv_heads": np.array([8.0]), "window": np.array([0.0])}
    requests = Requests(np.array([1.0]), np.array([512.0]), np.array([batch]), batch, np.arange(1), None)
    return float(analyse(heads, ctx, requests).base_s[0])


@pytest.mark.parametrize("gpu", GPUS)
def test_decode_without_the_write_of_the_cache_is_shorter_and_grows_less_with_the_batch(gpu: str) -> None:
    """Versions of vLLM between 0.16 and 0.24 are timed without it."""
    with_write, without = ([_decode(stack, "vllm_flash_attn", gpu, n) for n in (1, 256)] for stack in (WRITES, READS))
    assert with_write[0] > without[0]
    assert with_write[1] - without[1] > with_write[0] - without[0]
    assert _decode("vllm-0.14.0", "vllm_flash_attn", gpu, 64) == _decode(WRITES, "vllm_flash_attn", gpu, 64)


@pytest.mark.parametrize("gpu", GPUS)
def test_casts_of_an_fp8_cache_come_with_a_version(gpu: str) -> None:
    impl = "trtllm_mha" if gpu == "B200" else "fa3"
    older, newer = (_decode(stack, impl, gpu, 64, "fp8") for stack in ("sglang-0.5.10", "sglang-0.5.14"))
    assert newer > older
    plain = [_decode(stack, impl, gpu, 64) for stack in ("sglang-0.5.10", "sglang-0.5.14")]
    assert plain[0] == plain[1]


def test_a_version_that_nobody_measured_keeps_its_own_rules() -> None:
    """Rows of a neighbour answer; what is known of the version by rule still holds."""
    family, options = family_of("gemm"), (("quantize", True), ("tile", None), ("variant", "gemm_fp8"))
    ctx, source = resolve(family, pw.find("H200"), "fp8", "graph", "vllm-0.17.1", None, options)
    assert (ctx.requested, source.software) == ("vllm-0.17.1", "nearest_version") and ctx.stack != ctx.requested
    assert ctx.rule("gemm_quantize_unfused") is not None
    named, _ = resolve(family, pw.find("H200"), "fp8", "graph", ctx.stack, None, options)
    assert named.requested == "" and named.stack == ctx.stack
    unknown, _ = resolve(family, pw.find("H200"), "fp8", "graph", "vllm", None, options)
    assert unknown.requested == ""  # without a version no rule of one holds


def test_a_version_is_answered_from_its_own_side_of_a_change() -> None:
    known = ("vllm-0.19.0", "vllm-0.24.0")
    assert stacks.nearest("vllm-0.22.0", known) == "vllm-0.24.0"
    assert stacks.nearest("vllm-0.22.0", known, [(0, 24)]) == "vllm-0.19.0"
    assert stacks.nearest("vllm-0.25.0", known, [(0, 24)]) == "vllm-0.24.0"
    assert stacks.nearest("vllm-0.22.0", known[1:], [(0, 24)]) == "vllm-0.24.0"  # the only one there is
    assert changes("vllm-0.22.0", "fp8", "gemm_fp8", 90) == ((0, 24),)
    assert changes("vllm-0.22.0", "bf16", "gemm", 100) == () == changes("vllm-0.22.0", "bf16", "fused_moe", 90)
    assert changes("vllm-0.22.0", "bf16", "fused_moe", 100) == ((0, 24),)
