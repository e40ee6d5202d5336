"""What an installed engine is asked for its configurations and kernels: stand-ins with the signatures of its source."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pipewave.tune.engine import gpu
from pipewave.tune.engine.gpu import INSTALLED, KEYS, GpuTimer
from pipewave.tune.engine.lookups import ENGINES, Lookup

SHIPPED = {16: {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1}}
RULE = {"BLOCK_SIZE_M": 32, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 8, "num_warps": 8}


def experts(engine: str, dtype: str = "bf16") -> Lookup:
    return Lookup(engine, "moe", 768, 2048, dtype, 128, 8)


def vllm_rule(m: int, e: int, n: int, k: int, topk: int, dtype: str | None, block_shape: Any = None) -> dict[str, int]:
    return RULE


def sglang_rule(m: int, e: int, n: int, k: int, topk: int, dtype: str | None, is_marlin: bool,
                block_shape: Any = None) -> dict[str, int]:  # fmt: skip
    assert is_marlin is False
    return RULE


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, dict[str, Any]]:
    """An engine whose file holds `files`, and what was asked of it."""
    name, asked = request.param, {"files": None, "asked": []}
    of = INSTALLED[name]

    def configs(*args: Any) -> Any:
        asked["asked"].append(args)
        return asked["files"]

    moe, product = ModuleType(of.moe), ModuleType(of.block_fp8)
    found = ModuleType(getattr(of, "rules", of.moe))
    for module in (moe, found):
        module.get_moe_configs = configs  # type: ignore[attr-defined]
        module.get_default_config = {"vllm": vllm_rule, "sglang": sglang_rule}[name]  # type: ignore[attr-defined]
    product.get_w8a8_block_fp8_configs = configs  # type: ignore[attr-defined]
    for module in (moe, product, found):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return name, asked


def test_what_runs_is_of_the_nearest_entry_of_the_file_and_else_by_the_rule(engine: tuple[str, dict[str, Any]]) -> None:
    name, asked = engine
    by_rule = INSTALLED[name].default(experts(name), 64)
    assert by_rule == {**RULE, "num_stages": 3}
    asked["files"] = SHIPPED | {256: SHIPPED[16] | {"BLOCK_SIZE_M": 128}}
    assert [INSTALLED[name].default(experts(name), m)["BLOCK_SIZE_M"] for m in (1, 100, 200)] == [16, 16, 128]
    assert asked["asked"][-1][:3] == (128, 768, None)


def test_scales_by_block_are_said(engine: tuple[str, dict[str, Any]]) -> None:
    name, asked = engine
    INSTALLED[name].default(experts(name, "fp8_block"), 64)
    assert asked["asked"][-1] == (128, 768, "fp8_w8a8", 128, 128)


def test_a_block_scaled_product_without_a_file_has_the_engines_stages(engine: tuple[str, dict[str, Any]]) -> None:
    name, _ = engine
    found = INSTALLED[name].default(Lookup(name, "block_fp8", 4096, 4096, "fp8_block"), 64)
    assert set(found) == set(KEYS) and found["num_stages"] == {"vllm": 2, "sglang": 3}[name]


def test_a_configuration_stands_for_the_file_for_a_while(engine: tuple[str, dict[str, Any]]) -> None:
    name, _ = engine
    of, product = INSTALLED[name], Lookup(name, "block_fp8", 4096, 4096, "fp8_block")
    with of.override(product, 64, RULE)():
        assert of.shipped(product) == {64: RULE}
    assert of.shipped(product) == {}


def test_where_no_configuration_runs_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise TypeError("unexpected argument")

    of, timer = experts("vllm"), object.__new__(GpuTimer)
    timer._engine = SimpleNamespace(override=lambda *_: nullcontext)  # type: ignore[assignment]
    timer._made, timer._runs, timer._failed = {(of, 8): fails}, {}, ""
    monkeypatch.setattr(gpu, "compile_ahead", lambda _: None)
    with pytest.raises(RuntimeError, match="no configuration runs: TypeError: unexpected argument"):
        timer.time(of, 8, [dict.fromkeys(KEYS, 1)])


class Made(tuple[int, ...]):
    """A made-up tensor: its size, and how it came to be."""

    kind = "drawn"

    def to(self, kind: Any) -> Made:
        again = Made(self)
        again.kind = kind
        return again

    def topk(self, count: int, dim: int) -> Any:
        assert dim == 1
        return SimpleNamespace(indices=Made((self[0], count)))


class Torch:
    """What a timer asks of torch; `capture` is what a CUDA graph does at its begin."""

    bfloat16, float8_e4m3fn, int32 = "bf16", "fp8", "int32"

    def __init__(self) -> None:
        self.emptied, self.capture = 0, lambda: None
        self.cuda = SimpleNamespace(empty_cache=self.empty, synchronize=lambda: None, graph=self.graph,
                                    CUDAGraph=lambda: SimpleNamespace(replay=lambda: "replayed"))  # fmt: skip

    def empty(self) -> None:
        self.emptied += 1

    def graph(self, *_: Any, **__: Any) -> Any:
        self.capture()
        return nullcontext()

    def randn(self, *size: int, **_: Any) -> Made:
        return Made(size)

    rand = randn

    def ones(self, *size: int, device: str) -> Made:
        return Made(size).to("ones")


def made_timer(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Any]]:
    timer, asked = object.__new__(GpuTimer), list[Any]()
    product = ModuleType("a_product")
    product.run = lambda *given: asked.append(given)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_product", product)
    timer._torch, timer._random, timer._weights, timer._made = Torch(), None, (None, None), {}  # type: ignore[assignment]
    timer._uncaptured, timer._pool, timer._failed = 0, None, ""
    timer._engine = SimpleNamespace(  # type: ignore[assignment]
        block_fp8="a_product", matmul="run", experts=lambda of, tensors, scales: lambda: asked.append((tensors, scales))
    )
    return timer, asked


def test_a_block_scaled_product_is_called_with_a_scale_for_each_block(monkeypatch: pytest.MonkeyPatch) -> None:
    timer, asked = made_timer(monkeypatch)
    timer._call(Lookup("vllm", "block_fp8", 300, 200, "fp8_block"), 7)()
    assert asked == [((7, 200), (300, 200), (7, 2), (3, 2), [128, 128], "bf16")]
    assert [one.kind for one in asked[0][:4]] == ["fp8", "fp8", "ones", "ones"]


@pytest.mark.parametrize(
    ("dtype", "kind", "scales"),
    [("bf16", "drawn", ()), ("fp8", "fp8", ((8,), (8,))), ("fp8_block", "fp8", ((8, 12, 16), (8, 16, 6)))],
)
def test_experts_are_called_with_both_weights_of_their_layer(
    dtype: str, kind: str, scales: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    timer, asked = made_timer(monkeypatch)
    of = Lookup("vllm", "moe", 768, 2048, dtype, 8, 2)
    timer._call(of, 7)()
    (x, w13, w2, weights, ids), given = asked[0]
    assert (x, w13, w2, weights, ids, given) == ((7, 2048), (8, 1536, 2048), (8, 2048, 768), (7, 2), (7, 2), scales)
    assert (w13.kind, w2.kind, ids.kind) == (kind, kind, "int32")
    timer._runs = {(1,): None}
    timer._call(of, 9)()  # other tokens, the same weights
    assert asked[1][0][1] is w13 and asked[1][0][0] == (9, 2048) and timer._runs == {} and timer._torch.emptied == 1
    timer._call(Lookup("vllm", "moe", 64, 2048, dtype, 8, 2), 9)()
    assert asked[2][0][1] == (8, 128, 2048) and timer._torch.emptied == 2


def test_a_call_is_timed_as_a_graph_or_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    timer, _ = made_timer(monkeypatch)

    def runs() -> str:
        return "ran"

    assert timer._recorded(runs)() == "replayed"

    def no_capture() -> None:
        raise RuntimeError("not permitted when stream is capturing")

    timer._torch.capture = no_capture
    with pytest.warns(UserWarning, match="without a CUDA graph: not permitted"):
        assert timer._recorded(runs) is runs
    assert timer._recorded(runs) is runs and timer._uncaptured == 2  # warned of once
    assert timer._recorded(lambda: 1 // 0) is None and timer._failed.startswith("ZeroDivisionError")


def test_configurations_that_run_are_timed_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    timer, _ = made_timer(monkeypatch)
    timer._engine.override = lambda of, m, config: nullcontext
    timer._timer = lambda calls: [10.0 * (at + 1) for at in range(len(calls))]
    ahead: list[int] = []
    monkeypatch.setattr(gpu, "compile_ahead", lambda launches: ahead.append(len(launches)))
    configs = [dict.fromkeys(KEYS, value) for value in (1, 2, 3)]
    of = Lookup("vllm", "block_fp8", 300, 200, "fp8_block")
    timer._call(of, 7)
    timer._runs = {(2,) * len(KEYS): None}  # known not to run
    found = timer.time(of, 7, configs)
    assert found[::2] == [10, 20] and found[1] != found[1] and ahead == [2]
