"""What stands before an engine, when its scheduler looks, what is assumed of deployments, and the laws of both."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipewave.errors import BadFile
from pipewave.published import recipes
from pipewave.published.answers import answer
from pipewave.published.cases import from_dict
from pipewave.published.recipes import Recipe, Requests, find
from pipewave.published.unstated import assumed_version, fill, release_after, releases
from pipewave.simulate.frontend_queue import FrontendQueue, RequestInbox
from pipewave.simulate.kv_budget import KvBudget
from pipewave.simulate.policies import SchedulingPolicy, SglangPolicy, TrtllmPolicy, VllmPolicy
from pipewave.simulate.report import as_seen, summary
from pipewave.simulate.setup import Setup
from pipewave.simulate.simulation import Pool, Record, Simulation
from pipewave.simulate.step_grids import Reader
from pipewave.simulate.traffic import Traffic, synthetic
from pipewave.software.engine_parts import DeploymentFacts
from pipewave.software.front import INSIDE, Front
from tests.sampled import examples

SLOW = Front(request_us=50_000.0, stream_us=0.0, variation=0.0)


@dataclass
class Toy:
    """A step of 10 ms and 1 ms for each hundred prompt tokens."""

    factor: float = 1.0

    def seconds(self, decoding: int, cached: int, pieces: list[tuple[int, int]]) -> float:
        return 0.010 + 1e-5 * sum(tokens for tokens, _ in pieces)

    def decoder(self, decoding: int) -> Reader:
        return Reader(lambda cached: 0.010, lambda held: np.full(len(held), 0.010))


PLAIN = VllmPolicy(2048, 256)


def ran(traffic: Traffic, policy: SchedulingPolicy = PLAIN, *, front: Front = INSIDE, pages: int = 100_000) -> Record:
    return Simulation(traffic, Pool(Toy(), policy, KvBudget(pages, 16)), front=front).run()  # type: ignore[arg-type]


def test_a_desk_serves_in_order_and_never_before_a_request_came() -> None:
    desk, rng = FrontendQueue(Front(request_us=2000.0, token_us=1.0, variation=1.0)), np.random.default_rng(0)
    sent = np.cumsum(rng.exponential(0.002, 500))
    reached = [desk.enter(float(now), 100) for now in sent]
    assert (np.diff(reached) > 0).all()
    assert (np.array(reached) > sent).all()


def test_service_times_keep_their_mean() -> None:
    desk = FrontendQueue(Front(request_us=2000.0, variation=1.0))
    assert desk.enter(0.0, 0) > 0
    for _ in range(4092):
        last = desk.enter(0.0, 0)
    assert last == pytest.approx(4093 * 0.002, rel=0.05)


def test_nothing_stands_before_an_engine_called_from_its_own_process() -> None:
    desk = FrontendQueue(INSIDE)
    assert desk.enter(3.0, 10_000) == 3.0
    assert desk.leave(4.0, 500) == 4.0


def test_many_tiny_chats_are_limited_by_the_front_end() -> None:
    traffic = synthetic(400, input_len=64, output_len=2, concurrency=200)
    record = ran(traffic, front=SLOW)
    assert 400 / record.done_s.max() == pytest.approx(1e6 / SLOW.request_us, rel=0.02)


def test_a_slower_front_end_never_serves_sooner() -> None:
    traffic = synthetic(100, input_len=300, output_len=20, concurrency=8)
    ends = [ran(traffic, front=Front(request_us=us)).done_s.max() for us in (0.0, 1e3, 1e4, 1e5)]
    assert ends == sorted(ends)


def test_a_scheduler_that_overlaps_sees_a_request_one_step_later() -> None:
    traffic = Traffic(np.array([0.0, 0.035]), np.array([100, 100]), np.array([20, 20]))
    wait = {flag: (record := ran(traffic, replace(PLAIN, overlaps=flag))).first_s[1] - record.arrival_s[1] for flag in (False, True)}  # fmt: skip
    assert wait[True] - wait[False] == pytest.approx(0.010, abs=1e-9)


def test_an_interval_between_looks_delays_first_tokens_by_half_of_it() -> None:
    rng = np.random.default_rng(1)
    # One long request keeps the engine decoding; lonely others come at random.
    times = np.concatenate(([0.0], 1.0 + np.cumsum(rng.uniform(0.8, 1.2, 150))))
    outputs = np.array([20_000] + [2] * 150)
    traffic = Traffic(times, np.full(151, 100), outputs)
    first = {n: float((r := ran(traffic, replace(PLAIN, recv_interval=n))).first_s[1:].mean() - r.arrival_s[1:].mean()) for n in (1, 31)}  # fmt: skip
    assert first[31] - first[1] == pytest.approx(0.150, rel=0.15)


def test_an_inbox_gives_every_request_once_and_in_order() -> None:
    inbox = RequestInbox(overlaps=True)
    for request in range(5):
        inbox.put(0.1 * request, request)
    assert inbox.take(0.5, 0.25, idle=False) == [0, 1, 2]
    inbox.ran(prompts=False)
    assert inbox.take(0.6, 0.5, idle=False) == [3, 4]
    assert not len(inbox)


def test_prompts_that_are_not_cut_run_whole() -> None:
    traffic = synthetic(60, input_len=900, output_len=30, concurrency=12)
    record = ran(traffic, replace(PLAIN, chunked_prefill=False))
    assert {tokens for _, step in record.steps for _, tokens, _ in step.pieces} == {900}
    assert {before for _, step in record.steps for *_, before in step.pieces} == {0}


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_reserved_outputs_bound_preemption(share: float) -> None:
    traffic = synthetic(80, input_len=200, output_len=200, concurrency=40)
    record = ran(traffic, SglangPolicy(2048, 256, output_reserve=(share, share)), pages=200)
    assert np.isfinite(record.done_s).all()
    assert (sum(record.log.preempted) == 0) if share == 1.0 else True
    if share == 0.0:
        assert sum(record.log.preempted) > 0


def recipe(
    engine: str, setting: DeploymentFacts, *, prompt: int = 1000, flight: int = 8, mode: str = "serve"
) -> Recipe:
    name, _, version = engine.partition(":")
    return find(name, version, setting, Requests(mode, prompt, flight))


def test_recipes_fill_in_what_published_deployments_set() -> None:
    plain = DeploymentFacts()
    assert not recipe("vllm:0.22.1", plain).settings
    old = recipe("vllm:0.12.0", plain)
    assert old.settings == {"max_num_batched_tokens": 1072}
    assert old.notes
    assert not old.without(frozenset(["max_num_batched_tokens"])).settings
    for model in ("deepseek_v3", "qwen3_5_moe_text"):
        launched = DeploymentFacts(model_type=model, mma="tcgen05")
        assert [recipe("sglang:0.5.9", launched, flight=n).settings["recv_interval"] for n in (4, 16)] == [10, 30]
    assert "recv_interval" not in recipe("sglang:0.5.9", DeploymentFacts(model_type="glm_moe_dsa")).settings


def test_one_recipe_sets_ranks_by_the_number_of_gpus_that_a_launch_was_given() -> None:
    """Whatever tp is: a recipe names it instead of repeating itself for each."""
    unversioned = Requests("serve", 900, 256, version_given=False)
    oss = {"model_type": "gpt_oss", "mma": "wgmma"}
    deepseek = {"model_type": "deepseek_v3", "dtype": "nvfp4", "mma": "tcgen05", "attention": "mla", "experts": True}
    for tp in (1, 2, 4, 8, 16):
        found = [
            find("trtllm", "1.0.0", DeploymentFacts(tp=tp, **one), unversioned).settings for one in (oss, deepseek)
        ]
        assert found[0].get("ep") == (tp if tp in (2, 4, 8) else None)
        assert {found[1].get("dp"), found[1].get("ep")} == {tp if tp in (4, 8) else None}


def test_a_launch_whose_file_of_settings_is_not_read_runs_as_the_engine_does_by_itself() -> None:
    """Llama-70B in FP8 on H100s in 2025: neither asynchronous scheduling nor an FP8 cache; on H200s both were read."""
    unversioned = Requests("serve", 1000, 8, version_given=False)
    for gpu, dtype, experts, read in (
        ("H100", "fp8", False, False),
        ("H200", "fp8", False, True),
        ("H100", "mxfp4", True, True),
    ):
        setting = DeploymentFacts(gpu=gpu, mma="wgmma", attention="gqa", dtype=dtype, experts=experts)
        found = find("vllm", "0.11.0", setting, unversioned).settings
        assert found["overlaps"] == read
        assert found.get("kv_dtype") == (None if read else "bf16")
    assert "overlaps" not in recipe("vllm:0.11.0", DeploymentFacts(gpu="H100", mma="wgmma", dtype="fp8")).settings


def test_gpt_oss_is_launched_with_an_fp8_cache_on_blackwell() -> None:
    def cache(version: str, mma: str) -> object:
        setting = DeploymentFacts(model_type="gpt_oss", mma=mma, dtype="mxfp4", experts=True)
        return recipe(f"vllm:{version}", setting).settings.get("kv_dtype")

    assert [cache("0.15.1", mma) for mma in ("tcgen05", "wgmma", "mma")] == ["fp8", None, None]
    assert cache("0.11.1", "tcgen05") == "bf16"  # ML.ENERGY's launches name none


def test_launches_that_draft_take_as_many_requests_as_are_in_flight() -> None:
    qwen = DeploymentFacts(model_type="qwen3_5_moe_text", mma="tcgen05", dtype="fp8_block", experts=True)
    plain, drafting = (
        find("sglang", "0.5.9", qwen, Requests("serve", 1000, 256, drafting=one)).settings for one in (False, True)
    )
    assert (plain["max_num_seqs"], drafting["max_num_seqs"]) == (128, 256)
    assert plain["gemm_backend"] == drafting["gemm_backend"] == "flashinfer_trtllm"
    assert "gemm_backend" not in recipe("sglang:0.5.10", qwen).settings
    assert plain["overlaps"] and "overlaps" not in drafting  # launched without the radix cache that would forbid it


def test_a_recipe_of_another_type_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are those of `Setup`; numbers may be sums of sizes."""
    row = {"when": {"engine": "vllm"}, "set": {"max_num_seqs": "many"}, "source": "none"}
    for wrong in (row, row | {"set": {"seats": 4}}):
        monkeypatch.setattr(recipes.packaged, "document", lambda _, rows=(wrong,): rows)
        with pytest.raises(BadFile, match="cannot be read"):
            recipes.every.__wrapped__()


