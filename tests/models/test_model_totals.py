"""Published configs: parameters against the totals of checkpoints, cache and state bytes against hand arithmetic."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from model_families import FAMILIES, PUBLISHED, expand

from pipewave.models import load
from pipewave.models.config import parse
from pipewave.models.shard import (
    Parallel,
    active_parameters,
    cache_bytes,
    kv_bytes_per_token,
    parameters,
    state_bytes,
    weight_bytes,
)

CORPUS = Path(os.environ.get("PIPEWAVE_DATA", "shared/data")) / "models"

# Tensors of the published checkpoints, draft layers apart, quantised or not; Kimi K3 as its vendor rounds it.
TOTALS = {
    "MiniMaxAI--MiniMax-M2.5": 228_689_748_992,
    "MiniMaxAI--MiniMax-M3": 426_174_572_928,
    "Qwen--Qwen3-0.6B": 596_049_920,
    "Qwen--Qwen3-1.7B": 1_720_574_976,
    "Qwen--Qwen3-235B-A22B": 235_093_634_560,
    "Qwen--Qwen3-235B-A22B-FP8": 235_093_634_560,
    "Qwen--Qwen3-30B-A3B": 30_532_122_624,
    "Qwen--Qwen3-30B-A3B-FP8": 30_532_122_624,
    "Qwen--Qwen3-32B": 32_762_123_264,
    "Qwen--Qwen3-32B-FP8": 32_762_123_264,
    "Qwen--Qwen3-32B-FP8-Static-PerTensor": 32_762_123_264,
    "Qwen--Qwen3-8B": 8_190_735_360,
    "Qwen--Qwen3-Coder-480B-A35B-Instruct": 480_154_875_392,
    "Qwen--Qwen3-VL-235B-A22B-Instruct": 235_670_022_896,
    "Qwen--Qwen3-VL-2B-Instruct": 2_127_532_032,
    "Qwen--Qwen3-VL-30B-A3B-Instruct": 31_070_754_032,
    "Qwen--Qwen3-VL-32B-Instruct": 33_357_390_064,
    "Qwen--Qwen3-VL-4B-Instruct": 4_437_815_808,
    "Qwen--Qwen3-VL-8B-Instruct": 8_767_123_696,
    "Qwen--Qwen3.5-122B-A10B": 122_562_817_776,
    "Qwen--Qwen3.5-27B": 27_356_728_560,
    "Qwen--Qwen3.5-35B-A3B": 35_107_181_936,
    "Qwen--Qwen3.5-397B-A17B": 396_802_360_816,
    "XiaomiMiMo--MiMo-V2-Flash": 308_778_768_832,
    "deepseek-ai--DeepSeek-R1": 671_026_404_352,
    "deepseek-ai--DeepSeek-V3": 671_026_404_352,
    "deepseek-ai--DeepSeek-V3.2": 671_877_929_216,
    "deepseek-ai--DeepSeek-V4-Flash": 284_332_230_231,
    "deepseek-ai--DeepSeek-V4-Pro": 1_572_997_179_491,
    "google--gemma-4-26B-A4B": 25_805_933_872,
    "meta-llama--Llama-4-Maverick-17B-128E-Instruct": 401_167_027_200,
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": 108_225_039_360,
    "meta-llama--Meta-Llama-3.1-405B": 405_853_388_800,
    "meta-llama--Meta-Llama-3.1-70B": 70_553_706_496,
    "meta-llama--Meta-Llama-3.1-8B": 8_030_261_248,
    "mistralai--Mixtral-8x22B-v0.1": 140_620_634_112,
    "mistralai--Mixtral-8x7B-v0.1": 46_702_792_704,
    "moonshotai--Kimi-K2-Instruct": 1_026_408_232_448,
    "moonshotai--Kimi-K2.5": 1_026_879_353_328,
    "moonshotai--Kimi-K3": 2_780_000_000_000,
    "nvidia--DeepSeek-V3.1-NVFP4": 671_026_404_352,
    "nvidia--DeepSeek-V3.2-NVFP4": 671_877_929_216,
    "nvidia--DeepSeek-V4-Flash-NVFP4": 284_332_230_231,
    "nvidia--GLM-5-NVFP4": 743_911_199_232,
    "nvidia--GLM-5.1-NVFP4": 743_911_199_232,
    "nvidia--GLM-5.2-NVFP4": 743_377_000_704,
    "nvidia--Gemma-4-26B-A4B-NVFP4": 25_805_933_872,
    "nvidia--Kimi-K2.5-NVFP4": 1_026_879_353_328,
    "nvidia--Kimi-K2.6-NVFP4": 1_026_879_353_328,
    "nvidia--Llama-3.1-70B-Instruct-FP8": 70_553_706_496,
    "nvidia--Llama-3_3-Nemotron-Super-49B-v1": 49_867_145_216,
    "nvidia--MiniMax-M2.5-NVFP4": 228_689_748_992,
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 31_577_937_344,
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4": 31_577_937_344,
    "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8": 120_668_687_360,
    "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4": 120_668_687_360,
    "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": 549_308_968_960,
    "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-FP8": 549_308_968_960,
    "nvidia--Nemotron-H-56B-Base-8K": 56_324_350_464,
    "nvidia--Qwen3-235B-A22B-NVFP4": 235_093_634_560,
    "nvidia--Qwen3.5-397B-A17B-NVFP4": 396_802_360_816,
    "openai--gpt-oss-120b": 116_829_156_672,
    "openai--gpt-oss-20b": 20_914_757_184,
    "sgl-project--DeepSeek-V4-Flash-FP8": 284_332_230_231,
    "sgl-project--DeepSeek-V4-Pro-FP8": 1_572_997_179_491,
    "zai-org--GLM-5": 743_911_199_232,
    "zai-org--GLM-5-FP8": 743_911_199_232,
    "zai-org--GLM-5.1": 743_911_199_232,
    "zai-org--GLM-5.1-FP8": 743_911_199_232,
    "zai-org--GLM-5.2": 743_377_000_704,
    "zai-org--GLM-5.2-FP8": 743_377_000_704,
}
# Parameters a token meets, in billions, as the vendors' names and cards round them; embeddings count once or not at all.
ACTIVE = {
    "deepseek-ai--DeepSeek-V4-Flash": 13,
    "deepseek-ai--DeepSeek-V4-Pro": 49,
    "google--gemma-4-26B-A4B": 4,
    "meta-llama--Llama-4-Maverick-17B-128E-Instruct": 17,
    "moonshotai--Kimi-K2-Instruct": 32,
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 3.5,
    "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8": 12.5,
    "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": 55,
    "Qwen--Qwen3.5-122B-A10B": 10,
    "Qwen--Qwen3.5-397B-A17B": 17,
    "XiaomiMiMo--MiMo-V2-Flash": 15,
    "zai-org--GLM-5": 40,
}


def corpus(name: str) -> str:
    folder = CORPUS / name
    if not folder.is_dir():
        pytest.skip(f"no {folder}")
    return str(folder)


@pytest.mark.parametrize(("name", "total"), TOTALS.items())
def test_parameters_of_current_models(name: str, total: int) -> None:
    assert parameters(load(corpus(name))) == pytest.approx(total, rel=0.005)


@pytest.mark.parametrize(("name", "billions"), ACTIVE.items())
def test_active_parameters_are_as_published(name: str, billions: float) -> None:
    model = load(corpus(name))
    assert (active_parameters(model) - model.side_params) / 1e9 == pytest.approx(billions, rel=0.14)


@pytest.mark.parametrize("name", FAMILIES)
def test_parameters_of_families(name: str) -> None:
    """Class defaults of a family's public implementation, and what its modules, built without memory, add up to."""
    case = FAMILIES[name]
    model = parse(expand(case["config"]), name)
    assert parameters(model) == pytest.approx(case["parameters"], rel=0.005)
    assert weight_bytes(model) == pytest.approx(2 * parameters(model), rel=0.01)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_of_published_models(name: str) -> None:
    """To the digits of a model card."""
    case = PUBLISHED[name]
    assert parameters(parse(expand(case["config"]), name)) / 1e9 == pytest.approx(case["billions"], rel=0.01)


