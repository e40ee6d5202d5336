"""Recurrences of one layer from its fields: delta nets, Mamba, lightning attention, short convolutions."""

from __future__ import annotations

from collections.abc import Callable

from pipewave.errors import UnsupportedModel
from pipewave.models.fields import Fields
from pipewave.models.layer_reader import RECURRENT, LayerReader
from pipewave.models.mixers import Recurrent
from pipewave.models.precision import Linear

STATE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def recurrent(reader: LayerReader, word: str) -> Recurrent:
    """The recurrence a layer's word means: its fields tell, then the family."""
    kind = "conv" if word == "conv" else _kind(reader, word)
    return _READERS[kind](reader)


def _kind(reader: LayerReader, word: str) -> str:
    fields = reader.fields
    if fields.has("linear_num_value_heads"):
        return "gdn"
    if fields.get("linear_attn_config") or fields.has("linear_num_heads"):
        return "kda"
    if fields.has("mamba_heads"):
        return "mamba2"
    if reader.family.linear in _READERS:
        return reader.family.linear
    if word == "mamba" or fields.has("mamba_state"):
        return "mamba1" if fields.has("mamba_state") else "mamba2"
    raise UnsupportedModel(
        "layer_types holds linear_attention, and no field tells which kind it is (such as linear_num_value_heads, "
        "linear_attn_config or mamba_num_heads)",
        field=fields.named("layer_types"),
    )


def _state(fields: Fields) -> int:
    dtype = fields.text("state_dtype", "float32").removeprefix("torch.")
    return STATE_BYTES.get(dtype, 4)


def _gdn(reader: LayerReader) -> Recurrent:
    """Gated delta net: q, k, v, output gate, and two scalars a value head from the hidden states."""
    fields, hidden = reader.fields, reader.hidden
    values, keys = (
        fields.integer("linear_num_value_heads", high=4096),
        fields.integer("linear_num_key_heads", high=4096),
    )
    key_dim = fields.integer("linear_key_head_dim", 128, high=4096)
    value_dim = fields.integer("linear_value_head_dim", 128, high=4096)
    kernel = fields.integer("linear_conv_kernel_dim", 4, high=64)
    channels = 2 * keys * key_dim + values * value_dim
    wide = reader.linear("in_proj_qkvz", channels + values * value_dim, hidden, "in_proj_qkv", "out", places=RECURRENT)
    narrow = reader.linear("in_proj_ba", 2 * values, hidden, "in_proj_b", "out", places=RECURRENT)
    out = reader.linear("out_proj", hidden, values * value_dim, "out_proj", "in", places=RECURRENT)
    params = channels * kernel + 2 * values + value_dim
    return Recurrent(
        "gdn", values, keys, key_dim, value_dim, channels, kernel, (wide, narrow), (out,), params,
        state_width=_state(fields), norm=value_dim, interleaved=reader.family.interleaved,
    )  # fmt: skip


def _kda(reader: LayerReader) -> Recurrent:
    """Kimi delta attention: q, k, v, a decay for every channel through a bottleneck, and an output gate."""
    section, hidden = Fields(reader.fields.section("linear_attn_config")), reader.hidden
    heads = section.integer("num_heads", reader.fields.get("linear_num_heads", 32), high=4096)
    dim = section.integer("head_dim", reader.fields.get("linear_head_dim", 128), high=4096)
    kernel = section.integer("short_conv_kernel_size", reader.fields.get("short_conv_kernel_size") or 4, high=64)
    width, full = heads * dim, section.flag("use_full_rank_gate", reader.fields.flag("full_rank_gate"))
    reader.fields.get("linear_conv_kernel_dim")

    def linear(name: str, out: int, inp: int, module: str, split: str = "none") -> Linear:
        return reader.linear(name, out, inp, module, split, places=RECURRENT)

    inputs = [linear("qkv_proj", 3 * width, hidden, "q_proj", "out"), linear("b_proj", heads, hidden, "b_proj", "out")]
    inputs += (
        [linear("f_proj", width, hidden, "f_proj", "out")]
        if reader.fields.flag("full_rank_decay")
        else [linear("f_a_proj", dim, hidden, "f_a_proj"), linear("f_b_proj", width, dim, "f_b_proj", "out")]
    )
    inputs += (
        [linear("g_proj", width, hidden, "g_proj", "out")]
        if full
        else [linear("g_a_proj", dim, hidden, "g_a_proj"), linear("g_b_proj", width, dim, "g_b_proj", "out")]
    )
    out = reader.linear("out_proj", hidden, width, "o_proj", "in", places=RECURRENT)
    params = 3 * width * kernel + width + heads + dim
    return Recurrent(
        "kda", heads, heads, dim, dim, 3 * width, kernel, tuple(inputs), (out,), params, norm=dim
    )  # fmt: skip


