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
