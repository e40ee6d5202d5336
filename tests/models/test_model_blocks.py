"""A model as blocks: what the parts hold adds up to the whole, and the pattern says how layers follow one another."""

from __future__ import annotations

import pytest
from model_families import FAMILIES, expand

from pipewave.models import load
from pipewave.models.attention_spec import Gqa
from pipewave.models.config import parse
from pipewave.models.shard import (
    Parallel,
    front_params,
    kv_bytes_per_token,
    layer_bytes,
    norms_of,
    parameters,
    state_bytes,
    stream_params,
    weight_bytes,
)
from pipewave.models.summary import GIB, blocks, pattern, rows


@pytest.mark.parametrize("name", FAMILIES)
def test_parts_add_up_to_the_model(name: str) -> None:
    model = parse(expand(FAMILIES[name]["config"]), name)
    found = [(block.count, part) for block in blocks(model).blocks for part in block.parts]
    outside = model.vocab * model.hidden + front_params(model) + (norms_of(model) + model.final_norm) * model.norm_width
    outside += (model.lm_head.out if model.lm_head.bias else 0) if model.tied else model.lm_head.params
    outside += stream_params(model, len(model.layers)) + (model.hyper.head_params if model.hyper else 0)
    assert sum(count * part.parameters for count, part in found) + outside == parameters(model)
    assert sum(count * part.kv_bytes for count, part in found) == pytest.approx(kv_bytes_per_token(model))
    assert sum(count * part.state_bytes for count, part in found) == state_bytes(model)
    held = sum(layer_bytes(layer, Parallel()) * count for layer, count in model.grouped())
    assert sum(count * part.weight_bytes for count, part in found) == pytest.approx(held, rel=1e-3)
    listed, padding = rows(model), 2 * 2 * 64 * model.hidden  # engines pad the vocabulary, here and in the head
    assert sum(row["parameters"] for row in listed) == parameters(model)
    gib = sum(row["GiB on a rank"] for row in listed)
    assert gib == pytest.approx(weight_bytes(model) / GIB, abs=5e-5 * len(listed) + padding / GIB)


@pytest.mark.parametrize("name", ["Qwen3-Next-80B-A3B", "Qwen3.5-27B"])
def test_the_gate_of_an_attention_output_comes_out_of_the_input_map(name: str) -> None:
    """Queries, as many columns of gate, keys and values."""
    gated = [layer.mixer for layer in load(name).layers if isinstance(layer.mixer, Gqa)]
    assert gated
    for mixer in gated:
        assert mixer.gate == mixer.heads * mixer.head_dim
        assert mixer.qkv.out == (2 * mixer.heads + 2 * mixer.kv_heads) * mixer.head_dim


def test_work_of_a_dense_model_is_two_a_weight() -> None:
    for block in blocks(load("Llama-3.1-8B")).blocks:
        for part in block.parts:
            assert part.flops == 2 * part.parameters


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ("AAAA", "4×A"),
        ("AAABBBB", "3×A 4×B"),
        ("AAAB" * 5, "(3×A B)×5"),
        ("C" + "AAAB" * 3 + "C", "C (3×A B)×3 C"),
        ("ABC", "A B C"),
        ("", ""),
        ("AB", "A B"),
        ("ABAB", "(A B)×2"),
        ("ABABA", "(A B)×2 A"),
        ("AAABAABAABAA", "3×A (B 2×A)×3"),
        ("ABABCDECDECDE", "A B A B (C D E)×3"),
        ("ABCDEFGHIJKLMNOP" * 2, "(A B C D E F G H I J K L M N O P)×2"),
    ],
)
def test_pattern_of_layers(order: str, words: str) -> None:
    assert pattern(order) == words
