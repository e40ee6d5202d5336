"""`pipewave trace` on traces of vLLM steps: recognised, shaped, consistent; and its three formats."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from pipewave.cli import build
from pipewave.cli.command import Group
from pipewave.errors import BadInput, MissingField
from pipewave.kernels.attention.metadata import Lengths
from pipewave.kernels.profiler import Given
from pipewave.kernels.streaming.sampling import blocks_of_a_row
from pipewave.models import load
from pipewave.traces import Report, Workload, compare, explain_trace
from pipewave.traces.cache_lengths import over_steps, with_cached
from pipewave.traces.reader import read
from pipewave.view import report as report_of
from studies import e2e_kernels
from studies.e2e_kernels import workload_of as workload
from tests.command_line import CliRunner

ROOT = Path(__file__).parents[1]
TRACES = ROOT.parent / "data" / "measured" / "h200" / "traces"
NCU = ROOT / "data" / "traces" / "ncu-h200.csv"
PREFILL = "Llama-3.1-8B-tp1-4layers-eager-prefill"
STEPS = e2e_kernels.names()


def path_of(step: str) -> Path:
    return TRACES / f"trace-{step}.json.gz"


@lru_cache
def explained(step: str) -> Report:
    return e2e_kernels.explained(step)


@pytest.mark.parametrize("step", STEPS)
def test_nearly_all_time_is_recognised_and_shaped(step: str) -> None:
    report = explained(step)
    assert report.recognized_share >= 0.95
    assert report.shaped_share >= 0.90


@pytest.mark.parametrize("step", STEPS)
def test_most_time_is_predicted_within_a_tenth(step: str) -> None:
    assert explained(step).close_share >= 0.80


@pytest.mark.parametrize("step", STEPS)
def test_no_call_of_the_right_model_is_said_to_be_too_fast(step: str) -> None:
    assert not any("faster than" in note for note in explained(step).notes)


@pytest.mark.parametrize(("gpu", "told"), [("H200", False), ("L40S", True), ("B200", True)])
def test_a_gpu_that_did_not_run_it_is_doubted_before_all_else(gpu: str, told: bool) -> None:
    step = "Llama-3.1-8B-tp1-graph-decode"
    found = explain_trace(path_of(step), gpu=gpu, workload=workload(step))
    assert found.headline[0].startswith("recorded on NVIDIA H200") == told
    too_fast = any(f"faster than {gpu} can be" in note and "gate_up_proj" in note for note in found.notes)
    assert too_fast == (gpu == "L40S")


def test_another_model_is_doubted_before_all_else() -> None:
    step = "Llama-3.1-8B-tp1-graph-decode"
    given = Given((), (1024,))
    other = Workload.of(load("Llama-3.1-70B"), tp=1, ep=1, kv_dtype=None, given=given, engine="vllm")
    found = explain_trace(path_of(step), workload=other)
    assert "another model, split, cache or GPU ran" in found.headline[0]
    assert not any("healthy" in line for line in found.headline)


def test_families_of_a_trace_hold_all_its_calls() -> None:
    report = explained("Qwen3-30B-A3B-tp1-graph-decode")
    rows = e2e_kernels.families("any", report)
    assert sum(row.measured_us for row in rows) == pytest.approx(sum(e.total_measured_us for e in report.entries))
    assert all(abs(row.bias_percent) <= row.error_percent + 1e-6 for row in rows)
    assert {row.family for row in rows} >= {"fused_moe", "gemm", "attention", "rope", "kv_write"}


@pytest.mark.parametrize("step", STEPS)
def test_every_kernel_is_counted_once(step: str) -> None:
    report, trace = explained(step), read(path_of(step))
    rows = (*report.entries, *report.unshaped, *report.unknown)
    assert sum(row.total_measured_us for row in rows) == pytest.approx(trace.gpu_us)
    assert report.recognized_share == pytest.approx(
        1.0 - sum(u.total_measured_us for u in report.unknown) / trace.gpu_us
    )
    assert report.shaped_share <= report.recognized_share


@pytest.mark.parametrize("step", STEPS)
def test_entries_obey_their_definitions(step: str) -> None:
    entries = explained(step).entries
    for entry in entries:
        assert entry.recoverable_us == max(entry.measured_us - entry.ceiling_us, 0.0)
        assert entry.floor_us <= entry.low_us <= entry.latency_us <= entry.high_us
        assert entry.floor_us <= entry.ceiling_us
        assert entry.total_measured_us == pytest.approx(entry.measured_us * entry.count)
    ranks = [(entry.counted, entry.total_recoverable_us) for entry in entries]
    assert ranks == sorted(ranks, reverse=True)


@pytest.mark.parametrize(
    ("step", "layers", "steps"), [("Llama-3.1-8B-tp1-graph-decode", 32, 3), ("Qwen3-30B-A3B-tp1-graph-prefill", 48, 1)]
)
def test_a_graph_yields_every_layer_of_the_model(step: str, layers: int, steps: int) -> None:
    counts: dict[str, int] = {}
    for entry in explained(step).entries:
        counts[entry.name] = counts.get(entry.name, 0) + entry.count
    assert counts["qkv_proj"] == counts["o_proj"] == counts["attention"] == layers * steps
    assert counts["lm_head"] == steps


def test_shapes_of_an_eager_trace_are_those_of_the_model() -> None:
    """Two ways to a shape that know nothing of one another: operators of the trace, and the model's configuration."""
    alone, modelled = explain_trace(path_of(PREFILL)), explained(PREFILL)
    shapes = {(e.call["m"], e.call["n"], e.call["k"]) for e in alone.entries if e.family == "gemm"}
    batch = workload(PREFILL)
    assert batch.deployment is not None
    wanted = {(2048, 6144, 4096), (2048, 4096, 4096), (2048, 28672, 4096), (2048, 4096, 14336), (1, 128256, 4096)}
    assert shapes == wanted
    assert {(e.call["m"], e.call["n"], e.call["k"]) for e in modelled.entries if e.family == "gemm"} == wanted
    attention = next(e for e in alone.entries if e.family == "attention")
    assert attention.shaped
    assert attention.call["q_lens"] == attention.call["kv_lens"] == (2048,)
    assert (attention.call["heads"], attention.call["kv_heads"], attention.call["head_dim"]) == (32, 8, 128)