def _mamba2(reader: LayerReader) -> Recurrent:
    """Mamba 2: one input map gives gate, x, B, C and a time step a head."""
    fields, hidden = reader.fields, reader.hidden
    expand = fields.get("mamba_expand", 2)
    dim = fields.get("mamba_head_dim")
    inner = fields.integer("mamba_inner", int(expand * hidden) if isinstance(expand, (int, float)) else 2 * hidden)
    dim = dim if isinstance(dim, int) and dim > 0 else 64
    heads = fields.integer("mamba_heads", max(inner // dim, 1), high=1 << 16)
    inner = heads * dim
    state, groups = fields.integer("mamba_state", 128, high=1 << 16), fields.integer("mamba_groups", 1, high=4096)
    kernel, biased = fields.integer("mamba_conv", 4, high=64), reader.setting("mamba_bias")
    channels = inner + 2 * groups * state
    into = reader.linear("in_proj", inner + channels + heads, hidden, "in_proj", "out", places=RECURRENT, bias=biased)
    out = reader.linear("out_proj", hidden, inner, "out_proj", "in", places=RECURRENT, bias=biased)
    gated = fields.flag("mamba_rms_norm", True)
    params = channels * (kernel + fields.flag("conv_bias", True)) + 3 * heads + (inner if gated else 0)
    return Recurrent(
        "mamba2", heads, groups, state, dim, channels, kernel, (into,), (out,), params,
        state_width=_state(fields), norm=inner if gated else 0, chunk=fields.integer("mamba_chunk", 128, high=1 << 16),
    )  # fmt: skip


def _mamba1(reader: LayerReader) -> Recurrent:
    """Mamba 1: a state for every channel; time step, B and C come from the convolved channels."""
    fields, hidden = reader.fields, reader.hidden
    inner = fields.integer("mamba_expand", 2, high=64) * hidden
    if reader.family.ffns == ():  # it can mean no other part, and Falcon Mamba's factor is not what it was built with
        inner = fields.integer("intermediate_size", inner, high=1 << 20)
    state, kernel = fields.integer("mamba_state", 16, high=4096), fields.integer("mamba_conv", 4, high=64)
    rank = fields.get("time_rank")
    rank = rank if isinstance(rank, int) and not isinstance(rank, bool) and rank > 0 else -(-hidden // 16)
    biased = reader.setting("mamba_bias")
    norms = 0 if reader.family.ffns == () else rank + 2 * state  # Jamba's have weights, Falcon Mamba's none

    into = reader.linear("in_proj", 2 * inner, hidden, "in_proj", "out", places=RECURRENT, bias=biased)
    narrow = reader.linear("x_proj", rank + 2 * state, inner, "x_proj", "in", places=RECURRENT)
    step = reader.linear("dt_proj", inner, rank, "dt_proj", "out", places=RECURRENT, bias=True)
    out = reader.linear("out_proj", hidden, inner, "out_proj", "in", places=RECURRENT, bias=biased)
    params = inner * (kernel + fields.flag("conv_bias", True)) + inner * state + inner + norms
    return Recurrent("mamba1", inner, 1, state, 1, inner, kernel, (into, narrow, step), (out,), params)


def _lightning(reader: LayerReader) -> Recurrent:
    """Lightning attention: q, k and v of all heads, a decay a head, an output gate."""
    fields, hidden = reader.fields, reader.hidden
    heads = fields.integer("num_attention_heads", high=4096)
    dim = fields.integer("head_dim", max(hidden // heads, 1), high=4096)
    width = heads * dim
    qkv = reader.linear("qkv_proj", 3 * width, hidden, "qkv_proj", "out", places=RECURRENT)
    gate = reader.linear("output_gate", width, hidden, "output_gate", "out", places=RECURRENT)
    out = reader.linear("out_proj", hidden, width, "out_proj", "in", places=RECURRENT)
    norms = width + (2 * dim if reader.setting(reader.family.qk_norm) else 0)
    return Recurrent(
        "lightning", heads, heads, dim, dim, 0, 1, (qkv, gate), (out,), norms, norm=width,
        chunk=fields.integer("block_size", 256),
    )  # fmt: skip


def _conv(reader: LayerReader) -> Recurrent:
    """LFM2's gated short convolution: three streams in, a depthwise convolution, one map out."""
    fields, hidden = reader.fields, reader.hidden
    kernel, biased = fields.integer("conv_L_cache", 3, high=64), reader.setting("conv_bias_field")
    into = reader.linear("in_proj", 3 * hidden, hidden, "in_proj", "out", places=RECURRENT, bias=biased)
    out = reader.linear("out_proj", hidden, hidden, "out_proj", "in", places=RECURRENT, bias=biased)
    params = hidden * (kernel + biased)
    return Recurrent("conv", hidden, 1, 0, 0, hidden, kernel, (into,), (out,), params)


_READERS: dict[str, Callable[[LayerReader], Recurrent]] = {
    "gdn": _gdn,
    "kda": _kda,
    "mamba2": _mamba2,
    "mamba1": _mamba1,
    "lightning": _lightning,
    "conv": _conv,
}
