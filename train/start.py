"""Members that start from weights that ship, and versions of a framework tied to their neighbours.

A net that knows the newest versions learns older ones in a few epochs: a version it never saw starts as its nearest
neighbour, features it never saw without effect, and whatever else is new as unknown. A tie makes what a version adds to
its predecessor cost, so that one that differs in nothing stays where it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pipewave.nets.nets import Net, load
from pipewave.software.stacks import framework, nearest, version
from train.ensemble import Ensemble, Shape
from train.rows import UNKNOWN, Rows


@dataclass(frozen=True, slots=True)
class Start:
    """Shipped weights, for members that see `features` and `categories` (name → values in the order of their codes)."""

    net: Net
    features: tuple[str, ...]
    categories: dict[str, tuple[str, ...]]

    @classmethod
    def of(cls, card: Path, features: Sequence[str], categories: dict[str, tuple[str, ...]]) -> Start:
        """Read a card and the weights beside it."""
        return cls(load(card).net, tuple(features), categories)

    @torch.no_grad()
    def into(self, ensemble: Ensemble) -> None:
        """Give members these weights in turn: the same answers as the net, through their own standardisation."""
        members = np.arange(ensemble.mean.shape[0]) % len(self.net.weights[0])
        first = torch.zeros_like(ensemble.weights[0])
        known = {name: at for at, name in enumerate(self.net.features)}
        for at, name in enumerate(self.features):
            if name in known:
                first[:, at] = torch.tensor(self.net.weights[0][members, known[name]])
        flat = torch.isinf(ensemble.std)
        ensemble.weights[0].copy_(first * torch.where(flat, 0.0, ensemble.std)[..., None])
        moved = torch.bmm(ensemble.mean[:, None], first)[:, 0]
        ensemble.biases[0].copy_(torch.tensor(self.net.biases[0][members, 0]) + moved)
        for depth in range(1, len(self.net.weights)):
            ensemble.weights[depth].copy_(torch.tensor(self.net.weights[depth][members]))
            ensemble.biases[depth].copy_(torch.tensor(self.net.biases[depth][members, 0]))
        for table, (name, values) in zip(ensemble.tables, self.categories.items(), strict=True):
            if name in self.net.tables:
                table.copy_(torch.tensor(self.net.tables[name][members][:, self._codes(name, values)]))

    def _codes(self, name: str, values: Sequence[str]) -> list[int]:
        """The net's code of each value; of a version it does not know, that of its nearest neighbour."""
        known = self.net.categories[name]
        near = [nearest(value, list(known)) if name == "stack" and value not in known else value for value in values]
        return [known.get(value or UNKNOWN, 0) for value in near]


def ties(stacks: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Codes of each version and of the one before it, of all frameworks."""
    order = sorted(range(1, len(stacks)), key=lambda code: (framework(stacks[code]), version(stacks[code])))
    return tuple((two, one) for one, two in pairwise(order) if framework(stacks[one]) == framework(stacks[two]))


def neighbours(stacks: Sequence[str], seen: Tensor) -> Tensor:
    """For each version the code that answers for it, [code]: its own where it was seen, else the nearest seen one's."""
    known = [name for code, name in enumerate(stacks) if code and bool(seen[code])]
    near = [name if code and bool(seen[code]) else nearest(name, known) for code, name in enumerate(stacks)]
    return torch.tensor([stacks.index(name) if name else 0 for name in near])


def tension(table: Tensor, tied: Tensor) -> Tensor:
    """Sum of squares of what each version adds to the one before it, [member]."""
    return (table[:, tied[:, 0]] - table[:, tied[:, 1]]).square().sum((1, 2))


def with_new(net: Net, rows: Rows) -> dict[str, tuple[str, ...]]:
    """A net's categories with the values of these rows that it does not know behind its own."""
    seen = {name: set(np.unique(rows.columns[name].text()).tolist()) for name in net.categories}
    return {name: (*codes, *sorted(seen[name] - set(codes))) for name, codes in net.categories.items()}


def successors(stacks: Sequence[str], net: Net) -> Tensor:
    """For each version that a net does not know, codes with that of the version that it begins as changed to its own,
    [version, code].
    """
    known, found = list(net.categories["stack"]), []
    for code in range(len(known), len(stacks)):
        row, near = list(range(len(stacks))), nearest(stacks[code], known)
        row[known.index(near) if near else 0] = code
        found.append(row)
    return torch.tensor(found, dtype=torch.long).reshape(-1, len(stacks))


def ensemble_of(
    card: Path, features: Sequence[str], categories: dict[str, tuple[str, ...]], mean: Tensor, std: Tensor
) -> Ensemble:
    """Weights that ship as members that can be trained; versions that they do not know begin as the nearest."""
    net = load(card).net
    hidden, members = tuple(weight.shape[2] for weight in net.weights[:-1]), len(net.weights[0])
    shape = Shape(len(features), tuple(map(len, categories.values())), hidden, net.activation)
    each = (mean.expand(members, -1).clone(), std.expand(members, -1).clone())
    found = Ensemble(shape, tuple(range(members)), *each, torch.zeros(members, 2))
    Start.of(card, features, categories).into(found)
    return found
