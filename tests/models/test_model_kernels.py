"""A batch as kernel calls: the work in the calls is the work of the model, whatever the split."""

from __future__ import annotations

import pytest
from model_families import FAMILIES, expand

from pipewave.calls.families import Attention, Collective, FusedMoe, Gemm
from pipewave.errors import BadInput, CannotShard
from pipewave.models import load
from pipewave.models.attention_spec import Compressed, Gqa
from pipewave.models.config import parse
from pipewave.models.kernels import Batch, Deployment, Use
from pipewave.models.shard import Parallel, active_parameters, kv_bytes_per_token, padded_vocab

DECODE = Batch((1,) * 8, (1000,) * 8)
PROMPT = Batch((300, 200), (300, 500))


def flops(uses: list[Use]) -> float:
    """Multiply-adds × 2 of the matrix products."""
    total = 0.0
    for use in uses:
        call = use.call
        if isinstance(call, Gemm):
            total += 2.0 * call.m * call.n * call.k * use.count
        if isinstance(call, FusedMoe):
            total += 6.0 * call.tokens * call.topk * call.hidden * call.inter / (call.tp * call.ep) * use.count
    return total


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "Qwen2.5-14B", "Qwen3-32B", "Gemma-2-9B", "Qwen3-30B-A3B", "Phi-4"])
def test_products_do_two_flops_a_parameter_and_token(name: str) -> None:
    model = load(name)
    work = flops(Deployment(model).kernels(DECODE))
    head = 2.0 * DECODE.requests * padded_vocab(model) * model.hidden
    body = 2.0 * DECODE.rows * (active_parameters(model) - model.vocab * model.hidden * (1 if model.tied else 2))
    assert work == pytest.approx(body + head, rel=2e-3)  # norms and biases are no products


@pytest.mark.parametrize("parallel", [Parallel(2), Parallel(4), Parallel(2, 2), Parallel(1, 3), Parallel(8)])
@pytest.mark.parametrize("name", ["Llama-3.1-70B", "Qwen3-30B-A3B", "Qwen2.5-32B"])
def test_ranks_share_the_work(name: str, parallel: Parallel) -> None:
    model = load(name)
    whole = flops(Deployment(model).kernels(PROMPT))
    ranks = sum(flops(Deployment(model, parallel).kernels(PROMPT, stage)) for stage in range(parallel.pp))
    assert ranks * parallel.tp >= whole * 0.999
    assert ranks * parallel.tp <= whole * 1.08  # repeated KV heads and routers


@pytest.mark.parametrize(
    "name", ["Llama-3.1-8B", "DeepSeek-V3", "gpt-oss-20b", "Gemma-3-27B", "Phi-2", "Qwen2-57B-A14B"]
)
@pytest.mark.parametrize("batch", [DECODE, PROMPT, Batch((1, 1, 64), (10, 900, 64))])
def test_the_three_parts_are_all_kernels(name: str, batch: Batch) -> None:
    deployment = Deployment(load(name), Parallel(2) if name != "gpt-oss-20b" else Parallel())
    parts = deployment.by_rows(batch) + deployment.by_requests(batch) + deployment.by_length(batch)
    assert sorted(map(repr, parts)) == sorted(map(repr, deployment.kernels(batch)))


def test_one_gpu_communicates_nothing() -> None:
    uses = Deployment(load("Llama-3.1-8B")).kernels(PROMPT)
    assert not any(isinstance(use.call, Collective) for use in uses)


def test_tensor_parallel_reduces_twice_a_layer_and_once_for_the_embedding() -> None:
    model = load("Llama-3.1-8B")
    uses = Deployment(model, Parallel(4)).kernels(PROMPT)
    reduces = [use for use in uses if use.call.kernel == "all_reduce"]
    assert sum(use.count for use in reduces) == 2 * 32 + 1
    assert {use.call.bytes for use in reduces} == {500 * 4096 * 2}  # type: ignore[attr-defined]


