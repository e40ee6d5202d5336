"""What only a card can say of the decorator, in about two minutes: `python -m lab.any_kernel.on_card [--out FILE]`.

Host TMA descriptors whose hook sets their block, `torch.compile` with a full graph, `triton_op`, CUDA graphs,
`patch()`, threads, processes that share what was measured; how long calls stall after a kernel's first decision, and
what a decision costs. Every check compares results with torch. `--triton-tests FILE` runs Triton's own tests of its
autotuner (`python/test/unit/runtime/test_autotuner.py` of its repository) under `patch()`. `--dry` runs what an
interpreter can, on a made-up card, without a GPU: set TRITON_INTERPRET=1.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from pipewave.tune import autotune, patch
from pipewave.tune.law.anchors import peaks_of
from pipewave.tune.user_kernels.device import Built, Launch

TILES = ((64, 64, 64, 4, 3), (128, 64, 64, 4, 3), (128, 128, 64, 8, 3), (64, 128, 64, 4, 4))
CONFIGS = [triton.Config({"BM": m, "BN": n, "BK": k}, num_warps=w, num_stages=s) for m, n, k, w, s in TILES]
SIZES = [(128 * (1 + 7 * i % 13), 256 * (1 + 5 * i % 11), 64 * (1 + 3 * i % 17)) for i in range(60)]
STALL_S = 1.5  # of calls right after the budget is spent, while lists are worked out


@triton.jit
def product(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # type: ignore[no-untyped-def]
    """C = A · B."""
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


@triton.jit
def by_descriptor(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ARG001
    """C = A · B by host descriptors."""
    pid = tl.program_id(0)
    cols = tl.cdiv(N, BN)
    row, col = (pid // cols) * BM, (pid % cols) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc += tl.dot(a.load([row, k]), b.load([k, col]))
    c.store([row, col], acc.to(tl.float16))


def blocks(given: dict[str, Any]) -> None:
    """What a configuration's hook does: descriptors get its tile."""
    given["a"].block_shape = [given["BM"], given["BK"]]
    given["b"].block_shape = [given["BK"], given["BN"]]
    given["c"].block_shape = [given["BM"], given["BN"]]


class MadeUp:
    """A card without a card: times by tiles."""

    peaks, env = peaks_of("NVIDIA H200"), {"gpu": "NVIDIA H200", "driver": "1", "triton": "3"}

    def idle(self) -> bool:
        """No graph is captured."""
        return True

    def build(self, launch: Launch, configs: Sequence[int]) -> dict[int, Built]:
        """Everything compiles."""
        for index in configs:
            launch.prepare(index)
        return {index: Built(100_000, 128) for index in configs}

    def time(self, launch: Launch, order: Sequence[int]) -> list[float]:
        """By waves of tiles."""
        m, n, k = launch.args[3:6]
        found = []
        for config in (launch.configs[index] for index in order):
            waves = math.ceil(math.ceil(m / config["BM"]) * math.ceil(n / config["BN"]) / 132)
            found.append(3 + waves * k * (0.01 + 1e-7 * config["BM"] * config["BN"]))
        return found


