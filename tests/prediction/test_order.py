"""More work takes no less time, a faster card no more; measured contexts stay as their rows have them."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipewave as pw
from pipewave.gpus import find
from pipewave.kernels import family_of
from pipewave.prediction import batch, order
from pipewave.prediction.columns import columns, group_key, taken
from qa import monotone

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
@settings(max_examples=60, deadline=None)
def test_a_card_with_one_rate_raised_is_never_slower(family: str, name: str, rate: str, factor: float) -> None:
    card, case = find(name), CASES[family]
    base = latency(case, card)
    assert latency(case, card.what_if(**{rate: getattr(card, rate) * factor})) <= base * (1 + 1e-9)
    assert latency(case, card.what_if(**{rate: getattr(card, rate) / factor})) >= base * (1 - 1e-9)


def test_pairs_are_in_order() -> None:
    """A subset of what `make chaos` asks; beyond the rows of a GPU, nothing that is larger is faster."""
    rows = monotone.table(1_500, seed=11)
    total, out, far, by_rows, far_by_rows = (sum(row[name] for row in rows) for name in monotone.COUNTS)
    assert total > 1_000
    assert out == by_rows <= 0.004 * total
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


def test_lists_are_answered_in_slices_as_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [pw.attention([1] * n, list(range(40, 40 + n)), 32, 8, 128) for n in (3, 1, 64, 2, 17)]
    whole = pw.predict(calls, "L20").latency_us
    monkeypatch.setattr(order, "ENTRIES", 8)
    assert np.allclose(pw.predict(calls, "L20").latency_us, whole, rtol=1e-6)


def test_shorter_lists_are_no_shorter_than_their_queries() -> None:
    of = family_of("attention")
    cols = columns(of, [CASES["attention"] | {"q_lens": [4, 1, 9], "kv_lens": [64, 7, 9]}])
    size = of.grows["kv_lens"]
    assert order._halvings(size, cols["kv_lens"], cols).tolist() == [0]  # 16 keys a query at most
    half = order._halved(size, cols["kv_lens"], np.array([2]), cols)
    assert half.values.tolist() == [16, 2, 9]


@pytest.mark.parametrize("family", ["gemm", "mla", "fused_moe", "rmsnorm", "all_gather"])
def test_no_short_call_beyond_the_rows_is_faster_than_half_of_it(family: str) -> None:
    rng = np.random.default_rng(0)
    of, gpu = family_of(family), find("A10")
    name = next(iter(of.grows))
    base = {"gemm": {"n": 128, "k": 1664}, "mla": {"q_lens": (1,), "kv_lens": (4000,), "phase": "generation"},
            "fused_moe": CASES["fused_moe"], "rmsnorm": {"dim": 4096}, "all_gather": {"world": 4}}[family]  # fmt: skip
    for size in (2 * rng.integers(1, 60, 12)).tolist():
        case = base | {"kernel": family, "dtype": "bf16", name: size}
        half = case | {name: size // 2}
        raw = batch.answer(of, columns(of, [half]), group_key(of, half), gpu, "graph").seconds[0, 0]
        kept = order.answer(of, columns(of, [case]), group_key(of, case), gpu, "graph")
        assert kept.seconds[0, 0] >= raw * (1 - 1e-6)  # nets answer one call and several alike to the float
        assert np.all(np.diff(kept.seconds[[1, 0, 2], 0]) >= 0)
        assert kept.seconds[1, 0] >= kept.seconds[3, 0]


def test_measured_answers_stay_as_they_are() -> None:
    of, gpu, case = family_of("gemm"), find("H200"), {"kernel": "gemm", "m": 64, "n": 4096, "k": 4096}
    key = group_key(of, case)
    raw, kept = (way(of, columns(of, [case]), key, gpu, "cold") for way in (batch.answer, order.answer))
    assert raw.source.basis == "measured_gpu"
    assert np.array_equal(raw.seconds, kept.seconds)


def test_one_call_and_many_are_put_in_the_same_order() -> None:
    calls = [{"kernel": "gemm", "m": m, "n": 128, "k": 1664, "dtype": "bf16"} for m in (2, 4, 8, 16, 24, 32)]
    many = pw.predict(calls, "A10", protocol="graph").latency_us
    one = [pw.predict(pw.gemm(call["m"], 128, 1664), "A10", protocol="graph").latency_us for call in calls]
    assert np.allclose(many, one, rtol=1e-5)


def test_taken_columns_are_those_of_the_calls_alone() -> None:
    of = family_of("attention")
    cases = [CASES["attention"] | {"q_lens": [1] * n, "kv_lens": list(range(n, 2 * n))} for n in (3, 1, 4)]
    some, alone = taken(columns(of, cases), np.array([2, 0])), columns(of, [cases[2], cases[0]])
    assert np.array_equal(some["heads"], alone["heads"])
    assert np.array_equal(some["kv_lens"].values, alone["kv_lens"].values)
    assert np.array_equal(some["kv_lens"].offsets, alone["kv_lens"].offsets)


@given(st.integers(1, 4096), st.integers(1, 4096), st.integers(1, 8), st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_smaller_calls_have_whole_sizes_that_divide_as_well(m: int, n: int, wide: int, deep: int) -> None:
    """Whatever a call is held against: sizes are whole, columns and depth multiples of 64, and none grew."""
    case = {"kernel": "gemm", "m": m, "n": n if n % 2 else 64 * wide, "k": 64 * deep}
    asked = list[dict[str, Any]]()
    family = family_of("gemm")
    real = batch.answer

    def seen(family: Any, cols: Any, *rest: Any) -> batch.Answers:
        asked.append(cols)
        return real(family, cols, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "answer", seen)
        order._least(family, columns(family, [case]), group_key(family, case), find("L40S"), "cold", np.array([1e-6]))
    sizes = [
        dict(zip("mnk", each, strict=True)) for cols in asked for each in zip(*(cols[s] for s in "mnk"), strict=True)
    ]
    assert len(sizes) == len({tuple(each.values()) for each in sizes})
    for each in sizes:
        assert all(value == int(value) and case[name] % value == 0 for name, value in each.items())
        assert each != {name: case[name] for name in "mnk"}
        assert all(each[name] == case[name] or each[name] % 64 == 0 for name in "nk")
    halves = {name: {each[name] for each in sizes} for name in "mnk"}
    assert not sizes or (case["m"] % 2 or case["m"] / 2 in halves["m"])


@pytest.mark.parametrize("gpu", ["B300", "GB300"])
def test_one_row_takes_what_it_takes_on_the_measured_twin_and_lifts_no_other(gpu: str) -> None:
    """vLLM's FP8 products of one row run a slower kernel on the parts measured: on a GPU of their generation without
    rows of its own it does so too, and larger products take what they take there."""
    sizes = {"kernel": "gemm", "m": [1, 2, 8, 32, 128], "n": 28672, "k": 8192, "dtype": "fp8", "quantize": True}
    own, twin = (
        pw.predict(sizes, name, stack="vllm-0.24.0", protocol="graph").latency_us
        for name in (gpu, gpu.replace("3", "2"))
    )
    assert np.all(np.abs(own / twin - 1) <= 0.1)


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


@pytest.mark.parametrize("dtype", sorted(family_of("gemm").extra))
@pytest.mark.parametrize("protocol", ["cold", "graph", "serving"])
def test_no_product_is_slower_than_with_quantising_its_input(dtype: str, protocol: str) -> None:
    rng = np.random.default_rng(5)
    sizes = {
        name: np.exp2(rng.uniform(*ends, 60)).astype(int)
        for name, ends in {"m": (0, 14), "n": (6, 16), "k": (7, 15)}.items()
    }
    table = {"kernel": "gemm", "dtype": dtype, **sizes}
    for gpu in filter(lambda name: find(name).supports(dtype), EXTRA_ON):
        for stack in (None, "vllm-0.22.0", "vllm-0.19.0", "sglang-0.5.14", "trtllm-1.3.0rc20"):
            plain, more = (
                pw.predict(table | {"quantize": each}, gpu, protocol=protocol, stack=stack) for each in (False, True)
            )
            assert np.all(plain.latency_us <= more.latency_us * (1 + 1e-9)), (gpu, stack)
            assert np.all((plain.low_us <= plain.latency_us) & (plain.latency_us <= plain.high_us))


def test_one_product_alone_is_held_against_the_one_that_quantises_as_many_are() -> None:
    sizes = {"m": [1, 2, 8, 700], "n": [28672] * 4, "k": [4096] * 4}
    many = pw.predict({"kernel": "gemm", "dtype": "fp8", **sizes}, "B200", protocol="graph", stack="vllm-0.22.0")
    one = [
        pw.predict(pw.gemm(*each, dtype="fp8", stack="vllm-0.22.0"), "B200", protocol="graph").latency_us
        for each in zip(*sizes.values(), strict=True)
    ]
    raw = family_of("gemm"), {"kernel": "gemm", "m": 8, "n": 28672, "k": 4096, "dtype": "fp8", "stack": "vllm-0.22.0"}
    alone = batch.answer(raw[0], columns(raw[0], [raw[1]]), group_key(*raw), find("B200"), "graph").seconds[0, 0]
    assert np.allclose(many.latency_us, one, rtol=1e-5)
    assert one[2] < 1e6 * alone * 0.99  # the net by itself says otherwise


def test_own_rows_come_before_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a calibration corrects the answers, it is not moved by what nets say of the call that quantises."""
    of, gpu = family_of("gemm"), find("B200")
    case = {"kernel": "gemm", "m": 8, "n": 28672, "k": 4096, "dtype": "fp8", "stack": "vllm-0.22.0"}
    asked = of, columns(of, [case]), group_key(of, case), gpu, "graph"
    assert order.answer(*asked).seconds[0, 0] < batch.answer(*asked).seconds[0, 0]
    monkeypatch.setattr(order, "_calibrated", lambda found: True)
    assert order.answer(*asked).seconds[0, 0] == batch.answer(*asked).seconds[0, 0]