def test_pipeline_hands_over_and_splits_layers() -> None:
    deployment = Deployment(load("Llama-3.1-8B"), Parallel(2, 2))
    first, last = (deployment.kernels(PROMPT, stage) for stage in (0, 1))
    named = [{use.name: use.count for use in uses} for uses in (first, last)]
    assert [n["qkv_proj"] for n in named] == [16, 16]
    assert "stage_send_recv" in named[0]
    assert "lm_head" not in named[0]
    assert "lm_head" in named[1]
    assert "embedding" not in named[1]


@pytest.mark.parametrize(
    ("split", "host_gpus", "hosts"),
    [((2, 4), 8, [1, 1, 1]), ((2, 4), 4, [1, 2, 1]), ((4, 3), 8, [1, 2]), ((1, 3), 1, [2, 2]), ((8, 2), 4, [2])],
)
def test_stages_on_different_hosts_hand_over_by_the_network(
    split: tuple[int, int], host_gpus: int, hosts: list[int]
) -> None:
    deployment = Deployment(load("Llama-3.1-8B"), Parallel(*split), host_gpus=host_gpus)
    stages = [deployment.kernels(PROMPT, stage) for stage in range(split[1] - 1)]
    assert [use.call.nodes for uses in stages for use in uses if use.name == "stage_send_recv"] == hosts  # type: ignore[attr-defined]


def test_window_softcap_and_sinks_reach_the_attention_call() -> None:
    calls = [u.call for u in Deployment(load("gpt-oss-20b")).kernels(DECODE) if isinstance(u.call, Attention)]
    assert [(c.window, c.sinks, c.softcap) for c in calls] == [(128, True, None), (None, True, None)]
    gemma = [u.call for u in Deployment(load("Gemma-2-9B")).kernels(DECODE) if isinstance(u.call, Attention)]
    assert {c.softcap for c in gemma} == {50.0}


def test_latent_attention_splits_prompts_from_decode() -> None:
    uses = {u.name: u.call for u in Deployment(load("DeepSeek-V3"), Parallel(8)).kernels(Batch((1, 64), (900, 64)))}
    assert uses["mla_generation"].kv_lens == (900,)  # type: ignore[attr-defined]
    assert uses["mla_context"].q_lens == (64,)  # type: ignore[attr-defined]
    assert uses["qkv_a_proj"].n == 1536 + 512 + 64  # type: ignore[attr-defined]


def test_lm_head_is_cut_by_tp() -> None:
    head = next(u.call for u in Deployment(load("Llama-3.1-8B"), Parallel(4)).kernels(DECODE) if u.name == "lm_head")
    assert (head.m, head.n, head.k) == (8, 128256 // 4, 4096)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "parallel", "field"),
    [
        ("Llama-3.1-8B", (3, 1, 1), "tp"),
        ("Qwen2.5-7B", (8, 1, 1), "tp"),
        ("Phi-4", (4, 1, 1), "tp"),
        ("Llama-3.1-8B", (1, 33, 1), "pp"),
        ("Llama-3.1-8B", (2, 1, 2), "ep"),
        ("gpt-oss-20b", (64, 1, 64), "ep"),
    ],
)
def test_splits_that_do_not_divide(name: str, parallel: tuple[int, int, int], field: str) -> None:
    with pytest.raises(CannotShard) as caught:
        Parallel(*parallel).check(load(name))
    assert caught.value.field == field


def test_kv_bytes_of_known_models() -> None:
    assert kv_bytes_per_token(load("Llama-3.1-8B")) == 131_072
    assert kv_bytes_per_token(load("Llama-3.1-70B"), Parallel(4)) == 81_920
    assert kv_bytes_per_token(load("DeepSeek-V3")) == 61 * 576 * 2
    # fewer KV heads than ranks: every rank keeps one
    assert kv_bytes_per_token(load("Qwen3-30B-A3B"), Parallel(8)) == 48 * 2 * 128 * 2


