"""The rows of a net as tensors on the device that trains it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from train.rows import Rows


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