def test_models_that_give_hidden_states_hold_no_head() -> None:
    base = expand(PUBLISHED["Qwen3-Next-80B"]["config"])
    embedding = parse(base | {"architectures": ["Qwen3NextModel"]}, "x")
    assert parameters(parse(base, "x")) - parameters(embedding) == 151936 * 2048
    assert parse(expand(PUBLISHED["bge-m3"]["config"]), "x").encoder


def test_each_quantisation_shrinks_what_it_names() -> None:
    bf16, fp4 = (load(corpus(f"nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-{kind}")) for kind in ("BF16", "NVFP4"))
    assert 0.28 < weight_bytes(fp4) / weight_bytes(bf16) < 0.45
    deepseek = load(corpus("nvidia--DeepSeek-V4-Flash-NVFP4")).layers[5]
    assert (deepseek.moes[0].precision.dtype, deepseek.mixers[0].linears()[0].precision.dtype) == ("nvfp4", "fp8_block")
    kimi = load(corpus("moonshotai--Kimi-K2.5")).layers
    assert (kimi[3].moes[0].precision.dtype, kimi[3].mixers[0].linears()[0].precision.dtype) == ("int4", "bf16")
    gemma = load(corpus("nvidia--Gemma-4-26B-A4B-NVFP4")).layers[0]
    assert [part.linears()[0].precision.dtype for part in gemma.ffns] == ["bf16", "bf16"]
    assert gemma.moes[0].precision.dtype == "nvfp4"


