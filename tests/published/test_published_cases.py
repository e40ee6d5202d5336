"""`serve --cases`: the contract line by line, laws of its answers, and the same answer whoever computes it."""

from __future__ import annotations

import io
import json
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pipewave.cli import build
from pipewave.errors import BadFile, BadInput, MissingField, UnknownField
from pipewave.published.answers import answer
from pipewave.published.cases import Case, from_dict
from pipewave.published.stream import answer_lines, answer_stream
from tests.command_line import CliRunner

BASE: dict[str, Any] = {"model": "Qwen3-0.6B", "gpu": "H100", "isl": 500, "osl": 40, "concurrency": 4}
MEANS = ("ttft_ms", "tpot_ms", "e2e_ms", "output_tokens_per_s")


def asked(**more: Any) -> dict[str, Any]:
    return answer(from_dict({k: v for k, v in {**BASE, **more}.items() if v is not ...}))


def stream(*cases: object, **more: Any) -> list[dict[str, Any]]:
    out = io.StringIO()
    answer_stream([c if isinstance(c, str) else json.dumps(c) for c in cases], out, **more)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_an_answer_holds_what_the_contract_names() -> None:
    found = asked()
    sides = [f"{name}_{side}" for name in MEANS for side in ("low", "high")]
    assert {*MEANS, *sides, "ttft_p99_ms", "tpot_p99_ms", "kv_tokens", "basis", "notes"} <= set(found)
    for name in MEANS:
        assert found[f"{name}_low"] < found[name] < found[f"{name}_high"]
    assert found["ttft_p99_ms"] >= found["ttft_ms"]
    assert sum(found["basis"].values()) == pytest.approx(1.0, abs=1e-3)


def test_a_case_that_fails_in_a_way_nobody_foresaw_costs_the_others_nothing() -> None:
    def fails_at_h200(case: Case) -> dict[str, Any]:
        if case.gpu == "H200":
            raise ZeroDivisionError("float division by zero")
        return answer(case)

    found = stream(BASE | {"id": 1}, BASE | {"id": 2, "gpu": "H200"}, ask=fails_at_h200)
    message = "ZeroDivisionError: float division by zero"
    assert found[0]["ttft_ms"] == asked()["ttft_ms"]
    assert found[1] == {"id": 2, "error": {"code": "internal", "field": None, "message": message}}


@pytest.mark.parametrize("name", ["NaN", "Infinity", "[1]", "{}"])
def test_an_id_that_cannot_be_echoed_is_an_error(name: str) -> None:
    found = stream(json.dumps(BASE)[:-1] + f', "id": {name}}}')
    assert found[0]["id"] is None
    assert found[0]["error"]["field"] == "id"


def test_answers_come_in_order_with_errors_in_their_place() -> None:
    found = stream(
        BASE | {"id": "first"},
        "nonsense",
        BASE | {"id": 2, "concurency": 4},
        "",
        BASE | {"id": 3, "model": "Llama-3.1-405B"},
        BASE | {"id": None, "gpu": "H2000"},
        BASE | {"id": 5, "tp": 0},
        BASE | {"id": 6, "arrivals": [[0.0, 10]]},
        BASE | {"id": 7, "speculative": {"method": "magic", "tokens": 3, "acceptance": 0.7}},
    )
    assert [one["id"] for one in found] == ["first", None, 2, 3, None, 5, 6, 7]
    assert "error" not in found[0]
    codes = [one["error"]["code"] for one in found[1:]]
    assert codes == ["bad_value", "unknown_field", "does_not_fit", "unknown_gpu", "bad_value", "bad_value", "bad_value"]
    assert "concurrency" in found[2]["error"]["message"]
    assert found[6]["error"]["field"] == "arrivals[0]"
    assert "none: nothing is drafted" in found[7]["error"]["message"]


def test_an_answer_does_not_depend_on_its_company_or_on_who_computes_it() -> None:
    cases = [BASE | {"id": n, "concurrency": n, "osl": 10 * n, "isl": 400 * n} for n in (1, 2, 16, 3)]
    together = stream(*cases)
    alone = [stream(case)[0] for case in cases]
    with ProcessPoolExecutor(2) as pool:
        spread = stream(*cases, executor=pool)
    assert together == alone == spread


