"""What Gemma 3n and 4 put beside a layer's blocks and before the first layer, and further embedding tables."""

from __future__ import annotations

from collections.abc import Iterator

from pipewave.models.ffns import Bypass
from pipewave.models.fields import Fields
from pipewave.models.layer_reader import LayerReader
from pipewave.models.precision import Linear


def beside(reader: LayerReader) -> Iterator[Bypass]:
    """Parts that run beside a layer's blocks, where fields name them."""
    fields, hidden = reader.fields, reader.hidden
    if width := fields.integer("hidden_size_per_layer_input", 0, low=0):
        gate = reader.linear("per_layer_gate", width, hidden, "per_layer_input_gate", places=("",))
        back = reader.linear("per_layer_projection", hidden, width, "per_layer_projection", places=("",))
        yield Bypass("per_layer_input", (gate, back), norms=1)
    if rank := fields.integer("laurel_rank", 0, low=0):
        left = reader.linear("laurel_left", rank, hidden, "linear_left", places=("laurel",))
        right = reader.linear("laurel_right", hidden, rank, "linear_right", places=("laurel",))
        yield Bypass("laurel", (left, right), norms=1)
    if streams := fields.integer("altup_num_inputs", 0, low=0):
        router = reader.linear("altup_router", streams, hidden, "modality_router", places=("altup",))
        yield Bypass("altup", (router,), params=streams**3 + streams**2 + hidden, norms=1)

    yield from _beside_attention(reader)
    if reader.fields.flag("ngrams"):
        yield _ngrams(reader)


def _beside_attention(reader: LayerReader) -> Iterator[Bypass]:
    """Short convolutions, relative positions, gates of norms and deeper routers, where fields name them."""
    fields, hidden = reader.fields, reader.hidden
    if width := fields.integer("d_rel", 0, low=0):  # Inkling
        keys = fields.integer("num_key_value_heads") * fields.integer("head_dim")
        relative = reader.linear("relative_proj", fields.integer("num_attention_heads") * width, hidden, "r_proj")
        extent = reader.kind.window or fields.integer("rel_extent", 1024)
        kernel = fields.integer("mamba_conv", 4)
        yield Bypass("relative", (relative,), params=width * extent + 2 * kernel * (keys + hidden))
    if rank := fields.integer("gated_norm_rank", 0, low=0):  # A.X-K2: both norms, the second in layers with experts
        count = 2 if "moe" in (reader.kind.ffns or ()) else 1
        down = reader.linear("norm_gate_down", rank, hidden, "fc1", places=("",))
        up = reader.linear("norm_gate_up", hidden, rank, "fc2", places=("",))
        yield Bypass("norm_gates", (down, up) * count)
    if kernel := fields.integer("cca_time0", 0, low=0):  # Zaya: a convolution a channel, then one a head
        dim, count = fields.integer("head_dim"), fields.integer("num_attention_heads")
        wide = (count + fields.integer("num_key_value_heads", count)) * dim
        yield Bypass("convolutions", (), params=wide * (kernel + fields.integer("cca_time1", kernel) * dim + 2))
    if width := fields.integer("router_hidden_size", 0, low=0):
        down = reader.linear("router_down", width, hidden, "gate.down_proj", bias=True)
        inner = reader.linear("router_inner", width, width, "gate.router_mlp.fc1", bias=True)
        yield Bypass("router_mlp", (down, inner, inner), params=2 * width)


def _ngrams(reader: LayerReader) -> Bypass:
    """Qwen4: hashed embeddings of n-grams become a value and a key a stream; a dilated convolution follows."""
    fields, hidden = reader.fields, reader.hidden
    width, streams = fields.integer("ple_embed_dim", hidden), fields.integer("hc_mult", 1) * hidden
    key = reader.linear("ngram_key", streams, width, "ple.key_proj", places=("",))
    value = reader.linear("ngram_value", hidden, width, "ple.value_proj", places=("",))
    return Bypass("ngrams", (key, value), params=streams * (3 + fields.integer("ple_conv_kernel_size", 4)))


def tables(fields: Fields, hidden: int) -> tuple[tuple[int, int], ...]:
    """Embedding tables beside the first: token types, and a short vector a layer for every token."""
    found = []
    if types := fields.integer("type_vocab_size", 0, low=0):
        found.append((types, hidden))
    if width := fields.integer("hidden_size_per_layer_input", 0, low=0):
        rows = fields.integer("vocab_size_per_layer_input", fields.integer("vocab_size"))
        found.append((rows, width * fields.integer("num_hidden_layers")))
    if layers := len(fields.ints("ple_layer_ids")):
        found.append((layers * fields.integer("ngram_vocab_size_base", 20_000_000), fields.integer("ple_embed_dim")))
    return tuple(found)


def front_maps(fields: Fields, hidden: int) -> tuple[tuple[Linear, ...], int]:
    """Maps that run once a token outside the layers, and the parameters beside them."""
    maps, streams = [], fields.integer("altup_num_inputs", 0, low=0)
    width = fields.integer("hidden_size_per_layer_input", 0, low=0)
    if width:
        maps.append(Linear("per_layer_model_projection", width * fields.integer("num_hidden_layers"), hidden))
    if streams:
        maps += [Linear("altup_projection", hidden, hidden)] * (2 * (streams - 1))
    return tuple(maps), width