# Cache of one token in bytes: layers × elements × width (2 in 16 bits, 1 in fp8), index keys of 128 + 4 bytes.
CACHES = {
    "Qwen--Qwen3.5-35B-A3B": 10 * 2 * 2 * 256 * 2,
    "nvidia--Qwen3.5-397B-A17B-NVFP4": 15 * 2 * 2 * 256,
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 6 * 2 * 2 * 128 * 2,
    "nvidia--Nemotron-H-56B-Base-8K": 10 * 2 * 8 * 128 * 2,
    "deepseek-ai--DeepSeek-V3.2": 61 * (576 * 2 + 132),
    "nvidia--DeepSeek-V3.2-NVFP4": 61 * (512 + 16 + 128 + 132),
    "zai-org--GLM-5.2": 78 * 576 * 2 + 21 * 132,
    "moonshotai--Kimi-K3": 24 * 576 * 2,
    "MiniMaxAI--MiniMax-M3": 60 * 2 * 4 * 128 * 2 + 57 * 256,
    "XiaomiMiMo--MiMo-V2-Flash": 9 * 4 * (192 + 128) * 2 + 39 * 8 * (192 + 128) * 2,
    "nvidia--Llama-3_3-Nemotron-Super-49B-v1": 49 * 2 * 8 * 128 * 2,
    "google--gemma-4-26B-A4B": 25 * 2 * 8 * 256 * 2 + 5 * 2 * 2 * 512 * 2,
}
# State of one sequence in bytes: layers × (heads × key × value × 4 + channels × (kernel - 1) × 2).
STATES = {
    "Qwen--Qwen3.5-35B-A3B": 30 * (32 * 128 * 128 * 4 + (2 * 16 * 128 + 32 * 128) * 3 * 2),
    "Qwen--Qwen3.5-397B-A17B": 45 * (64 * 128 * 128 * 4 + (2 * 16 * 128 + 64 * 128) * 3 * 2),
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 23 * (64 * 64 * 128 * 4 + (64 * 64 + 2 * 8 * 128) * 3 * 2),
    "moonshotai--Kimi-K3": 69 * (96 * 128 * 128 * 4 + 3 * 96 * 128 * 3 * 2),
    "Qwen--Qwen3-8B": 0,
}


@pytest.mark.parametrize(("name", "size"), CACHES.items())
def test_cache_bytes_by_hand(name: str, size: int) -> None:
    assert kv_bytes_per_token(load(corpus(name))) == size


@pytest.mark.parametrize(("name", "size"), STATES.items())
def test_state_bytes_by_hand(name: str, size: int) -> None:
    model = load(corpus(name))
    assert state_bytes(model) == size
    assert state_bytes(model, Parallel(2)) == size / 2


def test_compressed_entries_by_hand() -> None:
    """DeepSeek-V4 Flash: 584 bytes (448 in fp8, 64 in 16 bits, 7 scales, padding) every 4 tokens, with an index key, or
    every 128; the last 128 tokens of every layer; and fp32 values and gates of the tokens that wait for an entry."""
    model = load(corpus("deepseek-ai--DeepSeek-V4-Flash"))
    ratios = [layer.mixers[0].ratio for layer in model.layers]  # type: ignore[attr-defined]
    assert (ratios.count(0), ratios.count(4), ratios.count(128)) == (2, 21, 20)
    assert kv_bytes_per_token(model) == pytest.approx(21 * (584 + 132) / 4 + 20 * 584 / 128)
    assert cache_bytes(model, 10_000) == pytest.approx(43 * 128 * 584 + 10_000 * kv_bytes_per_token(model))
    assert state_bytes(model) == 21 * 8 * 4 * (512 + 128) * 4 + 20 * 128 * 2 * 512 * 4
