"""Small models with every size known: their kernels, matrices, bytes and patterns beside arithmetic by hand."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pytest
from model_families import FAMILIES, LLAMA, expand

from pipewave.calls.families import Collective, Elementwise, Gemm, RmsNorm
from pipewave.calls.fields import Call
from pipewave.errors import BadInput
from pipewave.models import Gqa, Mla, ModelSpec
from pipewave.models.attention_spec import Compressed
from pipewave.models.config import parse
from pipewave.models.kernels import Batch, Deployment
from pipewave.models.lora_and_drafts import Lora, adapter_bytes
from pipewave.models.shard import Parallel, kv_bytes_per_token, parameters, stage_bytes
from pipewave.models.summary import GIB, blocks, rows, summary
from pipewave.models.vision import Tower
from pipewave.step import find_engine

BATCH = Batch((3, 1, 1), (5, 9, 4))  # five tokens: a prompt that goes on, and two decodes
SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "vocab_size": 100, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16,
}  # fmt: skip
SMALL: dict[str, dict[str, Any]] = {
    "qwen3_next": SIZES | {
        "num_hidden_layers": 4, "full_attention_interval": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 8, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "num_experts": 6,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48,
    },
    "mamba": {
        "hidden_size": 64, "intermediate_size": 128, "state_size": 8, "conv_kernel": 4, "time_step_rank": 4,
        "num_hidden_layers": 3, "vocab_size": 100,
    },
    "muse_spark_text": SIZES | {
        "num_hidden_layers": 4, "sliding_window": 8, "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        "moe_intermediate_size": 32, "num_local_experts": 8, "num_experts_per_tok": 2, "moe_hidden_size": 48,
        "mlp_layer_types": ["sparse"] * 4,
    },
    "gemma3n_text": SIZES | {
        "num_hidden_layers": 4, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 2,
        "vocab_size_per_layer_input": 50, "hidden_size_per_layer_input": 12, "altup_num_inputs": 2,
        "num_kv_shared_layers": 2, "laurel_rank": 10, "tie_word_embeddings": True,
    },
    "hy_v4": SIZES | {
        "num_hidden_layers": 2, "q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 12, "qk_rope_head_dim": 4,
        "v_head_dim": 20, "mlp_layer_types": ["dense"] * 2, "layer_types": ["full_attention"] * 2,
        "num_key_value_heads": 4, "mla_use_output_gate": True,
    },
    "minimax_m3_vl_text": SIZES | {
        "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "dense_intermediate_size": 80,
        "mlp_layer_types": ["dense"] * 2, "index_n_heads": 4, "index_head_dim": 8, "index_block_size": 16,
        "index_topk_blocks": 3, "layer_types": ["sparse_attention"] * 2,
    },
}  # fmt: skip


def small(kind: str, **changes: Any) -> ModelSpec:
    return parse(SMALL[kind] | {"model_type": kind} | changes, "small")


def work(call: Call) -> str:
    """A call in a few numbers."""
    if isinstance(call, Gemm):
        return f"{call.m}.{call.n}.{call.k}"
    if isinstance(call, RmsNorm):
        return f"{call.rows}.{call.dim}"
    if isinstance(call, Elementwise):
        return f"{call.bytes_read}>{call.bytes_written}" + (f"+{call.weight_bytes}" if call.weight_bytes else "")
    if isinstance(call, Collective):
        return f"{call.bytes}/{call.world}"
    said = {f.name: getattr(call, f.name) for f in dataclasses.fields(call) if f.name not in ("kind", "phase", "dtype")}
    usual = {f.name: f.default for f in dataclasses.fields(call)}
    return ",".join("+".join(map(str, v)) if isinstance(v, tuple) else str(v) for k, v in said.items()
                    if v != usual[k] and not isinstance(v, str))  # fmt: skip


# Counts, names and sizes of kernels. Five rows of 64 in 16 bits are 640 bytes; a rank of two holds half of the heads.
HEAD = """1 final_norm 5.64; 1 last_rows 384>384; 1 lm_head 3.64.64; 1 logits_all_gather 768/2;
    1 logits_to_float 768>1536; 1 sample 1536>24"""
FIRST = "1 embedding 40>640+640; 1 embedding_all_reduce 640/2"
KERNELS = {
    # 2 heads of 16 values and 1 of 8 keys on a rank: 2·8 + 2·2·16 = 80 columns, 2·8 + 32 = 48 channels.
    "qwen3_next": (Parallel(2), f"""{FIRST}; 4 input_norm 5.64; 3 in_proj_qkvz 5.80.64; 3 in_proj_ba 5.4.64;
        3 delta_unpack 800>800; 3 causal_conv1d 3,48; 3 delta_prepare 288>288; 3 delta_output 192>384;
        3 delta_net 3,1,2,8,16; 3 causal_conv1d 1+1,48; 3 delta_net 1+1,1,2,8,16; 3 gated_norm 640>320;
        3 out_proj 5.64.32; 4 attention_all_reduce 640/2; 4 ffn_norm 5.64; 4 router 5.6.64; 4 topk 60>80;
        4 fused_moe 5,6,2,64,32,2; 4 shared_gate_up_proj 5.48.64; 4 shared_silu_and_mul 5,24; 4 shared_down_proj 5.64.24;
        4 shared_gate 5.1.64; 4 shared_add 1280>640; 4 ffn_all_reduce 640/2; 1 qkv_proj 5.96.64; 1 q_norm 10.16;
        1 k_norm 5.16; 1 rope 480>480+160; 1 kv_write 360>320; 1 attention 3+1+1,5+9+4,2,1,16; 1 output_gate 640>320;
        1 o_proj 5.64.32; {HEAD}"""),
    # 64 channels on a rank: states of 8 in fp32 are 2,048 bytes a request; x, dt and y and the 16 of B and C pass.
    "mamba": (Parallel(2), f"""{FIRST}; 3 input_norm 5.64; 3 in_proj 5.128.64; 3 x_proj 5.20.64; 3 dt_proj 5.64.4;
        3 causal_conv1d 3,64; 3 mamba1 {2048 + 3 * (192 + 16) * 2}>{2048 + 3 * (192 + 16) * 2 // 3};
        3 causal_conv1d 1+1,64; 3 mamba1 {4096 + 2 * 416}>{4096 + round(2 * 416 / 3)}; 3 out_proj 5.64.64;
        3 attention_all_reduce 640/2; {HEAD}"""),
    # A gate as wide as the 4 heads; experts at a width of 48, whose 10 tokens of two ranks are gathered and
    # summed; the fuller rank has the pairs of 11.
    "muse_spark_text": (Parallel(1, 1, 2, 2), """1 embedding 40>640+640; 4 input_norm 5.64; 4 qkv_proj 5.192.64;
        4 rope 960>960+160; 4 kv_write 680>640; 3 attention 3+1+1,5+9+4,4,2,16,8; 4 output_gate 1280>640;
        4 o_proj 5.64.64; 4 ffn_norm 5.64; 4 router 5.8.64; 4 topk 80>80; 4 latent_in 5.48.64; 4 moe_dispatch 960/2;
        4 fused_moe 11,8,2,48,32,2; 4 moe_combine 960/2; 4 latent_out 5.64.48; 12 more_norm 5.64;
        1 attention 3+1+1,5+9+4,4,2,16; 1 final_norm 5.64; 1 last_rows 384>384; 1 lm_head 3.128.64; 1 softcap 768>768;
        1 logits_to_float 768>1536; 1 sample 1536>24"""),
    # Two layers keep K and V, two borrow them; the small parts are 12, 10 and 2 wide, whole on every rank.
    "gemma3n_text": (Parallel(2), f"""{FIRST}; 1 per_layer_embedding 40>480+480; 1 per_layer_model_projection 5.48.64;
        2 altup_projection 5.64.64; 4 input_norm 5.64; 2 qkv_proj 5.64.64; 4 q_norm 10.16; 2 k_norm 5.16;
        2 rope 480>480+160; 2 kv_write 360>320; 2 attention 3+1+1,5+9+4,2,1,16,8; 4 o_proj 5.64.32;
        4 attention_all_reduce 640/2; 4 post_attention_norm 5.64; 4 ffn_norm 5.64; 4 gate_up_proj 5.96.64;
        4 silu_and_mul 5,48; 4 down_proj 5.64.48; 4 per_layer_gate 5.12.64; 4 per_layer_projection 5.64.12;
        4 activation 240>120; 4 laurel_left 5.10.64; 4 laurel_right 5.64.10; 4 activation 200>100;
        4 altup_router 5.2.64; 4 ffn_all_reduce 640/2; 4 post_ffn_norm 5.64; 12 more_norm 5.64;
        2 attention 3+1+1,5+9+4,2,1,16; 2 qkv_proj 5.32.64; 2 rope 320>320+160; 1 final_norm 5.64; 1 last_rows 384>384;
        1 lm_head 3.64.64; 1 logits_all_gather 768/2; 1 softcap 768>768; 1 logits_to_float 768>1536;
        1 sample 1536>24"""),
    # Of 4 heads and 4 of keys, 16 wide, on a rank: 3 of 16 blocks are chosen by 4 index heads of 8.
    "minimax_m3_vl_text": (Parallel(2), f"""{FIRST}; 2 input_norm 5.64; 2 msa_context 3,5,4,64,2,16,4,8,3,16;
        2 msa_generation 1+1,9+4,4,64,2,16,4,8,3,16; 2 attention_all_reduce 640/2; 2 ffn_norm 5.64;
        2 gate_up_proj 5.80.64; 2 silu_and_mul 5,40; 2 down_proj 5.64.40; 2 ffn_all_reduce 640/2; {HEAD}"""),
}  # fmt: skip


@pytest.mark.parametrize("kind", KERNELS)
def test_kernels_of_a_small_model(kind: str) -> None:
    parallel, listed = KERNELS[kind]
    found = [f"{u.count} {u.name} {work(u.call)}" for u in Deployment(small(kind), parallel).kernels(BATCH)]
    assert found == [" ".join(line.split()) for line in listed.split(";")]


@pytest.mark.parametrize(
    ("cached", "spread"),
    [
        # A prompt expands keys and values of all it sees: 2 heads of 12 + 20 from the latent 32.
        (True, ["kv_b_proj 5.64.32", "mla_context 3,5,2,32,4"]),
        (False, ["mla_context 3,3,2,32,4"]),
    ],
)
def test_kernels_of_latent_attention_with_a_gate(cached: bool, spread: list[str]) -> None:
    """Queries come from 24, latents are 32 + 4 wide, values 20, of two of four heads."""
    sparse = small("hy_v4")
    latent = [replace(mixer, indexer=None) for mixer in sparse.layers[0].mixers if isinstance(mixer, Mla)]
    model = replace(sparse, layers=(replace(sparse.layers[0], mixers=tuple(latent)),) * 2, hyper=None)
    batch = Batch((3, 1, 1), (5 if cached else 3, 9, 4))
    found = [f"{use.name} {work(use.call)}" for use in Deployment(model, Parallel(2)).kernels(batch)]
    prompt = spread if cached else ["kv_b_proj 3.64.32", *spread]
    begin = found.index("qkv_a_proj 5.60.64")
    assert found[begin : found.index("o_proj 5.64.40")] == [
        "qkv_a_proj 5.60.64", "q_a_norm 5.24", "kv_a_norm 5.32", "q_b_proj 5.32.24", "rope 120>120+40",
        "kv_write 400>360", *prompt, "q_absorb 2.64.12", "mla_generation 1+1,9+4,2,32,4", "v_absorb 2.40.32",
        "gate_proj 5.40.64", "output_gate 800>400",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "norms"),
    [
        ({"compiled": True}, ["qk_norm 480>60"]),  # 15 heads of 16 in 16 bits, a sum of squares in fp32 of each
        ({"compiled": False, "one_head_norm": True}, ["qk_norm 15.16"]),
        ({"compiled": False, "one_head_norm": False}, ["q_norm 10.16", "k_norm 5.16"]),
    ],
)
def test_norms_of_heads_as_engines_run_them(changes: dict[str, Any], norms: list[str]) -> None:
    engine = find_engine("vllm").what_if(**changes)
    uses = Deployment(small("qwen3_next"), Parallel(2), engine=engine).kernels(BATCH)
    assert [f"{use.name} {work(use.call)}" for use in uses if use.name in ("qk_norm", "q_norm", "k_norm")] == norms


def test_adapters_of_a_small_model() -> None:
    """Rank 4 in fp32 between, 3 of 3 adapters met by 5 rows; maps of 192, 256, 512, 256 by 256, 128, 256, 256."""
    model, lora = parse(LLAMA | {"num_hidden_layers": 6}, "x"), Lora(4, 3)
    uses = Deployment(model, Parallel(2), lora=lora).kernels(BATCH)
    maps, thin = [(192, 256), (256, 128), (512, 256), (256, 256)], 5 * 4 * 4
    wanted = [f"lora_shrink {5 * inp * 2}>{thin}+{3 * 4 * inp * 2}" for _, inp in maps]
    wanted += [f"lora_expand {thin + 5 * out * 2}>{5 * out * 2}+{3 * 4 * out * 2}" for out, _ in maps]
    found = {f"{use.name} {work(use.call)}": use.count for use in uses if use.name.startswith("lora")}
    assert set(found) == set(wanted) and sum(found.values()) == 6 * 2 * 4
    assert adapter_bytes(model, Parallel(2), lora) == 6 * 3 * 4 * sum(map(sum, maps)) * 2
    assert adapter_bytes(model, Parallel(2, 2), lora) == 3 * 3 * 4 * sum(map(sum, maps)) * 2


WINDOWS: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "gemma2"}, "W.W.W."),
    ({"model_type": "gpt_oss", "num_experts": 4, "num_experts_per_tok": 2}, "W.W.W."),
    ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 4}, "....WW"),
    ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 0}, "WWWWWW"),
    ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 6}, "......"),
    ({"model_type": "qwen2", "max_window_layers": 4}, "......"),
    ({"model_type": "qwen2", "use_sliding_window": False, "max_window_layers": 2}, "......"),
    ({"model_type": "mistral"}, "WWWWWW"),
    ({"model_type": "mistral", "sliding_window": None}, "......"),
    ({"model_type": "mistral", "sliding_window_pattern": 2}, "W.W.W."),
    ({"model_type": "gemma3_text"}, "WWWWW."),
    ({"model_type": "gemma3_text", "sliding_window_pattern": 3}, "WW.WW."),
    ({"model_type": "gemma3_text", "sliding_window_pattern": 1}, "......"),
    ({"model_type": "cohere2", "sliding_window_pattern": 4}, "WWW.WW"),
    ({"model_type": "gemma2", "layer_types": ["full_attention", "sliding_attention"] * 3}, ".W.W.W"),
]


@pytest.mark.parametrize(("config", "sliding"), WINDOWS)
def test_which_layers_slide(config: dict[str, Any], sliding: str) -> None:
    model = parse(LLAMA | {"num_hidden_layers": 6, "head_dim": 32, "sliding_window": 8} | config, "x")
    assert [getattr(layer.mixer, "window", 0) for layer in model.layers] == [8 if w == "W" else None for w in sliding]


@pytest.mark.parametrize(
    ("fields", "borrowed"),
    [
        ({"kv_source_layers": [0, 0, 2]}, [False, True, False, False]),
        ({"kv_source_layers": [0, 0, 2, 2, 9]}, [False, True, False, True]),
        ({"num_kv_shared_layers": 1}, [False, False, False, True]),
        ({"num_kv_shared_layers": 3}, [False, True, True, True]),
        ({}, [False] * 4),
    ],
)
def test_which_layers_borrow_keys_and_values(fields: dict[str, Any], borrowed: list[bool]) -> None:
    """8 heads of 32 ask, 2 of keys and 2 of values are kept: 128 elements a layer in 16 bits."""
    model = parse(LLAMA | fields, "x")
    assert [isinstance(x.mixer, Gqa) and x.mixer.borrowed for x in model.layers] == borrowed
    assert kv_bytes_per_token(model) == 256 * borrowed.count(False)


def inter(**fields: Any) -> int:
    return int(getattr(parse(LLAMA | fields, "x").layers[-1].ffn, "inter", 0))


@pytest.mark.parametrize(
    ("fields", "wide"),
    [
        ({}, 512),
        ({"intermediate_size": None}, 1024),  # four times the hidden size
        ({"model_type": "mpt", "expansion_ratio": 3, "intermediate_size": None}, 768),
        ({"block_auto_adjust_ff_dim": True, "intermediate_size": 600}, 512),  # two thirds are 400, in steps of 256
        ({"block_auto_adjust_ff_dim": True, "intermediate_size": 600, "block_ffn_dim_multiplier": 1.5}, 768),
        ({"block_auto_adjust_ff_dim": True, "intermediate_size": 600, "block_multiple_of": 32}, 416),
        ({"num_kv_shared_layers": 1, "use_double_wide_mlp": True}, 1024),
        ({"num_kv_shared_layers": 0, "use_double_wide_mlp": True}, 512),
    ],
)
def test_width_of_a_dense_block(fields: dict[str, Any], wide: int) -> None:
    assert inter(**fields) == wide


# Layer by layer: what attention, the block and the small parts hold. Embedding and head are 100 × 64, norms 64.
QWEN = 64 * (4 + 4 + 2 + 2) * 16 + 64 * 64 + 2 * 16
DELTA = 64 * (2 * 16 + 2 * 64 + 8) + 64 * 64 + 4 * 96 + 2 * 4 + 16  # maps, convolution, decay and bias of a head, norm
ROUTED = 64 * 6 + 6 * 3 * 32 * 64 + 3 * 48 * 64 + 64
SPARK = 64 * (4 + 4 + 2 + 2) * 16 + 64 * 64 + 8 * 64 + 2 * 48 * 64 + 8 * 3 * 32 * 48 + 48
GEMMA = 64 * 64 + 3 * 96 * 64 + 2 * 12 * 64 + 2 * 10 * 64 + 2 * 64 + 2**3 + 2**2 + 64 + 7 * 64
COUNTS = {
    "qwen3_next": QWEN + 3 * DELTA + 4 * (ROUTED + 2 * 64) + 64 + 2 * 6400,
    "mamba": 3 * (64 * 256 + 128 * (4 + 2 * 8) + 4 * 128 + 128 + 128 * 64 + 128 * (4 + 1) + 128 * (8 + 1) + 64) + 6464,
    "muse_spark_text": 4 * (SPARK + 5 * 64) + 64 + 2 * 6400,
    "gemma3n_text": 4 * GEMMA + 2 * 64 * 128 + 2 * 64 * 64 + 2 * 2 * 16 + 2 * 16
    + 50 * 12 * 4 + 64 * 12 * 4 + 12 + 2 * 64 * 64 + 64 + 6400,
}  # fmt: skip


@pytest.mark.parametrize("kind", COUNTS)
def test_parameters_of_a_small_model(kind: str) -> None:
    assert parameters(small(kind)) == COUNTS[kind]


def test_a_router_scales_its_input_and_each_expert() -> None:
    """Gemma 4: experts beside a dense block; the router's scales are 64 of its input and 8 of experts."""
    types = {"model_type": "gemma4_text", "num_hidden_layers": 1, "layer_types": ["full_attention"]}
    experts = {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 32}
    model = parse(SIZES | types | experts | {"hidden_size_per_layer_input": 0}, "x")
    (moe,) = model.layers[0].moes
    assert moe.small_params == 64 + 8 and moe.extra_params == 8 * 3 * 32 * 64 + 72


@pytest.mark.parametrize(
    ("fields", "gates"),
    [
        ({"mlp_layer_types": ["dense", "sparse"]}, [16, 32]),
        ({"mlp_layer_types": ["dense", "dense"]}, [16, 16]),
    ],
)
def test_gates_of_norms(fields: dict[str, Any], gates: list[int]) -> None:
    """A.X-K2 gates both norms of a layer with experts, the first of one without: 16 wide, up and down."""
    config = (
        expand(FAMILIES["axk2"]["config"]) | fields | {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}
    )
    found = parse(config, "x")
    parts = [part for layer in found.layers for part in layer.ffns if getattr(part, "name", "") == "norm_gates"]
    assert [sum(linear.out for linear in part.linears() if linear.out < 2048) for part in parts] == gates


@pytest.mark.parametrize(
    ("block", "weight"),
    [([128, 128], 1 + 4 / 128**2), ([64, 32], 1 + 4 / 2048), ([1, 32], 1 + 1 / 32), (None, 1.0)],
)
def test_bytes_of_a_weight_in_fp8(block: list[int] | None, weight: float) -> None:
    model = parse(LLAMA | {"quantization_config": {"quant_method": "fp8", "weight_block_size": block}}, "x")
    precision = model.layers[0].linears()[0].precision
    assert precision.bytes_per_weight == pytest.approx(weight, rel=1e-12)


def test_the_first_class_and_the_widest_model_that_are_read() -> None:
    classes = ["Qwen3ForCausalLM", "LlamaForCausalLM"]
    assert parse({**LLAMA, "model_type": None, "architectures": classes}, "x").model_type.startswith("Qwen3")
    wide = LLAMA | {"num_attention_heads": 1 << 9, "head_dim": 64}
    assert parse(wide | {"hidden_size": 1 << 20}, "x").hidden == 1 << 20
    with pytest.raises(BadInput, match="from 1 to 1048576"):
        parse(wide | {"hidden_size": (1 << 20) + 1}, "x")


def test_patches_and_tokens_of_an_image() -> None:
    sizes = [(224, 14, 2, 256, 64), (448, 14, 2, 1024, 256), (30, 16, 1, 1, 1), (8, 16, 2, 1, 1), (96, 16, 3, 36, 4)]
    for image, patch, merge, patches, tokens in sizes:
        tower = Tower(64, 128, 4, 2, patch, merge, image)
        assert (tower.patches, tower.tokens) == (patches, tokens)


@pytest.mark.parametrize(
    ("head_dim", "rope", "entry"),
    [(512, 64, 584), (128, 64, 200), (64, 0, 72), (192, 64, 264)],  # 448 + 128 + 7 = 583; 64 + 128 + 1; 64 + 1; 258
)
def test_a_compressed_entry_in_whole_eight_bytes(head_dim: int, rope: int, entry: int) -> None:
    config = expand(FAMILIES["deepseek_v4"]["config"])
    mixer = next(x.mixer for x in parse(config, "x").layers if isinstance(x.mixer, Compressed) and not x.mixer.indexer)
    changed = replace(mixer, head_dim=head_dim, rope_dim=rope, compress_ratio=4, window=16)
    assert changed.entry_bytes == entry
    assert changed.token_bytes(2, 1) == entry / 4
    assert changed.cache_bytes(100, 2, 1, 8) == entry * 24 + entry * 25


def test_rows_of_a_model_on_ranks() -> None:
    """Widths of real size, so that GiB say something: 2 × 6 experts of 3 × 2048 × 4096 are 0.5625 GiB of a layer."""
    times = {name: SMALL["qwen3_next"][name] * 64 for name in ("hidden_size", "head_dim", "moe_intermediate_size")}
    found = {(row["layers"], row["part"]): row for row in rows(small("qwen3_next", **times), Parallel(2, 1, 2))}
    assert {key: (r["count"], r["shape on a rank"], r["parameters"], r["detail"]) for key, r in found.items()
            if key[0] in ("first", "3", "last", "all")} == {
        ("first", "embedding"): (1, "64 × 4096", 409_600, ""),
        ("3", "qkv_proj"): (1, "6144 × 4096", 12 * 1024 * 4096, ""),
        ("3", "o_proj"): (1, "4096 × 2048", 4096 * 4096, ""),
        ("3", "attention"): (1, "4 heads, 2 kv, 1024 wide", 2048, "q/k norm over heads, gated"),
        ("3", "router"): (1, "6 × 4096", 6 * 4096, ""),
        ("3", "shared_gate_up_proj"): (1, "48 × 4096", 2 * 48 * 4096, ""),
        ("3", "shared_down_proj"): (1, "4096 × 24", 48 * 4096, ""),
        ("3", "shared_gate"): (1, "1 × 4096", 4096, ""),
        ("3", "experts"): (1, "3 × 3 × 2048 × 4096", 6 * 3 * 2048 * 4096, "2 of 6 a token"),
        ("all", "norms"): (8, "4096", 8 * 4096, ""),
        ("last", "final_norm"): (1, "4096", 4096, ""),
        ("last", "lm_head"): (1, "50 × 4096", 409_600, ""),
    }  # fmt: skip
    assert found["0-2", "experts"]["GiB on a rank"] == pytest.approx(3 * 6 * 3 * 2048 * 4096 * 2 / 2 / GIB, abs=5e-5)
    assert found["3", "qkv_proj"]["GiB on a rank"] == pytest.approx(6144 * 4096 * 2 / GIB, abs=5e-5)


def test_blocks_of_a_small_model() -> None:
    found = blocks(small("qwen3_next", num_hidden_layers=12))
    assert found.pattern == "(3×A B)×3"
    assert [(b.letter, b.layers, b.count) for b in found.blocks] == [("A", "0,1,2…", 9), ("B", "3,7,11", 3)]
    delta, routed = found.blocks[0].parts
    maps = 64 * 168 + 64 * 64
    assert (delta.parameters, delta.flops) == (DELTA, 2 * maps)
    # States of 4 × 8 × 16 in fp32 and three inputs of 96 channels in 16 bits.
    assert (delta.kv_bytes, delta.state_bytes) == (0, 4 * 8 * 16 * 4 + 3 * 96 * 2)
    met = 64 * 6 + 3 * 48 * 64 + 64 + 2 * 3 * 32 * 64
    assert (routed.parameters, routed.active_parameters, routed.flops) == (ROUTED, met, 2 * met)
    single = blocks(small("gemma3n_text"))
    assert (single.pattern, [b.layers for b in single.blocks]) == ("A B C D", ["0", "1", "2", "3"])
    every = blocks(parse(LLAMA | {"num_hidden_layers": 5}, "x"))
    assert (every.pattern, [b.layers for b in every.blocks]) == ("5×A", ["0-4"])


def test_a_summary_is_of_the_fullest_rank() -> None:
    """Five layers on two stages: one has three of them, the first the embedding, the last the norm and the head."""
    model = parse(LLAMA | {"num_hidden_layers": 5, "hidden_size": 4096, "vocab_size": 128, "head_dim": 512}, "x")
    layer = 4096 * (8 + 2 + 2) * 512 + 8 * 512 * 4096 + 3 * 512 * 4096 + 2 * 4096
    table, found = 128 * 4096, summary(model, Parallel(1, 2))
    first, last = (stage_bytes(model, Parallel(1, 2), stage) for stage in (0, 1))
    layers = [stop - start for start, stop in Parallel(1, 2).stages(5)]
    assert sorted(layers) == [2, 3]
    assert (first, last) == (2 * (layers[0] * layer + table), 2 * (layers[1] * layer + 4096 + table))
    assert found["weights_gib_per_gpu"] == pytest.approx(max(first, last) / GIB, abs=5e-4)
    assert found["kv_bytes_per_token_per_gpu"] == 3 * 2 * 2 * 512 * 2
    assert found["parameters"] == 5 * layer + 2 * table + 4096


def test_one_layer_of_each_few_chooses_keys_for_those_around_it() -> None:
    """Every fourth layer from the one before the offset; a list of layers says the same in words."""
    config = expand(FAMILIES["deepseek_v32"]["config"]) | {"num_hidden_layers": 12}

    def reusing(**said: object) -> list[int]:
        mixers = [layer.mixer for layer in parse(config | said, "x").layers]
        return [
            at for at, mixer in enumerate(mixers) if isinstance(mixer, Mla) and mixer.indexer and mixer.indexer.reused
        ]

    assert reusing() == reusing(index_topk_freq=1) == []
    found = reusing(index_topk_freq=4, index_skip_topk_offset=3)
    assert found == [3, 4, 5, 7, 8, 9, 11]
    words = ["shared" if at in found else "full" for at in range(12)]
    assert reusing(indexer_types=words) == found
    assert reusing(index_topk_freq=2) == [0, 2, 4, 6, 8, 10]