def test_a_moe_layer_is_one_call_with_the_shape_of_the_model() -> None:
    report = explain_trace(path_of("Qwen3-30B-A3B-tp1-4layers-eager-prefill"))
    layer = next(e for e in report.entries if e.family == "fused_moe")
    call = layer.call
    assert (call["tokens"], call["experts"], call["topk"], call["hidden"], call["inter"]) == (2048, 128, 8, 2048, 768)
    assert layer.count == 4
    assert layer.kernels.count("fused_moe_kernel") == 1
    assert "vllm::act_and_mul_kernel" in layer.kernels


@pytest.mark.parametrize("step", [name for name in STEPS if "A3B" in name])
def test_a_routers_picks_wait_for_one_another(step: str) -> None:
    [entry] = [one for one in explained(step).entries if one.call.get("op") == "topk"]
    assert entry.call["rounds"] == 8
    assert abs(entry.error) < 0.2


def test_assumed_lengths_do_not_count_as_shaped() -> None:
    step = "Llama-3.1-8B-tp1-4layers-eager-decode"
    bare, given = explain_trace(path_of(step)), explained(step)
    attention = [e for e in bare.entries if e.family == "attention"]
    assert attention
    assert not any(e.shaped for e in attention)
    assert all(e.note for e in attention)
    assert given.shaped_share > bare.shaped_share


def test_without_a_model_a_graph_is_recognised_but_not_shaped() -> None:
    report = explain_trace(path_of("Llama-3.1-8B-tp1-graph-decode"))
    assert report.recognized_share >= 0.95
    assert report.shaped_share < 0.05
    assert sum(left.total_measured_us for left in report.unshaped) > 0.9 * report.gpu_us


def test_ncu_tables_are_recognised_under_the_cold_protocol() -> None:
    report = explain_trace(NCU)
    assert report.protocol == "cold"
    assert report.recognized_share > 0.95
    assert {"gemm", "attention", "fused_moe", "rmsnorm"} <= {left.family for left in report.unshaped}


def test_a_trace_without_steps_needs_lengths_for_a_model() -> None:
    trace = replace(read(path_of("Llama-3.1-8B-tp1-graph-decode")), steps=())
    trace = replace(trace, kernels=tuple(replace(kernel, step=-1) for kernel in trace.kernels))
    deployment = workload("Llama-3.1-8B-tp1-graph-decode").deployment
    with pytest.raises(MissingField, match="q-lens"):
        explain_trace(trace, workload=Workload(deployment))
    report = explain_trace(trace, workload=Workload(deployment, Given((1,) * 32, (1025,))))
    assert report.shaped_share > 0.9
    assert sum(e.count for e in report.entries if e.name == "qkv_proj") == 96


def test_a_trace_that_names_no_gpu_needs_one() -> None:
    trace = replace(read(path_of(PREFILL)), gpu=None)
    with pytest.raises(MissingField, match="--gpu"):
        explain_trace(trace)
    assert explain_trace(trace, gpu="H200") == explain_trace(path_of(PREFILL))


