"""Many small MLPs trained at once: every tensor leads with the member axis, every member has rows of its own.

A member sees features standardised on its own training rows and adds one learned vector per category to the first
layer. Code 0 is "unknown": it is trained by hiding codes at random, and stands in for codes a member never saw.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from train.rows import Rows

ACTIVATIONS = {"silu": functional.silu, "relu": functional.relu}


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a net: inputs, codes of each category column, hidden widths, activation."""

    features: int
    codes: tuple[int, ...]
    hidden: tuple[int, ...] = (128, 128, 64)
    activation: str = "silu"


class Ensemble(nn.Module):
    """`members` nets of one shape. Output [member, row, 2]: log residual, log scale of its error."""

    mean: Tensor
    std: Tensor

    def __init__(self, shape: Shape, seeds: tuple[int, ...], mean: Tensor, std: Tensor, centre: Tensor) -> None:
        """`mean`, `std` [member, feature] and `centre` [member, 2] (start of the output bias) come from the rows."""
        super().__init__()
        self.shape = shape
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        sizes = (shape.features, *shape.hidden, 2)
        drawn = [list(_initial(sizes, seed)) for seed in seeds]
        self.weights = nn.ParameterList(torch.stack(layer) for layer in zip(*drawn, strict=True))
        zeros = [torch.zeros(len(seeds), size) for size in sizes[1:-1]]
        self.biases = nn.ParameterList([*zeros, centre.clone()])
        self.tables = nn.ParameterList(torch.zeros(len(seeds), count, sizes[1]) for count in shape.codes)

    def forward(self, features: Tensor, codes: Tensor) -> Tensor:
        """`features` [member, row, feature] as measured (not standardised), `codes` [member, row, column]."""
        activate = ACTIVATIONS[self.shape.activation]
        hidden = (features - self.mean[:, None]) / self.std[:, None]
        for depth, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            hidden = torch.baddbmm(bias[:, None], activate(hidden) if depth else hidden, weight)
            if depth == 0:
                for column, table in enumerate(self.tables):
                    hidden = hidden + _looked_up(table, codes[..., column])
        return hidden

    @torch.no_grad()
    def forget(self, seen: list[Tensor]) -> None:
        """Let codes a member never trained on (`seen[column]` [member, code] is False) mean "unknown"."""
        for table, known in zip(self.tables, seen, strict=True):
            table.copy_(torch.where(known[..., None], table, table[:, :1]))

    @torch.no_grad()
    def lend(self, column: int, codes: Tensor) -> None:
        """Let each code of a column mean another one, `codes` [member, code]."""
        table = self.tables[column]
        table.copy_(torch.gather(table, 1, codes.to(table.device)[..., None].expand_as(table)))

    @torch.no_grad()
    def folded(self) -> dict[str, Tensor]:
        """Tensors for inference: `w0`, `b0`, ... with standardisation folded into layer 0, and `table0`, ..."""
        first = self.weights[0] / self.std[..., None]
        shift = torch.bmm((self.mean / self.std)[:, None], self.weights[0])[:, 0]
        weights = [first, *self.weights[1:]]
        biases = [self.biases[0] - shift, *self.biases[1:]]
        out = {f"w{i}": tensor.detach().clone() for i, tensor in enumerate(weights)}
        out |= {f"b{i}": tensor.detach().clone() for i, tensor in enumerate(biases)}
        return out | {f"table{i}": table.detach().clone() for i, table in enumerate(self.tables)}


def _initial(sizes: tuple[int, ...], seed: int) -> Iterator[Tensor]:
    """Weights of one member, a function of its seed alone; the last layer starts small."""
    generator = torch.Generator().manual_seed(seed)
    for depth, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        gain = 0.1 if depth == len(sizes) - 2 else 1.4
        yield torch.randn(fan_in, fan_out, generator=generator) * (gain / fan_in**0.5)


def _looked_up(table: Tensor, codes: Tensor) -> Tensor:
    members, count, width = table.shape
    offset = torch.arange(members, device=table.device)[:, None] * count
    return functional.embedding(codes + offset, table.reshape(members * count, width))


@dataclass(frozen=True, slots=True)
class Data:
    """Rows on the device."""

    features: Tensor
    codes: Tensor
    target: Tensor
    weight: Tensor
    counts: tuple[int, ...]
    stack: int | None  # which of the categories it is
    stacks: tuple[str, ...]

    @classmethod
    def of(cls, rows: Rows, features: Sequence[str] | None, categories: Sequence[str], device: torch.device) -> Data:
        """These features (None: all) and categories of the rows."""
        wanted = [rows.names.index(name) for name in features or rows.names]
        columns = [rows.columns[name] for name in categories]
        codes = np.stack([column.codes for column in columns], 1) if columns else np.zeros((len(rows), 0), np.int64)
        return cls(
            features=torch.tensor(rows.features[:, wanted], dtype=torch.float32, device=device),
            codes=torch.tensor(codes, device=device),
            target=torch.tensor(rows.residual, dtype=torch.float32, device=device),
            weight=torch.tensor(rows.weight, dtype=torch.float32, device=device),
            counts=tuple(len(column.values) for column in columns),
            stack=categories.index("stack") if "stack" in categories else None,
            stacks=rows.columns["stack"].values if "stack" in rows.columns else (),
        )

    def at(self, batch: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Features, codes, target and weight of rows [member, size]; whole rows are copied, three times as fast."""
        flat = batch.reshape(-1)
        features, codes, target, weight = (
            part.index_select(0, flat).unflatten(0, batch.shape)
            for part in (self.features, self.codes, self.target, self.weight)
        )
        return features, codes, target, weight
