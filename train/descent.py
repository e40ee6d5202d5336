"""How weights are learned: AdamW under a warm-up and a cosine, and the mean of the weights after the last steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from train.ensemble import Ensemble

EMA = 0.999
PRINTED = 20  # lines of a run


def rate_at(step: int, steps: int) -> float:
    """Short linear warm-up, then a cosine to zero."""
    warm = max(1, min(200, steps // 20))
    return min((step + 1) / warm, 0.5 * (1 + math.cos(math.pi * step / steps)))


class Descent:
    """A net on its way down, and an exponential mean of its weights: the first steps, far from where it ends, fade
    faster.
    """

    def __init__(self, net: Ensemble, steps: int, rate: float, *, ema: float = EMA, weight_decay: float = 0.0) -> None:
        self.net, self.ema, self.done = net, ema, 0
        self.mean = [parameter.detach().clone() for parameter in net.parameters()]
        self.optimiser = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=weight_decay)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimiser, lambda step: rate_at(step, steps))

    def step(self, loss: Tensor, limit: Callable[[Ensemble], None] | None = None) -> None:
        """One step against this loss; `limit` changes the gradients before."""
        self.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        if limit:
            limit(self.net)
        self.optimiser.step()
        self.schedule.step()
        keep = min(self.ema, (1 + self.done) / (10 + self.done))
        torch._foreach_lerp_(self.mean, list(self.net.parameters()), 1.0 - keep)
        self.done += 1

    def finish(self) -> None:
        """Give the net the mean."""
        with torch.no_grad():
            torch._foreach_copy_(list(self.net.parameters()), self.mean)


def taught(
    student: Ensemble, losses: Iterable[Sequence[Tensor]], steps: int, rate: float,
    limit: Callable[[Ensemble], None] | None = None,
) -> Ensemble:  # fmt: skip
    """The student after so many steps. `losses` works out the terms of a step's loss when asked for them, on the
    weights of then; their sum goes down. `limit` changes the gradients before each step.
    """
    descent = Descent(student, steps, rate)
    for step, terms in zip(range(steps), losses, strict=False):
        descent.step(torch.stack(list(terms)).sum(), limit)
        if step % max(1, steps // PRINTED) == 0:
            print(f"{step:6}", *(f"{term.item():.5f}" for term in terms), flush=True)
    descent.finish()
    return student


def orders(count: int, size: int) -> Iterator[Tensor]:
    """Numbers of rows in random order, so many at a time, for ever."""
    while True:
        order = torch.randperm(count)
        yield from (order[at : at + size] for at in range(0, count - size + 1, size))
