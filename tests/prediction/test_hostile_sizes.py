"""No family answers a number that is none: whatever sizes, a call is answered or refused by a typed error of its own."""

import json
import random
from typing import Any

import numpy as np
import pytest

import pipewave as pw
from pipewave.calls.families import CLASSES, from_dict
from pipewave.calls.fields import required, rules
from pipewave.errors import BadInput, NotFinite, PipewaveError
from pipewave.kernels import families
from pipewave.prediction import api, jsonl
from pipewave.prediction.answers import LONGEST_S
from tests.sampled import drawn

GPUS = ("H200", "B300", "L40S", "T4", "MI300X", "RTX 5090")
PROTOCOLS = ("cold", "graph", "profiler_warm", "serving")
POISON = {"kernel": "attention_module", "kind": "mla", "q_lens": [1], "kv_lens": [5001], "heads": 16}
TRIES = drawn(60)


def hostile(pick: random.Random, name: str) -> dict[str, Any]:
    """A case with sizes at the ends of what its rules permit."""
    case: dict[str, Any] = {"kernel": name}
    count, needed = pick.choice((1, 1, 2, 5, 40)), required(CLASSES[name])
    for field, rule in rules(CLASSES[name]).items():
        if field in ("stack", "impl") or (field not in needed and pick.random() < 0.6):
            continue
        if rule.kind == "ints" or field in ("q_lens", "kv_lens"):
            case[field] = [int(2 ** pick.uniform(0, pick.choice((4, 12, 20)))) for _ in range(count)]
        elif rule.kind in ("int", "float"):
            most = min(float(rule.high), 2.0**40)
            value = pick.choice((rule.low, 1, 3, 7, 4096, 2 ** pick.uniform(0, 40), most))
            case[field] = int(min(value, most)) if rule.kind == "int" else float(min(value, most))
        elif rule.kind == "bool":
            case[field] = pick.random() < 0.5
        elif rule.choices:
            case[field] = pick.choice(list(rule.choices))
    if "kv_lens" in case:
        case["kv_lens"] = [max(pair) for pair in zip(case["q_lens"], case["kv_lens"], strict=True)]
    return case


@pytest.mark.parametrize("name", families())
def test_hostile_sizes_are_answered_in_numbers_or_refused(name: str) -> None:
    pick = random.Random(name)
    for _ in range(TRIES):
        case, gpu, protocol = hostile(pick, name), pick.choice(GPUS), pick.choice(PROTOCOLS)
        try:
            with np.errstate(all="ignore"):
                found = pw.predict(from_dict(case), gpu, protocol=protocol)
        except PipewaveError:
            continue
        times = (found.latency_us, found.low_us, found.high_us, found.floor_us, found.ceiling_us)
        assert all(0.0 < each < LONGEST_S * 1e6 for each in times), (case, gpu, protocol)


def test_layers_that_choose_no_keys_take_no_dimensions_of_a_choice() -> None:
    with pytest.raises(BadInput, match="choose no keys"):
        from_dict(POISON | {"topk": 2048})
    alone = from_dict(POISON | {"kind": "hca"})
    stated = from_dict(POISON | {"kind": "hca", "index_heads": 64, "index_dim": 128, "block_size": 1})
    assert pw.predict(stated, "H200") == pw.predict(alone, "H200")
    assert 10 < pw.predict(from_dict(POISON), "H200").latency_us < 1000
    longest = from_dict(POISON | {"kv_lens": [1 << 22], "phase": "generation"})
    assert pw.predict(longest, "H200").latency_us < 1e5


def test_one_answer_that_is_no_number_is_an_error_of_that_call_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = jsonl.answer

    def spoiled(*asked: Any, **options: Any) -> Any:
        found = answer(*asked, **options)
        found.seconds[0, 1], found.seconds[0, 2] = np.nan, LONGEST_S
        return found

    monkeypatch.setattr(jsonl, "answer", spoiled)
    cases = [{"id": i, "kernel": "gemm", "m": 8, "n": 512, "k": 512, "gpu": "H200"} for i in range(3)]
    lines = list(map(json.dumps, cases))
    counts = jsonl.Counts()
    texts = list(jsonl.answer_lines(lines, None, counts))
    assert ["not_finite" in text for text in texts] == [False, True, True]
    assert (counts.answered, counts.failed) == (1, 2)
    monkeypatch.setattr(api, "answer", spoiled)
    with pytest.raises(NotFinite, match=r"calls\[1\]"):
        pw.predict([pw.gemm(8, 512, 512 * n) for n in range(1, 40)], "H200")