def test_a_recipe_is_of_servers_unless_it_says_so() -> None:
    narrow = DeploymentFacts(dtype="fp8")
    assert recipe("trtllm:1.0.0", narrow).settings == {
        "max_num_batched_tokens": 1072,
        "kv_dtype": "fp8",
        "gpu_memory_utilization": 0.8,
    }
    assert recipe("trtllm:1.0.0", narrow, mode="offline").settings == {
        "kv_dtype": "fp8",
        "gpu_memory_utilization": 0.95,
    }
    long = recipe("trtllm:1.0.0", narrow, mode="offline", prompt=20000)
    assert long.settings["max_num_batched_tokens"] > 20000
    assert not recipe("trtllm:1.0.0", narrow, mode="estimate", prompt=20000).settings


@pytest.mark.parametrize(("output", "waits"), [(1024, True), (512, False), (2048, False)])
def test_prompts_wait_for_company_in_the_published_lengths_alone(output: int, waits: bool) -> None:
    # One prompt a step never fills the share that is waited for, unless outputs are as long.
    requests = Requests("serve", 1024, 64, output, version_given=False)
    assert ("wait_steps" in find("trtllm", "1.1.0rc2", DeploymentFacts(), requests).settings) == waits


@given(st.integers(1, 40))
def test_tokens_streamed_together_come_later_and_end_when_they_did(together: int) -> None:
    traffic = synthetic(20, input_len=100, output_len=30, spread=0.5, rate=50.0)
    first = traffic.arrival_s + 0.1
    record = Record(first, first + 0.01 * (traffic.output_len - 1), traffic.arrival_s)
    one, many = (summary(as_seen(record, traffic, tokens), traffic, 1) for tokens in (1, together))
    held = 10.0 * (np.minimum(together, traffic.output_len) - 1).mean()
    assert many["ttft_mean_ms"] == pytest.approx(one["ttft_mean_ms"] + held)
    assert many["e2e_mean_ms"] == one["e2e_mean_ms"]


