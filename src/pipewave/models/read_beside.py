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


def tables(fields: Fields, hidden: int) -> tuple[tuple[int, int], ...]:
    """Embedding tables beside the first: token types, and a short vector a layer for every token."""
    found = []
    if types := fields.integer("type_vocab_size", 0, low=0):
        found.append((types, hidden))
    if width := fields.integer("hidden_size_per_layer_input", 0, low=0):
        rows = fields.integer("vocab_size_per_layer_input", fields.integer("vocab_size"))
        found.append((rows, width * fields.integer("num_hidden_layers")))
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
