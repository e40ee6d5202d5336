"""Attention modules: pairs and entries against plain loops, and what the parts of a layer must obey."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipewave as pw
from pipewave.calls.operators import AttentionModule
from pipewave.errors import BadInput
from pipewave.files import packaged
from pipewave.kernels.attention.tasks import requests_of
from pipewave.kernels.attention_module.parts import FILE, Counts, counts, module, visible
from pipewave.kernels.base import Analysis, Context, family_of
from pipewave.prediction.columns import columns

H200 = pw.find("H200")
FAMILY = family_of("attention_module")
KINDS = st.sampled_from(sorted(packaged.shared(FILE)["sizes"]))
REQUESTS = st.lists(st.tuples(st.integers(1, 300), st.integers(0, 5000)), min_size=1, max_size=4)


def context(case: dict[str, object], stack: str = "vllm-0.24.0", dtype: str = "bf16") -> Context:
    known = {"phase": "context", "part": "module", "share_index": False, "kv_dtype": None} | case
    return Context(H200, dtype, "cold", stack, options=tuple((name, known[name]) for name in FAMILY.options))


def counted(case: dict[str, object]) -> Counts:
    cols = columns(FAMILY, [case])
    return counts(requests_of(cols), module(cols, context(case)))


def analysed(case: dict[str, object], stack: str = "vllm-0.24.0") -> Analysis:
    return FAMILY.analyse(columns(FAMILY, [case]), context(case, stack))


def case_of(kind: str, requests: list[tuple[int, int]], **more: object) -> dict[str, object]:
    q, kv = [new for new, _ in requests], [new + old for new, old in requests]
    return {"kind": kind, "heads": 16, "q_lens": q, "kv_lens": kv, **more}


@given(st.integers(0, 3000), st.integers(1, 200), st.integers(1, 600))
def test_visible_entries_are_those_of_a_loop(last: int, ratio: int, most: int) -> None:
    loop = sum(min(position // ratio, most) for position in range(1, last + 1))
    assert visible(np.array([float(last)]), ratio, most)[0] == pytest.approx(loop)


@given(REQUESTS)
def test_sparse_queries_attend_to_topk_keys(requests: list[tuple[int, int]]) -> None:
    loop = sum(min(old + i, 2048) for new, old in requests for i in range(1, new + 1))
    assert counted(case_of("dsa", requests)).chosen[0] == pytest.approx(loop)


@given(REQUESTS)
def test_compressed_queries_attend_to_entries_and_a_window(requests: list[tuple[int, int]]) -> None:
    places = [old + i for new, old in requests for i in range(1, new + 1)]
    loop = sum(min(place // 128, 1 << 40) + min(place, 128) for place in places)
    assert counted(case_of("hca", requests)).chosen[0] == pytest.approx(loop)
    chosen = sum(min(place // 4, 512) + min(place, 128) for place in places)
    assert counted(case_of("csa", requests)).chosen[0] == pytest.approx(chosen)


@given(KINDS, REQUESTS, st.sampled_from(["context", "generation"]))
def test_a_layer_takes_longer_than_any_of_its_parts(kind: str, requests: list[tuple[int, int]], phase: str) -> None:
    case = case_of(kind, requests, phase=phase)
    whole = analysed(case)
    parts = ["attention"] if kind in ("mla", "hca") else ["attention", "indexer", "topk"]
    for part in parts:
        alone = analysed(case | {"part": part})
        assert alone.demand.tensor[0] <= whole.demand.tensor[0] * (1 + 1e-9)
        if kind not in ("mla", "dsa"):  # those may take the other form of the attention
            assert alone.base_s[0] < whole.base_s[0]


@given(REQUESTS)
def test_a_shared_choice_saves_the_indexer(requests: list[tuple[int, int]]) -> None:
    own, shared = (analysed(case_of("dsa", requests, share_index=share)) for share in (False, True))
    assert shared.base_s[0] < own.base_s[0]
    assert shared.demand.tensor[0] <= own.demand.tensor[0]


@given(KINDS, REQUESTS)
def test_more_heads_need_no_less(kind: str, requests: list[tuple[int, int]]) -> None:
    few, many = (analysed(case_of(kind, requests) | {"heads": heads}) for heads in (16, 64))
    assert np.all(many.demand.amounts >= few.demand.amounts)
    assert many.base_s[0] >= few.base_s[0]


def test_a_long_context_costs_sparse_attention_its_scores_only() -> None:
    short, long = (counted(case_of("dsa", [(1, old)])) for old in (8191, 65535))
    assert long.chosen[0] == short.chosen[0] == 2048
    assert long.scored[0] == 8 * short.scored[0]


def test_published_dimensions_stand_in_for_null() -> None:
    case = case_of("dsa", [(512, 0)])
    said = case | dict(packaged.shared(FILE)["sizes"]["dsa"])
    assert analysed(said).base_s[0] == analysed(case).base_s[0]
    assert analysed(case | {"hidden": 6144}).base_s[0] < analysed(case).base_s[0]


def test_sglang_expands_short_prompts() -> None:
    case = case_of("dsa", [(1024, 0)])
    assert analysed(case, "sglang-0.5.14").features["expands"][0] == 1.0
    assert analysed(case, "vllm-0.24.0").features["expands"][0] == 0.0
    assert analysed(case_of("dsa", [(4096, 0)]), "sglang-0.5.14").features["expands"][0] == 0.0


def test_layers_that_choose_nothing_have_no_indexer() -> None:
    with pytest.raises(BadInput) as caught:
        AttentionModule((1,), (1,), 16, "hca", part="indexer")
    assert caught.value.field == "part"


@given(KINDS, REQUESTS, st.sampled_from(["context", "generation"]))
def test_calls_of_one_net_have_the_same_features(kind: str, requests: list[tuple[int, int]], phase: str) -> None:
    named = {kind: set(analysed(case_of(kind, requests, phase=phase)).features) for kind in (kind, "csa")}
    assert kind not in ("hca", "csa") or named[kind] == named["csa"]


def walked(stack: str, gpu: str, **more: object) -> float:
    """Seconds of a layer's sparse attention alone."""
    case = case_of("dsa", [(256, 0)] * 16) | {"part": "attention"} | more
    known = {"phase": "context", "share_index": False, "kv_dtype": None} | case
    impl = str(known.pop("impl", ""))
    options = tuple((name, known[name]) for name in FAMILY.options)
    ctx = Context(pw.find(gpu), "bf16", "graph", stack, impl, options)
    return float(FAMILY.analyse(columns(FAMILY, [{k: v for k, v in case.items() if k != "impl"}]), ctx).base_s[0])