def test_a_version_that_is_not_given_is_that_of_the_runs_that_kept_none() -> None:
    case = {"model": "Llama-3.1-70B", "gpu": "H100", "engine": "vllm", "tp": 4, "isl": 500, "osl": 20, "concurrency": 4}
    assumed, given = (answer(from_dict(case | more)) for more in ({}, {"version": "0.11.0"}))
    assert any("version not given: 0.11.0" in note for note in assumed["notes"])
    assert assumed["ttft_ms_high"] / assumed["ttft_ms"] > given["ttft_ms_high"] / given["ttft_ms"]


def test_a_version_that_does_not_read_a_model_is_assumed_of_none() -> None:
    """SGLang's builds between releases name no number: before 0.5.9 none read Qwen3.5 or GLM-5."""
    old, note = assumed_version("sglang", "deepseek_v3")
    assert old == "0.5.3" == assumed_version("sglang")[0] and "2025" in note
    for kind in ("qwen3_5_moe_text", "glm_moe_dsa"):
        assert assumed_version("sglang", kind) == ("0.5.9", "0.5.9 assumed, the first that reads the model")
    assert assumed_version("elsewhere", "llama") == ("", "")


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("nightly-dev-20260216-d3bae71e", "0.5.9"),
        ("nightly-dev-cu13-20260223-a27651d5", "0.5.9"),
        ("nightly-dev-20260402-d7256eb6", "0.5.10"),
        ("nightly-dev-20990101-d7256eb6", ""),
        ("nightly-dev", ""),
        ("20260402", ""),
        ("nightly-d1202604025", ""),
    ],
)
def test_a_nightly_build_is_answered_as_the_release_that_it_became(version: str, release: str) -> None:
    assert release_after("sglang", version) == release
    assert release_after("elsewhere", version) == ""
    case = from_dict(
        {
            "model": "Qwen3-30B-A3B",
            "gpu": "B200",
            "engine": "sglang",
            "version": version,
            "isl": 8,
            "osl": 2,
            "mode": "serve",
            "concurrency": 1,
        }
    )
    setup, notes, _ = fill(case.stated(), case.traffic())
    assert setup.engine == f"sglang:{release or '0.5.3'}"
    assert any("interval is wider" in note for note in notes)


