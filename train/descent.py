"""How weights are learned: AdamW under a warm-up and a cosine, and the mean of the weights after the last steps."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from train.ensemble import Ensemble

EMA = 0.999
PRINTED = 20  # lines of a run


def rate_at(step: int, steps: int, share: float | None = None) -> float:
    """Short linear warm-up, then a cosine to zero; `share`: of the way, where time ends it before the steps do."""
    warm = max(1, min(200, steps // 20))
    return min((step + 1) / warm, 0.5 * (1 + math.cos(math.pi * (step / steps if share is None else share))))


class Descent:
    """A net on its way down, and an exponential mean of its weights: the first steps, far from where it ends, fade
    faster.
    """

    def __init__(self, net: Ensemble, steps: int, rate: float, *, ema: float = EMA, weight_decay: float = 0.0) -> None:
        self.net, self.steps, self.rate, self.ema, self.done = net, steps, rate, ema, 0
        self.mean = [parameter.detach().clone() for parameter in net.parameters()]
        self.optimiser = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=weight_decay)

    def step(self, loss: Tensor, limit: Callable[[Ensemble], None] | None = None, share: float | None = None) -> None:
        """One step against this loss; `limit` changes the gradients before; `share` of the way is done."""
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate * rate_at(self.done, self.steps, share)
        self.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        if limit:
            limit(self.net)
        self.optimiser.step()
        keep = min(self.ema, (1 + self.done) / (10 + self.done))
        torch._foreach_lerp_(self.mean, list(self.net.parameters()), 1.0 - keep)
        self.done += 1

    def averaged(self) -> Ensemble:
        """A copy of the net with the mean."""
        found = copy.deepcopy(self.net)
        with torch.no_grad():
            torch._foreach_copy_(list(found.parameters()), self.mean)
        return found

    def finish(self) -> None:
        """Give the net the mean."""
        with torch.no_grad():
            torch._foreach_copy_(list(self.net.parameters()), self.mean)


def taught(
    student: Ensemble, losses: Iterable[Sequence[Tensor]], steps: int, rate: float,
    limit: Callable[[Ensemble], None] | None = None, seconds: float = math.inf, early: float = 1.0,
) -> tuple[Ensemble, Ensemble, int]:  # fmt: skip
    """The student after so many steps or seconds, whichever end first; a copy of when `early` of that was over; and how
    many steps it took. `losses` works out the terms of a step's loss when asked for them, on the weights of then; their
    sum goes down. `limit` changes the gradients before each step.
    """
    descent, begun, share, before = Descent(student, steps, rate), time.perf_counter(), 0.0, None
    for step, terms in enumerate(losses):
        share = max(step / steps, (time.perf_counter() - begun) / seconds)
        if share >= 1.0:
            break
        if before is None and share >= early:
            before = descent.averaged()
        descent.step(torch.stack(list(terms)).sum(), limit, share)
        if step % max(1, steps // PRINTED) == 0:
            print(f"{step:6}", *(f"{term.item():.5f}" for term in terms), flush=True)
    descent.finish()
    return student, before or copy.deepcopy(student), descent.done


def orders(count: int, size: int) -> Iterator[Tensor]:
    """Numbers of rows in random order, so many at a time, for ever."""
    while True:
        order = torch.randperm(count)
        yield from (order[at : at + size] for at in range(0, count - size + 1, size))
