"""Models and GPUs of one's own: the content of a file, read by the same rules as on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pipewave as pw
from pipewave.gpus import userfile
from pipewave.web import limits

DATA = Path(pw.__file__).parent / "data" / "models"
CONFIG = (DATA / "Llama-3.1-8B.json").read_text("utf-8")
CARD = "name: Twice\nbase: H200\ndram_gbps: 9600\n"
TWICE = {"file": "twice.yaml", "text": CARD}
SERVE = {"gpu": "H200", "batch": 4, "input_len": 512, "output_len": 32}
PLAN = {"input_len": 512, "output_len": 32, "tp": [1], "max_num_seqs": [16], "max_num_batched_tokens": [2048]}


def answer(client: Any, view: str, question: Any) -> Any:
    reply = client.post(f"/api/{view}", question)
    assert reply.status == 200, reply.body[:500]
    return reply.json()


def error(client: Any, view: str, question: Any) -> dict[str, Any]:
    reply = client.post(f"/api/{view}", question)
    assert reply.status == 422, reply.body[:300]
    found: dict[str, Any] = reply.json()["error"]
    return found


def test_a_config_is_the_model_of_that_name(client: Any) -> None:
    own = answer(client, "serve", SERVE | {"model": {"file": "mine.json", "text": CONFIG}})
    named = answer(client, "serve", SERVE | {"model": "Llama-3.1-8B"})
    assert own["tpot_ms"] == named["tpot_ms"] and own["memory_gib"] == named["memory_gib"]


def test_a_config_without_a_name_is_called_as_its_file(client: Any) -> None:
    bare = json.dumps({key: value for key, value in json.loads(CONFIG).items() if not key.startswith("_")})
    assert answer(client, "model", {"model": {"file": "mine.json", "text": bare}})["model"] == "mine"


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("{", "bad_file", "mine.json: not valid JSON"),
        ("[1]", "bad_file", "must hold a JSON object"),
        ('{"model_type": "llama"}', "missing_field", "num_hidden_layers"),
        ("[" * 100_000, "bad_file", "not valid JSON"),
        (CONFIG.replace('"hidden_size": 4096', '"hidden_size": -1'), "bad_value", "hidden_size"),
    ],
)
def test_a_wrong_config_is_said(client: Any, text: str, code: str, says: str) -> None:
    found = error(client, "model", {"model": {"file": "mine.json", "text": text}})
    assert found["code"] == code and says in found["message"], found


def test_a_spec_file_is_read_as_on_the_command_line(client: Any, tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text(CARD)
    shown = answer(client, "gpu", {"gpu": TWICE})
    assert shown["name"] == "Twice" and shown["dram_gbps"] == userfile.load(path).dram_gbps
    assert shown["sources"]["dram_gbps"]["kind"] == "unverified"
    own = answer(client, "serve", SERVE | {"model": "Llama-3.1-8B", "gpu": TWICE})
    direct = pw.estimate("Llama-3.1-8B", path, batch=4, input_len=512, output_len=32)
    assert own["gpu"] == "Twice" and own["tpot_ms"] == pytest.approx(direct.tpot_ms, rel=1e-4)


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("name: H200\nbase: H100\n", "bad_value", "taken"),
        (f"name: {'x' * 201}\nbase: H200\n", "bad_value", "201 characters"),
        ("name: X\nbase: H2000\n", "bad_value", "base"),
        ("name: X\nbase: H200\nsms: -4\n", "bad_value", "sms"),
        ("name: X\nbase: H200\nsmss: 4\n", "unknown_field", "smss"),
        ("a: &a [1]\nb: *a\n", "bad_file", "anchors"),
        ("- 1\n", "bad_file", "field: value"),
        ("name: X\nsms: !!int ''\n", "bad_file", "tags"),
        ("name: X\ntraits: {}\ncompute_capability: 130\n", "bad_value", "traits"),
    ],
)
def test_a_wrong_spec_file_is_said(client: Any, text: str, code: str, says: str) -> None:
    found = error(client, "gpu", {"gpu": {"file": "x.yaml", "text": text}})
    assert found["code"] == code and says in found["message"], found
    assert "/" not in found["message"].split(":")[0]  # no path of the server


def test_a_large_spec_file_is_refused(client: Any) -> None:
    found = error(client, "gpu", {"gpu": {"file": "x.yaml", "text": "#" * (limits.GPU_CHARACTERS + 1)}})
    assert found["code"] == "bad_value" and str(limits.GPU_CHARACTERS) in found["message"]


def test_kernel_and_plan_take_a_spec_file_beside_names(client: Any) -> None:
    sweep = {"field": "m", "from": 1, "to": 64, "points": 8}
    case = {"kernel": "gemm", "case": {"n": 4096, "k": 4096}, "sweep": sweep}
    names = [one["gpu"] for one in answer(client, "kernel", case | {"gpus": ["H200", TWICE]})["series"]]
    assert names == ["H200", "Twice"]
    prices = {"Twice": 1.0, "H200": 4.0}
    found = answer(client, "plan", PLAN | {"model": "Llama-3.1-8B", "gpus": ["H200", TWICE], "prices": prices})
    rows = {row["gpu"]: row for row in found["best_by_gpu"]}
    assert rows["Twice"]["tpot_ms"] < rows["H200"]["tpot_ms"]
    assert found["winner"]["gpu"] == "Twice"
    assert {price["gpu"]: price["usd_per_hour"] for price in found["prices"]}["Twice"] == 1.0


def test_the_server_keeps_no_file(client: Any) -> None:
    answer(client, "plan", PLAN | {"model": "Llama-3.1-8B", "gpus": [TWICE]})
    assert error(client, "serve", SERVE | {"model": "Llama-3.1-8B", "gpu": "Twice"})["code"] == "unknown_gpu"
    assert "Twice" not in [gpu["name"] for gpu in client.get("/api/gpus").json()]


@pytest.mark.parametrize(("field", "code"), [("model", "unknown_model"), ("gpu", "unknown_gpu")])
def test_a_file_that_the_page_no_longer_holds_is_asked_for_again(client: Any, field: str, code: str) -> None:
    found = error(client, "serve", SERVE | {"model": "Llama-3.1-8B"} | {field: "file:mine.json"})
    assert found["code"] == code and found["field"] == field and "choose the file again" in found["message"]
