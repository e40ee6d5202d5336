"""Facts are read from source as written, and what the source does not settle is asked, not guessed."""

from __future__ import annotations

import ast
import zipfile
from pathlib import Path

import pytest

from facts import rules
from facts.__main__ import changes
from facts.evaluate import Evaluation, Namespace, Unknown
from facts.facts import read, strides
from facts.reading import Found, NotThere, by_memory, constant, default, evaluated
from facts.sources import Release
from pipewave.gpus import find
from pipewave.software.engine import find as find_engine
from pipewave.software.engine_parts import DeploymentFacts
from pipewave.software.engine_rules import fields

SOURCE = '''
from x import GiB_bytes
LARGEST = {9: {2: 64}}  # MiB

class CacheConfig:
    share: float = Field(default=0.92, gt=0)
    blocks: int = None

class UsageContext: ...

def get_batch_defaults(cls, world_size):
    """What a server takes."""
    try:
        memory = current_platform.get_device_total_memory()
        name = current_platform.get_device_name().lower()
    except Exception:
        memory = 0
    if memory >= 70 * GiB_bytes and "a100" not in name:
        default_max_num_batched_tokens = {UsageContext.LLM_CLASS: 16384, UsageContext.OPENAI_API_SERVER: 8192}
    else:
        default_max_num_batched_tokens = {UsageContext.OPENAI_API_SERVER: 2048}
    return default_max_num_batched_tokens
'''


@pytest.fixture
def release(tmp_path: Path) -> Release:
    file = tmp_path / "vllm-9.9.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("vllm/engine/arg_utils.py", SOURCE)
    return Release("vllm", "9.9", "2026-11-02", file)


def run(source: str, **names: object) -> Evaluation:
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    evaluation = Evaluation(dict(names), {})
    evaluation.run(function)
    return evaluation


def test_defaults_constants_and_functions_are_read_with_their_line(release: Release) -> None:
    assert default(release, "CacheConfig", "share") == Found(0.92, "vllm/engine/arg_utils.py:6")
    assert constant(release, "LARGEST").value == {9: {2: 64}}
    assert read(release)["max_batched_tokens"].value == [
        {"a100": True, "value": 2048}, {"gib_below": 70, "value": 2048}, {"value": 8192},
    ]  # fmt: skip
    with pytest.raises(NotThere):
        default(release, "CacheConfig", "nothing")


def test_what_an_unknown_test_would_set_is_unknown() -> None:
    found = run("def f():\n a = 1\n b = 2\n if asked():\n  a = 3\n c = b + 1\n", asked=None)
    assert isinstance(found.names["a"], Unknown) and found.names["c"] == 3
    assert [each.code for each in found.questions] == ["asked()"]


def test_a_part_that_decides_decides_whatever_the_others_are() -> None:
    found = run("def f():\n a = unknown() and False\n b = True or unknown()\n c = unknown() and True\n")
    assert (found.names["a"], found.names["b"]) == (False, True)
    assert isinstance(found.names["c"], Unknown)


def test_loops_comprehensions_and_objects() -> None:
    source = "def f():\n sizes = [1, 2, 4] + list(range(8, 33, 8))\n self.kept = [s for s in sizes if s <= self.most]\n"
    server = Namespace({"most": 16})
    run(source, self=server)
    assert server.values["kept"] == [1, 2, 4, 8, 16]
    assert strides([1, 2, 4, 8, 16, 24]) == {"strides": [[1, 1], [2, 2], [4, 4], [8, 8]], "largest": 24}


def test_the_memory_at_which_a_default_changes_is_exact() -> None:
    found = by_memory(lambda gib: Found(1 if gib < 71 else 2, "a:1"), tp=8)
    assert found.value == [{"tp": 8, "gib_below": 71, "value": 1}, {"tp": 8, "value": 2}]


def test_a_function_that_a_release_lacks_is_not_there(release: Release) -> None:
    with pytest.raises(NotThere):
        evaluated(release, "_get_backend_priorities", {}, {}, lambda _, value: value)


def test_differences_name_what_changed() -> None:
    before, after = {"a": Found({90: {8: 2}}, ""), "b": Found(1, "")}, {"a": Found({90: {8: 4}}, ""), "b": Found(1, "")}
    assert changes(before, after) == [("a 90 8", "2", "4")]


@pytest.mark.parametrize(
    ("version", "gpu", "tokens", "graphs"),
    [("0.27.1", "B200", 8192, 512), ("0.28.0", "B200", 16384, 512), ("0.29.0", "B200", 16384, 1024),
     ("0.33.0", "H200", 8192, 512)],
)  # fmt: skip
def test_rules_follow_the_facts(version: str, gpu: str, tokens: int, graphs: int) -> None:
    """As `python -m facts vllm==VERSION` reads them."""
    card = find(gpu)
    setting = DeploymentFacts(gpu=gpu, mma="tcgen05" if gpu == "B200" else "wgmma", gib=card.dram_gib)
    found = fields("vllm", version, setting)
    assert (found["max_batched_tokens"], found["graph_limit"]) == (tokens, graphs)


def test_rules_of_releases_hold_what_was_read_by_hand() -> None:
    """Of the 1,240 defaults the four of B300 differ: vLLM has sizes of its own for it since 0.19."""
    counts = list(rules.check())
    same, of = (sum(row[place] for row in counts) for place in (2, 3))
    assert same / of > 0.95
    assert [(name, field) for name, field, some, all_ in counts if some < all_] == [
        ("vllm 0.22.1", "fused_norm_mib"), ("vllm 0.24.0", "fused_norm_mib"),
    ]  # fmt: skip


def test_a_rule_lasts_until_a_release_says_otherwise() -> None:
    def release(version: str, **facts: object) -> dict[str, object]:
        return {"version": version, "facts": {name: {"value": value, "at": "f:1"} for name, value in facts.items()}}

    some = [
        release("0.11.0", memory_share=0.9), release("0.12.0", memory_share="? asked"),
        release("0.13.0", memory_share=0.9), release("0.20.0", memory_share=0.92),
    ]  # fmt: skip
    assert [(row["when"], row["set"]) for row in rules.rules("vllm", some)] == [
        ({"since": "0.20.0"}, {"memory_share": 0.92}), ({}, {"memory_share": 0.9}),
    ]  # fmt: skip


def test_latest_is_the_last_release_that_was_read() -> None:
    assert (find_engine("vllm:latest").version, find_engine("sglang:latest").version) == ("0.33.0", "0.5.23")
    assert find_engine("vllm").version == "0.22.1"
    assert fields("sglang", "0.5.23", DeploymentFacts(gpu="L4", gib=22.5))["graph_limit"] == 48
    assert fields("sglang", "0.5.14", DeploymentFacts(gpu="L4", gib=22.5))["graph_limit"] == 24
    assert fields("vllm", "0.29.0", DeploymentFacts(gpu="B300", mma="tcgen05", tp=8))["fused_norm_mib"] == 4
