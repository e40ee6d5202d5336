"""`triton.autotune` as others look at it: attributes, hooks, benchmarks, torch.compile, forks and whole programs."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from own_card import CONFIGS, Device, at_size, matmul, product, tuned  # noqa: E402
from triton.runtime.autotuner import Autotuner  # noqa: E402
from triton.runtime.errors import OutOfResources  # noqa: E402

from pipewave.tune import autotune, patch  # noqa: E402
from pipewave.tune.decorate import Patch  # noqa: E402
from pipewave.tune.law.margin import one_for_all  # noqa: E402
from pipewave.tune.user_kernels.aside import ASIDE  # noqa: E402
from pipewave.tune.user_kernels.device import Built  # noqa: E402
from pipewave.tune.user_kernels.kind_state import REPEATS  # noqa: E402
from pipewave.tune.user_kernels.tuned import TunedKernel  # noqa: E402


@pytest.fixture(autouse=True)
def nothing_fails_aside() -> Iterator[None]:
    ASIDE.problems.clear()
    yield
    ASIDE.settle()
    assert not ASIDE.problems


def by_size(kernel: TunedKernel, count: int) -> None:
    """Measure so many launches, then nothing more."""
    for i in range(count):
        at_size(kernel, 40 + 173 * i % 900, 64 + 331 * i % 1500, 64 + 97 * i % 500)
    kernel.spent_s = 1e12


def test_whoever_looks_finds_what_an_autotuner_has() -> None:
    kernel = tuned(Device(), restore_value=["c"])
    assert isinstance(kernel, Autotuner)
    assert kernel.keys == ["M", "N", "K"]
    assert kernel.restore_value == ["c"]
    assert kernel.base_fn is matmul.fn
    assert kernel.prune_configs({}) == CONFIGS
    product(kernel, 64, 64, 64)
    assert kernel.cache == {(64, 64, 64, *["torch.float32"] * 3): kernel.best_config}
    assert min(kernel.configs_timings, key=lambda one: kernel.configs_timings[one][0]) == kernel.best_config


def test_an_unknown_key_is_refused_as_upstream_refuses_it() -> None:
    with pytest.raises(ValueError, match="not kernel arguments"):
        autotune(CONFIGS, key=["M", "wrong"])(matmul)


COMPILED = """
import torch, triton, triton.language as tl
from unittest import mock
from pipewave.tune import autotune

@triton.jit
def double(x, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < count), mask=at < count)

kernel = autotune([triton.Config({"BLOCK": size}) for size in (64, 128)], key=["count"], cache=False)(double)

def launched(x):
    out = torch.empty_like(x)
    kernel[lambda meta: (triton.cdiv(64, meta["BLOCK"]),)](x, out, 64)
    return out

def backend(graph, inputs):
    print([str(node.target) for node in graph.graph.nodes])
    return lambda *_: (torch.zeros(64),)

with mock.patch("torch.utils._triton.has_triton", lambda: True):  # there is no GPU here
    torch.compile(launched, backend=backend, fullgraph=True)(torch.ones(64))
