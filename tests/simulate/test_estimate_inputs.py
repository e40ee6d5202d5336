"""Embeddings, encoders and images: no output tokens, tokens of pictures, and the tower's own time."""

from __future__ import annotations

import pytest

from pipewave.calls.families import Gemm
from pipewave.errors import BadInput
from pipewave.models import load
from pipewave.models.config import parse
from pipewave.models.kernels import Batch, Deployment
from pipewave.simulate import estimate

SIZES = {"batch": 4, "input_len": 500}
BERT = {
    "model_type": "bert", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
    "intermediate_size": 4096, "vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2,
    "hidden_act": "gelu",
}  # fmt: skip
TEXT = {
    "model_type": "qwen3_vl_text", "hidden_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 6144, "vocab_size": 151936,
}  # fmt: skip
VISION = {
    "model_type": "qwen3_vl", "depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16,
    "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 2304,
    "out_hidden_size": 2048, "deepstack_visual_indexes": [5, 11, 17],
}  # fmt: skip
PICTURES = {"model_type": "qwen3_vl", "text_config": TEXT, "vision_config": VISION}


def test_an_embedding_runs_no_head_and_generates_nothing() -> None:
    pooled = estimate("Qwen3-8B", "H100", **SIZES, output_len=0)
    first = estimate("Qwen3-8B", "H100", **SIZES, output_len=1)
    assert pooled.prefill_ms == pooled.e2e_ms < first.prefill_ms
    assert (pooled.tpot_ms, pooled.output_tokens_per_s) == (0.0, 0.0)


@pytest.mark.parametrize("wrong", [{"tp": [1, 2]}, {"ep": {}}, {"kv_dtype": [1]}, {"moe_backend": {}}, {"host": [1]}])
def test_what_cannot_be_looked_up_is_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(BadInput, match=next(iter(wrong))):
        estimate("Qwen3-8B", "H100", **SIZES, output_len=8, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", [[], {"a": 1}, None])
def test_what_is_no_engine_is_refused(engine: object) -> None:
    with pytest.raises(BadInput, match=r"engine = .*must be one of vllm"):
        estimate("Qwen3-8B", "H100", **SIZES, output_len=1, engine=engine)  # type: ignore[arg-type]


def test_an_encoder_sees_both_ways_and_keeps_nothing() -> None:
    model = parse(BERT, "bge")
    calls = [use.call for use in Deployment(model).kernels(Batch((100, 200), (100, 200)))]
    assert [call.causal for call in calls if call.kernel == "attention"] == [False]  # type: ignore[attr-defined]
    found = estimate(model, "L40S", **SIZES, output_len=0)
    assert found.memory_gib["kv_used"] == 0.0
    with pytest.raises(BadInput, match="encoder") as caught:
        estimate(model, "L40S", **SIZES, output_len=5)
    assert caught.value.field == "output_len"


def test_images_bring_tokens_and_the_work_of_the_tower() -> None:
    model = parse(PICTURES, "pictures")
    assert model.tower is not None
    assert model.tower.tokens == (768 // 16 // 2) ** 2
    plain, seen = (estimate(model, "H100", **SIZES, output_len=8, images=count) for count in (0, 2))
    longer = estimate(model, "H100", batch=4, input_len=500 + 2 * model.tower.tokens, output_len=8)
    tower = seen.breakdown["prefill_ms"]["vision_tower"]
    assert seen.prefill_ms == pytest.approx(longer.prefill_ms + tower)
    assert seen.tpot_ms == longer.tpot_ms
    assert plain.prefill_ms < seen.prefill_ms_low < seen.prefill_ms < seen.prefill_ms_high
    # two FLOPs a weight of the layers and patch; embedding and merger come on top
    products = [use for use in Deployment(model).images(1) if isinstance(use.call, Gemm)]
    work = sum(2.0 * use.call.m * use.call.n * use.call.k * use.count for use in products)
    layers = 2.0 * 48**2 * 24 * (4 * 1024**2 + 2 * 1024 * 4096)
    assert layers < work < 1.1 * layers


def test_images_need_a_tower() -> None:
    with pytest.raises(BadInput, match="no vision tower") as caught:
        estimate(load("Qwen3-8B"), "H100", **SIZES, output_len=1, images=1)
    assert caught.value.field == "images"
