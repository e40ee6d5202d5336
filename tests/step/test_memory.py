"""Memory of a card, beside arithmetic by hand from the model's published sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipewave.errors import DoesNotFit
from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.kernels import Deployment
from pipewave.models.shard import Parallel
from pipewave.step import find_engine
from pipewave.step.memory import DRIVER_GIB, Budget, activation_bytes, budget, cache_bytes, requests_in

GIB = 2.0**30
LLAMA = {"hidden": 4096, "inter": 14336, "vocab": 128_256, "parameters": 8_030_261_248}
LOGIT_BYTES = 2 + 13  # in bf16, and what the sampler keeps of it


@pytest.mark.parametrize("tp", [1, 2, 5])
@pytest.mark.parametrize(("tokens", "requests"), [(8192, 1024), (8192, 8), (64, 64)])
def test_activations_of_a_dense_model(tokens: int, requests: int, tp: int) -> None:
    """The larger of a layer's pass over all tokens (residual stream four times, gate, up and their product) and of
    sampling (last hidden states, logits)."""
    forward = tokens * 2 * (4 * LLAMA["hidden"] + 3 * LLAMA["inter"] / tp)
    sampling = tokens * 2 * LLAMA["hidden"] + requests * LLAMA["vocab"] * (2 / tp + 13)
    found = activation_bytes(Deployment(load("Llama-3.1-8B"), Parallel(tp)), tokens, requests)
    assert found == pytest.approx(max(forward, sampling))


@pytest.mark.parametrize(("tokens", "requests"), [(8192, 1024), (8192, 1)])
def test_activations_of_routed_experts(tokens: int, requests: int) -> None:
    """Mixtral: two experts a token, two intermediate results as wide as the wider of 2 · 14336 and 4096."""
    kept = tokens * 2 * 2.0 * 2 * 28_672
    forward = tokens * 2 * (4 * 4096 + 2 * (28_672 + 14_336))
    sampling = tokens * 2 * 4096 + requests * 32_000 * LOGIT_BYTES
    found = activation_bytes(Deployment(load("Mixtral-8x7B")), tokens, requests)
    assert found == pytest.approx(max(forward, sampling + kept))


def test_shared_experts_stand_beside_the_routed_ones() -> None:
    """DeepSeek-V2-Lite: six of 1408 routed, two shared of 1408 as one of 2816; one dense layer of 10,944."""
    tokens, model = 4096, load("DeepSeek-V2-Lite")
    routed = 6 * (2 * 1408 + 1408) + 3 * 2816
    kept = tokens * 2 * 2.0 * 6 * 2816
    forward = tokens * 2 * (4 * 2048 + max(routed, 3 * 10_944))
    sampling = tokens * 2 * 2048 + 1 * 102_400 * LOGIT_BYTES
    assert activation_bytes(Deployment(model), tokens, 1) == pytest.approx(max(forward, sampling + kept))


@pytest.mark.parametrize("law", ["whole", "static", "free"])
def test_what_is_left_for_the_cache_under_each_law(law: str) -> None:
    gpu, share = find("H200"), 0.8
    engine = find_engine("vllm").what_if(memory_of=law, memory_share=share, runtime_gib=1.5, graph_gib=2.5)
    found = budget(Deployment(load("Llama-3.1-8B")), gpu, engine, max_batched_tokens=8192)
    total, weights = 140.4 - DRIVER_GIB, 2 * LLAMA["parameters"] / GIB
    peak = (8192 * 2 * 4096 + 1024 * LLAMA["vocab"] * LOGIT_BYTES) / GIB
    left = {
        "whole": total * share - weights - peak - 4.0,
        "static": (total - 4.0) * share - weights,
        "free": (total - weights - peak - 4.0) * share,
    }[law]
    assert found.weights == pytest.approx(weights, rel=1e-3)
    assert (found.activations, found.engine) == (pytest.approx(peak), pytest.approx(4.0))
    assert found.kv == pytest.approx(left, rel=1e-3)
    assert found.kv_tokens == pytest.approx(left * GIB / (2 * 8 * 128 * 2 * 32), rel=1e-3)  # K and V of 32 layers
    assert found.kv_tokens % engine.memory.page_size == 0


def test_what_does_not_fit_is_named_with_its_sizes() -> None:
    with pytest.raises(DoesNotFit, match=r"131\.4 GiB of weights a GPU and 2\.8 GiB .* 72\.8 GiB"):
        budget(Deployment(load("Llama-3.1-70B")), find("H100"), find_engine("vllm"))


def test_experts_are_stored_as_wide_as_their_kernel_wants_them() -> None:
    """gpt-oss-120b, 36 layers of 128 experts of 2880 × 2880 in 4.25 bits: Marlin pads them to 3072 × 2944."""
    deployment, gpu = Deployment(load("gpt-oss-120b")), find("A100")
    plain, padded = (36 * 128 * 3 * hidden * inter * 4.25 / 8 for hidden, inter in ((2880, 2880), (3072, 2944)))
    marlin = budget(deployment, gpu, find_engine("vllm:0.11.0")).weights
    other = budget(deployment, gpu, find_engine("trtllm")).weights
    assert marlin - other == pytest.approx((padded - plain) / GIB, rel=0.01)


def test_a_chunk_in_windows_is_held_once_and_not_by_every_request() -> None:
    """Half of gpt-oss's layers see 128 tokens: decoding requests give the pages of older ones back."""
    deployment, engine = Deployment(load("gpt-oss-20b")), find_engine("vllm:0.11.0")
    memory, length, chunk = budget(deployment, find("A100"), engine), 4000, 2048
    each = 2 * 8 * 64 * 2 * 12 * (length + 128)  # K and V of twelve layers of each kind
    assert cache_bytes(deployment, length) == each
    once = 2 * 8 * 64 * 2 * 12 * (length - 128 if length < 128 + chunk else chunk)
    assert requests_in(deployment, memory, length, chunk) == pytest.approx((memory.kv * GIB - once) / each)
    other = budget(deployment, find("A100"), find_engine("trtllm"))
    whole = cache_bytes(deployment, length, chunk=chunk)
    assert requests_in(deployment, other, length, chunk) == pytest.approx(other.kv * GIB / whole)