def test_batches_without_tokens_are_refused() -> None:
    for q_lens, kv_lens in (((), ()), ((0,), (5,)), ((4,), (3,)), ((1, 1), (5,))):
        with pytest.raises(BadInput):
            Batch(q_lens, kv_lens)


def test_padding_to_a_graph_pads_products_only() -> None:
    uses = Deployment(load("Llama-3.1-8B")).kernels(Batch((1,) * 9, (64,) * 9, padded=16))
    by_name = {use.name: use.call for use in uses}
    assert by_name["qkv_proj"].m == 16  # type: ignore[attr-defined]
    assert len(by_name["attention"].q_lens) == 9  # type: ignore[attr-defined]
    assert isinstance(load("Llama-3.1-8B").layers[0].mixer, Gqa)


def test_families_split_into_three_parts_and_do_the_work_of_their_matrices() -> None:
    """Every kind of part: all kernels are the three parts together, and each matrix multiplies each token once."""
    for name, case in FAMILIES.items():
        model = parse(expand(case["config"]), name)
        deployment = Deployment(model)
        for batch in (DECODE, PROMPT):
            parts = deployment.by_rows(batch) + deployment.by_requests(batch) + deployment.by_length(batch)
            assert sorted(map(repr, parts)) == sorted(map(repr, deployment.kernels(batch))), name
        linears = [linear for layer in model.layers for linear in layer.linears()]
        names = {linear.name for linear in linears} - {"kv_b_proj"}
        called = [u for u in deployment.by_rows(DECODE) if isinstance(u.call, Gemm) and u.name in names]
        whole = [
            m
            for layer in model.layers
            for mixer in layer.mixers
            if isinstance(mixer, Compressed) or getattr(mixer, "indexer", None)
            for m in mixer.linears()
        ]
        due = sum(m.out * m.inp / m.groups for m in linears if m.name in names)
        due -= sum(m.out * m.inp / m.groups for m in whole if m.name in names)
        assert sum(u.call.n * u.call.k * u.count for u in called) == pytest.approx(due, rel=1e-6), name  # type: ignore[attr-defined]


def test_recurrences_and_modules_name_their_own_kernels() -> None:
    qwen = parse(expand(FAMILIES["qwen3_next"]["config"]), "x")
    mixed = Batch((1, 64), (900, 64))
    calls = {(u.call.kernel, getattr(u.call, "phase", "")): u.count for u in Deployment(qwen).kernels(mixed)}
    assert calls["delta_net", "context"] == calls["delta_net", "generation"] == 36
    assert calls["causal_conv1d", "context"] == 36
    sparse = Deployment(parse(expand(FAMILIES["deepseek_v32"]["config"]), "x"), Parallel(8)).by_length(mixed)
    modules = {u.call.phase: u.call for u in sparse if u.call.kernel == "attention_module"}  # type: ignore[attr-defined]
    assert (modules["generation"].heads, modules["generation"].topk) == (16, 2048)  # type: ignore[attr-defined]
    assert modules["context"].q_lens == (64,)  # type: ignore[attr-defined]


def test_chunks_are_requests_of_their_own() -> None:
    """Llama 4: a query sees its own chunk; every fourth layer sees all."""
    model = parse(expand(FAMILIES["llama4_text"]["config"]), "x")
    uses = Deployment(model).by_length(Batch((10_000, 1), (20_000, 8193)))
    chunked, whole = sorted((u.call for u in uses), key=lambda call: len(call.q_lens), reverse=True)  # type: ignore[attr-defined]
    assert chunked.q_lens == (6384, 3616, 1)  # type: ignore[attr-defined]
    assert chunked.kv_lens == (8192, 3616, 1)  # type: ignore[attr-defined]
    assert whole.kv_lens == (20_000, 8193)  # type: ignore[attr-defined]
    assert [u.count for u in uses] == [36, 12]
