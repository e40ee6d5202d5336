"""`@pipewave.tune.autotune` on kernels that nobody here wrote: run in the interpreter, timed by a made-up card."""

from __future__ import annotations

import json
import linecache
import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

from pipewave.errors import BadFile  # noqa: E402
from pipewave.tune import autotune  # noqa: E402
from pipewave.tune.own import kept, log, offline  # noqa: E402
from pipewave.tune.own.device import Built, Launch  # noqa: E402
from pipewave.tune.own.kinds import KindState  # noqa: E402
from pipewave.tune.own.peaks import Peaks, peaks_of  # noqa: E402
from pipewave.tune.own.sites import named  # noqa: E402
from pipewave.tune.own.tuned import Options, TunedKernel  # noqa: E402
from pipewave.tune.table import TableMismatch  # noqa: E402

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


def at_size(kernel: TunedKernel, m: int, n: int, k: int, dtype: Any = torch.float32) -> int | None:
    a, b, c = (torch.empty(*size, dtype=dtype) for size in ((m, k), (k, n), (m, n)))
    grid = lambda meta: (triton.cdiv(m, meta["BM"]) * triton.cdiv(n, meta["BN"]),)  # noqa: E731
    return kernel.choose((a, b, c, m, n, k), {}, grid)


def test_laws_are_fitted_where_launches_have_doubled_and_once_more_when_the_budget_is_spent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fits: list[int] = []
    fitted = KindState.fit
    monkeypatch.setattr(KindState, "fit", lambda state, peaks: (fits.append(len(state.us)), fitted(state, peaks))[1])
    kernel = tuned(Device(), budget_s=1e9)
    for i in range(20):
        at_size(kernel, 32 + 16 * i, 256, 64 + 32 * i)
    assert fits == [1, 2, 4, 8, 16]
    kernel.options = replace(kernel.options, budget_s=0.0)
    (state,) = kernel.kinds.values()
    known = at_size(kernel, 48, 256, 96)  # measured, and known without another fit
    assert known == int(state.us[1].argmin())
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
    found = log.read(tmp_path / "log.jsonl", "matmul")
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


KERNEL_FILE = """
import triton, triton.language as tl
from pipewave.tune import autotune
CONFIGS = [triton.Config({"BM": m}, num_warps=w) for m, w in ((16, 1), (64, 4), (128, 4))]

@autotune(CONFIGS, key=["N"], cache=False)
@triton.jit
def scale(x, out, N, BM: tl.constexpr):
    at = tl.program_id(0) * BM + tl.arange(0, BM)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < N), mask=at < N)
"""


class Rows(Device):
    def us(self, launch: Launch, index: int) -> float:
        n, block = launch.kwargs["N"], launch.configs[index]["BM"]
        return 2 + math.ceil(math.ceil(n / block) / 132) * (1 + block / 20)


def made(told: Any) -> Any:
    return torch.empty(told.numel())


def noted_kernel(tmp_path: Path) -> tuple[str, Path]:
    (tmp_path / "mine.py").write_text(KERNEL_FILE)
    sizes = [round(100 * 1.4**step) for step in range(30)]
    rows = [{"N": n, "x": f"fp32[{n}]", "out": f"fp32[{n}]"} for n in sizes]
    (tmp_path / "shapes.json").write_text(json.dumps({"grid": "cdiv(N, BM)", "launches": rows}))
    return f"{tmp_path / 'mine.py'}:scale", tmp_path / "shapes.json"


