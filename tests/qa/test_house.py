"""The checks of the house see what they are meant to see."""

from __future__ import annotations

import ast

import pytest

from qa import house
from qa.names import comparisons

KNOWN = frozenset({"vllm", "sglang", "h200"})


@pytest.mark.parametrize(
    "code",
    [
        'if engine == "vllm": ...',
        'if engine in ("sglang", "x"): ...',
        'CUSTOM = ("vllm", "sglang")\nif engine in CUSTOM: ...',
        'CUSTOM = frozenset({"vllm"})\nif engine in rules.CUSTOM: ...',
        'gpu.startswith("H200")',
        'match engine:\n    case "vllm": ...',
        'WAYS = {"vllm": launch_vllm, "sglang": launch_sglang}',
    ],
)
def test_a_comparison_with_a_name_is_found(code: str) -> None:
    assert len(comparisons({"m": ast.parse(code)}, KNOWN)) >= 1


@pytest.mark.parametrize(
    "code", ['if kind == "decode": ...', 'URLS = {"vllm": "https://x"}', 'COLOURS = ("red", "vllm")']
)
def test_data_is_no_comparison(code: str) -> None:
    assert comparisons({"m": ast.parse(code)}, KNOWN) == []


def test_imports_of_what_is_not_installed_are_found() -> None:
    code = "from importlib import import_module\ndef f():\n    import bench.speed\n    import_module('train.fit')\nimport benchmark"
    assert house.outside({"m": ast.parse(code)}) == ["m imports bench.speed", "m imports train.fit"]


@pytest.mark.slow
def test_the_package_imports_nothing_beside_itself() -> None:
    assert house.outside(house.sources(house.PACKAGE)) == []