class Checks:
    """The checks, on `where` ("cuda" or "cpu") with a device to measure on (None: the GPU)."""

    def __init__(self, where: str, device: Any) -> None:
        self.where, self.device = where, device

    def kernel(self, fn: Any = product, configs: Sequence[Any] = CONFIGS, **more: Any) -> Any:
        """A decorated kernel that keeps nothing."""
        return autotune(configs, key=["M", "N", "K"], cache=False, device=self.device, **more)(fn)

    def operands(self, m: int, n: int, k: int) -> tuple[Any, Any, Any]:
        """Two matrices and room for their product."""
        kind = torch.float16 if self.where == "cuda" else torch.float32
        a, b = (torch.randn(*size, device=self.where).to(kind) for size in ((m, k), (k, n)))
        return a, b, torch.empty(m, n, device=self.where, dtype=kind)

    def launched(self, kernel: Any, m: int, n: int, k: int) -> tuple[Any, Any]:
        """A launch's product, and torch's."""
        a, b, c = self.operands(m, n, k)
        kernel[_grid(m, n)](a, b, c, m, n, k)
        return c, a @ b

    def same(self, found: Any, wanted: Any) -> None:
        """Fail where results differ."""
        torch.testing.assert_close(found.float(), wanted.float(), atol=2e-1, rtol=2e-2)

    def descriptors(self) -> dict[str, Any]:
        """Host TMA descriptors whose hook sets their block."""
        from triton.tools.tensor_descriptor import TensorDescriptor

        kernel = self.kernel(by_descriptor, [triton.Config(one.kwargs, num_warps=one.num_warps, num_stages=3,
                                                           pre_hook=blocks) for one in CONFIGS])  # fmt: skip
        for m, n, k in ((512, 512, 256), (1024, 512, 512)):
            a, b, c = self.operands(m, n, k)
            given = [TensorDescriptor.from_tensor(one, [1, 1]) for one in (a, b, c)] if self.where == "cuda" else None
            if given is None:  # the interpreter has no descriptors: the choice alone
                given = [_Described(one, [1, 1]) for one in (a, b, c)]
                kernel.choose(
                    (*given, m, n, k),
                    {},
                    lambda meta, m=m, n=n: (triton.cdiv(m, meta["BM"]) * triton.cdiv(n, meta["BN"]),),
                )
                continue
            kernel[lambda meta, m=m, n=n: (triton.cdiv(m, meta["BM"]) * triton.cdiv(n, meta["BN"]),)](*given, m, n, k)
            self.same(c, a @ b)
        assert kernel.provenance["measured"] == 2, (dict(kernel.provenance), kernel.reason)
        return {"measured": 2, "timing_s": kernel.spent_s, "best": str(kernel.best_config)}

    def compiled(self) -> dict[str, Any]:
        """`torch.compile` keeps the kernel in a full graph; `triton_op` takes it too."""
        kernel = self.kernel()

        def times(a: Any, b: Any) -> Any:
            c = torch.empty(a.shape[0], b.shape[1], device=a.device, dtype=a.dtype)
            kernel[lambda meta: (triton.cdiv(256, meta["BM"]) * triton.cdiv(256, meta["BN"]),)](a, b, c, 256, 256, 256)
            return c + 1

        a, b, _ = self.operands(256, 256, 256)
        self.same(torch.compile(times, fullgraph=True)(a, b), a @ b + 1)

        @torch.library.triton_op("pipewave_lab::times", mutates_args=())
        def op(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            c = torch.empty(256, 256, device=a.device, dtype=a.dtype)
            grid = lambda meta: (triton.cdiv(256, meta["BM"]) * triton.cdiv(256, meta["BN"]),)  # noqa: E731
            torch.library.wrap_triton(kernel)[grid](a, b, c, 256, 256, 256)
            return c

        self.same(op(a, b), a @ b)
        return {"fullgraph": True, "triton_op": True}

    def graphed(self) -> dict[str, Any]:
        """Nothing is measured while a CUDA graph is captured, and its replay is right."""
        kernel = self.kernel()
        for m, n, k in SIZES[:12]:
            self.launched(kernel, m, n, k)
        before = kernel.provenance["measured"]
        a, b, c = self.operands(777, 512, 256)
        grid = lambda meta: (triton.cdiv(777, meta["BM"]) * triton.cdiv(512, meta["BN"]),)  # noqa: E731
        for config in CONFIGS:
            product[grid](a, b, c, 777, 512, 256, **config.all_kwargs())  # compiled ahead: capture must not load
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kernel[grid](a, b, c, 777, 512, 256)
        c.zero_()
        graph.replay()
        torch.cuda.synchronize()
        self.same(c, a @ b)
        assert kernel.provenance["measured"] == before
        return {"measured_while_captured": 0}

    def stalls(self) -> dict[str, Any]:
        """Wall time of unmeasured decisions: while lists are worked out, and after."""
        kernel = self.kernel(budget_s=1e9)
        for m, n, k in SIZES[:24]:
            given = self.operands(m, n, k)
            kernel.choose((*given, m, n, k), {}, _grid(m, n))
        kernel.spent_s = 1e12
        a, b, c = self.operands(64, 64, 64)
        meanwhile, start, i = list[float](), time.perf_counter(), 0
        while time.perf_counter() - start < STALL_S:
            meanwhile.append(self._decision(kernel, a, b, c, 100 + i % 3000))
            i += 1
            time.sleep(1e-3)
        kernel.settle()
        after = [self._decision(kernel, a, b, c, 5000 + i) for i in range(500)]
        again = [self._decision(kernel, a, b, c, 5000 + i) for i in range(500)]
        ms = {
            "first": meanwhile[0] / 1e3,
            "worst": max(meanwhile[1:]) / 1e3,
            "p99": float(np.percentile(meanwhile, 99)) / 1e3,
        }
        return {"while_preparing_ms": ms, "calls": len(meanwhile), "unseen_us": float(np.median(after)),
                "unseen_p99_us": float(np.percentile(after, 99)), "seen_us": float(np.median(again))}  # fmt: skip

    @staticmethod
    def _decision(kernel: Any, a: Any, b: Any, c: Any, m: int) -> float:
        grid = _grid(m, 64)
        start = time.perf_counter_ns()
        kernel.choose((a, b, c, m, 64, 64), {}, grid)
        return (time.perf_counter_ns() - start) / 1e3

    def patched(self) -> dict[str, Any]:
        """A kernel under Triton's own decorator, chosen for by ours."""
        made = patch(cache=False, device=self.device, report=False)
        try:
            theirs = triton.autotune(CONFIGS, key=["M", "N", "K"])(product)
            for size in SIZES[:4]:
                self.same(*self.launched(theirs, *size))
            (report,) = made.report()
        finally:
            made.undo()
        assert report.measured == len(set(SIZES[:4])), report
        return {"report": str(report)}

    def threaded(self) -> dict[str, Any]:
        """Launches from eight threads at once."""
        kernel = self.kernel()
        with ThreadPoolExecutor(8) as pool:
            for found, wanted in pool.map(lambda size: self.launched(kernel, *size), SIZES[:32]):
                self.same(found, wanted)
        return {"launches": 32, **kernel.provenance, "reason": kernel.reason}

    def processes(self) -> dict[str, Any]:
        """What one process measured, another need not: both spawned, with one folder."""
        counts = []
        with TemporaryDirectory() as folder:
            for _ in range(2):
                with get_context("spawn").Pool(1) as pool:
                    counts.append(pool.apply(_in_a_process, (folder,)))
        assert counts[0]["measured"] > 0
        assert not counts[1].get("measured"), counts
        return {"first": counts[0], "second": counts[1]}


def _in_a_process(folder: str) -> dict[str, int]:
    """How the launches of a process of its own were decided, with what is kept in a folder."""
    kernel, checks = autotune(CONFIGS, key=["M", "N", "K"], cache=folder)(product), Checks("cuda", None)
    for size in SIZES[:4]:
        checks.same(*checks.launched(kernel, *size))
    return dict(kernel.provenance)


def triton_tests(file: Path) -> dict[str, Any]:
    """Triton's own tests of its autotuner with every `triton.autotune` ours: the last line of pytest."""
    program = ("import sys, pytest, pipewave.tune; pipewave.tune.patch(cache=False, report=False); "
               "sys.exit(pytest.main([sys.argv[1], '-q', '-p', 'no:cacheprovider']))")  # fmt: skip
    ran = subprocess.run([sys.executable, "-c", program, str(file)], capture_output=True, text=True, check=False)
    lines = ran.stdout.strip().splitlines() or [ran.stderr[-500:]]
    return {"said": lines[-1]} if ran.returncode == 0 else {"failed": "\n".join(lines[-15:])}


def _grid(m: int, n: int) -> Callable[[Any], tuple[int]]:
    return lambda meta: (triton.cdiv(m, meta["BM"]) * triton.cdiv(n, meta["BN"]),)


class _Described:
    """A descriptor as the interpreter has none."""

    def __init__(self, base: Any, block_shape: list[int]) -> None:
        self.base, self.block_shape = base, block_shape


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; see the module's description."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--triton-tests", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    checks = Checks("cpu", MadeUp()) if options.dry else Checks("cuda", None)
    names = ("descriptors", "stalls", "patched") if options.dry else (
        "descriptors", "compiled", "graphed", "stalls", "patched", "threaded", "processes")  # fmt: skip
    found: dict[str, Any] = {}
    for name in names:
        check: Callable[[], dict[str, Any]] = getattr(checks, name)
        start = time.monotonic()
        try:
            found[name] = check()
        except Exception:  # noqa: BLE001  one check must not cost the others
            found[name] = {"failed": traceback.format_exc()}
        found[name]["seconds"] = round(time.monotonic() - start, 1)
        print(name, json.dumps(found[name]), flush=True)
    if options.triton_tests:
        found["triton_tests"] = triton_tests(options.triton_tests)
        print("triton_tests", json.dumps(found["triton_tests"]), flush=True)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    if any("failed" in one for one in found.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
