"""EAGLE-3 heads as their makers publish them: what they hold, and what drafting with one takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipewave.models import load
from pipewave.models.shard import parameters, weight_bytes
from pipewave.simulate import estimate

LLAMA = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 1, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "draft_vocab_size": 32000, "max_position_embeddings": 2048, "rms_norm_eps": 1e-05, "hidden_act": "silu",
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 128000, "pad_token_id": 0,
}  # fmt: skip
OSS = LLAMA | {
    "hidden_size": 2880, "target_hidden_size": 2880, "head_dim": 64, "intermediate_size": 17280, "vocab_size": 201088,
    "num_attention_heads": 64, "draft_vocab_size": 201088, "has_lm_head": True,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 17, 32], "use_aux_hidden_state": True},
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "hidden", "heads", "inter", "head"),
    [(LLAMA, 4096, (4096, 1024), 14336, 32000), (OSS, 2880, (4096, 512), 17280, 201088)],
)
def test_a_head_holds_what_its_parts_do(
    config: dict[str, object], hidden: int, heads: tuple[int, int], inter: int, head: int
) -> None:
    """A map of three hidden states, attention over embedding and hidden state side by side, a dense block, a head of
    the draft's own vocabulary and four norms; the embedding is the target's. That of Llama 3.1 is 849 MB on the hub."""
    queries, keys = heads
    attention = 2 * hidden * (queries + 2 * keys) + queries * hidden
    own = 3 * hidden * hidden + attention + 3 * hidden * inter + head * hidden + 4 * hidden
    model = load(config)
    assert parameters(model) == own
    assert weight_bytes(model) == pytest.approx(2 * own)


def test_the_speculators_library_wraps_the_same_head() -> None:
    """It states the layer in a section of its own, and the rest of the head around it."""
    outer = ("architectures", "draft_vocab_size", "torch_dtype")
    layer = {name: value for name, value in LLAMA.items() if name not in outer}
    around = {name: LLAMA[name] for name in outer} | {
        "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "transformer_layer_config": layer,
        "norm_before_residual": True, "target_hidden_size": None,
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "meta-llama/Llama-3.1-8B-Instruct"}},
    }  # fmt: skip
    wrapped, plain = load(around), load(LLAMA)
    assert (parameters(wrapped), weight_bytes(wrapped)) == (parameters(plain), weight_bytes(plain))
    assert wrapped.layers == plain.layers


def test_a_published_head_drafts_in_place_of_the_assumed_one(tmp_path: Path) -> None:
    """Its vocabulary is a quarter of the model's and its block as wide: a token comes a little sooner."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    said = {"method": "eagle3", "tokens": 3, "acceptance": 0.7}
    size = {"batch": 8, "input_len": 512, "output_len": 64}
    assumed = estimate("Llama-3.1-8B", "H100", speculative=said, **size)
    published = estimate("Llama-3.1-8B", "H100", speculative=said | {"model": str(path)}, **size)
    plain = estimate("Llama-3.1-8B", "H100", **size)
    assert 0.85 * assumed.tpot_ms < published.tpot_ms < assumed.tpot_ms < plain.tpot_ms
    held = published.memory_gib["weights"] - plain.memory_gib["weights"]
    assert held == pytest.approx(weight_bytes(load(LLAMA)) / 2**30, abs=0.01)
