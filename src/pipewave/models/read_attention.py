"""Reads the attention or the recurrence of one layer: grouped, latent, compressed, delta nets, Mamba, convolutions."""

from __future__ import annotations

from pipewave.errors import BadInput, UnsupportedModel
from pipewave.models.attention_spec import INDEX_SCALE, Compressed, Gqa, Indexer, Mixer, Mla, Recurrent
from pipewave.models.config_fields import Fields
from pipewave.models.formulas import kinds
from pipewave.models.layer_reader import RECURRENT, LayerReader

HEADS, WIDTH, RANK = 4096, 4096, 8192


def attention(reader: LayerReader) -> Mixer:
    """The attention that the fields describe: compressed by its ratios, latent by its rank, else grouped."""
    if reader.fields.get("compress_ratios") is not None or reader.kind.ratio:
        return compressed(reader)
    return mla(reader) if reader.fields.has("kv_lora_rank") else gqa(reader)


def gqa(reader: LayerReader) -> Gqa:
    """Plain attention of one layer."""
    fields, family, hidden = reader.fields, reader.family, reader.hidden
    heads = fields.integer("num_attention_heads", high=HEADS)
    kv_heads = _kv_heads(fields, heads)
    head_dim = fields.integer("head_dim", max(hidden // heads, 1), high=WIDTH)
    own_values = fields.optional("v_head_dim") is not None  # 0: no latent heads
    value_dim = fields.integer("v_head_dim", high=WIDTH) if own_values else head_dim
    borrowed, same = fields.flag("borrowed"), fields.flag("keys_are_values")
    pair = 0 if borrowed else head_dim + (0 if same else value_dim)
    gate = _gate(reader, heads, head_dim)
    narrow = fields.optional("share_q_dim")  # Step 3: queries pass a bottleneck that every rank holds
    wide = (narrow or heads * head_dim) + gate + kv_heads * pair
    qkv = reader.linear(
        "qkv_proj", wide, hidden * (1 + family.draft_head), "q_proj", "none" if narrow else "qkv",
        bias=reader.setting(family.qkv_bias), cache=kv_heads * pair, pair=pair,
    )  # fmt: skip
    query = reader.linear("q_b_proj", heads * head_dim, narrow, "wq", "out") if narrow else None
    out = reader.linear("o_proj", hidden, heads * value_dim, "o_proj", "in", bias=reader.setting(family.o_bias))
    return Gqa(
        heads, kv_heads, head_dim, qkv, out,
        window=reader.kind.window,
        softcap=fields.number("attn_logit_softcapping"),
        sinks=reader.setting(family.sinks) or fields.flag("use_sinks"),
        qk_norm=_qk_norm(reader),
        rope=reader.kind.rope,
        chunk=reader.kind.chunk,
        value_dim=None if value_dim == head_dim else value_dim,
        gate=gate,
        borrowed=borrowed,
        indexer=_chooses(reader),
        causal=not family.encoder,
        query=query,
    )  # fmt: skip


def _kv_heads(fields: Fields, heads: int) -> int:
    multi = fields.flag("multi_query") and not fields.flag("new_decoder_architecture")
    kv_heads = fields.integer("num_key_value_heads", heads, high=HEADS)
    kv_heads = 1 if multi else kv_heads
    if heads % kv_heads:
        raise BadInput(
            f"num_key_value_heads = {kv_heads}: must divide num_attention_heads = {heads}",
            field=fields.named("num_key_value_heads"),
        )
    return kv_heads


def _gate(reader: LayerReader, heads: int, head_dim: int) -> int:
    """Columns that gate the output: one an element, or one a head."""
    by_head = reader.family.gate == "use_head_wise_attn_gate" or reader.fields.flag("use_head_wise_attn_gate")
    wanted = reader.setting(reader.family.gate) or reader.fields.flag("attention_output_gate")
    return (heads if by_head else heads * head_dim) if wanted else 0


def _qk_norm(reader: LayerReader) -> str | None:
    """Which query/key normalisation the layer has."""
    rule = reader.family.qk_norm
    if rule == "plain":
        return "plain" if reader.kind.rope and reader.fields.flag("use_qk_norm", True) else None
    stated = reader.fields.get("use_qk_norm")
    on = stated if isinstance(stated, bool) else rule in (True, "full")
    return ("full" if rule == "full" else "each" if reader.family.norm_weights_per_head else "head") if on else None


def _chooses(reader: LayerReader) -> Indexer | None:
    """What chooses the keys that grouped attention sees, if something does."""
    if reader.fields.flag("sparse"):
        return _block_indexer(reader)
    return _mean_indexer(reader) if reader.fields.has("indexer_budget") else None


def _mean_indexer(reader: LayerReader) -> Indexer:
    """Qwen4: index keys of so many tokens are averaged into one, and whole groups of tokens are kept."""
    fields = reader.fields
    heads, dim = fields.integer("indexer_n_heads", high=HEADS), fields.integer("indexer_head_dim", high=WIDTH)
    block, keys = fields.integer("indexer_compress_ratio"), fields.integer("indexer_kv_heads", 1, high=HEADS)
    topk = max(fields.integer("indexer_budget") // block, 1)
    maps = (reader.linear("index_proj", (heads + keys) * dim, reader.hidden, "index_qk_proj"),)
    return Indexer(heads, dim, topk, maps, 2 * dim, block=block, key_bytes=2 * keys * dim)


def _block_indexer(reader: LayerReader) -> Indexer:
    """MiniMax-M3: an index query a group of heads, one index key a token, blocks of keys kept."""
    section = Fields(reader.fields.section("sparse_attention_config"))
    heads = section.integer("sparse_num_index_heads", reader.fields.get("index_n_heads", 4), high=HEADS)
    dim = section.integer("sparse_index_dim", reader.fields.get("index_head_dim", 128), high=WIDTH)
    block = section.integer("sparse_block_size", reader.fields.get("index_block_size", 128))
    topk = section.integer("sparse_topk_blocks", reader.fields.get("index_topk_blocks", 16))
    maps = (reader.linear("index_proj", (heads + 1) * dim, reader.hidden, "index_q_proj"),)
    return Indexer(heads, dim, topk, maps, 2 * dim, block=block, key_bytes=2 * dim)


def mla(reader: LayerReader) -> Mla:
    """Latent attention of one layer."""
    fields, hidden = reader.fields, reader.hidden
    heads = fields.integer("num_attention_heads", high=HEADS)
    q_rank, kv_rank = fields.optional("q_lora_rank"), fields.integer("kv_lora_rank", high=RANK)
    rope = fields.integer("qk_rope_head_dim", 64, low=0, high=WIDTH)
    nope, v_dim = _nope(fields, rope), fields.integer("v_head_dim", 128, high=WIDTH)
    biased, gated = reader.setting(reader.family.qkv_bias), fields.flag("mla_use_output_gate")
    named = "kv_a_proj" if q_rank is None else "qkv_a_proj"
    down = reader.linear(named, (q_rank or 0) + kv_rank + rope, hidden, "kv_a_proj_with_mqa", bias=biased)
    named = "q_proj" if q_rank is None else "q_b_proj"
    # A.X-K2: one map of the latent and of what it is before its norm gives the queries and the output's gate.
    fused = q_rank is not None and fields.flag("query_gates_output")
    wide, deep = (heads * v_dim, 2 * (q_rank or 0)) if fused else (0, q_rank or hidden)
    return Mla(
        heads, q_rank, kv_rank, nope, rope, v_dim,
        down=down,
        query=reader.linear(named, heads * (nope + rope) + wide, deep, "q_b_proj", "out"),
        expand=reader.linear("kv_b_proj", heads * (nope + v_dim), kv_rank, "kv_b_proj", "out"),
        out=reader.linear("o_proj", hidden, heads * v_dim, "o_proj", "in", bias=reader.setting(reader.family.o_bias)),
        window=reader.kind.window,
        indexer=_indexer(reader, q_rank or hidden) if fields.has("index_topk") else None,
        gate=reader.linear("gate_proj", heads * v_dim, hidden, "g_proj", "out") if gated else None,
        rope=reader.kind.rope and not fields.flag("mla_use_nope"),
        sinks=reader.setting(reader.family.sinks),
    )  # fmt: skip


def _nope(fields: Fields, rope: int) -> int:
    """Width of a query's part without rotary embedding."""
    whole = fields.get("qk_head_dim")
    fallback = whole - rope if isinstance(whole, int) and whole > rope else 128
    return fields.integer("qk_nope_head_dim", fallback, high=WIDTH)


def _indexer(reader: LayerReader, inp: int, *, keys: bool = True) -> Indexer:
    """DeepSeek's indexer: queries from the q latent (`inp` wide), one key a token with a LayerNorm, a weight a head."""
    fields = reader.fields
    heads, dim = fields.integer("index_n_heads", 64, high=HEADS), fields.integer("index_head_dim", 128, high=WIDTH)
    topk, reused = fields.integer("index_topk"), fields.flag("reused")
    query = reader.linear("index_q_proj", heads * dim, inp, "indexer.wq_b")
    weights = reader.linear("index_weights", heads, reader.hidden, "indexer.weights_proj")
    key = [reader.linear("index_k_proj", dim, reader.hidden, "indexer.wk")] if keys else []
    maps = () if reused else (query, *key, weights)
    params = 0 if reused else 2 * dim if keys else 0
    return Indexer(heads, dim, topk, maps, params, reused=reused, key_bytes=0 if reused else dim + INDEX_SCALE)


def compressed(reader: LayerReader) -> Compressed:
    """DeepSeek-V4's attention of one layer; entries of the indexer overlap, so their compressor is twice as wide."""
    fields, hidden, ratio = reader.fields, reader.hidden, reader.kind.ratio
    heads, head_dim = fields.integer("num_attention_heads", high=HEADS), fields.integer("head_dim", high=WIDTH)
    q_rank, groups = fields.integer("q_lora_rank", high=1 << 16), fields.integer("o_groups", high=HEADS)
    rank, picks = fields.integer("o_lora_rank", high=1 << 16), ratio > 0 and ratio <= 16
    indexer = _indexer(reader, q_rank, keys=False) if picks else None
    index_dim = indexer.dim if indexer else 0
    overlap = 2 if picks else 1
    if heads % groups:
        raise BadInput(f"o_groups = {groups}: must divide num_attention_heads = {heads}", field="o_groups")
    compress = reader.linear("compress_proj", 2 * overlap * head_dim, hidden, "compressor.wkv") if ratio else None
    return Compressed(
        heads, head_dim, q_rank,
        fields.integer("qk_rope_head_dim", 64, high=WIDTH),
        fields.integer("sliding_window", 128),
        ratio, groups, rank,
        down=reader.linear("qkv_a_proj", q_rank + head_dim, hidden, "wq_a"),
        query=reader.linear("q_b_proj", heads * head_dim, q_rank, "wq_b", "out"),
        out_a=reader.linear("o_a_proj", groups * rank, heads * head_dim, "wo_a", "out", groups=groups),
        out=reader.linear("o_b_proj", hidden, groups * rank, "wo_b", "in"),
        compress=compress,
        compress_params=(ratio * overlap * head_dim + head_dim if ratio else 0)
        + (ratio * 2 * index_dim + index_dim if indexer else 0),
        indexer=indexer,
        indexer_compress=reader.linear("index_compress", 4 * index_dim, hidden, "indexer.compressor.wkv")
        if indexer else None,
    )  # fmt: skip


# Terms of a row, by the fields of `Recurrent`.
TERMS = (
    *("heads", "key_heads", "key_dim", "value_dim", "channels", "kernel"),
    *("params", "state_width", "norm", "chunk", "interleaved"),
)


def recurrent(reader: LayerReader, word: str) -> Recurrent:
    """The recurrence a layer's word means: its fields tell, then the family."""
    kind, fields = "conv" if word == "conv" else _kind(reader, word), reader.fields
    part = reader.part("recurrences", kind)
    for name in part.row.get("reads", ()):  # fields that change nothing
        fields.get(name)
    inputs, outputs = (reader.maps(part, which, RECURRENT) for which in ("inputs", "outputs"))
    return Recurrent(kind, inputs=inputs, outputs=outputs, **{name: part[name] for name in TERMS})


def _kind(reader: LayerReader, word: str) -> str:
    fields = reader.fields
    if fields.has("linear_num_value_heads"):
        return "gdn"
    if fields.get("linear_attn_config") or fields.has("linear_num_heads"):
        return "kda"
    if fields.has("mamba_heads"):
        return "mamba2"
    if reader.family.linear_attention in kinds("recurrences"):
        return reader.family.linear_attention
    if word == "mamba" or fields.has("mamba_state"):
        return "mamba1" if fields.has("mamba_state") else "mamba2"
    raise UnsupportedModel(
        "layer_types holds linear_attention, and no field tells which kind it is (such as linear_num_value_heads, "
        "linear_attn_config or mamba_num_heads)",
        field=fields.named("layer_types"),
    )
