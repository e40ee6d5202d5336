"""Every kind of part inside a step: finite, ordered, more work never faster, whatever the architecture of the GPU."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from pipewave.models.config import parse
from pipewave.models.shard import kv_bytes_per_token, state_bytes
from pipewave.simulate import estimate
from pipewave.step.memory import GIB
from tests.sampled import sampled

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from model_families import FAMILIES, PUBLISHED, expand

LAYERS = 8  # of each model; what follows is the same again
LISTS = ("layer_types", "mlp_layer_types", "indexer_types")
KINDS = {
    "gated delta net": FAMILIES["qwen3_next"],
    "delta attention": PUBLISHED["Kimi-Linear-48B-A3B"],
    "Mamba 2": PUBLISHED["Granite-4.0-H-Small"],
    "Mamba 1": PUBLISHED["Jamba-1.5-Mini"],
    "Mamba and attention side by side": FAMILIES["falcon_h1"],
    "short convolution": PUBLISHED["LFM2-8B-A1B"],
    "lightning attention": PUBLISHED["MiniMax-Text-01"],
    "sparse latent attention": FAMILIES["deepseek_v32"],
    "compressed attention": FAMILIES["deepseek_v4"],
    "chunks": FAMILIES["llama4_text"],
    "windows and sinks": FAMILIES["mimo_v2_flash"],
    "experts beside a dense block": FAMILIES["gemma4_text"],
}


def short(config: dict[str, Any]) -> dict[str, Any]:
    """The first layers of a model."""
    lists = {name: config[name][:LAYERS] for name in LISTS if isinstance(config.get(name), list)}
    return config | lists | {"num_hidden_layers": LAYERS}


@pytest.mark.parametrize(("kind", "gpu"), sampled(product(KINDS, ("H200", "B200", "A100")), 12))
def test_kinds_answer_on_any_card(kind: str, gpu: str) -> None:
    model = parse(short(expand(KINDS[kind]["config"])), kind)
    tp = 4 if gpu == "A100" else 1
    few, many = (estimate(model, gpu, tp=tp, batch=batch, input_len=600, output_len=16) for batch in (1, 32))
    for name in ("prefill_ms", "tpot_ms", "e2e_ms"):
        for found in (few, many):
            assert 0 < getattr(found, f"{name}_low") <= getattr(found, name) <= getattr(found, f"{name}_high")
        assert getattr(few, name) <= 1.05 * getattr(many, name)


def test_states_are_charged_to_each_request() -> None:
    model = parse(short(expand(FAMILIES["qwen3_next"]["config"])), "x")
    found = estimate(model, "H200", batch=64, input_len=100, output_len=28)
    # vLLM stores Qwen3-Next's states in 16 bits.
    held = 64 * (128 * kv_bytes_per_token(model) + state_bytes(model, width=2)) / GIB
    assert found.memory_gib["kv_used"] == pytest.approx(held, abs=1e-3)
    assert state_bytes(model) > 100 * kv_bytes_per_token(model)