def test_comparing_a_trace_with_itself_changes_nothing() -> None:
    report = explained(PREFILL)
    found = compare(report, report)
    assert all(change.change_us == 0 and change.count_a == change.count_b for change in found.changes)
    assert sum(change.a_us for change in found.changes) == pytest.approx(report.gpu_us)


def test_comparing_is_antisymmetric() -> None:
    a, b = explained(PREFILL), explained("Llama-3.1-8B-tp1-graph-prefill")
    there = {(c.family, c.name): c.change_us for c in compare(a, b).changes}
    back = {(c.family, c.name): c.change_us for c in compare(b, a).changes}
    assert there == {key: -value for key, value in back.items()}
    assert sum(there.values()) == pytest.approx(b.gpu_us - a.gpu_us)


def test_a_page_shows_what_a_trace_names_and_runs_none_of_it() -> None:
    found = explained(PREFILL)
    text = report_of(replace(found, source="<script>alert(1)</script>").to_dict())
    assert "<script" not in text
    assert "://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert all(entry.name in text for entry in found.entries)


def test_a_trace_without_any_shape_says_what_is_missing() -> None:
    found = explain_trace(path_of("Llama-3.1-8B-tp1-graph-decode"))
    assert "they come from the model: name it" in report_of(replace(found, entries=()).to_dict(), "md")


@pytest.fixture(name="app")
def _app() -> Group:
    return build()


FIELDS = ("measured_us", "latency_us", "low_us", "high_us", "floor_us", "ceiling_us", "recoverable_us")


def test_json_of_the_command(app: Group) -> None:
    found = CliRunner().invoke(app, ["trace", str(path_of(PREFILL)), "--format", "json"])
    assert found.exit_code == 0
    answer = json.loads(found.stdout)
    assert answer["schema_version"] == 1
    assert 0.95 < answer["recognized_share"] <= 1
    assert 0.9 < answer["shaped_share"] <= 1
    for call in answer["calls"]:
        assert all(isinstance(call[name], float) for name in FIELDS)
        assert isinstance(call["count"], int)
        assert isinstance(call["family"], str)


def test_what_was_never_measured_says_so() -> None:
    notes = {entry.name: entry.note for entry in explained("Qwen3-30B-A3B-tp1-graph-decode").entries}
    assert "PyTorch's reduction kernel" in notes["sample"]
    assert "fitted to one router" in notes["topk"]
    assert notes["qkv_proj"] == ""


def test_traces_of_different_length_are_compared_step_by_step() -> None:
    decode, prefill = explained("Llama-3.1-8B-tp1-graph-decode"), explained("Llama-3.1-8B-tp1-graph-prefill")
    found = compare(decode, prefill)
    assert (decode.steps, prefill.steps, found.to_dict()["by_step"]) == (3, 1, True)
    assert found.gpu_us == pytest.approx((decode.gpu_us / 3, prefill.gpu_us))
    layers = next(change for change in found.changes if change.name == "qkv_proj")
    assert layers.count_a == layers.count_b == 32
    assert sum(change.change_us for change in found.changes) == pytest.approx(prefill.gpu_us - decode.gpu_us / 3)
    assert "qkv_proj" in report_of(found.to_dict())


def test_table_page_and_comparison_of_the_command(app: Group, tmp_path: Path) -> None:
    step = "Llama-3.1-8B-tp1-graph-decode"
    options = ["--model", "Llama-3.1-8B", "--kv-lens", "1025"]
    shown = CliRunner().invoke(app, ["trace", str(path_of(step)), *options])
    assert shown.exit_code == 0
    assert "gate_up_proj" in shown.stdout
    assert "recognised" in shown.stdout
    out = tmp_path / "page.html"
    assert (
        CliRunner()
        .invoke(app, ["trace", str(path_of(step)), *options, "--format", "html", "--out", str(out)])
        .exit_code
        == 0
    )
    assert out.read_text("utf-8").startswith("<!doctype html>")
    both = CliRunner().invoke(app, ["trace", str(path_of(step)), str(path_of(PREFILL)), *options])
    assert both.exit_code == 0
    assert "B each" in both.stdout
    told = CliRunner().invoke(app, ["trace", str(path_of(step)), str(path_of(PREFILL)), "--format", "json"])
    assert {"a", "b", "changes"} <= json.loads(told.stdout).keys()