def test_releases_are_listed_in_their_order() -> None:
    for engine in ("vllm", "sglang", "trtllm"):
        days = list(releases(engine).values())
        assert len(days) > 3 and days == sorted(days)


@examples(100)
@given(st.integers(2, 12), st.integers(0, 30), st.floats(0.0, 1.0))
def test_prompts_that_wait_for_company_come_later_and_all_come(flight: int, steps: int, share: float) -> None:
    traffic = synthetic(4 * flight, input_len=10, output_len=20, concurrency=flight, spread=0.3)
    policy = TrtllmPolicy(40, 64, chunked_prefill=False, wait_steps=steps, wait_share=share)
    pools = (Pool(Toy(), one, KvBudget(1000, 4)) for one in (replace(policy, wait_steps=0), policy))  # type: ignore[arg-type]
    plain, waits = (Simulation(traffic, pool).run() for pool in pools)
    assert np.isfinite(waits.done_s).all()
    if not steps:
        assert np.array_equal(plain.first_s, waits.first_s)
    longest = (waits.first_s - waits.arrival_s).max()
    assert longest <= (plain.first_s - plain.arrival_s).max() + 4 * (steps + 1) * flight


DEEPSEEK = {"model": "DeepSeek-V3", "gpu": "B200", "engine": "trtllm", "tp": 8, "isl": 500, "osl": 60, "concurrency": 4}


