"""Towers beside a language model: parameters against those of the public classes, built without memory."""

from __future__ import annotations

import pytest

from pipewave.errors import UnsupportedModel
from pipewave.models import load
from pipewave.models.config import parse
from pipewave.models.config_fields import Fields
from pipewave.models.shard import parameters, weight_bytes
from pipewave.models.vision import audio_params, read_tower

# Tensors of the towers and projectors of transformers 5.23's classes at their configs' defaults.
HEARD = {
    "qwen2_audio_encoder": (4096, 642_215_936),
    "voxtral_encoder": (3072, 662_134_784),
}
LLAMA = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 1000,
}  # fmt: skip


@pytest.mark.parametrize("kind", HEARD)
def test_audio_towers_hold_what_their_classes_do(kind: str) -> None:
    hidden, total = HEARD[kind]
    assert audio_params({"model_type": kind}, hidden) == total


def test_an_audio_tower_is_counted_and_told() -> None:
    section = {"model_type": "qwen2_audio_encoder", "encoder_layers": 2, "d_model": 64, "encoder_ffn_dim": 128}
    heard = parse({"model_type": "qwen2_audio", "text_config": LLAMA, "audio_config": section}, "x")
    silent = parse(LLAMA, "x")
    assert parameters(heard) - parameters(silent) == heard.audio_params > 0
    assert weight_bytes(heard) - weight_bytes(silent) == 2 * heard.audio_params
    assert "counted in memory" in heard.notes[0]
    unknown = parse({"model_type": "new", "text_config": LLAMA, "audio_config": {"model_type": "new"}}, "x")
    assert (unknown.audio_params, "neither counted" in unknown.notes[0]) == (0, True)


def test_llama_vision_counts_both_kinds_of_layers() -> None:
    section = {"model_type": "mllama_vision_model", "hidden_size": 1280, "intermediate_size": 5120, "attention_heads": 16,
               "num_hidden_layers": 32, "num_global_layers": 8, "vision_output_dim": 7680, "image_size": 448,
               "supported_aspect_ratios": [[1, 1]] * 8}  # fmt: skip
    tower = read_tower(section, Fields({}), 4096)
    assert tower.layers == 40
    assert tower.params == pytest.approx(836.3e6 + 31.5e6, rel=1e-3)


def test_a_decoder_over_an_encoder_is_refused_by_name() -> None:
    whisper = {"model_type": "whisper", "d_model": 384, "encoder_layers": 4, "decoder_layers": 4, "vocab_size": 51865}
    with pytest.raises(UnsupportedModel, match="attends to an encoder"):
        load(whisper)


def test_a_pooled_encoder_holds_the_map_before_its_answer() -> None:
    """bert-base: 109,482,240 tensors' elements, pooler included, as its checkpoint holds."""
    bert = {
        "model_type": "bert", "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 12, "vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2,
        "hidden_act": "gelu", "architectures": ["BertModel"],
    }  # fmt: skip
    assert parameters(parse(bert, "x")) == 109_482_240