def test_standard_input_may_begin_with_a_mark_of_byte_order() -> None:
    """As files may; some editors and PowerShell write one."""
    line = json.dumps(BASE | {"id": 1}) + "\r\n"
    marked, plain = (
        CliRunner().invoke(build(), ["serve", "--cases", "-"], input=start + line.encode())
        for start in (b"\xef\xbb\xbf", b"")
    )
    assert marked.exit_code == 0, marked.output
    assert marked.output == plain.output


def test_null_is_the_default() -> None:
    plain = asked()
    assert asked(version=None, tp=None, requests=None, spread=None, max_num_seqs=None) == plain


@pytest.mark.parametrize(("bad", "kind"), [({"isl": ...}, MissingField), ({"isl": -1}, BadInput), ({"mode": "x"}, BadInput), ({"Isl": 3}, UnknownField)])  # fmt: skip
def test_a_bad_case_says_what_is_wrong(bad: dict[str, Any], kind: type[BadInput]) -> None:
    with pytest.raises(kind):
        asked(**bad)


def test_tokens_are_conserved_at_a_concurrency() -> None:
    """Little's law: requests in flight = throughput × time in the system, but for the ends of the run."""
    found = asked(concurrency=8, requests=400)
    flight = found["output_tokens_per_s"] / BASE["osl"] * found["e2e_ms"] * 1e-3
    assert flight == pytest.approx(8, rel=0.03)


def test_time_to_a_first_token_grows_with_the_rate() -> None:
    times = [asked(rate=rate, requests=200, concurrency=...)["ttft_ms"] for rate in (1.0, 20.0, 200.0, 2000.0)]
    assert times == sorted(times)


@pytest.mark.parametrize("word", ["inf", "Infinity", float("inf")])
def test_an_endless_rate_is_all_at_once_or_as_many_as_may_be_in_flight(word: Any) -> None:
    every, few = {"requests": 30, "concurrency": ...}, {"requests": 30, "concurrency": 4}
    assert asked(rate=word, **every) == asked(**every)
    assert asked(rate=word, **few) == asked(**few)
    assert asked(**every)["ttft_ms"] > asked(**few)["ttft_ms"]


def test_a_rate_beside_a_concurrency_is_open_arrivals_of_which_so_many_are_in_flight_at_most() -> None:
    """A wide limit changes nothing, and a rate beyond what it serves keeps as many in flight as without one."""
    paced = {"rate": 8.0, "requests": 100}
    alone, wide, tight = (asked(**paced, concurrency=most) for most in (..., 100, 1))
    assert wide["tpot_ms"] == pytest.approx(alone["tpot_ms"], rel=0.02) and "at most 1 in flight" in tight["traffic"]
    assert tight["tpot_ms"] < alone["tpot_ms"] and tight["output_tokens_per_s"] < alone["output_tokens_per_s"]
    pushed, closed = asked(rate=1e4, requests=100, concurrency=8), asked(requests=100, concurrency=8)
    for name in ("ttft_ms", "tpot_ms", "output_tokens_per_s"):
        assert pushed[name] == pytest.approx(closed[name], rel=0.02)


@pytest.mark.parametrize(
    ("more", "named"),
    [({"arrivals": [[0.0, 90, 5], [0.2, 80, 5]], "rate": 3.0, "spread": 0.5}, "a list of arrivals: rate, isl, osl, spread"),
     ({"mode": "offline", "rate": 3.0, "requests": 4}, "mode offline: rate"), ({"mode": "estimate", "rate": 3.0}, "mode estimate: rate")],
)  # fmt: skip
def test_fields_of_a_load_that_change_nothing_are_named(more: dict[str, Any], named: str) -> None:
    assert (
        asked(**{"concurrency": 4 if more.get("mode") else ...} | more)["notes"][0] == f"without effect beside {named}"
    )
    assert not any("without effect" in note for note in asked(concurrency=2, requests=4)["notes"])


def test_a_rate_of_no_number_names_what_works() -> None:
    with pytest.raises(BadInput, match="or inf"):
        asked(rate="fast")


