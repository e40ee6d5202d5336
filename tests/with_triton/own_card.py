"""A made-up card for kernels that nobody here wrote, and a tiled product to tune on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl

from pipewave.tune import autotune
from pipewave.tune.law.anchors import peaks_of
from pipewave.tune.user_kernels.call_sites import named
from pipewave.tune.user_kernels.device import Built, Launch
from pipewave.tune.user_kernels.tuned import TunedKernel

CONFIGS = [triton.Config({"BM": m, "BN": n, "BK": k}, num_warps=w, num_stages=3)
           for m, n, k, w in ((64, 64, 32, 4), (16, 64, 64, 4), (32, 32, 32, 2), (128, 64, 32, 8), (128, 128, 32, 8))]  # fmt: skip


@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pid = tl.program_id(0)
    cols = tl.cdiv(N, BN)
    m = (pid // cols) * BM + tl.arange(0, BM)
    n = (pid % cols) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        x = tl.load(a + m[:, None] * K + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
        y = tl.load(b + k[:, None] * N + n[None, :], mask=(k[:, None] < K) & (n[None, :] < N), other=0.0)
        acc += tl.dot(x, y)
    tl.store(c + m[:, None] * N + n[None, :], acc, mask=(m[:, None] < M) & (n[None, :] < N))


class Device:
    """Times a tiled product by blocks, waves and trips; every launch takes 1 ms of the budget."""

    def __init__(self) -> None:
        self.peaks = peaks_of("NVIDIA H200")
        self.env = {"gpu": "NVIDIA H200", "driver": "1", "triton": "3"}
        self.built: list[int] = []
        self.timed: list[int] = []
        self.capturing = False

    def idle(self) -> bool:
        return not self.capturing

    def build(self, launch: Launch, configs: Sequence[int]) -> dict[int, Built]:
        self.built += configs
        return {index: Built(100_000, 128) for index in configs}

    def us(self, launch: Launch, index: int) -> float:
        c = launch.configs[index]
        if "BM" not in c:
            return 5.0 + index
        given = named(SimpleNamespace(arg_names=matmul.arg_names), launch.args, launch.kwargs)  # type: ignore[arg-type]
        blocks = math.ceil(given["M"] / c["BM"]) * math.ceil(given["N"] / c["BN"])
        trips = math.ceil(given["K"] / c["BK"])
        each = c["BM"] * c["BN"] * c["BK"] / 4e5 / (1 if c["BM"] > 16 else 0.5)
        return 3 + math.ceil(blocks / 132) * trips * (each + 0.05) + 1e-4 * blocks * trips

    def time(self, launch: Launch, order: Sequence[int]) -> list[float]:
        for index in order:
            launch.before(index)
            launch.after(index)
        self.timed += order
        return [self.us(launch, index) for index in order]


def best(device: Device, args: Sequence[Any]) -> int:
    launch = Launch(None, None, args, {}, [config.all_kwargs() for config in CONFIGS])
    return min(range(len(CONFIGS)), key=lambda index: device.us(launch, index))


def product(kernel: Any, m: int, n: int, k: int) -> tuple[Any, ...]:
    a, b, c = torch.randn(m, k), torch.randn(k, n), torch.empty(m, n)
    kernel[lambda meta: (triton.cdiv(m, meta["BM"]) * triton.cdiv(n, meta["BN"]),)](a, b, c, m, n, k)
    torch.testing.assert_close(c, a @ b, atol=1e-3, rtol=1e-3)
    return a, b, c, m, n, k


def tuned(device: Any, **options: Any) -> TunedKernel:
    kernel = autotune(CONFIGS, key=["M", "N", "K"], device=device, **{"cache": False, **options})(matmul)
    assert isinstance(kernel, TunedKernel)
    return kernel


def at_size(kernel: TunedKernel, m: int, n: int, k: int, dtype: Any = torch.float32) -> int | None:
    a, b, c = (torch.empty(*size, dtype=dtype) for size in ((m, k), (k, n), (m, n)))
    grid = lambda meta: (triton.cdiv(m, meta["BM"]) * triton.cdiv(n, meta["BN"]),)  # noqa: E731
    return kernel.choose((a, b, c, m, n, k), {}, grid)
