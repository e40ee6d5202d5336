"""What a GPU is asked to compile, with a made-up kernel: no GPU, torch or triton."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pipewave.tune.user_kernels import gpu
from pipewave.tune.user_kernels.device import Built, Launch
from pipewave.tune.user_kernels.gpu import FEW_LEAD, ColdTimer, built


class Kernel:
    """Compiles for the block that a descriptor has, as a host's TMA descriptor decides; without one it does not."""

    def run(self, a: Any, *, grid: Any, warmup: bool, BLOCK: int) -> Any:
        assert warmup
        if a.block_shape != [BLOCK]:
            raise ValueError("the descriptor has another block")
        return SimpleNamespace(_init_handles=lambda: None, metadata=SimpleNamespace(shared=64 * BLOCK), n_regs=40)


def test_a_configurations_hook_runs_before_it_is_compiled() -> None:
    descriptor, configs = SimpleNamespace(block_shape=[1]), [{"BLOCK": 16}, {"BLOCK": 32}]

    def hook(index: int) -> None:
        descriptor.block_shape = [configs[index]["BLOCK"]]

    launch = Launch(Kernel(), (1,), (descriptor,), {}, configs, prepare=hook)
    assert [built(launch, index) for index in (0, 1)] == [Built(1024, 40), Built(2048, 40)]
    assert built(Launch(Kernel(), (1,), (descriptor,), {}, configs), 0).error.startswith("ValueError")


class Stream:
    """A made-up stream: what runs on it takes milliseconds; events keep when they were recorded."""

    def __init__(self) -> None:
        self.now_ms, self.done, self.waits = 0.0, list[str](), 0
        self.cuda, self.int8 = SimpleNamespace(Event=self.event, synchronize=self.synchronize), "int8"

    def takes(self, name: str, ms: float) -> None:
        self.done.append(name)
        self.now_ms += ms

    def synchronize(self) -> None:
        self.waits += 1

    def empty(self, size: int, **_: Any) -> Any:
        assert size == 256 * 1024 * 1024
        return SimpleNamespace(zero_=lambda: self.takes("flush", 5.0))

    def event(self, *, enable_timing: bool) -> Any:
        one = SimpleNamespace(at=None)
        one.record = lambda: setattr(one, "at", self.now_ms)
        one.elapsed_time = lambda other: other.at - one.at
        return one


class Entry(list[Any]):
    """Launches with what runs around them."""

    before: Any
    after: Any


def test_launches_are_timed_together_after_a_flush_and_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream()
    monkeypatch.setitem(sys.modules, "torch", stream)  # type: ignore[arg-type]
    timer = ColdTimer(queued=2)
    around = Entry([lambda: stream.takes("c", 0.25)])
    around.before, around.after = (lambda: stream.takes("before", 7.0)), (lambda: stream.takes("after", 7.0))
    calls = [[lambda: stream.takes("a", 0.5), lambda: stream.takes("b", 1.0)], around, [lambda: stream.takes("d", 2.0)]]
    assert timer(calls) == pytest.approx([1500.0, 250.0, 2000.0])
    first, second = ["flush"] * FEW_LEAD, ["flush", "a", "b", "before", "flush", "c", "after"]
    assert stream.done == [*first, *second, *first, "flush", "d"] and stream.waits == 2


def test_a_long_queue_starts_after_more_flushes(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream()
    monkeypatch.setitem(sys.modules, "torch", stream)  # type: ignore[arg-type]
    assert len(ColdTimer().events) == 2048
    ColdTimer()([[lambda: stream.takes("a", 0.5)]])
    assert stream.done == ["flush"] * 9 + ["a"]
    assert ColdTimer(queued=8).lead == 6 and ColdTimer(queued=9).lead == 8


class Torch(Stream):
    """That stream on a made-up GPU of seven SMs."""

    def __init__(self) -> None:
        super().__init__()
        card = SimpleNamespace(name="NVIDIA H200", multi_processor_count=7, major=9, minor=0)
        self.captures, self.version = False, SimpleNamespace(cuda="13.0")
        self.cuda.__dict__.update(
            init=lambda: None, is_available=lambda: True, is_initialized=lambda: True, current_device=lambda: 0,
            get_device_properties=lambda _: card, is_current_stream_capturing=lambda: self.captures)  # fmt: skip


def test_the_gpu_in_use_compiles_and_times(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = Torch()
    monkeypatch.setitem(sys.modules, "torch", torch)  # type: ignore[arg-type]
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert gpu.current() is None
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    gpu._gpu.cache_clear()
    found = gpu.current()
    gpu._gpu.cache_clear()
    assert found is not None and found.peaks.sms == 7
    assert [found.env[name] for name in ("gpu", "sm_count", "cc", "cuda")] == ["NVIDIA H200", 7, 90, "13.0"]
    assert found.idle()
    torch.captures = True
    assert not found.idle()

    def run(*args: Any, grid: Any, warmup: bool, BLOCK: int) -> Any:
        if not warmup:
            torch.takes(f"block {BLOCK}", BLOCK / 64)
        return SimpleNamespace(_init_handles=lambda: None, metadata=SimpleNamespace(shared=BLOCK), n_regs=0)

    around: list[tuple[str, int]] = []
    launch = Launch(SimpleNamespace(run=run), (1,), (), {}, [{"BLOCK": 16}, {"BLOCK": 32}],
                    lambda index: around.append(("before", index)), lambda index: around.append(("after", index)))  # fmt: skip
    assert found.build(launch, [1, 0]) == {1: Built(32, 32), 0: Built(16, 32)}
    assert found.time(launch, [1, 0]) == pytest.approx([500.0, 250.0])
    assert around == [("before", 1), ("after", 1), ("before", 0), ("after", 0)]
    torch.cuda.is_available = lambda: False
    assert gpu.current() is None