@pytest.mark.slow
def test_a_version_whose_public_launches_draft_is_answered_with_drafts() -> None:
    plain, drafts = (answer(from_dict(DEEPSEEK | {"version": f"1.2.0rc6.post{n}"})) for n in (2, 3))
    assert drafts["tpot_ms"] < 0.8 * plain["tpot_ms"]
    assert any(note.startswith("MTP assumed") for note in drafts["notes"])
    assert not any("MTP" in note for note in plain["notes"])
    said = DEEPSEEK | {"version": "1.2.0rc6.post3", "speculative": "mtp,tokens=1"}
    own = fill((case := from_dict(said)).stated(), case.traffic())[0]
    assert own.speculative is not None and own.speculative.tokens == 1
    for none in ("none", {"method": "none"}):
        undrafted = answer(from_dict(said | {"speculative": none}))
        assert undrafted["tpot_ms"] == pytest.approx(plain["tpot_ms"], rel=0.02)


def test_pools_draft_as_their_launch_says() -> None:
    """Dynamo 0.8.1.post3 ships that version; its pools' launches name what drafts themselves."""
    case = from_dict(DEEPSEEK | {"version": "1.2.0rc6.post3", "prefill": {"tp": 8}, "decode": {"tp": 8}})
    assert fill(case.stated(), case.traffic())[0].speculative is None


def test_an_interval_of_steps_holds_the_tokens_of_their_drafts() -> None:
    """TensorRT-LLM streams every tenth step, of which each makes several tokens."""
    case = DEEPSEEK | {"version": "1.2.0rc6.post2"}
    none, sure = (answer(from_dict(case | more)) for more in ({}, {"speculative": "mtp,tokens=1,acceptance=1.0"}))
    # Twice the tokens in as long a wait: first tokens come about as late, nine steps after the prompt.
    assert sure["ttft_ms"] == pytest.approx(none["ttft_ms"], rel=0.25)
    assert sure["ttft_ms"] > 9 * 1.8 * sure["tpot_ms"]


def test_tokens_of_long_answers_cost_a_front_end_more() -> None:
    """Servers copy what a request was sent before: a full one takes its time a token, more in long answers."""
    front = Front(stream_us=1000.0, copied_us=1000.0)
    short, long = (synthetic(64, input_len=16, output_len=tokens, concurrency=64) for tokens in (100, 1900))
    assert short.sent == pytest.approx(49.5)
    assert long.sent == pytest.approx(949.5)
    for traffic in (short, long):
        record = ran(traffic, front=Setup(front=front).streaming(traffic.sent))
        each_us = 1e6 * record.done_s.max() / traffic.output_len.sum()
        assert each_us == pytest.approx(1000 + traffic.sent, rel=0.05)


def test_tokens_sent_together_share_what_a_message_costs() -> None:
    front = Front(stream_us=40.0, copied_us=20.0, host=2.0, message_us=16.0)
    one, ten = (Setup(engine="sglang", front=front, message_tokens=tokens) for tokens in (1, 10))
    assert one.streaming(500.0).stream_us == pytest.approx(50.0)
    assert ten.streaming(500.0).stream_us == pytest.approx(5.0)
    engine = one.program()
    each = [setup.hosted(engine).host.request_host_us - 2.0 * engine.host.request_host_us for setup in (one, ten)]
    assert each == pytest.approx([16.0, 1.6])
