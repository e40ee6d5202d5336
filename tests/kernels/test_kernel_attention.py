"""Laws of the attention family: lists and columns agree, floors bound measurements, engines are distinguished."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipewave as pw
from pipewave.errors import UnsupportedDtype
from pipewave.gpus import find
from pipewave.gpus.architectures import architecture_of
from pipewave.kernels import family_of
from pipewave.kernels.attention.family import analyse, phase
from pipewave.kernels.attention.software import engine_of
from pipewave.kernels.attention.tasks import Requests, requests_of
from pipewave.kernels.base import Context
from pipewave.measure.row_files import rows
from pipewave.prediction.columns import columns, group_key, options_of
from pipewave.software.rules import constant
from tests.sampled import examples

FAMILY = family_of("attention")

MEASURED = Path(__file__).resolve().parents[2] / "data" / "measured" / "h200" / "attention.json.gz"
H200 = find("H200")


def context(case: dict[str, object], gpu: str = "H200", stack: str = "vllm-0.22.1", impl: str = "fa3") -> Context:
    key = group_key(FAMILY, case)
    return Context(find(gpu), str(case.get("dtype", "bf16")), "cold", stack, impl, options_of(FAMILY, key))


def case_of(q: list[int], kv: list[int], heads: int = 32, kv_heads: int = 8, **more: object) -> dict[str, object]:
    return {"q_lens": q, "kv_lens": kv, "heads": heads, "kv_heads": kv_heads, "head_dim": 128, **more}


def floor_us(case: dict[str, object], gpu: str = "H200") -> float:
    ctx = context(case, gpu)
    return float(analyse(columns(FAMILY, [case]), ctx).demand.seconds(ctx.gpu, ctx.dtype).max()) * 1e6


@pytest.mark.parametrize(("q", "kv"), [(1, 900), (1, 70_000), (512, 512), (300, 5000)])
def test_equal_requests_and_one_group_of_them_give_the_same(q: int, kv: int) -> None:
    batch = 70  # long enough for the lists to be grouped
    case = case_of([q] * batch, [kv] * batch)
    ctx = context(case)
    listed = analyse(columns(FAMILY, [case]), ctx)
    heads = {name: np.array([float(v)]) for name, v in (("heads", 32), ("kv_heads", 8), ("window", 0))}
    group = Requests(*(np.array([float(v)]) for v in (q, kv, batch)), float(batch), np.arange(1), None)
    straight = analyse(heads, ctx, group)
    assert listed.net == straight.net
    assert listed.base_s == pytest.approx(straight.base_s)
    for name, values in listed.features.items():
        assert values == pytest.approx(straight.features[name]), name


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 90)), min_size=1, max_size=6))
def test_grouping_keeps_every_sum(runs: list[tuple[int, int]]) -> None:
    q = [n for n, times in runs for _ in range(times)]
    kv = [10 * n for n in q]
    requests = requests_of(columns(FAMILY, [case_of(q, kv)]))
    assert requests.total(requests.q) == sum(q)
    assert requests.total(requests.kv * requests.q) == sum(a * b for a, b in zip(q, kv, strict=True))
    assert requests.largest(requests.kv) == max(kv)
    assert requests.batch == len(q)


def test_a_batch_answers_like_its_calls_one_by_one() -> None:
    rng = np.random.default_rng(0)
    calls = []
    for heads, window in ((32, None), (8, 512), (64, None), (16, 100)):
        q = rng.integers(1, 600, size=rng.integers(1, 20)).tolist()
        calls.append(pw.attention(q, [n + int(rng.integers(0, 4000)) for n in q], heads, 8, window=window))
    together = pw.predict(calls, "H200")
    alone = [pw.predict(call, "H200") for call in calls]
    assert together.latency_us == pytest.approx([each.latency_us for each in alone], rel=1e-4)
    assert together.floor_us == pytest.approx([each.floor_us for each in alone], rel=1e-9)


@examples(50)
@given(
    st.lists(st.tuples(st.integers(1, 4000), st.integers(0, 30_000)), min_size=1, max_size=8),
    st.sampled_from([(8, 1), (32, 8), (5, 5)]),
    st.sampled_from(["H200", "A100", "L40S", "B200", "RTX PRO 6000 Server"]),
)
def test_nothing_is_predicted_below_its_floor(lens: list[tuple[int, int]], heads: tuple[int, int], gpu: str) -> None:
    call = pw.attention([q for q, _ in lens], [q + kept for q, kept in lens], *heads)
    answer = pw.predict(call, gpu)
    assert answer.floor_us <= answer.low_us <= answer.latency_us <= answer.high_us
    assert answer.floor_us <= answer.ceiling_us
    assert np.isfinite(answer.high_us)


@given(st.integers(1, 3000), st.integers(0, 9000), st.integers(1, 500))
def test_more_work_raises_the_floor_and_a_window_lowers_it(q: int, kept: int, extra: int) -> None:
    less = floor_us(case_of([q], [q + kept]))
    assert less <= floor_us(case_of([q], [q + kept + extra]))
    assert less <= floor_us(case_of([q, 1], [q + kept, extra]))
    assert less <= floor_us(case_of([q], [q + kept], heads=64))
    assert less >= floor_us(case_of([q], [q + kept], window=extra))
    assert less <= floor_us(case_of([q], [q + kept], causal=False))


def test_decode_reads_keys_and_values_once() -> None:
    case = case_of([1] * 16, [4096] * 16)
    ctx = context(case)
    dram = analyse(columns(FAMILY, [case]), ctx).demand.seconds(H200, "bf16")[1, 0] * H200.dram_peak_gbps * 1e9
    cache, queries = 16 * 4096 * 8 * 128 * 2 * 2, 16 * 32 * 128 * 2
    assert dram == pytest.approx(cache + queries)


@pytest.mark.skipif(not MEASURED.exists(), reason="measured rows are not in this checkout")
def test_no_measured_call_beats_its_floor() -> None:
    measured = [row for row in rows(MEASURED) if row["protocol"] == "cold"]
    cases = [{"dtype": "bf16", **row["case"], "impl": row["impl"], "stack": row["stack"]} for row in measured]
    answers = pw.predict(cases, H200, protocol="cold")
    ratio = np.array([row["latency_us"] for row in measured]) / answers.floor_us
    assert ratio.min() >= 1.0
    assert 1.5 < np.median(ratio) < 20


def test_one_query_a_request_is_decode() -> None:
    assert phase(case_of([1, 1], [5, 9])) == "attention_decode"
    assert phase(case_of([1, 2], [5, 9])) == "attention_prefill"


@pytest.mark.parametrize(
    ("impl", "framework", "capability", "engine"),
    [
        ("vllm_flash_attn_fa3", "vllm", 90, "fa3"),
        ("vllm_flash_attn", "vllm", 80, "fa2"),
        ("flash_attention", "sglang", 80, "fa3"),
        ("vllm_flashinfer_trtllmprefill", "vllm", 100, "trtllm_gen"),
        ("vllm_flashinfer_fidecode", "vllm", 89, "flashinfer"),
        ("torch_flow", "trtllm", 100, "trtllm_gen"),
        ("torch_flow", "trtllm", 89, "fmha"),
        ("torch_flow_flashinfer", "trtllm", 100, "flashinfer"),
        ("triton", "sglang", 120, "triton"),
        ("vllm_triton_attn", "vllm", 120, "unified"),
        ("flash_attention_v4", "sglang", 100, "fa4"),
        ("sdpa_flash", "torch", 90, "fa2"),
        ("sdpa_cudnn", "torch", 90, "cudnn"),
        ("", "vllm", 90, "fa3"),
        ("", "vllm", 89, "fa2"),
        ("", "vllm", 103, "trtllm_gen"),
    ],
)
def test_engines_by_name(impl: str, framework: str, capability: int, engine: str) -> None:
    mma = architecture_of(capability).mma
    assert constant("attention_engine", impl=impl, framework=framework, mma=mma) == engine


def test_flash_attention_2_tiles_of_paged_and_plain_caches() -> None:
    """The split kernel's 64 × 128, and the sm86 and sm89 variant of the plain kernel for causal heads of 128."""
    case = case_of([512], [512])
    paged = engine_of(context(case, "L40S", impl="vllm_flash_attn_fa2"), 128)
    plain = engine_of(context(case, "L40S", "torch-2.11", "sdpa_flash"), 128)
    assert (paged.prefill.rows, paged.prefill.keys) == (64, 128)
    assert (plain.prefill.rows, plain.prefill.keys) == (64, 64)


