"""Parts beside a layer's blocks and before the first layer, and further embedding tables: each named by a field."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pipewave.models.ffns import Bypass
from pipewave.models.fields import Fields
from pipewave.models.layer_reader import LayerReader
from pipewave.models.precision import Linear

TAPPED = 3  # layers of the target whose hidden states an EAGLE-3 head reads


def beside(reader: LayerReader) -> Iterator[Bypass]:
    """Parts that run beside a layer's blocks, where fields name them."""
    for name, read in _PARTS.items():
        if size := reader.fields.integer(name, 0, low=0):
            yield read(reader, size)


def _per_layer_input(reader: LayerReader, width: int) -> Bypass:
    """Gemma 3n and 4: a vector a token and layer, gated by the hidden state."""
    gate = reader.linear("per_layer_gate", width, reader.hidden, "per_layer_input_gate", places=("",))
    back = reader.linear("per_layer_projection", reader.hidden, width, "per_layer_projection", places=("",))
    return Bypass("per_layer_input", (gate, back), norms=1)


def _laurel(reader: LayerReader, rank: int) -> Bypass:
    """Gemma 3n: a residual of low rank."""
    left = reader.linear("laurel_left", rank, reader.hidden, "linear_left", places=("laurel",))
    right = reader.linear("laurel_right", reader.hidden, rank, "linear_right", places=("laurel",))
    return Bypass("laurel", (left, right), norms=1)


def _altup(reader: LayerReader, streams: int) -> Bypass:
    """Gemma 3n: several residual streams, predicted and corrected."""
    router = reader.linear("altup_router", streams, reader.hidden, "modality_router", places=("altup",))
    return Bypass("altup", (router,), params=streams**3 + streams**2 + reader.hidden, norms=1)


def _relative(reader: LayerReader, width: int) -> Bypass:
    """Inkling: relative positions from the hidden state, short convolutions of keys, values and both blocks."""
    fields, hidden = reader.fields, reader.hidden
    keys = fields.integer("num_key_value_heads") * fields.integer("head_dim")
    relative = reader.linear("relative_proj", fields.integer("num_attention_heads") * width, hidden, "r_proj")
    extent = reader.kind.window or fields.integer("rel_extent", 1024)
    convolutions = 2 * fields.integer("mamba_conv", 4) * (keys + hidden)
    return Bypass("relative", (relative,), params=width * extent + convolutions)


def _norm_gates(reader: LayerReader, rank: int) -> Bypass:
    """A.X-K2: gates of both norms, of the first alone in layers without experts."""
    count = 2 if "moe" in (reader.kind.ffns or ()) else 1
    down = reader.linear("norm_gate_down", rank, reader.hidden, "fc1", places=("",))
    up = reader.linear("norm_gate_up", reader.hidden, rank, "fc2", places=("",))
    return Bypass("norm_gates", (down, up) * count)


def _convolutions(reader: LayerReader, kernel: int) -> Bypass:
    """Zaya: queries and keys pass a convolution a channel, then one a head."""
    fields = reader.fields
    dim, count = fields.integer("head_dim"), fields.integer("num_attention_heads")
    wide = (count + fields.integer("num_key_value_heads", count)) * dim
    return Bypass("convolutions", (), params=wide * (kernel + fields.integer("cca_time1", kernel) * dim + 2))


def _router_mlp(reader: LayerReader, width: int) -> Bypass:
    """Zaya: layers of the router before its last one."""
    down = reader.linear("router_down", width, reader.hidden, "gate.down_proj", bias=True)
    inner = reader.linear("router_inner", width, width, "gate.router_mlp.fc1", bias=True)
    return Bypass("router_mlp", (down, inner, inner), params=2 * width)


def _ngrams(reader: LayerReader, _: int) -> Bypass:
    """Qwen4: hashed embeddings of n-grams become a value and a key a stream; a dilated convolution follows."""
    fields, hidden = reader.fields, reader.hidden
    width, streams = fields.integer("ple_embed_dim", hidden), fields.integer("hc_mult", 1) * hidden
    key = reader.linear("ngram_key", streams, width, "ple.key_proj", places=("",))
    value = reader.linear("ngram_value", hidden, width, "ple.value_proj", places=("",))
    return Bypass("ngrams", (key, value), params=streams * (3 + fields.integer("ple_conv_kernel_size", 4)))


# The field that says a layer has a part, and how large it is.
_PARTS: dict[str, Callable[[LayerReader, int], Bypass]] = {
    "hidden_size_per_layer_input": _per_layer_input,
    "laurel_rank": _laurel,
    "altup_num_inputs": _altup,
    "d_rel": _relative,
    "gated_norm_rank": _norm_gates,
    "cca_time0": _convolutions,
    "router_hidden_size": _router_mlp,
    "ngrams": _ngrams,
}


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


def front_maps(fields: Fields, hidden: int, *, drafts: bool = False) -> tuple[tuple[Linear, ...], int]:
    """Maps that run once a token outside the layers, and the parameters beside them."""
    maps, streams = (
        [Linear("fc", hidden, TAPPED * fields.integer("target_hidden_size", hidden))] if drafts else [],
        fields.integer("altup_num_inputs", 0, low=0),
    )
    width = fields.integer("hidden_size_per_layer_input", 0, low=0)
    if width:
        maps.append(Linear("per_layer_model_projection", width * fields.integer("num_hidden_layers"), hidden))
    if streams:
        maps += [Linear("altup_projection", hidden, hidden)] * (2 * (streams - 1))
    return tuple(maps), width
