"""What the laws leave, smoothed over shapes: kernel ridge regression on log residuals, one smoother for all.

The laws see counts; the residual holds what counts cannot (how well the L2 serves a given aspect, how clocks answer to
power). It varies slowly with the logarithm of the shape, so anchors near a shape tell it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipewave.tune.mapping import Values
from pipewave.tune.shapes import family

Floats = NDArray[np.float64]


def coordinates(kernel: str, shape: Values) -> tuple[object, ...]:
    """Reduce a shape to the few integers its residual depends on; numbers or arrays."""
    kind = family(kernel)
    if kind == "gemm":
        return shape["m"], shape["n"], shape["k"]
    if kind == "moe":
        n, k = (2 * shape["inter"], shape["hidden"]) if kernel == "moe_w13" else (shape["hidden"], shape["inter"])
        return shape["m"] * shape["top_k"] // shape["e"] + 1, shape["e"], n, k
    if kind == "prefill":
        return shape["batch"] * shape["heads"], shape["q_len"], shape["kv_len"], shape["heads"] // shape["kv_heads"]
    return shape["batch"] * shape["kv_heads"], shape["kv_len"], shape["heads"] // shape["kv_heads"]


@dataclass(frozen=True, slots=True)
class Smoother:
    """`at` [n, d] scaled coordinates of the anchors, `weights` [n, c]; correction = exp(kernel(x, at) @ weights)."""

    mean: Floats
    spread: Floats
    length: float
    at: Floats
    weights: Floats

    def log_factor(self, logs: Floats) -> Floats:
        """Return the log correction [s, c] at log coordinates [s, d]."""
        near = _kernel((logs - self.mean) / self.spread, self.at, self.length)
        return np.asarray(near @ self.weights)


def _kernel(a: Floats, b: Floats, length: float) -> Floats:
    square = np.sum(a**2, axis=1)[:, None] + np.sum(b**2, axis=1) - 2 * a @ b.T
    return np.asarray(np.exp(-0.5 * np.maximum(square, 0.0) / length**2))


def logs(kernel: str, shape: Values) -> Floats:
    """Log coordinates [s, d] of shapes given as columns."""
    return np.stack([np.log(np.asarray(value, float).reshape(-1)) for value in coordinates(kernel, shape)], axis=1)


def smoother(at: Floats, residual: Floats, length: float, noise: float) -> tuple[Smoother, Floats]:
    """Fit to log residuals [n, c] at log coordinates [n, d]; also returns the leave-one-out residuals [n, c]."""
    mean, spread = at.mean(axis=0), at.std(axis=0) + 1e-9
    scaled = (at - mean) / spread
    inverse = np.linalg.inv(_kernel(scaled, scaled, length) + noise * np.eye(len(at)))
    weights = inverse @ residual
    return Smoother(mean, spread, length, scaled, weights), weights / np.diag(inverse)[:, None]