"""


@pytest.mark.slow
def test_dynamo_takes_it_for_a_kernel_and_the_graph_stays_whole(tmp_path: Path) -> None:
    script = tmp_path / "compiled.py"  # Triton reads the source of kernels
    script.write_text(COMPILED)
    done = subprocess.run([sys.executable, str(script)], env={**os.environ, "TRITON_INTERPRET": "0"},
                          capture_output=True, text=True, timeout=300, check=False)  # fmt: skip
    assert "triton_kernel_wrapper" in done.stdout, done.stderr


@dataclass
class Descriptor:
    """A host TMA descriptor: its block is part of the binary."""

    base: Any
    block_shape: list[int]


class DescriptorDevice(Device):
    """Only compiles and times what its hook described."""

    def build(self, launch: Any, configs: Any) -> dict[int, Built]:
        found = {}
        for index in configs:
            launch.prepare(index)
            right = launch.args[0].block_shape == [launch.configs[index]["BLOCK"]]
            found[index] = Built(1000, 32, "" if right else "the descriptor has another block")
        return found

    def time(self, launch: Any, order: Any) -> list[float]:
        found = []
        for index in order:
            launch.before(index)
            assert launch.args[0].block_shape == [launch.configs[index]["BLOCK"]]
            found.append(10.0 - index)
            launch.after(index)
        return found


@triton.jit
def described(x, out, count, BLOCK: tl.constexpr):
    tl.store(out + tl.arange(0, BLOCK), x.load([tl.program_id(0) * BLOCK]))


def set_block(given: dict[str, Any]) -> None:
    given["x"].block_shape = [given["BLOCK"]]


def test_hooks_describe_what_is_compiled_timed_and_launched() -> None:
    configs = [triton.Config({"BLOCK": size}, pre_hook=set_block) for size in (32, 64, 128)]
    kernel = autotune(configs, key=["count"], device=DescriptorDevice(), cache=False)(described)
    x = Descriptor(torch.empty(4096), [1])
    found = kernel.choose((x, torch.empty(4096), 4096), {}, lambda meta: (triton.cdiv(4096, meta["BLOCK"]),))
    assert (found, kernel.reason) == (2, "")
    assert kernel.provenance == {"measured": 1}


class TooLargeForFloats(DescriptorDevice):
    """The largest block fits half floats only."""

    def build(self, launch: Any, configs: Any) -> dict[int, Built]:
        whole = launch.args[0].base.dtype == torch.float32
        return super().build(launch, configs) | {
            index: Built(300_000, 32, "out of resource") for index in configs if whole and index == 2
        }


def test_descriptors_of_another_type_are_another_kind() -> None:
    configs = [triton.Config({"BLOCK": size}, pre_hook=set_block) for size in (32, 64, 128)]
    kernel = autotune(configs, key=["count"], device=TooLargeForFloats(), cache=False)(described)

    def chosen(dtype: Any) -> int | None:
        x = Descriptor(torch.empty(4096, dtype=dtype), [1])
        return kernel.choose((x, torch.empty(4096), 4096), {}, lambda meta: (triton.cdiv(4096, meta["BLOCK"]),))

    assert [chosen(torch.float16), chosen(torch.float16), chosen(torch.float32), chosen(torch.float32)] == [2, 2, 1, 1]


def test_a_choice_that_does_not_run_is_left_to_upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, launched = tuned(Device(), budget_s=0), []

    def run(*args: Any, **kwargs: Any) -> None:
        raise OutOfResources(300_000, 232_448, "shared memory")

    monkeypatch.setattr(kernel.fn, "run", run)
    monkeypatch.setattr(kernel.upstream, "run", lambda *args, **kwargs: launched.append(kwargs["grid"]))
    x = torch.empty(64, 64)
    kernel[(1,)](x, x, x, 64, 64, 64)
    assert launched == [(1,)]
    assert kernel.provenance["upstream"] == 1
    assert "shared memory" in kernel.reason


class Refusing(Device):
    """Compiles nothing of half floats."""

    def build(self, launch: Any, configs: Any) -> dict[int, Built]:
        error = "no" if launch.args[0].dtype == torch.float16 else ""
        self.built += configs
        return {index: Built(1000, 32, error) for index in configs}


def test_what_cannot_be_measured_is_tried_once_and_said() -> None:
    device = Refusing()
    kernel = tuned(device)
    at_size(kernel, 64, 64, 64)
    for m in (64, 80, 96):
        assert at_size(kernel, m, 64, 64, torch.float16) == 0
    assert "no configuration ran" in kernel.reason
    assert len(device.built) == 2 * len(CONFIGS)
    at_size(kernel, 80, 64, 64)
    assert kernel.provenance["measured"] == 2, "other launches are measured still"


class OneTooLarge(Device):
    """The first configuration has no binary."""

    def build(self, launch: Any, configs: Any) -> dict[int, Built]:
        return {index: Built(100_000, 128, "" if index else "out of resource: shared memory") for index in configs}


def test_hooks_hear_of_a_configuration_that_has_no_binary() -> None:
    begun, ended = [], []
    theirs = triton.autotune(
        CONFIGS, key=["M"], pre_hook=lambda given, reset_only=False: begun.append(reset_only),
        post_hook=lambda given, exception: ended.append(exception),
    )  # fmt: skip
    made = patch(device=OneTooLarge(), cache=False, report=False)
    try:
        kernel = theirs(matmul)
        product(kernel, 64, 64, 64)
    finally:
        made.undo()
    failed = [one for one in ended if one is not None]
    assert [str(one) for one in failed] == ["out of resource: shared memory"]
    assert begun.count(False) == len(ended) >= len(CONFIGS)
    assert kernel.best_config in CONFIGS[1:], "the object that Triton made says so too"


@triton.jit
def rows(x, out, stride, N: tl.constexpr, BLOCK: tl.constexpr, FLAG: tl.constexpr, SMS: tl.constexpr,
         HEADS: tl.constexpr, SCALE: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    at = tl.arange(0, BLOCK) * HEADS
    if FLAG == 2:
        at = at * FLAG
    for start in range(0, N * SMS, WIDE * 132):
        tl.store(out + start + at, tl.load(x + start + at, mask=at < N) * SCALE, mask=at < N)


def row_launch(kernel: Any, count: int, n: int, flag: int) -> int:
    x = torch.empty(count, n)
    given = {"N": n, "BLOCK": triton.next_power_of_2(n), "FLAG": flag, "SMS": 132, "HEADS": n % 7 + 1, "SCALE": 1 / n}
    found = kernel.choose((x, x, n), given, (count,))
    assert found is not None
    return int(found)


def test_sizes_that_are_constants_are_sizes_and_flags_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    from pipewave.tune.user_kernels import launch_formulas

    read: list[Any] = []
    formula = launch_formulas.formula
    monkeypatch.setattr(launch_formulas, "formula", lambda *given: (read.append(given), formula(*given))[1])
    configs, device = [triton.Config({"WIDE": wide}) for wide in (64, 256)], Device()
    device.us = lambda launch, index: 6.0 - index  # type: ignore[method-assign]
    kernel = autotune(configs, key=["stride"], device=device, cache=False, budget_s=1e9)(rows)
    for count, n in ((32, 100), (500, 3000), (64, 700), (9000, 128), (100, 5000), (77, 999), (12, 400), (300, 80)):
        row_launch(kernel, count, n, 1)
    assert len(read) == len(configs), "read once, not for each shape"
    assert len(kernel.kinds) == 1
    (state,) = kernel.kinds.values()
    assert set(launch_formulas.sizes(state.formulas.inputs, kernel.of.key, state.numbers).rounded) == {"BLOCK"}
    kernel.spent_s = 1e12
    kernel.settle()
    row_launch(kernel, 40, 2000, 1)
    assert state.chooser is not None
    assert any(state.chooser.lists)
    assert kernel.provenance["model"] == 1
    every = np.array([one.timed.us for one in state.measured])
    assert row_launch(kernel, 40, 2000, 2) == one_for_all(every) == 1, "nothing was measured of it: the best of others"
    assert len(kernel.kinds) == 2


def test_one_kernel_is_launched_with_several_grid_functions(tmp_path: Path) -> None:
    def launches(kernel: TunedKernel) -> None:
        for m, n, k in ((64, 96, 64), (300, 200, 96), (80, 64, 500)):
            at_size(kernel, m, n, k)  # encloses m and n
            args = (torch.empty(m, k), torch.empty(k, n), torch.empty(m, n), m, n, k)
            kernel.choose(
                args, {}, lambda meta: (triton.cdiv(meta["M"], meta["BM"]) * triton.cdiv(meta["N"], meta["BN"]),)
            )
            kernel.choose(args, {}, (4, 1, 1))

    first = tuned(Device(), cache=tmp_path)
    launches(first)
    assert (first.provenance, first.reason, len(first.kinds)) == ({"measured": 9}, "", 3)
    device = Device()
    launches(tuned(device, cache=tmp_path))
    assert not device.timed


def test_launches_of_the_same_sizes_are_measured_again_where_loads_are_hidden() -> None:
    @triton.jit
    def ragged(x, lengths, out, N, WIDE: tl.constexpr):
        for start in range(0, tl.load(lengths + tl.program_id(0)), WIDE):
            tl.store(out + start, tl.sum(tl.load(x + start + tl.arange(0, WIDE))))

    device = Device()
    configs = [triton.Config({"WIDE": wide}) for wide in (64, 128)]
    kernel = autotune(configs, key=["N"], device=device, cache=False)(ragged)
    x = torch.empty(4096)
    found = []
    for _slow in (0, 0, 0, 1):
        device.us = lambda launch, index, slow=_slow: 5.0 + (index == slow)  # type: ignore[method-assign]
        found.append(kernel.choose((x, x, x, 4096), {}, (16,)))
    assert kernel.provenance == {"measured": 4}
    assert found == [1, 1, 1, 0]
    kernel.spent_s = 1e12
    kernel.settle()
    assert kernel.choose((x, x, x, 4096), {}, (16,)) == 1, "the best over all of them"


def test_what_was_measured_often_enough_is_looked_up_though_there_is_budget_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @triton.jit
    def ragged(x, lengths, out, N, WIDE: tl.constexpr):
        for start in range(0, tl.load(lengths + tl.program_id(0)), WIDE):
            tl.store(out + start, tl.sum(tl.load(x + start + tl.arange(0, WIDE))))

    kernel = autotune([triton.Config({"WIDE": wide}) for wide in (64, 128)], key=["N"], device=Device(), cache=False)(
        ragged
    )
    x = torch.empty(4096)
    for _ in range(REPEATS + 2):
        kernel.choose((x, x, x, 4096), {}, (16,))
        ASIDE.settle()
    assert kernel.provenance["measured"] == REPEATS
    monkeypatch.setattr(kernel, "_chosen", None)
    assert kernel.choose((x, x, x, 4096), {}, (16,)) == 0


def test_a_benchmark_of_the_users_own_times_launches() -> None:
    asked: list[Any] = []

    def bench(call: Any, quantiles: Any) -> list[float]:
        asked.append(quantiles)
        return [1.0 / len(asked)] * 3

    kernel = tuned(Device(), do_bench=bench)
    product(kernel, 64, 64, 64)
    assert asked == [(0.5, 0.2, 0.8)] * len(CONFIGS)
    assert kernel.configs_timings[kernel.best_config][0] == pytest.approx(1.0 / len(CONFIGS))


def test_no_launch_waits_for_what_is_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from pipewave.tune.chooser import Chooser

    device = Device()
    kernel = tuned(device, budget_s=1e9)
    slow = Chooser._prepare
    monkeypatch.setattr(Chooser, "_prepare", lambda chooser: (time.sleep(0.3), slow(chooser))[1])
    by_size(kernel, 9)
    (state,) = kernel.kinds.values()
    at_size(kernel, 501, 640, 128)
    assert state.chooser is not None
    assert not state.chooser.is_ready
    assert (501, 640, 128) not in [key[:3] for key in state.chooser.memo], "what answers meanwhile is not kept"
    kernel.settle()
    at_size(kernel, 501, 640, 128)
    assert state.chooser.is_ready
    assert len(state.chooser.memo) == 10


def test_a_cuda_graph_waits_for_the_choice_that_it_keeps() -> None:
    device = Device()
    kernel = tuned(device, budget_s=1e9)
    by_size(kernel, 9)
    device.capturing = True
    at_size(kernel, 501, 640, 128)
    (state,) = kernel.kinds.values()
    assert state.chooser is not None
    assert state.chooser.is_ready
    assert len(state.chooser.memo) == 10


def _child(kernel: TunedKernel, results: Any) -> None:
    results.put(at_size(kernel, 333, 256, 96))
    kernel.settle()
    results.put(at_size(kernel, 501, 640, 128))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_goes_on_choosing() -> None:
    kernel = tuned(Device(), budget_s=1e9)
    by_size(kernel, 9)
    at_size(kernel, 333, 256, 96)  # lists are being worked out by a thread that the child has not
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_child, args=(kernel, results))
    child.start()
    found = [results.get(timeout=60) for _ in range(2)]
    child.join(60)
    kernel.settle()
    assert found[1] == at_size(kernel, 501, 640, 128)


def _spawned(folder: str, results: Any) -> None:
    device = Device()
    kernel = tuned(device, cache=folder)
    results.put((at_size(kernel, 64, 64, 64), len(device.timed)))


@pytest.mark.slow
def test_a_spawned_process_takes_what_another_measured(tmp_path: Path) -> None:
    known = at_size(tuned(Device(), cache=tmp_path), 64, 64, 64)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    child = context.Process(target=_spawned, args=(str(tmp_path), results))
    child.start()
    assert results.get(timeout=120) == (known, 0)
    child.join(60)


@pytest.fixture
def patched() -> Iterator[Patch]:
    made = patch(device=Device(), cache=False, report=False)
    yield made
    made.undo()


def test_a_whole_program_is_chosen_for_and_told_so(patched: Patch) -> None:
    theirs = triton.autotune(CONFIGS, key=["M", "N", "K"])(matmul)
    for m in (64, 300):
        product(theirs, m, 64, 64)
    (report,) = patched.report()
    assert type(theirs) is Autotuner
    assert (report.kernel, report.measured, report.reason) == ("matmul", 2, "")
    assert report.gain >= 1.0
    assert "2 launches measured" in str(report)
    assert patch() is patched
    ours = autotune(CONFIGS, key=["M"], device=Device(), cache=False)(matmul)
    product(ours, 64, 64, 64)
    assert len(patched.report()) == 1, "a kernel of ours is left alone"


def test_undone_the_program_is_tritons_again() -> None:
    run = Autotuner.run
    made = patch(device=Device(), cache=False, report=False)
    assert Autotuner.run is not run
    made.undo()
    assert Autotuner.run is run