def test_the_report_names_every_part_to_a_thousandth() -> None:
    """GiB by part add up to the card's."""
    found = budget(Deployment(load("Llama-3.1-8B")), find("H100"), find_engine("vllm"))
    told = found.to_dict()
    parts = ("weights", "activations", "engine", "kv", "free")
    assert [told[name] for name in (*parts, "total")] == [round(getattr(found, name), 3) for name in (*parts, "total")]
    assert sum(told[name] for name in parts) == pytest.approx(told["total"], abs=0.003)
    assert told["kv_tokens"] == found.kv_tokens


def test_requests_of_a_pool_of_states_by_hand() -> None:
    """Three states a request out of their own pool, its cache out of the rest; all out of the pages without a pool."""
    deployment = Deployment(load("Qwen3-Next-80B-A3B"), Parallel(4))
    memory = Budget(70.0, 40.0, 5.0, 5.0, kv=20.0, free=0.0, kv_tokens=0, state_pool=2.5, states=3)
    room = 2.5 * GIB / deployment.state_bytes
    assert requests_in(deployment, memory, 100, 0) == pytest.approx(room / 3, rel=1e-12)
    assert requests_in(deployment, memory, 10**7, 0) == pytest.approx(
        17.5 * GIB / cache_bytes(deployment, 10**7, states=0)
    )
    alone = replace(memory, state_pool=0.0)
    assert requests_in(deployment, alone, 100, 0) == pytest.approx(20 * GIB / cache_bytes(deployment, 100, states=3))
