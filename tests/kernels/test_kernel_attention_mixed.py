"""Decodes beside prompts in one attention kernel: what they add to it, by what the kernel packs and in which order."""

from __future__ import annotations

import re

import pytest

from pipewave.calls.families import Attention
from pipewave.gpus import find
from pipewave.kernels import family_of
from pipewave.kernels.attention.family import PREFILL
from pipewave.kernels.base import Context
from pipewave.measure.row_files import rows
from pipewave.prediction.api import predict
from studies.card_blind import DATA

FAMILY = family_of("attention")

PROMPT = 1948


def added(gpu: str, heads: int, kv_heads: int, requests: int, cache: int = 2048) -> tuple[float, float]:
    """µs that decodes add to a prompt in one kernel of vLLM, and µs that they take alone."""

    def us(q_lens: tuple[int, ...], kv_lens: tuple[int, ...]) -> float:
        call = Attention(q_lens, kv_lens, heads, kv_heads, 128, dtype="bf16", page_size=16)
        return float(predict([call], gpu, protocol="serving", stack="vllm-0.22.1").latency_us[0])

    ones, caches = (1,) * requests, (cache,) * requests
    return us((*ones, PROMPT), (*caches, PROMPT)) - us((PROMPT,), (PROMPT,)), us(ones, caches)


def test_flash_attention_2_walks_heads_one_by_one() -> None:
    """Its tiles of 64 rows hold one query of one head, and a group's heads read the cache again: with forty heads of
    eight groups decodes cost well over twice what they take alone; packed and split, they cost no more."""
    for gpu, least, most in (("A100", 2.0, 5.0), ("H100", 0.5, 1.2)):
        beside, alone = added(gpu, 40, 8, 100)
        assert least < beside / alone < most


def test_the_cache_is_read_again_by_heads_that_do_not_run_side_by_side() -> None:
    """A walk over few requests has room for all heads of a group at once; over many it has not."""
    card = find("A100")
    few, many = (added("A100", 24, 2, requests)[0] / requests for requests in (16, 256))
    read_once = 2 * 2048 * 2 * 128 * 2 / (card.dram_gbps * 1e3)  # µs of a request's K and V
    assert many > 4.0 * read_once
    assert many > 0.8 * few


@pytest.mark.parametrize("cache", [2048, 16384])
def test_decodes_beside_prompts_cost_more_the_more_they_are(cache: int) -> None:
    costs = [added("A100", 32, 8, requests, cache)[0] for requests in (8, 32, 128)]
    assert costs == sorted(costs)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_tiles_of_16_rows_take_an_a100_as_many_cycles_as_an_h100(head_dim: int) -> None:
    """vLLM's Triton kernel is bound by issue, and its tiles are too low for the products of Hopper: on both parts the
    same instructions run, an A100 has none of it measured, and no wider tensor core helps either."""
    each = {}
    for gpu in ("A100", "H100"):
        call = Attention((8192,), (8192,), 64, 8, head_dim, dtype="bf16", page_size=16, impl="vllm_triton_attn")
        card = find(gpu)
        us = float(predict([call], gpu, protocol="serving", stack="vllm-0.24.0").latency_us[0])
        each[gpu] = us * card.sms * card.sustained_clock_mhz
    assert 0.9 < each["A100"] / each["H100"] < 1.1


def test_a_kernel_that_nobody_measured_on_an_architecture_says_so_and_is_uncertain() -> None:
    sizes = {"q_lens": [2048], "kv_lens": [2048], "heads": 64, "kv_heads": 8, "head_dim": 64}
    call = {"kernel": "attention", "impl": "vllm_triton_attn", **sizes}
    a100, h100 = predict([call], "A100")[0], predict([call], "H100")[0]
    assert a100.basis == "new_architecture"
    assert any("cycles measured on hopper" in note for note in a100.notes)
    assert not any("cycles measured" in note for note in h100.notes)
    assert a100.high_us / a100.latency_us > 1.2 * h100.high_us / h100.latency_us


# Of FlashAttention 3's template: whether threads gather pages, whether keys are split, heads packed by the copy engine.
LOADS = re.compile(
    r"arch::Sm90, (?:\w+, ){4}(?P<gathered>\w+), (?:\w+, ){5}(?P<split>\w+), \w+, cutlass::\w+, (?P<packed>\d+)>, flash"
)


@pytest.mark.slow
@pytest.mark.parametrize("card", ["H100", "H200"])
def test_what_the_copy_engine_loads_is_what_kernel_names_say(card: str) -> None:
    measured = rows(DATA / card.lower() / "mixed")[::10]
    agree = 0
    for row in measured:
        case, kernel = row["case"], next(k["name"] for k in row["kernels"] if "FlashAttnFwdSm90" in k["name"])
        options = (("head_dim", case["head_dim"]), ("page_size", case["page_size"]), ("variant", PREFILL))
        features = FAMILY.one(case, Context(find(card), "bf16", "cold", row["stack"], row["impl"], options)).features
        flags = LOADS.search(kernel)
        assert flags is not None
        pages, queries = flags["gathered"] == "false", flags["packed"] != "1"
        agree += (features["tma_pages"] > 0) == pages and (features["tma_queries"] > 0) == queries
    assert agree > 0.99 * len(measured) > 900


def test_pages_of_whole_tiles_count_only_where_queries_fill_more_than_a_tile() -> None:
    def us(page: int, prompt: int) -> float:
        call = Attention((1, 1, prompt), (3000, 3000, prompt), 32, 8, 128, dtype="bf16", page_size=page)
        return float(predict([call], "H200", protocol="cold", stack="vllm-0.22.1").latency_us[0])

    assert us(128, 2000) < us(16, 2000) == us(64, 2000)
    assert us(128, 16) == us(16, 16)