def test_a_slower_step_fails_the_gate(app: Group) -> None:
    fast, slow = (str(path_of(f"Qwen3-30B-A3B-tp1-4layers-eager-{kind}")) for kind in ("decode", "prefill"))
    for pair, limit, status in (((fast, fast), "0", 0), ((fast, slow), "900%", 0)):
        assert CliRunner().invoke(app, ["trace", *pair, "--fail-above", limit]).exit_code == status
    failed = CliRunner().invoke(app, ["trace", fast, slow, "--fail-above", "5 %"])
    assert failed.exit_code == 1 and "longer than one of" in failed.stderr
    for wrong in (["--fail-above", "5%"], [slow, "--fail-above", "much"], [slow, "--fail-above=-5%"]):
        assert CliRunner().invoke(app, ["trace", fast, *wrong]).exit_code == 2


def test_every_row_has_a_shape(app: Group) -> None:
    report = explain_trace(path_of("Qwen3-30B-A3B-tp1-graph-decode"))
    assert all(left.shape for left in (*report.unshaped, *report.unknown))
    shown = CliRunner().invoke(app, ["trace", str(path_of(PREFILL))], env={"COLUMNS": "140"}).stdout
    assert "m=2048 n=28672 k=4096" in " ".join(shown.split())


def test_an_unknown_format_is_refused(app: Group) -> None:
    found = CliRunner().invoke(app, ["trace", str(path_of(PREFILL)), "--format", "yaml"])
    assert isinstance(found.exception, BadInput)


GRAPHS = [step for step in STEPS if "graph" in step and "tp1" in step]


@pytest.mark.parametrize("step", GRAPHS)
def test_cache_lengths_are_read_off_the_time_of_attention(step: str) -> None:
    model = step.partition("-tp1")[0]
    report = explain_trace(path_of(step), workload=Workload(deployment=workload(step).deployment))
    true = {entry.call["kv_lens"] for entry in explained(step).entries if entry.family == "attention"}
    found = {entry.call["kv_lens"] for entry in report.entries if entry.family == "attention"}
    assert max(map(max, found)) == pytest.approx(max(map(max, true)), rel=0.08), model
    entries = [entry for entry in report.entries if entry.family == "attention"]
    assert all("time of attention" in entry.note and not entry.counted for entry in entries)
    assert report.recoverable_us == pytest.approx(
        sum(entry.total_recoverable_us for entry in report.entries if entry.counted)
    )


@pytest.mark.parametrize("step", STEPS)
def test_what_rests_on_an_assumption_is_never_in_the_headline(step: str) -> None:
    report = explained(step)
    shown = report.to_dict()
    apart = ("predicted as a copy", "fitted to 48 sizes", "masks of top-k")
    solid = [e for e in report.entries if e.shaped and not any(words in e.note for words in apart)]
    assert report.recoverable_us == pytest.approx(sum(e.total_recoverable_us for e in solid))
    assert shown["assumed_recoverable_us"] == pytest.approx(
        sum(e.total_recoverable_us for e in report.entries) - report.recoverable_us
    )
    html = report_of(shown, "html")
    assert ("not counted" in html) == (len(solid) < len(report.entries))


@pytest.mark.parametrize("step", [step for step in STEPS if "Qwen3-32B" not in step])
def test_argmax_runs_as_pytorch_lays_it_out(step: str) -> None:
    (entry,) = [e for e in explained(step).entries if e.call.get("op") == "argmax"]
    rows = entry.call["bytes_written"] / 8
    values = entry.call["bytes_read"] / 4 / rows
    shared = blocks_of_a_row(np.array([rows]), np.array([values]), 132)[0]
    assert shared == (entry.grid[1] if len(entry.grid) > 1 else 1)
    assert entry.latency_us == pytest.approx(entry.measured_us, rel=0.2)  # fitted to calls of their own, none of these
    assert not entry.counted  # nobody measured how fast another implementation would be


def test_steps_in_a_row_hold_the_same_requests_one_token_longer() -> None:
    decode, other = (1,) * 8, (1,) * 9
    requests = {0: decode, 1: decode, 2: decode, 4: decode, 5: other, 6: (512,)}
    found = over_steps({0: 1000, 1: 1100, 2: 1002, 4: 50, 5: 70, 6: 3}, requests)
    assert found == {0: 1000, 1: 1001, 2: 1002, 4: 50, 5: 70, 6: 3}


def test_cache_lengths_read_off_several_steps_are_told_in_one_note() -> None:
    found = [with_cached(Lengths((1, 1), (1, 1), ""), cached, [982, 983, 984]) for cached in (982, 984)]
    assert len({one.note for one in found}) == 1
    assert "982 to 984 tokens" in found[0].note
    assert [one.kv_lens for one in found] == [(983, 983), (985, 985)]
    assert "about 7 tokens" in with_cached(Lengths((1,), (1,), ""), 7, [7]).note
