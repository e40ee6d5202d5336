"""What the laws leave, smoothed over shapes and over configurations: a Gaussian process on log residuals.

The laws see counts; the residual holds what counts cannot (how well the L2 serves a given aspect, how clocks answer to
power). It varies slowly with the logarithm of the shape, so anchors near a shape tell it, and it is alike for
configurations that are alike, so that each of them lends its launches to its neighbours: their covariance is
(shape kernel) ⊗ (configuration kernel) + noise, solved exactly through the two factors' eigenvectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipewave.tune.mapping import LINE, Values
from pipewave.tune.shapes import family, is_up

Floats = NDArray[np.float64]


def coordinates(kernel: str, shape: Values) -> tuple[object, ...]:
    """Reduce a shape to the few integers its residual depends on; numbers or arrays."""
    kind = family(kernel)
    if kind == "gemm":
        sizes = shape["m"], shape["n"], shape["k"]
        return (*sizes, 1 + (shape["k"] % LINE > 0)) if kernel == "gemm_fp8" else sizes  # whether rows start at a line
    if kind == "moe":
        n, k = (2 * shape["inter"], shape["hidden"]) if is_up(kernel) else (shape["hidden"], shape["inter"])
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


@dataclass(frozen=True, slots=True)
class Alike:
    """Covariance of configurations [c, c] with its eigenvalues and eigenvectors."""

    matrix: Floats
    values: Floats
    vectors: Floats


def alike(config: Mapping[str, NDArray[np.int64]], reach: float, near: float, own: float) -> Alike:
    """Return the covariance of configurations: shared by all (1), by those within `reach` octaves, and their own."""
    at = np.stack([np.log2(np.maximum(values, 0.5)) for values in config.values()], axis=1)
    matrix = 1.0 + near * _kernel(at, at, reach) + own * np.eye(len(at))
    values, vectors = np.linalg.eigh(matrix)
    return Alike(matrix, np.maximum(values, 0.0), vectors)


def smoother(at: Floats, residual: Floats, length: float, noise: float, of: Alike,
             stretch: Floats | float = 1.0) -> tuple[Smoother, Floats]:  # fmt: skip
    """Fit to log residuals [n, c] at log coordinates [n, d]; `stretch` [d]: how much shorter the length is in each.

    Also returns the residuals [n, c] that are left at each shape when all its launches are left out.
    """
    mean, spread = at.mean(axis=0), (at.std(axis=0) + 1e-9) / stretch
    scaled = (at - mean) / spread
    values, vectors = np.linalg.eigh(_kernel(scaled, scaled, length))
    shrunk = 1.0 / (np.maximum(values, 0.0)[:, None] * of.values + noise)
    solved = vectors @ (vectors.T @ residual @ of.vectors * shrunk)
    left = (solved / (vectors**2 @ shrunk)) @ of.vectors.T
    return Smoother(mean, spread, length, scaled, solved @ of.vectors.T @ of.matrix), left
