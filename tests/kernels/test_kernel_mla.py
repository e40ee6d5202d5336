"""Laws of latent attention: the compressed cache is read once for all heads, prompts are expanded."""

from __future__ import annotations

import pytest

import pipewave as pw
from pipewave.gpus import find
from pipewave.kernels import family_of
from pipewave.kernels.base import Analysis, Context
from pipewave.physics.demand import PIPES
from pipewave.prediction.columns import columns, group_key, options_of

FAMILY = family_of("mla")

H200 = find("H200")


def analysed(
    q: list[int], kv: list[int], heads: int, phase: str, stack: str = "trtllm-1.3.0rc20", **more: object
) -> Analysis:
    case = {"q_lens": q, "kv_lens": kv, "heads": heads, "phase": phase, **more}
    ctx = Context(H200, "bf16", "cold", stack, "default", options_of(FAMILY, group_key(FAMILY, case)))
    return FAMILY.analyse(columns(FAMILY, [case]), ctx)


def amount(analysis: Analysis, pipe: str) -> float:
    return float(analysis.demand.amounts[PIPES.index(pipe), 0])


def test_generation_streams_one_compressed_row_a_token() -> None:
    few, many = (analysed([1] * 8, [4096] * 8, heads, "generation") for heads in (16, 128))
    cache = 8 * 4096 * (512 + 64) * 2
    queries = 8 * 16 * (512 + 64) * 2
    assert amount(few, "dram") == pytest.approx(cache + queries)
    assert amount(many, "dram") - amount(few, "dram") == pytest.approx(7 * queries)


def test_generation_multiplies_by_the_latent_dimensions() -> None:
    assert amount(analysed([1], [1000], 16, "generation"), "tensor") == pytest.approx(2 * 16 * 1000 * (576 + 512))


def test_a_prompt_multiplies_by_the_expanded_dimensions() -> None:
    pairs = 1000 * 1001 / 2
    assert amount(analysed([1000], [1000], 16, "context"), "tensor") == pytest.approx(2 * 16 * pairs * (192 + 128))


def test_kernels_on_compressed_rows_do_more_than_the_least() -> None:
    """SGLang's FlashAttention multiplies 3.4 times as much as an expanded kernel; the floor stays."""
    latent, expanded = (
        analysed([4096], [4096], 128, "context", stack) for stack in ("sglang-0.5.14", "trtllm-1.3.0rc20")
    )
    assert amount(latent, "tensor") == amount(expanded, "tensor")
    assert latent.base_s[0] > 1.5 * expanded.base_s[0]


@pytest.mark.parametrize(
    ("stack", "impl", "latent"),
    [
        ("sglang-0.5.14", "flash_attention", True),
        ("sglang-0.5.14", "trtllm_mla", False),
        ("trtllm-1.3", "default", False),
    ],
)
def test_which_context_kernels_stay_latent(stack: str, impl: str, latent: bool) -> None:
    assert Context(H200, stack=stack, impl=impl).rule("mla_stays_latent") is latent


@pytest.mark.parametrize("phase", ["context", "generation"])
@pytest.mark.parametrize("gpu", ["A100", "H100", "L40S", "B200", "RTX PRO 6000 Server", "T4"])
def test_every_gpu_answers(phase: str, gpu: str) -> None:
    q = [64] * 4 if phase == "context" else [1] * 4
    dtype = "fp16" if gpu == "T4" else "bf16"
    answer = pw.predict(pw.mla(q, [2048] * 4, 16, phase, dtype=dtype), gpu)
    assert answer.floor_us <= answer.low_us <= answer.latency_us <= answer.high_us
