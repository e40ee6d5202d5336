"""What a net is trained to do with log residuals: hit the median, a low quantile, and know its own error."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SCALE_SHARE = 0.1  # of the loss that fits the error scale; the estimate itself does not feel it
SCALE_RANGE = (-8.0, 3.0)
FAR_SLOPE = 0.37  # of the relative error where the prediction is e times too low


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
