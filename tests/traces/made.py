"""Chrome traces made on purpose: a host that launches the products of a model's layers, and a GPU that runs them.

Times of kernels are what is predicted of them, with a little noise, so that a trace is slow for its one reason only.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pipewave as pw

GPU = "H200"
WIDTHS = ((4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096))  # (k, n) of the products of Llama-3.1-8B's layer
LAYERS, STEPS = 8, 3
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
Event = dict[str, Any]


@dataclass
class Run:
    """One host thread and one stream; `host_us` of an operator, `slow` what every kernel takes in excess."""

    tokens: int = 4096
    host_us: float = 3.0
    slow: float = 1.0
    events: list[Event] = field(default_factory=list)
    host: float = 0.0
    gpu: float = 0.0
    noise: random.Random = field(default_factory=lambda: random.Random(7))

    def event(self, kind: str, name: str, start: float, us: float, **args: Any) -> None:
        self.events.append(
            {"ph": "X", "cat": kind, "name": name, "ts": start, "dur": us, "pid": 0, "tid": 1, "args": args}
        )

    def span(self, name: str, us: float) -> None:
        """The host runs something that launches nothing."""
        self.event("user_annotation", name, self.host, us)
        self.host += us

    def work(self, name: str, us: float, kind: str = "kernel", **args: Any) -> None:
        """The host launches, the GPU runs it when it is free."""
        number = len(self.events)
        self.event("cuda_runtime", "cudaLaunchKernel", self.host, self.host_us * 0.6, correlation=number)
        start = max(self.gpu, self.host + 4.0)
        self.host += self.host_us
        lasts = us * self.noise.uniform(0.97, 1.03)
        self.event(kind, name, start, lasts, correlation=number, stream=7, device=0, **args)
        self.gpu = start + lasts

    def product(self, m: int, n: int, k: int, slow: float = 1.0) -> None:
        dims = [[m, k], [k, n]]
        types = ["c10::BFloat16", "c10::BFloat16"]
        self.event("cpu_op", "aten::mm", self.host - 0.5, self.host_us, **{"Input Dims": dims, "Input type": types})
        us = pw.predict(pw.gemm(m, n, k), GPU, protocol="serving").latency_us
        self.work("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_TNT", us * slow * self.slow, grid=[132, 1, 1])

    def wait(self) -> None:
        """The host waits for the GPU, as it does to read tokens."""
        start = self.host
        self.host = max(self.host, self.gpu) + 2.0
        self.event("cuda_runtime", "cudaStreamSynchronize", start, self.host - start)

    def layers(self, each: Callable[[Run], None] = lambda run: None, slow: float = 1.0) -> None:
        for _ in range(LAYERS):
            for at, (k, n) in enumerate(WIDTHS):
                self.product(self.tokens, n, k, slow if at == 2 else 1.0)
            each(self)

    def document(self) -> dict[str, Any]:
        return {"traceEvents": self.events, "deviceProperties": [{"name": "NVIDIA H200"}]}


def _plain(run: Run) -> None:
    for _ in range(STEPS):
        run.layers()


def _starved(run: Run) -> None:
    for _ in range(STEPS):
        run.host += 30_000.0
        run.layers()
        run.wait()


def _loader(run: Run) -> None:
    for _ in range(STEPS):
        run.span(LOADER, 30_000.0)
        run.layers()
        run.wait()


def _all_reduce(run: Run) -> None:
    name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    for _ in range(STEPS):
        run.layers(lambda one: one.work(name, 600.0))


def _copies(run: Run) -> None:
    for _ in range(STEPS):
        run.layers(lambda one: one.work("Memcpy HtoD (Pageable -> Device)", 900.0, "gpu_memcpy", bytes=20_000_000))


def _slow_kernel(run: Run) -> None:
    for _ in range(STEPS):
        run.layers(slow=2.5)


def _padded(run: Run) -> None:
    for _ in range(STEPS):
        run.span("execute_context_4(2300)_generation_0(0)", 1.0)
        run.layers()


def _masked(run: Run) -> None:
    sizes = [[8, 32, 512, 128]] * 3
    types = ["c10::BFloat16"] * 4

    def attention(one: Run) -> None:
        dims = {"Input Dims": [*sizes, [8, 1, 512, 512]], "Input type": types}
        one.event("cpu_op", "aten::scaled_dot_product_attention", one.host - 0.5, one.host_us, **dims)
        one.work("fmha_cutlassF_bf16_aligned_64x128_rf_sm80", 60.0, grid=[8, 32, 8])

    for _ in range(STEPS):
        run.layers(attention)


# A trace by what is wrong with it, the cause that is to be named, and how to make it.
MADE: dict[str, tuple[str, Run, Callable[[Run], None]]] = {
    "starved host": ("host", Run(), _starved),
    "missing graphs": ("launches", Run(tokens=32, host_us=70.0), _plain),
    "slow data loader": ("input", Run(), _loader),
    "exposed all-reduce": ("communication", Run(), _all_reduce),
    "copies from the host": ("copies", Run(), _copies),
    "one slow kernel": ("kernel", Run(), _slow_kernel),
    "padded batch": ("padding", Run(), _padded),
    "padded batch under a mask": ("padding", Run(), _masked),
    "small batch": ("batch", Run(tokens=4, host_us=2.0), _plain),
    "lowered clock": ("clock", Run(slow=1.5), _plain),
    "healthy": ("", Run(), _plain),
}


def trace(name: str) -> tuple[str, dict[str, Any]]:
    """(cause, document) of a kind of trace."""
    cause, run, make = MADE[name]
    fresh = Run(run.tokens, run.host_us, run.slow)
    make(fresh)
    return cause, fresh.document()
