"""Made-up rows with a known law, for tests of splits, fit, evaluation and export."""

from __future__ import annotations

import numpy as np

from corpus.select import fold
from train.rows import Column, Rows

GPUS = ("A100", "B200", "GB200", "H100", "H200", "H800", "L40S")
FAMILY = {"A100": "ampere", "B200": "blackwell", "GB200": "blackwell", "L40S": "ada"}
CAPABILITY = {"A100": "80", "B200": "100", "GB200": "100", "L40S": "89"}
STACKS = ("sglang-0.5.14", "vllm-0.22.1", "vllm-0.24.0")


def synthetic(size: int = 3000, groups: int = 150, noise: float = 0.02, seed: int = 0) -> Rows:
    """log(latency / base) = 0.3 sin 2a + 0.2 b + a stack's offset + noise; a and b are features, c is no help."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, groups, size)
    gpu = rng.choice(GPUS, size)
    stack = rng.integers(0, len(STACKS), size)
    a, b, c = rng.uniform(-2, 2, size), rng.normal(5, 3, size), rng.normal(0, 1e4, size)
    residual = 0.3 * np.sin(2 * a) + 0.2 * (b - 5) / 3 + 0.1 * stack + noise * rng.standard_normal(size)
    base_us = rng.uniform(1, 1000, size)
    text = {
        "gpu": gpu,
        "family": np.array([FAMILY.get(name, "hopper") for name in gpu]),
        "capability": np.array([CAPABILITY.get(name, "90") for name in gpu]),
        "stack": np.array(STACKS)[stack],
        "impl": np.where(stack == 0, "triton", "cutlass"),
        "dtype": np.full(size, "bf16"),
        "protocol": np.full(size, "graph"),
    }
    return Rows(
        features=np.stack([a, b, c], 1).astype(np.float32),
        names=("a", "b", "c"),
        base_us=base_us,
        latency_us=base_us * np.exp(residual),
        weight=np.ones(size),
        group=group,
        fold=np.array([fold(f"{number},0") for number in group]),
        columns={name: Column.of(values) for name, values in text.items()},
    )
