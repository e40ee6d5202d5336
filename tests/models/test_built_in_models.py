"""Built-in models against the configs that their makers published, and the names by which the hub knows them."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path

import pytest
from model_families import PUBLISHED, expand

from pipewave.errors import UnknownModel
from pipewave.models import load
from pipewave.models.config import parse
from pipewave.models.load import OTHER_NAMES, read_json
from pipewave.models.shard import parameters
from pipewave.models.spec import ModelSpec
from pipewave.simulate.estimate import for_output

CORPUS = Path(os.environ.get("PIPEWAVE_DATA", "shared/data")) / "models"
OTHER = read_json(OTHER_NAMES)

MAKERS_CONFIGS = {
    "DeepSeek-V3.2": "deepseek-ai--DeepSeek-V3.2",
    "DeepSeek-V4-Flash": "deepseek-ai--DeepSeek-V4-Flash",
    "DeepSeek-V4-Pro": "deepseek-ai--DeepSeek-V4-Pro",
    "GLM-5": "zai-org--GLM-5",
    "GLM-5-FP8": "zai-org--GLM-5-FP8",
    "GLM-5.1": "zai-org--GLM-5.1",
    "GLM-5.1-FP8": "zai-org--GLM-5.1-FP8",
    "GLM-5.2": "zai-org--GLM-5.2",
    "GLM-5.2-FP8": "zai-org--GLM-5.2-FP8",
    "Gemma-4-26B-A4B": "google--gemma-4-26B-A4B",
    "Kimi-K2.5": "moonshotai--Kimi-K2.5",
    "Kimi-K3": "moonshotai--Kimi-K3",
    "MiMo-V2-Flash": "XiaomiMiMo--MiMo-V2-Flash",
    "MiniMax-M2.5": "MiniMaxAI--MiniMax-M2.5",
    "MiniMax-M3": "MiniMaxAI--MiniMax-M3",
    "Nemotron-3-Nano-30B-A3B": "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "Nemotron-3-Ultra-550B-A55B": "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16",
    "Nemotron-H-56B": "nvidia--Nemotron-H-56B-Base-8K",
    "Qwen3-Coder-480B-A35B": "Qwen--Qwen3-Coder-480B-A35B-Instruct",
    "Qwen3-30B-A3B-FP8": "Qwen--Qwen3-30B-A3B-FP8",
    "Qwen3-32B-FP8": "Qwen--Qwen3-32B-FP8",
    "Qwen3-235B-A22B-FP8": "Qwen--Qwen3-235B-A22B-FP8",
    "Qwen3-VL-2B": "Qwen--Qwen3-VL-2B-Instruct",
    "Qwen3-VL-4B": "Qwen--Qwen3-VL-4B-Instruct",
    "Qwen3-VL-32B": "Qwen--Qwen3-VL-32B-Instruct",
    "Qwen3-VL-8B": "Qwen--Qwen3-VL-8B-Instruct",
    "Qwen3-VL-30B-A3B": "Qwen--Qwen3-VL-30B-A3B-Instruct",
    "Qwen3-VL-235B-A22B": "Qwen--Qwen3-VL-235B-A22B-Instruct",
    "Qwen3.5-27B": "Qwen--Qwen3.5-27B",
    "Qwen3.5-35B-A3B": "Qwen--Qwen3.5-35B-A3B",
    "Qwen3.5-122B-A10B": "Qwen--Qwen3.5-122B-A10B",
    "Qwen3.5-397B-A17B": "Qwen--Qwen3.5-397B-A17B",
}
# The corpus's copies of these two leave the tower out.
WITHOUT_TOWER = {
    "Llama-4-Scout-17B-16E": "meta-llama--Llama-4-Scout-17B-16E-Instruct",
    "Llama-4-Maverick-17B-128E": "meta-llama--Llama-4-Maverick-17B-128E-Instruct",
}
# As the safetensors of the hub add up, towers included.
TOTALS = {"Llama-4-Scout-17B-16E": 108_641_793_536, "Llama-4-Maverick-17B-128E": 401_583_781_376}
# Configs in tests/models/data, which leave lengths out.
SHORTENED = {"GLM-4.5": "GLM-4.5", "Kimi-K2-Thinking": "Kimi-K2-Thinking", "Qwen3-Next-80B-A3B": "Qwen3-Next-80B"}


def bare(model: ModelSpec) -> ModelSpec:
    return replace(model, name="", notes=())


def makers(folder: str) -> ModelSpec:
    if not (CORPUS / folder).is_dir():
        pytest.skip("the corpus is not here")
    return load(CORPUS / folder)


@pytest.mark.parametrize(("name", "folder"), MAKERS_CONFIGS.items())
def test_a_built_in_model_is_what_its_maker_published(name: str, folder: str) -> None:
    assert bare(load(name)) == bare(makers(folder))


@pytest.mark.parametrize(("name", "folder"), WITHOUT_TOWER.items())
def test_llama_4_is_what_its_maker_published(name: str, folder: str) -> None:
    published, built_in = makers(folder), load(name)
    assert published.tower is None and built_in.tower is not None
    assert bare(replace(built_in, tower=None)) == bare(published)


@pytest.mark.parametrize(("name", "total"), TOTALS.items())
def test_llama_4_counts_its_tower(name: str, total: int) -> None:
    assert parameters(load(name)) == total


def test_nemotron_3_super_is_its_fp8_checkpoint_in_16_bits() -> None:
    """The corpus holds two quantised checkpoints of it; the cache's type is the quantised ones' own."""
    full, quantised = load("Nemotron-3-Super-120B-A12B"), makers("nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8")
    assert parameters(full) == parameters(quantised)
    assert [len(layer.parts) for layer in full.layers] == [len(layer.parts) for layer in quantised.layers]
    assert {matrix.precision.dtype for layer in full.layers for matrix in layer.linears()} == {"bf16"}


# Totals of the checkpoints' safetensors on the hub. That of 8 billion has no head of its own, as none runs.
EMBEDDINGS = {
    "Qwen3-Embedding-0.6B": 595_776_512,
    "Qwen3-Embedding-4B": 4_021_774_336,
    "Qwen3-Embedding-8B": 7_567_295_488,
}


@pytest.mark.parametrize(("name", "total"), EMBEDDINGS.items())
def test_an_embedding_model_counts_what_its_checkpoint_holds(name: str, total: int) -> None:
    assert parameters(for_output(load(name), 0)) == total


@pytest.mark.parametrize(("name", "published"), SHORTENED.items())
def test_a_built_in_model_is_its_shortened_config(name: str, published: str) -> None:
    one, other = load(name), parse(expand(PUBLISHED[published]["config"]), name)
    differ = {each.name for each in fields(one) if getattr(one, each.name) != getattr(other, each.name)}
    assert differ <= {"max_length", "notes"}
    assert parameters(one) / 1e9 == pytest.approx(PUBLISHED[published]["billions"], rel=0.01)


def test_models_of_one_shape_differ_in_length_alone() -> None:
    for one, other in (
        ("GLM-4.5", "GLM-4.6"),
        ("Qwen3-30B-A3B", "Qwen3-Coder-30B-A3B"),
        ("Kimi-K2", "Kimi-K2-Thinking"),
    ):
        assert parameters(load(one)) == parameters(load(other))
        assert load(one).max_length < load(other).max_length  # type: ignore[operator]


@pytest.mark.parametrize(("release", "name"), OTHER["releases"].items())
def test_a_release_keeps_its_name_and_has_the_shape_of_its_model(release: str, name: str) -> None:
    assert load(release).name == release
    assert bare(load(release)) == bare(load(name))


@pytest.mark.parametrize(("spelling", "name"), OTHER["short"].items())
def test_another_spelling_is_the_same_model(spelling: str, name: str) -> None:
    assert load(spelling) is load(name)


@pytest.mark.parametrize(
    ("hub", "name"),
    [
        ("deepseek-ai/DeepSeek-V3.1-Base", "DeepSeek-V3.1"),
        ("google/gemma-4-26B-A4B-it", "Gemma-4-26B-A4B"),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "Llama-4-Scout-17B-16E"),
        ("moonshotai/Kimi-K2-Thinking", "Kimi-K2-Thinking"),
        ("Qwen/Qwen3-Next-80B-A3B-Thinking", "Qwen3-Next-80B-A3B"),
        ("zai-org/GLM-5", "GLM-5"),
        ("zai-org/GLM-5-FP8", "GLM-5-FP8"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "Qwen/Qwen3-235B-A22B-FP8"),
        ("Qwen/Qwen3-4B-Thinking-2507-FP8", "Qwen/Qwen3-4B-FP8"),
        ("Qwen3-8B-FP8", "Qwen/Qwen3-8B-FP8"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "DeepSeek-R1-Distill-Llama-70B"),
    ],
)
def test_names_on_the_hub_are_known(hub: str, name: str) -> None:
    assert load(hub).name == name


@pytest.mark.parametrize(
    "hub",
    [
        "deepseek-ai/DeepSeek-V4-Flash-Base",
        "meta-llama/Llama-3.1-405B-Instruct-FP8",
        "meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8",
        "nvidia/DeepSeek-V3.2-NVFP4",
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8",
        "Qwen/Qwen3-Next-80B-A3B-Thinking-FP8",
        "nvidia/GLM-5-NVFP4",
    ],
)
def test_a_checkpoint_in_another_precision_is_not_taken_for_the_model(hub: str) -> None:
    with pytest.raises(UnknownModel, match="pass a config"):
        load(hub)