def test_a_cached_prefix_saves_prompt_time() -> None:
    times = [asked(isl=8000, prefix_share=share)["ttft_ms"] for share in (0.0, 0.5, 0.95)]
    assert times == sorted(times, reverse=True)
    assert times[-1] < 0.7 * times[0]


def test_a_static_batch_takes_what_one_turn_of_the_closed_loop_takes() -> None:
    """The same steps: those of the batch are predicted as they are, those of requests read between points of a grid."""
    batch = asked(mode="estimate", concurrency=8)
    turn = asked(mode="offline", requests=8, concurrency=...)
    assert batch["ttft_ms"] == pytest.approx(turn["ttft_ms"], rel=1e-3)
    assert batch["e2e_ms"] == pytest.approx(turn["output_tokens_per_s"] ** -1 * 8 * BASE["osl"] * 1e3, rel=0.05)


def test_a_static_batch_of_an_old_tensorrt_engine_reads_the_experts_of_one_request() -> None:
    moe = {"model": "Mixtral-8x7B", "gpu": "H100", "engine": "trtllm", "tp": 4, "mode": "estimate", "isl": 64, "osl": 8}
    one, many = (asked(**moe, version="0.12.0", concurrency=requests) for requests in (1, 16))
    assert one["tpot_ms"] < many["tpot_ms"] < 1.5 * one["tpot_ms"]
    assert any("copies of one prompt" in note for note in many["notes"])
    drawn = asked(**moe, version="1.2.0", concurrency=16)
    assert drawn["tpot_ms"] > 1.5 * many["tpot_ms"]  # 8 experts of 8 instead of 2


def test_arrivals_are_served_as_listed() -> None:
    lonely = asked(arrivals=[[10.0 * i, 500, 40] for i in range(5)])
    crowded = asked(arrivals=[[0.0, 500, 40] for _ in range(5)])
    assert lonely["ttft_ms"] < crowded["ttft_ms"]
    assert lonely["output_tokens_per_s"] == pytest.approx(5 * 40 / (40 + lonely["e2e_ms"] * 1e-3), rel=1e-3)


@pytest.mark.parametrize("mode", ["estimate", "offline"])
def test_listed_requests_are_one_batch_where_their_times_do_not_count(mode: str) -> None:
    late = [[0.0, 10, 20], [30.0, 200, 1], [60.0, 500, 40]]
    at_once = [[0.0, *lengths] for _, *lengths in late]
    assert asked(mode=mode, arrivals=late) == asked(mode=mode, arrivals=at_once)
    assert asked(mode=mode, arrivals=late)["e2e_ms"] < 1000


def test_no_time_between_tokens_is_answered_where_all_of_them_come_in_one_message() -> None:
    """TensorRT-LLM streams ten tokens of DeepSeek-R1 at a time."""
    place = {"model": "DeepSeek-R1", "gpu": "B200", "tp": 8, "engine": "trtllm", "isl": 64, "concurrency": 2}
    assert "tpot_ms" not in asked(**place, osl=2)
    assert asked(**place, osl=30)["tpot_ms_low"] > 0


def test_the_command_writes_answers_and_says_by_its_status_how_it_went(tmp_path: Path) -> None:
    cases, out = tmp_path / "cases.jsonl", tmp_path / "answers.jsonl"
    run = CliRunner()
    cases.write_text(json.dumps(BASE | {"id": 1}) + "\n")
    arguments = ["serve", "--cases", str(cases), "--out", str(out), "--executor", "processes://1"]
    assert run.invoke(build(), arguments).exit_code == 0
    assert json.loads(out.read_text())["id"] == 1
    cases.write_text(json.dumps(BASE | {"id": 1}) + "\nnonsense\n")
    assert run.invoke(build(), arguments).exit_code == 1
    assert len(out.read_text().splitlines()) == 2
    cases.unlink()
    assert isinstance(run.invoke(build(), arguments).exception, BadFile)


@pytest.mark.parametrize("name", ["NaN", "Infinity", "[1]", "{}"])
def test_an_id_that_is_no_json_or_no_id_is_refused(name: str) -> None:
    line = f'{{"id": {name}, "model": "Llama-3.1-8B", "gpu": "H200", "isl": 64, "osl": 4, "concurrency": 1}}'
    (found,) = answer_lines([line])
    assert found["id"] is None
    assert found["error"]["field"] == "id"