def test_fp8_needs_a_gpu_that_has_it() -> None:
    with pytest.raises(UnsupportedDtype):
        pw.predict(pw.attention([128], [128], 8, 8, dtype="fp8"), "A100")


def test_an_fp8_cache_halves_the_bytes_of_decode() -> None:
    wide = floor_us(case_of([1] * 64, [8192] * 64))
    narrow = floor_us(case_of([1] * 64, [8192] * 64, kv_dtype="fp8"))
    assert narrow == pytest.approx(wide / 2, rel=0.01)


def test_a_softcap_costs_a_second_exponential() -> None:
    plain, capped = (
        analyse(columns(FAMILY, [case]), context(case))
        for case in (
            case_of([4096], [4096]),
            case_of([4096], [4096], softcap=30.0),
        )
    )
    assert capped.demand.xu == pytest.approx(2 * plain.demand.xu)
    assert capped.base_s > plain.base_s


def test_an_operator_costs_more_than_its_kernel_by_what_its_copies_move() -> None:
    """A framework writes the new keys into its cache; an encoder has none, a kernel timed alone copies nothing."""
    causal = {"causal": True, "fp8": False}
    kernel, operator = (
        Context(H200, "bf16", "graph", "vllm-0.24.0", impl).rule("attention_companions", **causal)
        for impl in ("fa3", "vllm_flash_attn_fa3")
    )
    trtllm = Context(H200, "bf16", "graph", "trtllm-1.3.0rc20", "torch_flow").rule("attention_companions", **causal)
    vision = Context(H200, "bf16", "graph", "vllm-0.24.0", "vllm_vit_flash_attn_fa3")
    encoder = vision.rule("attention_companions", causal=False, fp8=False)
    assert kernel.bytes(1e6, 1e6) == encoder.bytes(1e6, 1e6) == 0.0
    assert 2e6 <= operator.bytes(0.0, 1e6) < operator.bytes(1e6, 1e6) < trtllm.bytes(1e6, 1e6)
    assert trtllm.launches > operator.launches > encoder.launches


