"""Public launches of disaggregated deployments: what the table holds, and which of them answers for a deployment."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest

from pipewave.errors import BadInput
from pipewave.gpus import find as find_gpu
from pipewave.models import load
from pipewave.published import published_pools
from pipewave.published.published_pools import Launch, Wanted, near
from pipewave.published.unstated import Stated, engine_of_dynamo, fill
from pipewave.simulate.setup import Setup
from pipewave.simulate.traffic import synthetic
from pipewave.software.engine_parts import DeploymentFacts

B200_FP4 = DeploymentFacts(gpu="B200", attention="mla", experts=True, dtype="nvfp4", model_type="deepseek_v3")
WANTED = Wanted(B200_FP4, 256, "trtllm", "0.8.1.post1", (922.0, 922.0), 180, 8)


def _launches() -> tuple[Launch, ...]:
    return published_pools._launches()


def find(wanted: Wanted) -> Launch | None:
    return next(iter(near(wanted)), None)


def test_every_launch_names_what_can_run() -> None:
    for launch in _launches():
        assert launch.flights
        assert launch.of["source"]
        assert find_gpu(launch.of["gpu"]).name == launch.of["gpu"]
        for pool in (launch.prefill, launch.decode):
            assert 1 in (pool.tp, pool.dp)
            assert pool.ep in (1, pool.tp * pool.dp)


def test_batches_are_sized_for_the_requests_they_are_meant_for() -> None:
    """Concurrency of TensorRT-LLM's launches is the decode slots and at most as many again, where it fills them."""
    for launch in _launches():
        if launch.batch and launch.of["engine"] == "trtllm" and len(launch.flights) == 1 and launch.decode.workers == 1:
            slots = launch.batch * launch.decode.dp
            assert launch.flights[0] <= 2.0 * slots


def test_a_batch_that_fills_is_the_largest_power_of_two_below() -> None:
    filling = next(one for one in _launches() if one.batch == 0 and one.decode.workers == 5)
    assert [filling.requests(flight) for flight in (5, 9, 10, 19, 20, 55)] == [1, 1, 2, 2, 4, 8]


def test_launches_of_one_engine_multiply_by_engines_where_the_script_does() -> None:
    tripled = next(one for one in _launches() if one.of.get("each") and one.decode.workers == 3)
    assert all(flight % 3 == 0 for flight in tripled.flights)


def test_the_exact_launch_answers() -> None:
    found = find(WANTED)
    assert found is not None
    assert (found.prefill.workers, found.decode.workers, found.decode.gpus, found.batch) == (1, 5, 40, 32)
    assert not found.drafts


def test_requests_that_only_drafting_launches_serve_are_drafted() -> None:
    found = find(replace(WANTED, flight=875))
    assert found is not None
    assert found.drafts == 3
    other = find(replace(WANTED, flight=874))
    assert other is not None
    assert not other.drafts


def test_drafting_that_was_asked_for_is_preferred() -> None:
    found = find(replace(WANTED, drafts=True))
    assert found is not None
    assert found.drafts == 3


def test_gpus_tell_launches_of_the_same_requests_apart() -> None:
    facts = replace(B200_FP4, gpu="GB200")
    wide = find(replace(WANTED, facts=facts, version="", flight=4301, gpus=16))
    narrow = find(replace(WANTED, facts=facts, version="", flight=4301, gpus=8))
    assert wide is not None
    assert narrow is not None
    assert (wide.decode.gpus, narrow.decode.gpus) == (16, 8)


def test_another_gpu_answers_for_one_without_launches_and_dense_models_have_none() -> None:
    found = find(replace(WANTED, facts=replace(B200_FP4, gpu="H20")))
    assert found is not None
    assert found.of["engine"] == "trtllm"
    assert find(replace(WANTED, experts=0)) is None
    assert find(replace(WANTED, engine="vllm", lengths=(100.0, 1e6))) is None


@pytest.mark.parametrize(
    ("dynamo", "engine"),
    [
        ("0.8.1.post2", "1.2.0rc6.post2"),
        ("0.8.1.post9", "1.2.0rc6.post3"),
        ("0.5.1-rc0.pre3", "1.1.0rc5"),
        ("1.1.0-dev.2", "1.3.0rc11"),
        ("0.4.0", ""),
    ],
)
def test_dynamo_names_the_engine_it_ships(dynamo: str, engine: str) -> None:
    assert engine_of_dynamo(dynamo) == engine


def test_a_line_that_is_no_launch_is_refused() -> None:
    with pytest.raises(BadInput, match="no launch"):
        published_pools._launch("1 dep4 and 2 dep8", (1024, 1024), [4], {})


def test_of_launches_equally_near_the_one_with_most_prefill_engines_answers() -> None:
    facts = replace(B200_FP4, dtype="fp8_block")
    wanted = Wanted(facts, 256, "sglang", "0.5.8.post1", (7373.0, 922.0), 1024, 8)
    found = near(wanted)
    meant = [one for one in found if 1024 in one.flights and not one.drafts and one.decode == found[0].decode]
    assert len(meant) > 1
    assert found[0].prefill.workers == max(one.prefill.workers for one in meant)


def _split(
    model: str, gpu: str, tp: int, *, version: str | None = None, ep: int = 1, flight: int = 16, prompt: int = 900,
    said: frozenset[str] = frozenset(),
) -> tuple[int, int, int]:  # fmt: skip
    """How a server of TensorRT-LLM is split that states tp and, unless it is 1, ep."""
    traffic = synthetic(flight, input_len=prompt, output_len=900, concurrency=flight)
    setup = fill(Stated(load(model), gpu, Setup(tp=tp, ep=ep), "trtllm", version, said=said), traffic).setup
    return setup.tp, setup.ep, setup.dp


def test_gpt_oss_is_launched_with_whole_experts_on_hopper_and_tables_count_its_groups_twice() -> None:
    """Rows of the image gpt-oss-dev write two GPUs as tp 4, ep 2; those that kept no version hold the same times."""
    model = "gpt-oss-120b"
    assert [_split(model, "H200", tp) for tp in (1, 2, 4, 8)] == [(1, 1, 1), (2, 2, 1), (4, 4, 1), (8, 8, 1)]
    assert _split(model, "H200", 4, version="gpt-oss-dev", ep=2) == (2, 2, 1)
    assert _split(model, "H200", 4, version="1.2.0rc2", ep=2) == (4, 2, 1)  # a number tells that it is meant
    assert _split(model, "H200", 4, version="1.2.0rc2") == (4, 1, 1)
    assert _split(model, "B200", 4) == (4, 1, 1)
    assert _split(model, "H200", 4, said=frozenset(["ep"])) == (4, 1, 1)


def test_deepseek_in_fp4_was_launched_with_ranks_of_attention_for_many_or_long_requests(tmp_path: Path) -> None:
    section = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "model.layers.*.self_attn*"]}
    card = json.loads((resources.files("pipewave") / "data/models/DeepSeek-R1.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(card | {"quantization_config": section}), "utf-8")
    model = str(tmp_path)
    ranks = {(900, 128): 1, (900, 256): 8, (7000, 32): 1, (7000, 64): 8}
    for (prompt, flight), dp in ranks.items():
        found = _split(model, "B200", 8, flight=flight, prompt=prompt)
        assert found == ((1, 8, 8) if dp == 8 else (8, 1, 1))
    assert _split(model, "B200", 8, flight=256, version="1.2.0rc6") == (8, 1, 1)
