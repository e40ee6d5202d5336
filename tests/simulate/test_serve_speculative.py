"""Speculative decoding against simulators that draw every draft, and the laws it must keep."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipewave.errors import BadInput, MissingField, PipewaveError
from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.kernels import Batch, Deployment
from pipewave.models.lora_and_drafts import draft_bytes, drafter
from pipewave.models.stage import Stage
from pipewave.published.answers import answer
from pipewave.published.cases import from_dict
from pipewave.published.unstated import fill
from pipewave.simulate.drafting import Drafted, Drafter, pays_until
from pipewave.simulate.server import Server
from pipewave.simulate.setup import Setup
from pipewave.simulate.speculative import Speculative, of
from pipewave.simulate.step_grids import Sizes
from pipewave.simulate.step_table import StepTable
from pipewave.simulate.traffic import synthetic
from pipewave.software.recorded import acceptance_range
from pipewave.step import Runner, find_engine
from tests.simulate.serving import serve

LLAMA = "Llama-3.1-8B"


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Runner.of(Deployment(load(LLAMA)), find("H200"), find_engine("vllm"))


def _drafted(runner: Runner, how: Speculative) -> Drafted:
    table = StepTable(runner, Sizes(2048, 64, 4096), verify=how.verified)
    return Drafted(table, Drafter(runner, how, Sizes(1, 64, 4096)), how.mean)


@pytest.mark.parametrize(
    "given", ["method=mtp,tokens=3,acceptance=0.8", {"method": "mtp", "tokens": 3, "acceptance": 0.8}]
)
def test_words_and_objects_say_the_same(given: object) -> None:
    assert of(given) == Speculative("mtp", 3, (0.8,) * 3)


def test_what_is_not_said_has_a_source() -> None:
    assert of("mtp").tokens == 1
    assert of("eagle3,tokens=5").accepted == of("method=eagle3,tokens=5").accepted
    assert 0 < of("ngram").accepted[0] < of("eagle3").accepted[0] < 1
    assert of("method=mtp,tokens=4,acceptance=0.9/0.7").accepted == (0.9, 0.7, 0.7, 0.7)
    assert of({"method": "deepseek_mtp"}).method == "mtp"


@pytest.mark.parametrize(
    "wrong",
    [
        "method=magic",
        "tokens=3",
        "mtp,tokens=0",
        "mtp,tokens=x",
        "mtp,acceptance=1.2",
        "mtp,acceptance=x",
        "mtp,speed=2",
        7,
        {"method": "mtp", "tokens": float("inf")},
        {"method": "mtp", "acceptance": 10**400},
    ],
)
def test_nonsense_is_named(wrong: object) -> None:
    with pytest.raises(BadInput) as caught:
        of(wrong)
    assert caught.value.field == "speculative"
    with pytest.raises(MissingField):
        of("draft")


@pytest.mark.parametrize("accepted", [(0.0,), (1.0, 1.0), (0.8, 0.8, 0.8), (0.9, 0.5, 0.1)])
def test_tokens_a_step_are_those_of_drawn_drafts(accepted: tuple[float, ...]) -> None:
    rng = np.random.default_rng(1)
    taken = rng.random((200_000, len(accepted))) < np.array(accepted)
    drawn = 1 + np.cumprod(taken, axis=1).sum(axis=1).mean()
    assert Speculative("mtp", len(accepted), accepted).mean == pytest.approx(drawn, rel=0.005)


def test_a_batch_verifies_all_its_drafts() -> None:
    """Four tokens a request go through the dense kernels and the head; attention still counts as decoding."""
    model = load("DeepSeek-V3")
    verify = {u.name: u for u in Deployment(model).kernels(Batch((4,) * 8, (1000,) * 8, verify=4))}
    assert verify["q_b_proj"].call.m == verify["lm_head"].call.m == 32  # type: ignore[attr-defined]
    assert "mla_generation" in verify
    assert "mla_context" not in verify
    prompt = {u.name for u in Deployment(model).kernels(Batch((4,) * 8, (1000,) * 8))}
    assert "mla_context" in prompt


def test_states_are_kept_for_every_draft() -> None:
    from pipewave.models.attention_kernels import recurrence
    from pipewave.models.attention_spec import Recurrent
    from pipewave.models.precision import Linear

    spec = Recurrent(
        "gdn", heads=32, key_heads=16, key_dim=128, value_dim=128, kernel=4, channels=8192, inputs=(), outputs=()
    )
    view = Stage(Deployment(load(LLAMA)), Batch((4,) * 2, (100,) * 2, verify=4))
    assert {use.call.phase for use in recurrence(view, spec)} == {"verify"}  # type: ignore[attr-defined]
    assert Linear  # the part's maps do not matter here


def test_the_drafter_is_one_more_layer() -> None:
    model = load("DeepSeek-V3")
    draft = drafter(model, "mtp")
    assert draft is not None
    assert draft.layers == model.layers[-1:]
    # DeepSeek-V3's card: 14 B for the MTP module, of which 2 × 0.93 B are embedding and head; 11.5 B of layer and map.
    assert draft_bytes(draft, 1, 1) == pytest.approx(11.6e9, rel=0.03)
    assert draft_bytes(draft, 1, 8) < draft_bytes(draft, 1, 1) / 5
    assert drafter(model, "ngram") is None
    dense = drafter(load(LLAMA), "eagle3")
    assert dense is not None
    assert dense.layers == load(LLAMA).layers[-1:]


def test_drafting_nothing_useful_costs_and_looking_up_is_free(runner: Runner) -> None:
    plain = StepTable(runner, Sizes(2048, 64, 4096))
    none, lookup = (_drafted(runner, of(f"{method},tokens=3,acceptance=0")) for method in ("eagle3", "ngram"))
    assert none.seconds(8, 8000, ()) > lookup.seconds(8, 8000, ()) > plain.seconds(8, 8000, ())
    assert pays_until(plain, none, 1000) == 0
    # Both are the same kernels, asked in lists of other lengths: equal but for the rounding of sums.
    assert none.seconds(0, 0, [(512, 0)]) == pytest.approx(plain.seconds(0, 0, [(512, 0)]), rel=1e-9)


def test_a_server_that_drafts_has_times_of_steps_that_verify() -> None:
    drafted, plain = (Server.of(LLAMA, "H200", Setup(speculative=how), 2048) for how in (of("eagle3,tokens=3"), None))
    assert (drafted.table.verify, plain.table.verify, drafted.undrafted.verify) == (4, 1, 1)
    times = [table.seconds(64, 64_000, ()) for table in (drafted.undrafted, plain.table, drafted.table)]
    assert times[0] == pytest.approx(times[1], rel=1e-9) and times[1] < times[2]


def test_more_accepted_is_faster_and_pays_longer(runner: Runner) -> None:
    plain = StepTable(runner, Sizes(2048, 64, 4096))
    rates = [_drafted(runner, of(f"eagle3,tokens=3,acceptance={rate}")) for rate in (0.3, 0.6, 0.9)]
    times = [drafted.seconds(16, 16_000, ()) for drafted in rates]
    assert times == sorted(times, reverse=True)
    pays = [pays_until(plain, drafted, 1000) for drafted in rates]
    assert pays == sorted(pays)


def test_a_scheduler_that_looks_every_few_steps_sees_as_many_tokens_as_they_make() -> None:
    """The simulator counts tokens of a request; a step that drafts makes several."""
    how = of("eagle3,tokens=3,acceptance=1")
    drafted, plain = (
        Server.of(LLAMA, "H200", Setup(engine="sglang", recv_interval=10, speculative=one), 2048) for one in (how, None)
    )
    assert (drafted.policy.recv_interval, plain.policy.recv_interval) == (40, 10)


def test_a_plain_simulator_that_draws_every_draft_agrees(runner: Runner) -> None:
    """A batch of 16 walked step by step, each request with its own luck: mean time a token within 2 %."""
    how = of("eagle3,tokens=3,acceptance=0.7")
    drafted, rng = _drafted(runner, how), np.random.default_rng(3)
    left, held, now = np.full(16, 600), np.full(16, 500), 0.0
    done = np.zeros(16)
    while (left > 0).any():
        live = left > 0
        now += drafted.step_s(int(live.sum()), int(held[live].sum()))
        made = 1 + np.cumprod(rng.random((16, 3)) < 0.7, axis=1).sum(axis=1)
        left, held = left - np.where(live, made, 0), held + np.where(live, made, 0)
        done[live & (left <= 0)] = now
    fluid, held_all = 0.0, 16 * 500
    for _ in range(600):
        fluid += drafted.seconds(16, held_all, ())
        held_all += 16
    assert fluid == pytest.approx(float(done.mean()), rel=0.02)


def test_a_server_drafts(runner: Runner) -> None:
    traffic = synthetic(40, input_len=512, output_len=64, concurrency=4)
    plain, drafted = (
        serve(Server.of(LLAMA, "H200", Setup(speculative=how), 1024), traffic).answer for how in (None, of("eagle3"))
    )
    assert drafted["tpot_mean_ms"] < 0.7 * plain["tpot_mean_ms"]
    assert drafted["tokens_per_step"] == of("eagle3").mean
    assert drafted["kv_tokens"] < plain["kv_tokens"]  # the drafting layer has weights and a cache of its own
    assert drafted["drafts_pay_until"] > 4


@pytest.mark.parametrize(
    "method", ["mtp", "eagle3", "ngram", {"method": "draft", "model": "Llama-3.2-1B", "tokens": 3}]
)
def test_a_case_drafts(method: object) -> None:
    case = {"model": LLAMA, "gpu": "H200", "isl": 256, "osl": 32, "concurrency": 4, "requests": 8}
    drafted = answer(from_dict(case | {"speculative": method}))
    assert drafted["tpot_ms"] > 0
    if method != "ngram":
        assert drafted["tpot_ms"] < answer(from_dict(case))["tpot_ms"]


def test_ranks_in_lock_step_draft_together() -> None:
    setup = Setup(dp=4, ep=4, speculative=of("mtp,tokens=2"))
    traffic = synthetic(32, input_len=256, output_len=32, concurrency=16)
    served = serve(Server.of("Qwen3-30B-A3B", "H200", setup, 512), traffic).answer
    plain = serve(Server.of("Qwen3-30B-A3B", "H200", Setup(dp=4, ep=4), 512), traffic).answer
    assert served["tpot_mean_ms"] < plain["tpot_mean_ms"]


def test_drafting_layers_that_leave_no_cache_are_an_error() -> None:
    with pytest.raises(PipewaveError, match="drafting layers"):
        Server.of("Llama-3.1-70B", "H200", Setup(tp=2, gpu_memory_utilization=0.495, speculative=of("eagle3")), 1024)


CASE = {"model": "DeepSeek-R1", "gpu": "H200", "tp": 8, "isl": 512, "osl": 64, "concurrency": 4, "requests": 8}


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "drafted"), [("sglang", 2), ("trtllm", 3), ("vllm", 1)])
def test_heads_draft_as_many_tokens_as_public_launches_where_a_case_names_the_method_alone(
    engine: str, drafted: int
) -> None:
    case = CASE | {"engine": engine}
    alone = answer(from_dict(case | {"speculative": {"method": "mtp"}}))
    said = answer(from_dict(case | {"speculative": {"method": "mtp", "tokens": drafted}}))
    assert alone["tpot_ms"] == said["tpot_ms"]
    assert any("drafted tokens assumed" in note for note in alone["notes"]) == (drafted > 1)
    assert not any("drafted tokens assumed" in note for note in said["notes"])


def test_acceptance_that_was_given_goes_on_for_tokens_that_were_not() -> None:
    assert of("mtp,acceptance=0.9/0.5").drafting(3).accepted == (0.9, 0.5, 0.5)
    assert of("mtp,tokens=2,acceptance=0.9").drafting(3).tokens == 2


def test_steps_that_draft_run_in_stretches_as_one_by_one(runner: Runner) -> None:
    table = _drafted(runner, of("eagle3,tokens=3"))
    for count in (1, 7, 64):
        pace = table.decoder(count)
        for cached in (count, 500 * count, 3900 * count):
            assert pace.at(cached) == pytest.approx(table.seconds(count, cached, ()), rel=1e-12)


def test_acceptance_is_open_where_it_is_not_given_and_the_more_the_more_tokens_are_drafted() -> None:
    assert of("mtp,tokens=3,acceptance=0.8").spread == 0.0
    spreads = [of(f"mtp,tokens={tokens}").spread for tokens in (1, 2, 3, 5)]
    assert spreads == sorted(spreads) and spreads[0] > 0.1
    for method in ("mtp", "eagle3", "ngram"):
        low, high = acceptance_range(method)
        assert low < of(method).accepted[0] < high


@pytest.mark.slow
def test_an_engine_that_cannot_schedule_beside_steps_that_draft_pays_for_every_request() -> None:
    """SGLang before its overlapped worker for speculation; later versions, and steps without drafts, go on as ever."""
    before, after = find_engine("sglang:0.5.9"), find_engine("sglang:0.5.14")
    assert before.scheduler.overlaps and not before.drafting().scheduler.overlaps
    assert before.drafting().each_request_us > before.each_request_us
    assert after.drafting().scheduler.overlaps
    case = CASE | {"engine": "sglang", "concurrency": 64, "requests": 128, "speculative": "mtp,tokens=2"}
    old, new = (answer(from_dict(case | {"version": version})) for version in ("0.5.9", "0.5.14"))
    plain_old, plain_new = (
        answer(from_dict(case | {"version": version, "speculative": "none"})) for version in ("0.5.9", "0.5.14")
    )
    assert old["tpot_ms"] / plain_old["tpot_ms"] > new["tpot_ms"] / plain_new["tpot_ms"]


def test_sglang_runs_48_requests_at_most_while_it_drafts_unless_it_is_told() -> None:
    """`max_running_requests` of its versions; cases are launches that others published, which raise it."""
    drafts = Setup(engine="sglang:0.5.14", speculative=of("eagle3,tokens=3"))
    assert (
        drafts.program().scheduler.max_requests == 48 < Setup(engine="sglang:0.5.14").program().scheduler.max_requests
    )
    assert replace(drafts, max_num_seqs=200).program().scheduler.max_requests == 200
    case = from_dict(CASE | {"engine": "sglang", "speculative": "mtp"})
    setup = fill(case.stated(), case.traffic()).setup
    assert setup.program().scheduler.max_requests > 48
    assert find_engine("vllm").drafting() == find_engine("vllm")


@pytest.mark.slow
def test_a_model_without_heads_is_noted() -> None:
    case = CASE | {"model": LLAMA, "tp": 1, "speculative": {"method": "mtp", "tokens": 1}}
    assert any("counts no MTP heads" in note for note in answer(from_dict(case))["notes"])
    assert load("DeepSeek-R1").mtp_heads == 1
    assert not any("MTP heads" in note for note in answer(from_dict(CASE | {"speculative": "mtp,tokens=1"}))["notes"])


def test_eagle_means_a_models_own_heads_where_it_has_some() -> None:
    """SGLang drafts with DeepSeek's MTP head under --speculative-algorithm EAGLE; a model without heads has a draft."""
    eagle = of({"method": "EAGLE", "tokens": 3})
    assert eagle.by(load("DeepSeek-R1")) == of("mtp,tokens=3").by(load("DeepSeek-R1"))
    assert eagle.by(load("Llama-3.1-8B")).method == "eagle3"
    assert of("eagle3,tokens=3").by(load("DeepSeek-R1")).method == "eagle3"
    given = of("eagle,tokens=2,acceptance=0.8").by(load("DeepSeek-R1"))
    assert (given.method, given.accepted) == ("mtp", (0.8, 0.8))
    case = {"model": "DeepSeek-R1", "gpu": "B200", "engine": "sglang", "tp": 8, "isl": 256, "osl": 64, "requests": 8}
    case |= {"mode": "serve", "concurrency": 4}
    by_word = [answer(from_dict(case | {"speculative": word}))["tpot_ms"] for word in ("eagle", "mtp", "eagle3")]
    assert by_word[0] == by_word[1] != by_word[2]