def test_copies_grow_with_the_new_tokens_alone() -> None:
    def copies(q: int, kv: int) -> float:
        case = case_of([q] * 8, [kv] * 8)
        ctx = context(case, stack="vllm-0.24.0", impl="vllm_flash_attn_fa3")
        return float(analyse(columns(FAMILY, [case]), ctx).features["copies"][0])

    assert copies(512, 4096) == copies(512, 8192)
    assert copies(1024, 4096) == pytest.approx(copies(512, 4096) + 1.0)  # twice as many: one more in log2


def test_one_token_without_a_mask_is_an_encoder_of_one_token() -> None:
    assert phase(case_of([1, 1], [1, 1], causal=False)) == "attention_prefill"
    assert phase(case_of([1, 1], [1, 1])) == phase(case_of([1, 1], [9, 1], causal=False)) == "attention_decode"


def test_triton_without_a_cache_takes_its_tiles_by_generation() -> None:
    """SGLang's encoder kernel: squares of 128 from Hopper on, of 64 before."""
    tiles = [
        engine_of(Context(find(gpu), "bf16", "graph", "sglang-0.5.14", "triton", (("causal", False),)), 64).prefill
        for gpu in ("L40S", "H200")
    ]
    assert [(tile.rows, tile.keys) for tile in tiles] == [(64, 64), (128, 128)]


def test_a_window_costs_tiles_of_vllms_triton_kernel_more_than_the_keys_it_hides() -> None:
    """Where every key is in the window it hides none, and its mask still runs."""
    plain = {**case_of([512], [512]), "kernel": "attention", "head_dim": 256}
    both = pw.predict(
        [plain | {"impl": "vllm_triton_attn"}, plain | {"window": 4096, "impl": "vllm_triton_attn"}], "H100"
    )
    assert 1.2 < both.latency_us[1] / both.latency_us[0] < 1.6


@pytest.mark.parametrize(("gpu", "alone"), [("H100", True), ("H200", True), ("B200", False), ("L40S", False)])
def test_physics_answers_alone_only_where_no_row_taught_an_engine(gpu: str, alone: bool) -> None:
    found = engine_of(context(case_of([512], [512]), gpu, impl="vllm_triton_attn"), 256)
    assert (found.alone is not None) == alone
    assert engine_of(context(case_of([512], [512]), gpu, impl="flash_attn"), 256).alone is None
