"""`@pipewave.tune.autotune` where `@triton.autotune` stood, on a real Triton kernel in the interpreter."""

from __future__ import annotations

import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

from pipewave.tune import autotune, decorate  # noqa: E402
from pipewave.tune.user_kernels.tuned import TunedKernel  # noqa: E402

CONFIGS = [triton.Config({"BLOCK": size}, num_warps=warps) for size, warps in ((16, 1), (64, 2), (128, 4))]


@triton.jit
def double(x, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < count), mask=at < count)


class BySize:
    """A made-up table: small blocks for small sizes."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def select(self, count: int) -> dict[str, int]:
        self.asked.append(count)
        return (
            {"BLOCK": 16, "num_warps": 1, "num_stages": 3}
            if count < 50
            else {"BLOCK": 128, "num_warps": 4, "num_stages": 3}
        )


def launch(kernel: Any, count: int) -> None:
    x, out = torch.arange(count, dtype=torch.float32), torch.zeros(count)
    kernel[lambda meta: (triton.cdiv(count, meta["BLOCK"]),)](x, out, count)
    assert torch.equal(out, 2 * x)


def test_the_tables_choice_runs_and_a_new_key_asks_again() -> None:
    table = BySize()
    kernel = autotune(configs=CONFIGS, key=["count"], table=table, shape={"count": "count"})(double)
    for count in (10, 300, 10):
        launch(kernel, count)
    assert table.asked == [10, 300, 10]
    assert kernel.provenance == {"table": 3}


def test_arguments_by_name_reach_the_table() -> None:
    table = BySize()
    kernel = autotune(configs=CONFIGS, key=["count"], table=table, shape=lambda given: {"count": given["count"]})(
        double
    )
    x, out = torch.ones(7), torch.zeros(7)
    kernel[(1,)](x=x, out=out, count=7)
    assert torch.equal(out, 2 * x)
    assert table.asked == [7]


def test_upstream_gets_the_same_arguments_and_the_kernel_still_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def upstream(configs: Any, key: Any, **options: Any) -> Any:
        given.append((configs, key, options))
        return lambda fn: Fixed(fn)

    class Fixed:
        def __init__(self, fn: Any) -> None:
            self.fn = fn

        def __getitem__(self, grid: Any) -> Any:
            return lambda *args: self.fn[grid](*args, BLOCK=64)

    monkeypatch.setattr(triton, "autotune", upstream)
    with pytest.warns(UserWarning, match="falling back"):
        kernel = autotune(CONFIGS, ["count"], shape={"count": "count"}, warmup=1, rep=2, reset_to_zero=["out"])(double)
    launch(kernel, 40)
    launch(kernel, 41)
    assert given == [(CONFIGS, ["count"], {"warmup": 1, "rep": 2, "reset_to_zero": ["out"]})]
    assert kernel.provenance == {"upstream": 2}
    assert "double" in kernel.reason


def test_a_table_that_cannot_answer_hands_over_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "autotune", lambda configs, key: lambda fn: fn)
    kernel = autotune(CONFIGS, ["count"], table="gemm", shape={"m": "count", "n": "count", "k": "depth"})(double)
    x, out = torch.ones(9), torch.zeros(9)
    with pytest.warns(UserWarning, match="depth"):
        kernel[(1,)](x, out, 9, BLOCK=16)
    kernel[(1,)](x, out, 9, BLOCK=16)  # a second warning would be an error here
    assert torch.equal(out, 2 * x)
    assert kernel.provenance == {"upstream": 2}


def test_a_hook_of_the_chosen_configuration_runs_before_the_launch() -> None:
    seen: list[int] = []
    hooked = [triton.Config({"BLOCK": 16}, num_warps=1, pre_hook=lambda named: seen.append(named["count"]))]
    kernel = autotune(hooked, ["count"], table=BySize(), shape={"count": "count"})(double)
    launch(kernel, 12)
    assert seen == [12]


def test_threads_share_a_decorated_kernels_choice() -> None:
    kernel = autotune(CONFIGS, ["count"], table=BySize(), shape={"count": "count"})(double)
    found: dict[int, Any] = {}
    workers = [
        threading.Thread(target=lambda i=i: found.update({i: kernel.choose((None, None, 10 + 90 * (i % 2)), {})}))
        for i in range(8)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [found[i]["BLOCK"] for i in range(8)] == [16, 128] * 4


def test_our_own_kernel_is_known_by_its_source_and_no_other_by_its_name() -> None:
    from pipewave.triton_kernels import gemm as ours

    assert decorate.shipped(ours.gemm) == "gemm"
    assert decorate.shipped(gemm) is None
    assert isinstance(autotune(CONFIGS, ["M"])(gemm), TunedKernel)


@triton.jit
def gemm(x, out, M, N, K, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < M) + N * K, mask=at < M)
