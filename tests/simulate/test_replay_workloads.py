"""Recorded iterations replayed: the contract's fields, bad files, and real runs within sight."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pipewave.errors import BadFile, BadInput, CannotShard, MissingField, PipewaveError
from pipewave.simulate import read_workload, replay

DATA = Path(os.environ.get("PIPEWAVE_DATA", Path(__file__).resolve().parents[3] / "shared" / "data")) / "pipeweave"

WORK: dict[str, Any] = {
    "model": "Qwen2ForCausalLM",
    "model_params": {
        "hidden_size": 5120,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 13824,
        "vocab_size": 152064,
        "num_hidden_layers": 48,
    },
    "tp_size": 1,
    "pp_size": 1,
    "iterations": [
        {"iteration": 1, "phase": "prefill", "q_lengths": [300, 400], "kv_lengths": [300, 400]},
        {"iteration": 2, "phase": "decode", "q_lengths": [1, 1], "kv_lengths": [301, 401]},
        {"iteration": 3, "phase": "decode", "q_lengths": [1, 1], "kv_lengths": [302, 402]},
    ],
}


def test_answers_what_the_contract_names() -> None:
    answer = replay(WORK, "H200").to_dict()
    assert answer["prefill_ms"] > answer["decode_ms_mean"] > 0
    assert answer["total_ms"] == pytest.approx(answer["prefill_ms"] + 2 * answer["decode_ms_mean"], abs=1e-3)
    for name in ("prefill_ms", "decode_ms_mean", "total_ms"):
        assert answer[f"{name}_low"] < answer[name] < answer[f"{name}_high"]


def with_iteration(**change: Any) -> dict[str, Any]:
    return WORK | {"iterations": [WORK["iterations"][0] | change]}


@pytest.mark.parametrize(
    ("work", "error", "field"),
    [
        (with_iteration(kv_lengths=[300]), BadInput, "iterations[0].kv_lengths"),
        (with_iteration(q_lengths=[], kv_lengths=[]), BadInput, "iterations[0].q_lengths"),
        (with_iteration(q_lengths=[0, 4]), BadInput, "iterations[0].q_lengths"),
        (with_iteration(q_lengths=[300, "x"]), BadInput, "iterations[0].q_lengths"),
        (with_iteration(q_lengths=[301, 400]), BadInput, "iterations[0].kv_lens"),
        (with_iteration(q_lengths=None), MissingField, "iterations[0].q_lengths"),
        (with_iteration(phase="warmup"), BadInput, "iterations[0].phase"),
        (WORK | {"iterations": []}, MissingField, "iterations"),
        (WORK | {"iterations": [7]}, BadInput, "iterations[0]"),
        (WORK | {"model": "MambaForCausalLM"}, BadInput, "model"),
        (WORK | {"model": ["LlamaForCausalLM"]}, BadInput, "model"),
        (WORK | {"model_params": None}, MissingField, "model_params"),
        (WORK | {"tp_size": 3}, CannotShard, "tp"),
        (WORK | {"tp_size": 0}, BadInput, "tp"),
    ],
)
def test_bad_workloads_name_the_iteration(work: dict[str, Any], error: type[PipewaveError], field: str) -> None:
    with pytest.raises(error) as caught:
        replay(work, "H200")
    assert caught.value.field == field


def test_a_truncated_file(tmp_path: Path) -> None:
    path = tmp_path / "work.json"
    path.write_text(json.dumps(WORK)[:-20])
    with pytest.raises(BadFile):
        replay(path, "H200")


@pytest.mark.skipif(not DATA.is_dir(), reason="corpus absent")
class TestCorpus:
    def test_recorded_shapes_are_the_models(self) -> None:
        from pipewave.models import load
        from pipewave.models.shard import parameters

        for file, name in (
            ("Qwen2.5-14B_arxiv_8_fa3_tp1_pp1", "Qwen2.5-14B"),
            ("Qwen3-32B_arxiv_12_fa3_tp2_pp1", "Qwen3-32B"),
            ("Llama-3.1-70B_arxiv_16_fa3_tp4_pp1", "Llama-3.1-70B"),
        ):
            assert parameters(read_workload(DATA / "workload" / f"{file}.json").model) == parameters(load(name))

    def test_built_in_models_are_the_published_configs(self) -> None:
        from dataclasses import replace

        from pipewave.models import load

        configs = sorted((DATA / "config").glob("*.json"))
        assert len(configs) >= 3
        for path in configs:
            built_in = load(path.stem)
            assert replace(load(str(path)), name=built_in.name, max_length=None) == replace(built_in, max_length=None)

    @pytest.mark.parametrize(("gpu", "file"), [("H200", "e2e_H200"), ("A100", "e2e_A100"), ("H20", "e2e_H20")])
    def test_within_a_seventh_of_real_runs(self, gpu: str, file: str) -> None:
        runs = [json.loads(line) for line in (DATA / "e2e" / "real" / f"{file}.jsonl").read_text().splitlines()]
        real = next(r for r in runs if r["run_name"].endswith("arxiv_8") and r["iteration"] == 2)
        answer = replay(DATA / "workload" / "Qwen2.5-14B_arxiv_8_fa3_tp1_pp1.json", gpu)
        assert answer.prefill_ms == pytest.approx(1e3 * real["prefill_latency"], rel=0.14)
        assert answer.decode_ms_mean == pytest.approx(1e3 * real["median_decode_latency"], rel=0.14)
        assert answer.total_ms == pytest.approx(1e3 * real["total_latency"], rel=0.14)
