"""Tables of kernels that nobody here wrote: measured ahead, resumed, pinned, checked, and taken to another GPU."""

from __future__ import annotations

import json
import linecache
import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from own_card import Device, at_size, best, tuned  # noqa: E402

from pipewave.errors import BadFile  # noqa: E402
from pipewave.tune import store  # noqa: E402
from pipewave.tune.law.anchors import peaks_of  # noqa: E402
from pipewave.tune.store import TableMismatch  # noqa: E402
from pipewave.tune.user_kernels import hooks, offline  # noqa: E402
from pipewave.tune.user_kernels.device import Launch, Options  # noqa: E402
from pipewave.tune.user_kernels.tuned import TunedKernel  # noqa: E402

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
    assert sum(len(state.measured) for state in again.kinds.values()) == 30
    assert len(device.timed) > 0
    assert some > 0
    pinned = TunedKernel(again.upstream, Options(table=path, device=Rows()))
    lost = []
    for n in (300, 20_000, 1_000_000):
        x = torch.empty(n)
        index = pinned.choose((x, x, n), {}, lambda meta, n=n: (triton.cdiv(n, meta["BM"]),))
        times = [device.us(Launch(None, None, (), {"N": n}, again.of.configs), i) for i in range(3)]
        lost.append(times[index] / min(times) - 1)
    assert pinned.provenance == {"model": 3}
    assert sum(lost) / len(lost) < 0.1


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
        store.read_table(path, offline.kernel_of(named_kernel, Rows(), tmp_path).of)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(BadFile):
        store.read_table(path, kernel.of)


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
    assert len(store.launches(path.with_suffix(""), kernel.of, device.env)) == 3
    with pytest.raises(BadFile, match="PIPEWAVE_TUNE_LOG"):
        hooks.read_log(tmp_path / "log.jsonl", "other")
