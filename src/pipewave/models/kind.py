"""What a layer holds, by name: the words of layer lists and the parts they mean."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pipewave.errors import BadInput

DENSE, SPARSE = ("mlp",), ("moe",)


@dataclass(frozen=True, slots=True)
class Kind:
    """Parts of one layer by name; `ffns` None: dense or sparse as other fields say.

    `own`: canonical fields with this layer's own values, in place of the model's.
    """

    mixers: tuple[str, ...] = ("attention",)
    ffns: tuple[str, ...] | None = None
    window: int | None = None
    chunk: int | None = None
    rope: bool = True
    full: bool = True  # attention over the whole context, as opposed to a window or a chunk
    ratio: int = 0
    own: tuple[tuple[str, Any], ...] = ()

    def with_own(self, **values: Any) -> Kind:
        """The same with more values of its own; None leaves the model's."""
        given = {name: value for name, value in values.items() if value is not None}
        for name, value in given.items():
            if not isinstance(value, (int, float, str)):
                raise BadInput(f"{name} = {value!r:.60}: must be a number or a word", field=name)
        return replace(self, own=(*self.own, *given.items()))


FULL = Kind()
WORDS: dict[str, Kind] = {
    "full_attention": FULL,
    "attention": FULL,
    "global": FULL,
    "indexed_attention": FULL,
    "deepseek_sparse_attention": FULL,
    "sparse_attention": Kind(own=(("sparse", True),)),
    "minimax_m3_sparse": Kind(own=(("sparse", True),)),
    "sliding_attention": Kind(full=False),
    "local": Kind(full=False),
    "hybrid_sliding": Kind(full=False),
    "chunked_attention": Kind(full=False),
    "linear_attention": Kind(("linear",)),
    "mamba": Kind(("mamba",)),
    "mamba2": Kind(("mamba",)),
    "conv": Kind(("conv",)),
    "short_conv": Kind(("conv",)),
    "hybrid": Kind(("mamba", "attention")),
    "compressed_sparse_attention": Kind(ratio=4),
    "heavily_compressed_attention": Kind(ratio=128),
}
# One part a layer: in lists that hold these words, every word is a layer of that part alone.
ALONE: dict[str, Kind] = {
    "M": Kind(("linear",), ()),
    "mamba": Kind(("linear",), ()),
    "linear_attention": Kind(("linear",), ()),
    "*": Kind(ffns=()),
    "attention": Kind(ffns=()),
    "full_attention": Kind(ffns=()),
    "E": Kind((), SPARSE),
    "moe": Kind((), SPARSE),
    "-": Kind((), DENSE),
    "mlp": Kind((), DENSE),
}