def test_a_table_made_ahead_is_resumed_pinned_and_checked(tmp_path: Path) -> None:
    named_kernel, shapes = noted_kernel(tmp_path)
    device = Rows()
    first = offline.kernel_of(named_kernel, device, tmp_path)
    clock = iter(range(100))
    offline.measure_all(first, offline.from_shapes(shapes), device, made, 3.0, clock=lambda: float(next(clock)))
    some = len(device.timed)
    device = Rows()
    again = offline.kernel_of(named_kernel, device, tmp_path)
    path = offline.measure_all(again, offline.from_shapes(shapes), device, made)
    assert path is not None
    assert path.is_file()
    assert sum(len(state.us) for state in again.kinds.values()) == 30
    assert len(device.timed) > 0
    assert some > 0
    pinned = TunedKernel(again.fn, again.upstream, again.configs, again.of.key, Options(table=path, device=Rows()))
    lost = []
    for n in (300, 20_000, 1_000_000):
        x = torch.empty(n)
        index = pinned.choose((x, x, n), {}, lambda meta, n=n: (triton.cdiv(n, meta["BM"]),))
        times = [device.us(Launch(None, None, (), {"N": n}, again.of.configs), i) for i in range(3)]
        lost.append(times[index] / min(times) - 1)
    assert pinned.provenance == {"model": 3}
    assert sum(lost) / len(lost) < 0.1
    verdict = offline.check(again, path, offline.from_shapes(shapes), Rows(), made)
    assert (verdict.answer, len(verdict.ratios)) == ("valid", 10)
    slower = Rows()
    slower.us = lambda launch, index: 2 * Rows.us(slower, launch, index)  # type: ignore[method-assign]
    assert offline.check(again, path, offline.from_shapes(shapes), slower, made).answer == "rescale"


class Slower(Device):
    """The same kernel on another GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.peaks = peaks_of("NVIDIA H100 80GB HBM3")
        self.env = {"gpu": "NVIDIA H100 80GB HBM3", "driver": "1", "triton": "3"}

    def us(self, launch: Launch, index: int) -> float:
        return 1.3 * super().us(launch, index)


def test_a_table_of_another_gpu_is_a_start_that_launches_here_correct(tmp_path: Path) -> None:
    device = Device()
    there = tuned(device, budget_s=1e9, cache=tmp_path)
    for i in range(14):
        at_size(there, 40 + 173 * i % 900, 64 + 331 * i % 1500, 64 + 97 * i % 500)
    path = offline.write_table(there, device)
    unmeasured = tuned(Slower(), table=path, budget_s=0.0)
    assert at_size(unmeasured, 777, 640, 128) is not None
    assert unmeasured.provenance == {"model": 1}
    slower = Slower()
    kernel = tuned(slower, table=path, budget_s=1e9, cache=False)
    for m, n, k in ((300, 200, 96), (64, 64, 64)):
        args = (torch.empty(m, k), torch.empty(k, n), torch.empty(m, n), m, n, k)
        assert at_size(kernel, m, n, k) == best(slower, args)
    assert kernel.provenance == {"measured": 2}
    (state,) = kernel.kinds.values()
    assert state.model is not None
    assert state.model.there is not None
    assert state.model.there.peaks.gpu == slower.peaks.gpu


def test_a_table_of_another_source_is_refused_with_the_remedy(tmp_path: Path) -> None:
    named_kernel, shapes = noted_kernel(tmp_path)
    kernel = offline.kernel_of(named_kernel, Rows(), tmp_path)
    path = offline.measure_all(kernel, offline.from_shapes(shapes), Rows(), made)
    assert path is not None
    (tmp_path / "mine.py").write_text(KERNEL_FILE.replace("2 * tl.load", "3 * tl.load"))
    linecache.checkcache()
    with pytest.raises(TableMismatch, match="another source"):
        kept.read_table(path, offline.kernel_of(named_kernel, Rows(), tmp_path).of)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(BadFile):
        kept.read_table(path, kernel.of)


def test_a_log_of_a_real_run_is_measured_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named_kernel, _ = noted_kernel(tmp_path)
    monkeypatch.setenv("PIPEWAVE_TUNE_LOG", str(tmp_path / "log.jsonl"))
    run = offline.kernel_of(named_kernel, Rows(), False)
    for n in (100, 5000, 70_000):
        x = torch.empty(n)
        run.choose((x, x, n), {}, lambda meta, n=n: (triton.cdiv(n, meta["BM"]),))
    monkeypatch.delenv("PIPEWAVE_TUNE_LOG")
    device = Rows()
    kernel = offline.kernel_of(named_kernel, device, tmp_path)
    launches = offline.from_log(tmp_path / "log.jsonl", kernel)
    path = offline.measure_all(kernel, launches, device, lambda told: torch.empty(told["shape"]))
    assert path is not None
    assert len(kept.launches(path.with_suffix(""), kernel.of, device.env)) == 3
    with pytest.raises(BadFile, match="PIPEWAVE_TUNE_LOG"):
        log.read(tmp_path / "log.jsonl", "other")
