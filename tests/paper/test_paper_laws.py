"""Laws of the paper's formulas, and the door they come through."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import paper
from pipewave import gpus
from pipewave.errors import BadInput, MissingField, UnknownField, UnknownGPU, UnknownKernel, UnsupportedDtype

GPUS = st.sampled_from(list(paper.HARDWARE))
HOPPER = st.sampled_from(["H100", "H200", "H800", "H20"])
SIZE = st.integers(1, 20_000)
MOE = st.fixed_dictionaries(
    {
        "tokens": st.integers(1, 8192),
        "experts": st.sampled_from([8, 60, 128]),
        "topk": st.integers(1, 8),
        "hidden": st.integers(256, 8192),
        "inter": st.integers(64, 4096),
    }
)
PIPES = ("tensor", "xu", "fma")


def loads(found: paper.demand.Features) -> dict[str, tuple[float, float]]:
    """(all SMs, busiest SM) of each pipe and of memory."""
    pairs = {pipe: (f"{pipe}_all_ops", f"{pipe}_sm_max_ops") for pipe in PIPES} | {
        "memory": ("global_in_flight", "sm_max_in_flight")
    }
    return {name: (float(found[total]), float(found[one])) for name, (total, one) in pairs.items() if total in found}


def check_busiest(found: paper.demand.Features, sms: int) -> None:
    for total, busiest in loads(found).values():
        assert total / sms * (1 - 1e-12) <= busiest <= total * (1 + 1e-12)


@given(GPUS, SIZE, st.integers(8, 20_000))
def test_row_kernels_busiest_sm_has_between_a_fair_share_and_all(gpu: str, rows: int, dim: int) -> None:
    sms = paper.HARDWARE[gpu].sms
    check_busiest(paper.features("rmsnorm", gpu, rows=rows, dim=dim), sms)
    check_busiest(paper.features("silu_and_mul", gpu, rows=rows, input_dim=dim), sms)


@given(GPUS, MOE, st.sampled_from(["w13", "w2"]))
def test_moe_busiest_sm_has_between_a_fair_share_and_all(gpu: str, shape: dict[str, int], part: str) -> None:
    found = paper.features("fused_moe", gpu, **shape, part=part)
    check_busiest(found, paper.HARDWARE[gpu].sms)
    useful = 4 * shape["tokens"] * shape["topk"] * shape["hidden"] * shape["inter"]
    assert found["tensor_all_ops"] >= useful / (1 if part == "w13" else 2)


@given(GPUS, st.lists(st.integers(1, 3000), min_size=1, max_size=4), st.sampled_from(["fa2_ragged", "fa2_paged"]))
def test_attention_busiest_sm_has_between_a_fair_share_and_all(gpu: str, lens: list[int], impl: str) -> None:
    call = {"q_lens": lens, "kv_lens": lens, "heads": 8, "kv_heads": 2, "head_dim": 64, "impl": impl}
    found = paper.features("attention", gpu, **call)
    check_busiest(found, paper.HARDWARE[gpu].sms)
    causal_products = sum(n * (n + 1) / 2 for n in lens)
    assert found["tensor_all_ops"] >= 4 * causal_products * 8 * 64


@given(HOPPER, SIZE, SIZE, SIZE)
def test_fp8_counts_at_least_the_mathematics(gpu: str, m: int, n: int, k: int) -> None:
    found = paper.features("gemm_fp8", gpu, m=m, n=n, k=k)
    assert found["tensor_all_ops"] >= 2 * m * n * k
    assert found["global_in_flight"] * 1024 >= (m + n) * k
    assert found["tensor_sm_max_ops"] * paper.HARDWARE[gpu].sms >= found["tensor_all_ops"]


@given(HOPPER, st.lists(st.tuples(SIZE, SIZE, SIZE), min_size=1, max_size=20))
def test_arrays_answer_as_their_elements_do(gpu: str, shapes: list[tuple[int, int, int]]) -> None:
    m, n, k = np.array(shapes).T
    together = paper.features("gemm_fp8", gpu, m=m, n=n, k=k)
    for row, (one_m, one_n, one_k) in enumerate(shapes):
        alone = paper.features("gemm_fp8", gpu, m=one_m, n=one_n, k=one_k)
        assert {name: value[row] for name, value in together.items()} == alone


@given(GPUS, SIZE, SIZE, st.floats(0.5, 1e6))
def test_latency_inverts_the_target(gpu: str, rows: int, dim: int, latency_us: float) -> None:
    found = paper.features("rmsnorm", gpu, rows=rows, dim=dim)
    perf = paper.overall_perf("rmsnorm", gpu, found, latency_us)
    assert paper.latency_us("rmsnorm", gpu, found, perf) == pytest.approx(latency_us, rel=1e-12)


@pytest.mark.parametrize("kernel", paper.KERNELS)
def test_features_come_in_the_published_number(kernel: str) -> None:
    order = paper.KERNELS[kernel].order
    assert len(order) == len(set(order)) == (11 if kernel in ("gemm", "gemm_fp8", "fused_moe") else 15)


def test_persistent_and_wave_gemms_differ_where_they_should() -> None:
    """160 tiles on 132 SMs: a persistent grid of 132 gives one SM two tiles, a grid of 160 two waves; alike.

    With a grid of 80, the persistent kernel still walks all tiles; the other formula counts one wave of one tile.
    """
    shape = {"m": 1280, "n": 2048, "k": 4096, "tile_m": 128, "tile_n": 128, "tile_k": 64}
    tile_ops = 2 * 128 * 128 * 4096
    assert paper.features("gemm", "H100", **shape, ctas=132)["tensor_sm_max_ops"] == 2 * tile_ops
    assert paper.features("gemm", "H100", **shape, ctas=80)["tensor_sm_max_ops"] == 2 * tile_ops
    assert paper.features("gemm", "A100", **shape, ctas=160)["tensor_sm_max_ops"] == 2 * tile_ops
    assert paper.features("gemm", "A100", **shape, ctas=80)["tensor_sm_max_ops"] == tile_ops


def test_default_attention_kernel_is_that_of_the_published_workloads() -> None:
    shape = {"heads": 32, "kv_heads": 8, "head_dim": 128}

    def same(gpu: str, q: list[int], kv: list[int], impl: str) -> bool:
        return paper.features("attention", gpu, q_lens=q, kv_lens=kv, **shape) == paper.features(
            "attention", gpu, q_lens=q, kv_lens=kv, **shape, impl=impl
        )

    assert same("H100", [700], [700], "fa3_ragged")
    assert same("A100", [700], [700], "fa2_ragged")
    assert same("H100", [1, 1], [700, 30], "fa2_paged")


GEMM = {"m": 8, "n": 8, "k": 8}
ATTENTION = {"q_lens": [4], "kv_lens": [4], "heads": 8, "kv_heads": 2, "head_dim": 64}


@pytest.mark.parametrize(
    ("kernel", "gpu", "shape", "error", "field"),
    [
        ("gem_fp8", "H100", GEMM, UnknownKernel, "kernel"),
        ("gemm_fp8", "H101", GEMM, UnknownGPU, "gpu"),
        ("gemm_fp8", "A100", GEMM, UnsupportedDtype, "dtype"),
        ("gemm_fp8", "H100", GEMM | {"kk": 1}, UnknownField, "kk"),
        ("gemm_fp8", "H100", {"m": 8, "n": 8}, MissingField, "k"),
        ("gemm_fp8", "H100", GEMM | {"m": 0}, BadInput, "m"),
        ("gemm_fp8", "H100", GEMM | {"m": float("nan")}, BadInput, "m"),
        ("gemm_fp8", "H100", GEMM | {"m": 10**12}, BadInput, "m"),
        ("gemm_fp8", "H100", GEMM | {"m": 1.5}, BadInput, "m"),
        ("gemm_fp8", "H100", GEMM | {"m": "8"}, BadInput, "m"),
        ("attention", "H100", ATTENTION | {"kv_lens": [4, 5]}, BadInput, "kv_lens"),
        ("attention", "H100", ATTENTION | {"kv_lens": [3]}, BadInput, "q_lens"),
        ("attention", "H100", ATTENTION | {"heads": 7}, BadInput, "heads"),
        ("attention", "H100", ATTENTION | {"heads": [8, 8]}, BadInput, "heads"),
        ("attention", "H100", ATTENTION | {"impl": "fa4"}, BadInput, "impl"),
        ("attention", "A100", ATTENTION | {"causal": False}, BadInput, "causal"),
        ("attention", "H100", ATTENTION | {"head_dim": 80}, BadInput, "head_dim"),
        ("attention", "A100", ATTENTION | {"head_dim": 32}, BadInput, "head_dim"),
        ("attention", "A100", ATTENTION | {"q_lens": [10**9], "kv_lens": [10**9]}, BadInput, "q_lens"),
        ("fused_moe", "H100", {"tokens": 1, "experts": 8, "topk": 2, "hidden": 8, "inter": 8, "part": "w1"}, BadInput,
         "part"),
    ],
)  # fmt: skip
def test_bad_input_names_the_field(kernel: str, gpu: str, shape: dict[str, Any], error: type, field: str) -> None:
    with pytest.raises(error) as caught:
        paper.features(kernel, gpu, **shape)
    assert caught.value.field == field


def test_gpus_answer_to_their_full_names() -> None:
    assert paper.find("NVIDIA RTX 6000 Ada Generation") is paper.find("rtx_6000_ada") is paper.find("RTX 6000 Ada")


@pytest.mark.parametrize("name", paper.HARDWARE)
def test_the_registry_agrees_with_the_papers_numbers(name: str) -> None:
    """Both describe the same parts, so a vector made from the registry must be near the published one."""
    published = paper.find(name)
    ours = paper.hardware_of(gpus.find(published.full_name))
    assert (ours.sms, ours.smem_kb_per_sm) == (published.sms, published.smem_kb_per_sm)
    for field in ("clock_mhz", "dram_gbps", "tensor_bf16_ops_per_clk_per_sm"):
        assert getattr(ours, field) == pytest.approx(getattr(published, field), rel=0.04), field


def test_a_gpu_of_the_registry_is_answered() -> None:
    l40s = gpus.find("L40S")
    assert paper.predict("gemm_fp8", l40s, **GEMM) > 0
    assert paper.features("rmsnorm", l40s, rows=142, dim=4096)["fma_sm_max_ops"] > 0
