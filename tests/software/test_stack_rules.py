"""Rules of software as data: every row has a source, and every row decides some answer."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Mapping
from functools import _lru_cache_wrapper, cache
from itertools import product
from typing import Any

import pytest
from rule_probes import Question, family_of, questions

from pipewave.errors import BadFile, PipewaveError
from pipewave.files import packaged
from pipewave.gpus import find, names
from pipewave.software import rules
from pipewave.software.rule_values import VALUES
from pipewave.software.rules import Case, answer, table


@cache
def remembering(_family: str) -> list[Any]:
    """Every cache that a rule may leave its answer in, once calls of a family have loaded its rooms; not the rules."""
    rooms = ("pipewave.kernels", "pipewave.prediction", "pipewave.software.rules")
    found = [one for one in gc.get_objects() if issubclass(type(one), _lru_cache_wrapper)]
    return [one for one in found if str(getattr(one, "__module__", "")).startswith(rooms) and one is not table]


def forget(family: str) -> None:
    """Empty them."""
    for wrapper in remembering(family):
        wrapper.cache_clear()


@cache
def asked(family: str) -> list[tuple[Question, list[float], frozenset[int]]]:
    """Every question of a family, its answers, and the cases that some of them rest on."""
    for question in questions(family):  # rooms with caches are loaded before `remembering` looks for them
        question()
    out, real = [], Case.holds
    with pytest.MonkeyPatch.context() as patch:
        held: set[int] = set()

        def noted(case: Case, facts: Mapping[str, Any]) -> bool:
            holds = real(case, facts)
            if holds:
                held.add(id(case))
            return holds

        patch.setattr(Case, "holds", noted)
        for question in questions(family):
            forget(family)
            held.clear()
            out.append((question, question(), frozenset(held)))
    forget(family)
    return out


def decides(rule: str, row: Case, family: str) -> bool:
    """Whether some answer is another without the row; only what rests on it is asked again."""
    whole = dict(table())
    without = whole | {rule: tuple(case for case in whole[rule] if case is not row)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "table", lambda: without)
        for question, before, held in asked(family):
            if id(row) in held:
                forget(family)
                try:
                    if question() != before:
                        return True
                except PipewaveError:  # nothing else answers, or a call that ran no longer does
                    return True
    return False


QUICK = {"changed_in", "conv_chunk"}  # whose answers are asked again in a second


@pytest.mark.parametrize(
    "rule", [pytest.param(rule, marks=() if rule in QUICK else pytest.mark.slow) for rule in sorted(table())]
)
def test_every_row_has_a_source_and_decides_some_answer(rule: str) -> None:
    family = family_of(rule)
    assert sum(len(answers) for _, answers, _ in asked(family)) > 20
    assert all(len(row.source) > 20 and row.rows for row in table()[rule])
    unused = [dict(row.when) for row in table()[rule] if not decides(rule, row, family)]
    forget(family)
    assert not unused


def test_the_first_case_that_holds_answers() -> None:
    facts = {"framework": "vllm", "version": (0, 22, 1), "impl": "vllm_triton_attn", "mma": "wgmma"}
    facts["dtype"] = "bf16"
    assert answer("attention_engine", facts) == "unified"
    assert answer("attention_engine", facts | {"impl": ""}) == "fa3"
    assert answer("moe_blocks", facts)[0] == (32, 16, 64)
    assert answer("moe_blocks", facts | {"dtype": "fp8_block"})[0] == (64, 16, 128)
    assert answer("moe_blocks", facts | {"version": (0, 14)}) is None


@pytest.mark.parametrize(("since", "before"), list(product((None, (0, 3), (0, 4)), (None, (0, 4), (0, 5)))))
def test_versions_are_half_open(since: tuple[int, ...] | None, before: tuple[int, ...] | None) -> None:
    when: Mapping[str, Any] = {k: v for k, v in (("since", since), ("before", before)) if v}
    holds = Case(when, 1, "source", "rows").holds({"version": (0, 4)})
    assert holds == ((since is None or since <= (0, 4)) and (before is None or before > (0, 4)))


def test_an_unknown_rule_and_a_damaged_file_are_typed_errors(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadFile, match="no_such_rule"):
        answer("no_such_rule", {})
    for text in (
        "{",
        json.dumps({"x": {"about": "a", "source": "", "rows": "r", "cases": [{"when": {}, "value": 1}]}}),
    ):
        (tmp_path / "rules.json").write_text(text)
        monkeypatch.setattr(rules, "FILE", tmp_path / "rules.json")
        table.cache_clear()
        with pytest.raises(BadFile):
            rules.read(rules.FILE, {"x": int})
    monkeypatch.undo()
    table.cache_clear()


def test_predictions_need_no_yaml() -> None:
    code = "import sys, pipewave as pw; pw.predict(pw.gemm(1, 64, 64), 'H200'); sys.exit('yaml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_every_gpu_of_a_rule_exists() -> None:
    known = {find(name).name for name in names()}
    for cases in table().values():
        for case in cases:
            for gpu in (case.when.get("gpu"), *case.when.get("gpu_starts", ())):
                assert gpu is None or any(name.startswith(gpu) for name in known), gpu


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ("sm_clock", "0.9"),
        ("gemm_clock_exponent", [0.8, 0.8]),
        ("gemm_graph_all_rotate", 1),
        ("moe_rank_tokens", "some"),
        ("network", {"gbps": 50.0}),
        ("link_times", {"step_s": 1e-6, "start_us": 3.5}),
        ("attention_query_loads", [4, 8.5]),
    ],
)
def test_a_value_of_another_type_or_unit_is_refused(rule: str, value: Any) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        rules.typed(rules.kind_of(rule, packaged.document(rules.FILE)[rule], VALUES), value)


def test_every_rule_declares_the_type_of_its_value() -> None:
    plain = {name for name, rule in packaged.document(rules.FILE).items() if "type" in rule}
    assert set(VALUES) | plain == set(table()) and not set(VALUES) & plain
