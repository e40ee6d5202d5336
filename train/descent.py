"""What is minimised and how: losses of log residuals, AdamW under a warm-up and a cosine, the mean of late weights."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from train.ensemble import Ensemble

SCALE_SHARE = 0.1  # of the loss that fits the error scale; the estimate itself does not feel it
SCALE_RANGE = (-8.0, 3.0)
FAR_SLOPE = 0.37  # of the relative error where the prediction is e times too low
EMA = 0.999
PRINTED = 20  # lines of a run


@dataclass(frozen=True, slots=True)
class Loss:
    """`log_l1`: absolute log error (the median). `mape`: relative error of latency. `pinball`: a quantile."""

    kind: str = "log_l1"
    quantile: float = 0.2

    def __call__(self, out: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        """Loss of each member [member]; `out` [member, row, 2], `target` and `weight` [member, row]."""
        error = out[..., 0] - target
        own = torch.clamp(out[..., 1], *SCALE_RANGE)
        laplace = error.detach().abs() * torch.exp(-own) + own
        each = self.point(error) + SCALE_SHARE * laplace
        return (each * weight).sum(-1) / weight.sum(-1)

    def point(self, error: Tensor) -> Tensor:
        """Loss of the estimate alone; `error` is log predicted minus log measured."""
        if self.kind == "pinball":
            return torch.maximum(self.quantile * -error, (1.0 - self.quantile) * error)
        return _relative(error) if self.kind == "mape" else error.abs()


def _relative(error: Tensor) -> Tensor:
    """Relative error; beyond a factor of e it grows with the log error, so that no member is stuck at nothing."""
    near = error.clamp(-1.0, 1.0)
    return torch.expm1(near).abs() + FAR_SLOPE * (error - near).abs()


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

    def finish(self) -> None:
        """Give the net the mean."""
        with torch.no_grad():
            torch._foreach_copy_(list(self.net.parameters()), self.mean)


def taught(
    student: Ensemble, losses: Iterable[Sequence[Tensor]], steps: int, rate: float,
    limit: Callable[[Ensemble], None] | None = None, seconds: float = math.inf,
) -> tuple[Ensemble, int]:  # fmt: skip
    """The student after so many steps or seconds, whichever end first, and how many steps it took. `losses` works out
    the terms of a step's loss when asked for them, on the weights of then; their sum goes down. `limit` changes the
    gradients before each step.
    """
    descent, begun, share = Descent(student, steps, rate), time.perf_counter(), 0.0
    for step, terms in enumerate(losses):
        share = max(step / steps, (time.perf_counter() - begun) / seconds)
        if share >= 1.0:
            break
        descent.step(torch.stack(list(terms)).sum(), limit, share)
        if step % max(1, steps // PRINTED) == 0:
            print(f"{step:6}", *(f"{term.item():.5f}" for term in terms), flush=True)
    descent.finish()
    return student, descent.done


def orders(count: int, size: int) -> Iterator[Tensor]:
    """Numbers of rows in random order, so many at a time, for ever."""
    while True:
        order = torch.randperm(count)
        yield from (order[at : at + size] for at in range(0, count - size + 1, size))