def test_a_kernel_that_walks_empty_places_takes_as_long_for_short_prompts() -> None:
    """TensorRT-LLM on Hopper goes through all 2,048 places of a query; on Blackwell through those with a key."""
    short, long = (
        {"q_lens": [new] * (4096 // new), "kv_lens": [kv] * (4096 // new)} for new, kv in ((64, 64), (1024, 8192))
    )
    on_hopper = [walked("trtllm-1.3.0rc20", "H100", **lens) for lens in (short, long)]
    on_blackwell = [walked("trtllm-1.3.0rc20", "B200", **lens) for lens in (short, long)]
    assert on_hopper[1] < 1.2 * on_hopper[0]
    assert on_blackwell[1] > 5 * on_blackwell[0]


def test_heads_are_padded_to_the_tile_of_the_card() -> None:
    """FlashMLA's sparse kernel computes 64 heads on Hopper and 128 on Blackwell, however few there are."""
    for gpu, tile in (("H100", 64), ("B200", 128)):
        few, full, more = (
            walked("vllm-0.24.0", gpu, impl="FLASHMLA_SPARSE", heads=heads) for heads in (8, tile, 2 * tile)
        )
        assert full < 1.3 * few
        assert more > 1.6 * full


def test_from_32_heads_an_8_bit_cache_is_widened_first() -> None:
    narrow, wide = (
        walked("vllm-0.24.0", "H100", impl="FLASHMLA_SPARSE", heads=heads, kv_dtype="fp8") for heads in (31, 32)
    )
    assert wide < 0.7 * narrow


def test_dense_heads_only_while_all_contexts_fit_a_chunk() -> None:
    case = case_of("dsa", [(512, 512)] * 128)
    assert analysed(case, "sglang-0.5.14").features["expands"][0] == 1.0
    assert analysed(case_of("dsa", [(512, 513)] * 128), "sglang-0.5.14").features["expands"][0] == 0.0


def test_a_decoder_that_does_not_split_walks_the_context_on_one_sm() -> None:
    """TensorRT-LLM's latent attention on RTX PRO 6000: a context four times as long takes four times as long."""
    gpu = pw.find("RTX PRO 6000 Server")
    options = {"kind": "mla", "phase": "generation", "part": "attention", "share_index": False, "kv_dtype": None}
    ctx = Context(gpu, "bf16", "graph", "trtllm-1.3.0rc20", "default", tuple((n, options[n]) for n in FAMILY.options))
    cases = [case_of("mla", [(1, kv - 1)]) | options for kv in (16384, 65536)]
    short, long = FAMILY.analyse(columns(FAMILY, cases), ctx).base_s
    assert long == pytest.approx(4 * short, rel=0.1)


def test_queries_of_a_block_fill_a_tile() -> None:
    """MiniMax's kernel for Blackwell packs queries, Triton's pad heads to 16: 2 heads cost it less of what 16 cost."""
    requests = [(8192, 8192)] * 4

    def flops(impl: str, heads: int) -> float:
        case = case_of("msa", requests) | {"heads": heads, "kv_heads": 1}
        ctx = context(case)
        ctx = Context(pw.find("B200"), "bf16", "graph", ctx.stack, impl, ctx.options)
        return float(FAMILY.analyse(columns(FAMILY, [case]), ctx).done.flops[0])

    turned, padded = (
        flops(impl, 16) - flops(impl, 2) for impl in ("MiniMaxM3SparseMSAImpl", "MiniMaxM3SparseTritonImpl")
    )
    assert flops("MiniMaxM3SparseMSAImpl", 2) < flops("MiniMaxM3SparseTritonImpl", 2)
    assert turned > padded  # what is padded costs the same with 2 heads as with 16


def test_tensorrt_llm_decodes_blocks_of_keys_on_one_sm_a_request() -> None:
    """Both of its kernels launch one split: more context costs one request far more than where SMs share it."""
    case = case_of("msa", [(1, 16383)], phase="generation")
    long = case_of("msa", [(1, 131071)], phase="generation")
    ctx = Context(pw.find("B200"), "bf16", "graph", "trtllm-1.3.0rc23", "msa_fmha_sm100", context(case).options)
    one, eight = FAMILY.analyse(columns(FAMILY, [case, long]), ctx).base_s
    other = Context(pw.find("B200"), "bf16", "graph", "vllm-0.24.0", "MiniMaxM3SparseMSAImpl", context(case).options)
    split, further = FAMILY.analyse(columns(FAMILY, [case, long]), other).base_s
    assert eight - one > 3 * (further - split)


def decoded_by_tensorrt_llm(requests: list[tuple[int, int]], **more: object) -> Analysis:
    case = case_of("msa", requests, phase="generation", **more)
    ctx = Context(pw.find("B200"), "bf16", "graph", "trtllm-1.3.0rc23", "msa_fmha_sm100", context(case).options)
    return FAMILY.analyse(columns(FAMILY, [case]), ctx)


def test_tensorrt_llm_copies_the_pool_of_index_keys_where_pages_are_of_one_size() -> None:
    """One key head of 128 has pages as large as the indexer's: 128 requests of 65,536 keys take longer than with two

    key heads, which have more to read; the copy is of the pool, twice what the requests hold.
    """
    requests = [(1, 65535)] * 128
    one, two = (decoded_by_tensorrt_llm(requests, heads=heads, kv_heads=heads // 16) for heads in (16, 32))
    assert one.base_s[0] > 2 * two.base_s[0]
    moved = 2 * 128 * 65536 * 2 * 128 * 2  # pages twice, read and written, of 128 values of 2 bytes
    assert one.done.l2[0] - two.done.l2[0] == pytest.approx(moved, rel=0.05)


def test_places_without_a_block_are_walked_all_the_same() -> None:
    """MiniMax's kernel for Blackwell loads a page for every one of the 16 places: two keys cost what 512 do, nearly."""
    few, some = (decoded_by_tensorrt_llm([(1, kv - 1)] * 1024, heads=32, kv_heads=2).base_s[0] for kv in (2, 512))
    assert few == pytest.approx(some, rel=0.12)


def test_an_indexer_of_keys_in_one_piece_walks_them_on_one_sm_a_block_of_queries() -> None:
    """Its time is that of the keys however few queries there are, until blocks of queries fill the SMs; one that splits
    keys is done with few queries sooner. Scores over an H100's registers wait for products: they cost more than theirs.
    """
    long = {"part": "indexer", "index_heads": 32}
    few, many = (analysed(case_of("dsa", [(n, 1 << 18)], **long)).base_s[0] for n in (4, 256))
    twice = analysed(case_of("dsa", [(4, 1 << 19)], **long)).base_s[0]
    assert many == pytest.approx(few, rel=0.15)
    assert twice == pytest.approx(2.0 * few, rel=0.1)
    split = analysed(case_of("dsa", [(4, 1 << 18)], phase="generation", **long)).base_s[0]
    assert split < 0.2 * few
    peak = H200.peak_flops("fp8", at="datasheet") / H200.sms
    assert few > 2.0 * 128 * 128 * (1 << 18) / peak
