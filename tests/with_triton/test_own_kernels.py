"""`@pipewave.tune.autotune` on kernels that nobody here wrote: run in the interpreter, timed by a made-up card."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from own_card import CONFIGS, Device, at_size, best, matmul, product, tuned  # noqa: E402

from pipewave.tune import autotune  # noqa: E402
from pipewave.tune.law.anchors import Peaks  # noqa: E402
from pipewave.tune.user_kernels import hooks  # noqa: E402
from pipewave.tune.user_kernels.device import Launch  # noqa: E402
from pipewave.tune.user_kernels.kind_state import KindState  # noqa: E402


@triton.jit
def add_one(x, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < count) + 1, mask=at < count)


@triton.jit
def biased(x, bias, out, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < N)
    if bias is not None:
        value += tl.load(bias + at, mask=at < N)
    tl.store(out + at, value, mask=at < N)


def test_a_first_launch_is_measured_and_the_fastest_runs() -> None:
    device = Device()
    kernel = tuned(device)
    for size in ((64, 64, 64), (300, 200, 96)):
        args = product(kernel, *size)
        assert kernel.best_config == CONFIGS[best(device, args)]
    assert kernel.provenance == {"measured": 2}
    before = len(device.timed)
    product(kernel, 64, 64, 64)
    assert len(device.timed) == before


def test_when_the_budget_is_spent_the_laws_choose_for_sizes_never_seen() -> None:
    device = Device()
    kernel = tuned(device, budget_s=1e9)
    for i in range(14):
        m, n, k = 40 + 173 * i % 900, 64 + 331 * i % 1500, 64 + 97 * i % 500
        kernel.choose(
            (torch.empty(m, k), torch.empty(k, n), torch.empty(m, n), m, n, k),
            {},
            lambda meta, m=m, n=n: (triton.cdiv(m, meta["BM"]) * triton.cdiv(n, meta["BN"]),),
        )
    kernel.spent_s = 2e9
    kernel.settle()
    lost = []
    for m, n, k in ((96, 512, 300), (777, 640, 128), (33, 1280, 450), (512, 512, 512), (900, 100, 200)):
        args = (torch.empty(m, k), torch.empty(k, n), torch.empty(m, n), m, n, k)
        index = kernel.choose(
            args, {}, lambda meta, m=m, n=n: (triton.cdiv(m, meta["BM"]) * triton.cdiv(n, meta["BN"]),)
        )
        launch = Launch(None, None, args, {}, kernel.of.configs)
        lost.append(device.us(launch, index) / device.us(launch, best(device, args)) - 1)
    assert kernel.provenance == {"measured": 14, "model": 5}
    assert sum(lost) / len(lost) < 0.1


def test_laws_are_fitted_where_launches_have_doubled_and_once_more_when_the_budget_is_spent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fits: list[int] = []
    fitted = KindState.fit
    monkeypatch.setattr(
        KindState, "fit", lambda state, peaks: (fits.append(len(state.measured)), fitted(state, peaks))[1]
    )
    kernel = tuned(Device(), budget_s=1e9)
    for i in range(20):
        at_size(kernel, 32 + 16 * i, 256, 64 + 32 * i)
    assert fits == [1, 2, 4, 8, 16]
    kernel.options = replace(kernel.options, budget_s=0.0)
    (state,) = kernel.kinds.values()
    known = at_size(kernel, 48, 256, 96)  # measured, and known without another fit
    assert known == int(state.measured[1].timed.us.argmin())
    kernel.options = replace(kernel.options, budget_s=kernel.spent_s + 1e-12)
    at_size(kernel, 999, 256, 999)
    assert fits[-1] == 21


def test_a_kind_that_was_never_measured_takes_the_default_without_being_read_again() -> None:
    kernel = tuned(Device(), budget_s=1e-9)
    at_size(kernel, 64, 64, 64)
    assert at_size(kernel, 64, 64, 64, torch.float16) == 0
    before = dict(kernel.provenance)
    assert at_size(kernel, 80, 96, 64, torch.float16) == 0  # other sizes, the same answer from memory
    assert dict(kernel.provenance) == before == {"measured": 1, "default": 1}


def test_one_place_serves_launches_with_and_without_an_argument() -> None:
    configs = [triton.Config({"BLOCK": size}) for size in (64, 128)]
    kernel = autotune(configs, key=["N"], device=Device(), cache=False)(biased)
    grid = lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)  # noqa: E731
    x, out = torch.empty(1000), torch.empty(1000)
    with_it, without = ((x, bias, out, 1000) for bias in (x, None))
    for args in (with_it, without, with_it, without, with_it):
        assert kernel.choose(args, {}, grid) == 0
    assert not kernel.reason
    assert kernel.provenance == {"measured": 2}


def test_nothing_is_measured_while_a_graph_is_captured() -> None:
    device = Device()
    kernel = tuned(device)
    device.capturing = True
    product(kernel, 64, 64, 64)
    assert not device.timed
    assert kernel.provenance == {"default": 1}
    device.capturing = False
    product(kernel, 65, 64, 64)
    assert kernel.provenance["measured"] == 1


def test_without_a_gpu_the_first_configuration_runs() -> None:
    kernel = autotune(CONFIGS, key=["M", "N", "K"], cache=False)(matmul)
    product(kernel, 50, 64, 64)
    assert kernel.best_config == CONFIGS[0]
    assert kernel.provenance == {"default": 1}


def test_another_process_goes_on_with_what_was_measured(tmp_path: Path) -> None:
    first = tuned(Device(), cache=tmp_path)
    for m in (64, 128, 200):
        product(first, m, 64, 64)
    device = Device()
    second = tuned(device, cache=tmp_path, budget_s=0.0)
    args = product(second, 128, 64, 64)
    assert not device.timed
    assert not second.provenance  # known, neither measured nor predicted
    assert second.best_config == CONFIGS[best(device, args)]
    other = Device()
    other.env = {**other.env, "driver": "2"}
    product(tuned(other, cache=tmp_path), 128, 64, 64)
    assert other.timed


def test_many_threads_measure_a_launch_once() -> None:
    device = Device()
    kernel = tuned(device)
    a, b, c = torch.empty(64, 32), torch.empty(32, 64), torch.empty(64, 64)
    call = (a, b, c, 64, 64, 32), {}, lambda meta: (triton.cdiv(64, meta["BM"]) * triton.cdiv(64, meta["BN"]),)
    threads = [threading.Thread(target=kernel.choose, args=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kernel.provenance["measured"] == 1


def test_hooks_of_upstream_run_around_every_timed_launch() -> None:
    ran: list[str] = []
    configs = [triton.Config({"BLOCK": size}, pre_hook=lambda given, size=size: ran.append(f"{size} {given['count']}"))
               for size in (16, 32)]  # fmt: skip
    device = Device()
    kernel = autotune(configs, key=["count"], device=device, cache=False, reset_to_zero=["x"])(add_one)
    x = torch.full((40,), 7.0)
    kernel[lambda meta: (triton.cdiv(40, meta["BLOCK"]),)](x, 40)
    assert torch.equal(x, torch.ones(40))  # zeroed by measuring, as upstream does, then one launch
    assert ran.count("16 40") > 1
    assert ran[-1] == "16 40"
    restored = autotune(configs, key=["count"], device=Device(), cache=False, restore_value=["x"])(add_one)
    y = torch.full((40,), 7.0)
    restored[lambda meta: (triton.cdiv(40, meta["BLOCK"]),)](y, 40)
    assert torch.equal(y, torch.full((40,), 8.0))


def test_pruning_of_the_users_own_is_kept_to() -> None:
    def only_last(configs: Any, named_args: Any, **_: Any) -> Any:
        assert named_args["M"] == 64
        return [configs[-1], configs[-2]]

    device = Device()
    kernel = tuned(device, prune_configs_by={"early_config_prune": only_last})
    product(kernel, 64, 64, 64)
    assert set(device.timed) == {3, 4}
    kernel.spent_s = 1e9
    product(kernel, 64, 64, 64)
    assert kernel.best_config in CONFIGS[3:]


def test_heuristics_stack_below() -> None:
    @triton.heuristics({"EVEN": lambda given: given["K"] % given["BK"] == 0})
    @triton.jit
    def scaled(a, b, c, M, N, K, EVEN: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
        row = tl.program_id(0) * BM + tl.arange(0, BM)
        total = tl.zeros((BM,), tl.float32)
        for k in range(0, K, BK):
            at = k + tl.arange(0, BK)
            mask = (row[:, None] < M) & (at[None, :] < K)
            if EVEN:
                mask = row[:, None] < M
            total += tl.sum(tl.load(a + row[:, None] * K + at[None, :], mask=mask, other=0.0), 1)
        tl.store(c + row, total, mask=row < M)

    kernel = autotune(CONFIGS, key=["M", "K"], device=Device(), cache=False)(scaled)
    for k in (64, 50):
        a, out = torch.randn(70, k), torch.empty(70)
        kernel[lambda meta: (triton.cdiv(70, meta["BM"]),)](a, a, out, 70, 1, k)
        torch.testing.assert_close(out, a.sum(1), atol=1e-4, rtol=1e-4)
    assert kernel.provenance == {"measured": 2}
    assert not kernel.reason


def test_what_cannot_win_is_not_compiled() -> None:
    device = Device()
    device.peaks = Peaks("slow", 132, 1e-3, 1e9, 1e9)  # FLOPs are all that counts: padded rows cannot win
    many = [triton.Config({"BM": m, "BN": 64, "BK": 32}, num_warps=4) for m in (16, 16, 16, 16, 16, 16, 16, 16, 128)]
    for i, config in enumerate(many):
        config.kwargs["BK"] = 32 + 32 * (i % 2) if i < 8 else 32
    kernel = autotune(many, key=["M"], device=device, cache=False)(matmul)
    device.us = lambda launch, index: 1e6 * (1 + index)  # type: ignore[method-assign]
    product(kernel, 16, 64, 64)
    assert 8 not in device.built


def test_launches_of_a_real_run_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPEWAVE_TUNE_LOG", str(tmp_path / "log.jsonl"))
    kernel = tuned(None)
    for m in (64, 32, 64):
        product(kernel, m, 64, 64)
    found = hooks.read_log(tmp_path / "log.jsonl", "matmul")
    assert [record["args"]["M"] for record in found] == [64, 32]
    assert found[0]["args"]["a"] == {"tensor": "torch.float32", "shape": [64, 64], "strides": [64, 1]}
    assert found[0]["grids"] == [[1], [4], [4], [1], [1]]
    assert json.loads((tmp_path / "log.jsonl").read_text().splitlines()[0])["kernel"] == "matmul"


def test_a_source_that_cannot_be_read_goes_upstream_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = tuned(Device())
    monkeypatch.setattr(kernel, "_chosen", lambda *_: 1 / 0)
    kernel.upstream = SimpleNamespace(run=lambda *args, **kwargs: "upstream")
    with pytest.warns(UserWarning, match="ZeroDivisionError"):
        assert kernel[(1,)](1, 2) == "upstream"
    assert kernel[(1,)](1, 2) == "upstream"
