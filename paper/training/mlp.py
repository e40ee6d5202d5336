"""The published network and its training: 256-128-64, each Linear-ReLU-BatchNorm-Dropout, sigmoid efficiency."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from paper.demand import Array
from paper.training.rows import SEED, Rows

HIDDEN = (256, 128, 64)
DROPOUT = 0.1
BATCH = 1024
LEARNING_RATE, WEIGHT_DECAY = 1e-3, 1e-4
PLATEAU_PATIENCE, PLATEAU_FACTOR, LEAST_RATE = 45, 0.6, 1e-6
GRADIENT_NORM = 1.0
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Recipe:
    """What differs between the published runs: the loss, the budget, and whether a validation fifth stops training."""

    loss: Loss
    epochs: int
    patience: int | None


def mape(predicted: Tensor, perf: Tensor) -> Tensor:
    """Mean relative error on efficiency."""
    return ((perf - predicted).abs() / (perf + 1e-9)).mean()


def pinball(quantile: float) -> Loss:
    """Loss whose minimum is that quantile of the efficiency."""

    def loss(predicted: Tensor, perf: Tensor) -> Tensor:
        short = perf - predicted
        return torch.maximum((quantile - 1) * short, quantile * short).mean()

    return loss


MEAN = Recipe(loss=mape, epochs=2500, patience=85)
P80 = Recipe(loss=pinball(0.8), epochs=200, patience=None)


@dataclass(frozen=True, slots=True)
class Fitted:
    """A trained network, the names of its inputs, its seed, the epoch kept and the loss that chose it."""

    net: nn.Sequential
    order: tuple[str, ...]
    seed: int
    epoch: int
    loss: float

    def perf(self, rows: Rows) -> Array:
        """Predicted efficiency of each row."""
        self.net.eval()
        with torch.no_grad():
            predicted = self.net(inputs(rows, self.order))[:, 0]
        return np.asarray(predicted.numpy(), dtype=np.float64)


def network(width_in: int) -> nn.Sequential:
    """The published architecture, not trained."""
    layers: list[nn.Module] = []
    for width in HIDDEN:
        layers += [nn.Linear(width_in, width), nn.ReLU(), nn.BatchNorm1d(width), nn.Dropout(DROPOUT)]
        width_in = width
    return nn.Sequential(*layers, nn.Linear(width_in, 1), nn.Sigmoid())


def inputs(rows: Rows, order: tuple[str, ...]) -> Tensor:
    """log1p of the named features, as float32; the paper does not standardise."""
    return torch.log1p(torch.tensor(np.stack([rows.features[name] for name in order], axis=1), dtype=torch.float32))


def fit(rows: Rows, order: tuple[str, ...], recipe: Recipe = MEAN, seed: int = SEED) -> Fitted:
    """Train on these rows. Validation rows are drawn at random, so they share shapes with the rest, as published.

    `seed` sets the weights and the batches; the validation rows stay the same, so that losses can be compared.
    """
    torch.manual_seed(seed)
    x, y = inputs(rows, order), torch.tensor(rows.perf, dtype=torch.float32)[:, None]
    index = np.arange(len(rows))
    learn, check = (
        (index, index) if recipe.patience is None else train_test_split(index, test_size=0.2, random_state=SEED)
    )
    net = network(len(order))
    optimizer = torch.optim.AdamW(net.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, patience=PLATEAU_PATIENCE, factor=PLATEAU_FACTOR, min_lr=LEAST_RATE
    )
    best, best_epoch, kept = float("inf"), 0, copy.deepcopy(net.state_dict())
    for epoch in range(1, recipe.epochs + 1):
        loss = _epoch(net, optimizer, recipe.loss, x[learn], y[learn])
        if recipe.patience is not None:
            loss = _loss_of(net, recipe.loss, x[check], y[check])
        plateau.step(loss)
        if loss < best:
            best, best_epoch, kept = loss, epoch, copy.deepcopy(net.state_dict())
        elif recipe.patience is not None and epoch - best_epoch >= recipe.patience:
            break
    net.load_state_dict(kept)
    return Fitted(net, order, seed, best_epoch, best)


def _epoch(net: nn.Module, optimizer: torch.optim.Optimizer, loss_of: Loss, x: Tensor, y: Tensor) -> float:
    """One pass in random batches; the mean training loss, dropout included."""
    net.train()
    total = 0.0
    for batch in torch.split(torch.randperm(len(x)), BATCH):
        optimizer.zero_grad()
        loss = loss_of(net(x[batch]), y[batch])
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(net.parameters(), GRADIENT_NORM)
        optimizer.step()
        total += loss.item() * len(batch)
    return total / len(x)


def _loss_of(net: nn.Module, loss_of: Loss, x: Tensor, y: Tensor) -> float:
    net.eval()
    with torch.no_grad():
        return float(loss_of(net(x), y))
