"""More work takes no less time, a faster GPU no more: nets learned the first, what-ifs are answered so that the second
holds."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipewave as pw
from pipewave.gpus import find
from pipewave.kernels import family_of
from pipewave.prediction.columns import columns, group_key
from pipewave.prediction.kernel_latency import answer
from qa import monotone
from tests.sampled import examples, sampled

GPUS = ("H200", "A10", "L4", "B300", "RTX 4090", "H20")
CASES: dict[str, dict[str, Any]] = {
    "gemm": {"kernel": "gemm", "m": 48, "n": 4096, "k": 4096},
    "attention": {
        "kernel": "attention",
        "q_lens": [1] * 8,
        "kv_lens": [3000] * 8,
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
    },
    "fused_moe": {"kernel": "fused_moe", "tokens": 40, "experts": 64, "topk": 6, "hidden": 2048, "inter": 1408},
    "rmsnorm": {"kernel": "rmsnorm", "rows": 500, "dim": 4096},
    "all_reduce": {"kernel": "all_reduce", "bytes": 1 << 20, "world": 4},
}


def latency(case: dict[str, Any], gpu: Any) -> float:
    return float(pw.predict([case], gpu).latency_us[0])


@given(st.sampled_from(sorted(CASES)), st.sampled_from(GPUS),
       st.sampled_from(("dram_gbps", "boost_clock_mhz", "link_gbps", "l2_gbps")), st.floats(1.05, 3.0))  # fmt: skip
@examples(60)
def test_a_card_with_one_rate_raised_is_never_slower(family: str, name: str, rate: str, factor: float) -> None:
    card, case = find(name), CASES[family]
    base = latency(case, card)
    assert latency(case, card.what_if(**{rate: getattr(card, rate) * factor})) <= base * (1 + 1e-9)
    assert latency(case, card.what_if(**{rate: getattr(card, rate) / factor})) >= base * (1 - 1e-9)


@pytest.mark.parametrize(("gpu", "m", "n", "k"), [("GH200", 3, 17920, 128), ("H100 PCIe", 312, 5888, 384)])
def test_in_a_step_too_less_bandwidth_is_not_faster(gpu: str, m: int, n: int, k: int) -> None:
    """A longer wait for DRAM would else be taken for more of the write-back that a step saves."""
    card, call = find(gpu), pw.gemm(m, n, k)
    cards = [card.what_if(dram_gbps=card.dram_gbps / by) for by in (1.0, 1.1, 1.25, 1.5, 2.0)]
    assert np.all(np.diff([pw.predict(call, each, protocol="serving").latency_us for each in cards]) >= 0.0)


@pytest.mark.slow
def test_pairs_are_in_order() -> None:
    """A subset of what `make chaos` asks; beyond the rows of a GPU, nothing that is larger is faster."""
    rows = monotone.table(1_500, seed=11)
    total, out, far, by_rows, far_by_rows = (sum(row[name] for row in rows) for name in monotone.COUNTS)
    assert total > 1_000
    assert by_rows <= 0.004 * total
    assert out - by_rows <= 0.002 * total
    assert far == far_by_rows <= 0.001 * total
    assert all(row["out_of_order"] == 0 for row in rows if row["change"] in monotone.LESS)


@pytest.mark.parametrize("name", ["m", "n", "k"])
@pytest.mark.parametrize("gpu", ["A10", "L4", "GH200", "MI300X"])
def test_a_small_product_doubled_is_no_faster_on_a_gpu_without_rows(gpu: str, name: str) -> None:
    rng = np.random.default_rng(1)
    sizes = [1 << rng.integers(0, 6, 40), 64 << rng.integers(0, 7, 40), 64 << rng.integers(0, 7, 40)]
    small: dict[str, Any] = {"kernel": "gemm", **dict(zip(("m", "n", "k"), sizes, strict=True))}
    before, after = (pw.predict(table, gpu).latency_us for table in (small, small | {name: 2 * small[name]}))
    assert np.all(after >= 0.9 * before)
    assert np.mean(after >= 0.98 * before) >= 0.95


@pytest.mark.parametrize("gpu", ["L20", "RTX 5090", "MI325X", "H100 NVL"])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_a_longer_cache_is_decoded_no_faster_on_a_gpu_without_rows(gpu: str, dim: int) -> None:
    rng = np.random.default_rng(3)
    lists = [rng.integers(1, 400, n).tolist() for n in (1, 1, 2, 4, 4, 8, 32)]
    calls = [pw.attention([1] * len(kv), kv, 32, 8, dim) for kv in lists]
    longer = [pw.attention([1] * len(kv), [2 * n for n in kv], 32, 8, dim) for kv in lists]
    before, after = (pw.predict(some, gpu, protocol="graph").latency_us for some in (calls, longer))
    assert np.all(after >= 0.98 * before)


@pytest.mark.parametrize("gpu", ["B300", "GB300"])
def test_one_row_takes_what_it_takes_on_the_measured_twin_and_lifts_no_other(gpu: str) -> None:
    """vLLM's FP8 products of one row run a slower kernel on the parts measured: on a GPU of their generation without
    rows of its own it does so too, and larger products take what they take there."""
    sizes = {"kernel": "gemm", "m": [1, 2, 8, 32, 128], "n": 28672, "k": 8192, "dtype": "fp8", "quantize": True}
    own, twin = (
        pw.predict(sizes, name, stack="vllm-0.24.0", protocol="graph").latency_us
        for name in (gpu, gpu.replace("3", "2"))
    )
    assert np.all(np.abs(own / twin - 1) <= 0.11)


@pytest.mark.parametrize("gpu", ["B300", "GB300"])
@pytest.mark.parametrize("stack", ["sglang-0.5.10", "sglang-0.5.7", "vllm-0.22.1", "vllm-0.24.0", "trtllm-1.3.0rc20"])
@pytest.mark.parametrize("dtype", ["fp8", "fp8_block", "nvfp4"])
def test_a_gpu_of_the_generation_is_as_far_out_of_order_as_the_measured_one(gpu: str, stack: str, dtype: str) -> None:
    """Libraries run slower kernels for some smaller products: no reason to lift larger ones where none is measured."""
    sizes = {"kernel": "gemm", "m": [8, 16, 64, 64, 64, 512], "n": [4096, 4096, 7168, 4096, 28672, 4096],
             "k": [4096, 4096, 8192, 14336, 4096, 4096], "dtype": dtype}  # fmt: skip
    own, twin = (
        pw.predict(sizes, name, stack=stack, protocol="graph").latency_us for name in (gpu, gpu.replace("3", "2"))
    )
    assert np.all(np.abs(np.log(own / twin)) <= np.log(1.2))


EXTRA_ON = ("H200", "B200", "B300", "L40S", "RTX PRO 6000 Server", "RTX 4090", "MI300X")


@pytest.mark.parametrize(
    ("dtype", "protocol"),
    sampled(product(("fp8", "fp8_block", "int8", "nvfp4"), ("cold", "graph", "serving")), 4),
)
def test_no_product_is_slower_than_with_quantising_its_input(dtype: str, protocol: str) -> None:
    rng = np.random.default_rng(5)
    sizes = {
        name: np.exp2(rng.uniform(*ends, 60)).astype(int)
        for name, ends in {"m": (0, 14), "n": (6, 16), "k": (7, 15)}.items()
    }
    table, ratios = {"kernel": "gemm", "dtype": dtype, **sizes}, list[Any]()
    for gpu in filter(lambda name: find(name).supports(dtype), EXTRA_ON):
        for stack in (None, "vllm-0.22.0", "vllm-0.19.0", "sglang-0.5.14", "trtllm-1.3.0rc20"):
            plain, more = (
                pw.predict(table | {"quantize": each}, gpu, protocol=protocol, stack=stack) for each in (False, True)
            )
            ratios.append(more.latency_us / plain.latency_us)
            assert np.all((plain.low_us <= plain.latency_us) & (plain.latency_us <= plain.high_us))
    assert np.mean(np.concatenate(ratios) < 0.98) <= (0.02 if dtype in ("fp8", "int8") else 0.08)


@pytest.mark.parametrize("protocol", ["cold", "graph", "profiler_warm"])
@pytest.mark.parametrize("family", sorted(CASES))
def test_a_what_if_of_rates_takes_its_original_times_what_physics_says(family: str, protocol: str) -> None:
    """The learned residual is that of the original, so the answers are apart as the base estimates are."""
    card, case, of = find("L40S"), CASES[family] | {"dtype": "bf16"}, family_of(family)
    other = card.what_if(dram_gbps=2 * card.dram_gbps, boost_clock_mhz=1.2 * card.boost_clock_mhz)
    asked = columns(of, [case]), group_key(of, case)
    was, now = (answer(of, *asked, gpu, protocol) for gpu in (card, other))
    expected = np.maximum(was.seconds[0] * now.analysis.base_s / was.analysis.base_s, now.seconds[3])
    assert now.seconds[0] == pytest.approx(expected, rel=1e-6) or now.seconds[0] > expected  # DRAM's own limit, cold


def test_a_what_if_asked_alone_and_among_others_is_the_same() -> None:
    card = find("L40S").what_if(dram_gbps=1200.0)
    calls = [pw.gemm(m, 4096, 4096) for m in range(1, 60)] + [pw.attention([m], [m], 8, 8) for m in range(1, 40)]
    one = [pw.predict(call, card).latency_us for call in calls]
    assert np.allclose(pw.predict(calls, card).latency_us, one, rtol=1e-5)
