"""Prefill and decode pools: a plain simulator of both, splits of their own, transfers, and how cases name them."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from pipewave.errors import BadInput, MissingField, UnknownField
from pipewave.gpus import find
from pipewave.kernels.collective.fabric import network_gbps
from pipewave.models import load
from pipewave.published import answers
from pipewave.published.answers import answer
from pipewave.published.cases import from_dict
from pipewave.published.infer_pools import HEADROOM, MOST_GPUS, _choices, _prompt_s, matched
from pipewave.published.unstated import is_disaggregated
from pipewave.simulate.pools import HANDOVER_S, Pools, Side, side_of
from pipewave.simulate.server import Server
from pipewave.simulate.setup import Setup
from pipewave.simulate.traffic import Traffic, synthetic
from pipewave.software.front import INSIDE
from pipewave.step.memory import cache_bytes
from tests.simulate.serving import recorded, serve

MODEL = "Llama-3.1-8B"


def _pools(prefill: Side, decode: Side) -> Pools:
    return Pools.of(MODEL, "H200", Setup(max_num_batched_tokens=2048), 2048, (prefill, decode))


def _plain(pools: Pools, traffic: Traffic) -> tuple[list[float], list[float]]:
    """Two prefill engines in turn of arrival, a wire, one decode engine: every request walked, step by step."""
    prompts, outputs = traffic.input_len.tolist(), traffic.output_len.tolist()
    table, later = pools.servers[0].table, pools.decode.table
    ends: list[list[float]] = [[0.0] for _ in range(pools.workers[0])]
    first, ready = [0.0] * len(prompts), []
    for request, come in enumerate(traffic.arrival_s.tolist()):
        queued = [sum(end > come for end in listed) for listed in ends]
        own = ends[queued.index(min(queued))]
        own.append(max(own[-1], come) + table.seconds(0, 0, [(prompts[request], 0)]))
        first[request] = own[-1]
        ready.append((own[-1] + pools.transfer_s(prompts[request]), request))
    queue, running, now, done = deque(sorted(ready)), {}, 0.0, [0.0] * len(prompts)
    while queue or running:
        if not running:
            now = max(now, queue[0][0])
        while queue and queue[0][0] <= now:
            running[queue.popleft()[1]] = 1
        now += later.seconds(len(running), sum(prompts[r] + made for r, made in running.items()), [])
        for request in list(running):
            if running[request] == 1:
                first[request] = now  # the decode engine's first step with the request
            running[request] += 1
            if running[request] == outputs[request]:
                done[request] = now
                del running[request]
    return first, done


def test_pools_are_those_of_a_plain_simulator() -> None:
    """Prompts of a whole step's budget, so that each runs alone; engines without overlapped scheduling."""
    pools = Pools.of(
        MODEL, "H200", Setup(engine="vllm:0.11.0", max_num_batched_tokens=1024, front=INSIDE), 2048, (Side(2), Side(1))
    )
    traffic = synthetic(40, input_len=1024, output_len=40, rate=40, seed=2)
    record = recorded(pools, traffic)
    first, done = _plain(pools, traffic)
    # A cache that comes while others decode joins them one step later here than in the plain simulator.
    step = pools.decode.table.seconds(8, 8 * 1060, [])
    assert record.first_s == pytest.approx(np.array(first), abs=2 * step)
    assert record.done_s == pytest.approx(np.array(done), abs=2 * step)


def _at_once(prompts: int, **more: float) -> tuple[list[float], float]:
    """First tokens of prompts that come together to one prefill engine, a step each; and such a step's seconds."""
    pools = Pools.of(
        MODEL, "H200", Setup(engine="vllm:0.11.0", max_num_batched_tokens=1024, front=INSIDE), 2048, (Side(), Side())
    )
    traffic = synthetic(prompts, input_len=1024, output_len=2, rate=1e6, seed=2)
    record = recorded(replace(pools, **more), traffic)  # type: ignore[arg-type]
    return sorted(record.first_s.tolist()), pools.servers[0].table.seconds(0, 0, [(1024, 0)])


def test_a_scheduler_that_sends_caches_runs_no_step_meanwhile() -> None:
    """The n-th of prompts that come together waits for n sends."""
    (plain, _), (sent, _) = _at_once(4), _at_once(4, send_s=0.5)
    assert np.subtract(sent, plain) == pytest.approx([0.5, 1.0, 1.5, 2.0], abs=0.02)


def test_ranks_send_side_by_side() -> None:
    """A group waits for the rank that begins most prompts; parts of prompts begun before cost nothing more."""
    server = Server.of("DeepSeek-V3", "B200", Setup(dp=8, ep=8), 4096)
    work = [(0, 0, [(512, 0), (512, 0)])] + [(0, 0, [(512, 512)])] * 7
    plain = server.table.group_seconds(work)
    assert server.table.encoding(1e5).group_seconds(work) - plain == pytest.approx(0.2)
    assert server.table.encoding(1e5).seconds(0, 0, [(512, 512)]) == server.table.seconds(0, 0, [(512, 512)])


def test_a_scheduler_ahead_hands_prompts_on_once_the_next_step_is_launched() -> None:
    """All but the last wait for that share of a step more; alone, none waits."""
    (plain, step_s), (late, _) = _at_once(4), _at_once(4, handoff_delay_share=1.0)
    assert np.subtract(late, plain) == pytest.approx([step_s, step_s, step_s, 0.0], abs=0.02)
    (half, _) = _at_once(4, handoff_delay_share=0.5)
    assert np.subtract(half, plain)[0] == pytest.approx(0.5 * step_s, abs=0.02)
    assert _at_once(1, handoff_delay_share=1.0) == _at_once(1)


def test_each_side_has_its_own_split() -> None:
    pools = _pools(Side(workers=3), Side(workers=1, tp=4))
    assert (pools.gpus, pools.servers[0].runner.deployment.parallel.tp, pools.decode.runner.deployment.parallel.tp) == (
        7,
        1,
        4,
    )
    alike = _pools(Side(workers=3), Side(workers=1))
    traffic = synthetic(60, input_len=512, output_len=64, concurrency=16)
    fast, slow = serve(pools, traffic).answer, serve(alike, traffic).answer
    assert fast["tpot_mean_ms"] < slow["tpot_mean_ms"]
    assert fast["kv_tokens"] > slow["kv_tokens"]
    assert fast["gpus"] == 7


def test_prompts_do_not_disturb_decoding() -> None:
    """What disaggregation is for: the longest gap between tokens holds no prompt."""
    traffic = synthetic(60, input_len=2000, output_len=64, concurrency=8)
    apart = serve(_pools(Side(workers=2), Side()), traffic).answer
    together = serve(Server.of(MODEL, "H200", Setup(max_num_batched_tokens=2048), 2100), traffic).answer
    assert apart["itl_p99_ms"] < 0.3 * together["itl_p99_ms"]


def test_more_prefill_engines_shorten_the_wait() -> None:
    traffic = synthetic(80, input_len=2000, output_len=32, rate=30)
    waits = [serve(_pools(Side(workers=n), Side()), traffic).answer["ttft_mean_ms"] for n in (1, 2, 4)]
    assert waits == sorted(waits, reverse=True)


def test_caches_cross_the_slower_link() -> None:
    """Bytes of the fuller rank over NVLink inside an island, over the network beyond."""
    gpu = find("H200")
    near, far = _pools(Side(4), Side(4)), _pools(Side(8), Side(4))
    size = cache_bytes(near.decode.runner.deployment, 1000)
    assert near.transfer_s(1000) == pytest.approx(HANDOVER_S + size / (1e9 * gpu.link_gbps))
    assert far.transfer_s(1000) == pytest.approx(HANDOVER_S + size / (1e9 * network_gbps(gpu)))
    rack = Pools.of(MODEL, "GB200", Setup(), 2048, (Side(32), Side(32)))  # one island
    assert rack.transfer_s(1000) == pytest.approx(HANDOVER_S + size / (1e9 * find("GB200").link_gbps))
    assert _pools(Side(tp=2), Side(tp=2)).transfer_s(1000) - HANDOVER_S == pytest.approx(
        (near.transfer_s(1000) - HANDOVER_S) / 2
    )


def test_a_case_names_its_pools() -> None:
    case = {"model": MODEL, "gpu": "H200", "isl": 512, "osl": 32, "concurrency": 8, "requests": 24}
    named = answer(from_dict(case | {"prefill": {"workers": 2}, "decode": {"workers": 1, "tp": 2}}))
    words = answer(from_dict(case | {"prefill": "workers=2", "decode": "workers=1,tp=2"}))
    assert named["ttft_ms"] == words["ttft_ms"] > 0
    with pytest.raises(MissingField, match="both pools"):
        answer(from_dict(case | {"prefill": {"workers": 2}}))
    with pytest.raises(UnknownField, match="workers"):
        from_dict(case | {"prefill": {"worker": 2}})
    with pytest.raises(BadInput, match="positive"):
        from_dict(case | {"decode": {"workers": 0}})


def test_steps_need_not_be_kept() -> None:
    """Steps in which nothing begins or ends are then run in stretches."""
    pools = _pools(Side(workers=2), Side(workers=2))
    traffic = synthetic(40, input_len=500, output_len=90, concurrency=6, spread=0.2, seed=1)
    kept, quick = recorded(pools, traffic, keep_steps=True), recorded(pools, traffic)
    assert kept.steps and not quick.steps
    np.testing.assert_allclose(kept.first_s, quick.first_s, rtol=1e-9)
    np.testing.assert_allclose(kept.done_s, quick.done_s, rtol=1e-9)


def test_pools_that_nothing_says_are_matched() -> None:
    case = {
        "model": MODEL,
        "gpu": "H200",
        "isl": 2000,
        "osl": 64,
        "concurrency": 32,
        "requests": 96,
        "disaggregated": True,
    }
    found = answer(from_dict(case))
    assert any("match the rate of" in note for note in found["notes"])
    traffic = synthetic(96, input_len=2000, output_len=64, concurrency=32)
    pools, _ = matched(load(MODEL), "H200", Setup(), 1, traffic)
    record = recorded(pools, traffic)
    # Enough prefill engines that most requests in flight are decoding, and not twice as many as that takes.
    prefill = float((record.first_s - record.arrival_s).mean())
    whole = float((record.done_s - record.arrival_s).mean())
    assert prefill < 0.5 * whole
    assert 1 < HEADROOM < 2
    assert pools.workers[0] > 1


def test_matched_pools_are_the_middle_of_a_range_that_the_interval_holds() -> None:
    """As many decode engines as make most of tokens a GPU × tokens a user, of all that hold the requests."""
    model, traffic = "Llama-3.1-70B", synthetic(256, input_len=4000, output_len=500, concurrency=256)
    pools, _ = matched(load(model), "H100", Setup(), 4, traffic)
    assert pools.decode.runner.deployment.parallel.world == 4
    choices = list(_choices(*pools.servers, 256, traffic))
    own = next(one for one in choices if (one.prefill, one.decode) == pools.workers)
    assert len(choices) > 2 and all(one.gpus <= MOST_GPUS for one in choices)
    assert all(own.gpus * own.token_s**2 <= one.gpus * one.token_s**2 for one in choices)
    times = [one.token_s for one in choices]
    # The more engines, the sooner a token, but for waves of split decode attention.
    assert all(after < 1.005 * before for before, after in pairwise(times)) and times[-1] < 0.8 * times[0]
    ends = pools.uncertain.ends("tpot_ms", own.token_s)
    assert ends["_low"] < times[-1] and ends["_high"] > times[0]
    assert "number of engines not known" in pools.uncertain.note()


def test_a_prompt_longer_than_a_step_costs_its_parts() -> None:
    """Beside the simulation of one prompt on an idle engine."""
    server = Server.of(MODEL, "H200", Setup(max_num_batched_tokens=2048, front=INSIDE), 8192)
    record = recorded(server, synthetic(1, input_len=5000, output_len=1, concurrency=1))
    seconds = _prompt_s(server, synthetic(1, input_len=5000, output_len=1))
    assert seconds == pytest.approx(float(record.done_s[0] - record.reached_s[0]), rel=1e-6)
    assert seconds > 5000 / 2048 * server.table.seconds(0, 0, [(2048, 0)])  # later parts attend to earlier ones


@pytest.mark.parametrize(
    ("engine", "version", "is_so"),
    [
        ("trtllm", "0.8.1.post2", True), ("trtllm", "1.1.0-dev.2", True), ("trtllm", "0.5.1-rc0.pre3", True),
        ("trtllm", "1.2.0rc6.post2", False), ("trtllm", "0.12.0", False), ("trtllm", None, False), ("sglang", "0.5.8.post1", False),
    ],
)  # fmt: skip
def test_versions_that_are_dynamos(engine: str, version: str | None, is_so: bool) -> None:
    assert is_disaggregated(engine, version) is is_so


def test_sides_as_words() -> None:
    assert side_of("workers=2, tp=4", "prefill") == Side(workers=2, tp=4)
    with pytest.raises(BadInput, match="must look like"):
        side_of("workers=two", "prefill")


def test_pools_are_launched_as_engines_of_their_split_are() -> None:
    """A recipe for several tensor ranks holds for a decode pool of as many, though the case names no tp of its own."""
    case = {"model": MODEL, "gpu": "B200", "engine": "vllm", "isl": 512, "osl": 64, "concurrency": 2, "requests": 4}
    split = {"tp": 2}
    pools = answer(from_dict(case | {"prefill": split, "decode": split}))
    alone = answer(from_dict(case | split))
    assert any("fused with norms" in note for note in pools["notes"])
    assert pools["tpot_ms"] < 1.05 * alone["tpot_ms"]


def test_a_pool_s_unknown_field_is_refused_with_those_it_may_have() -> None:
    with pytest.raises(UnknownField, match=r"'eq'; known: dp, ep, .*, workers"):
        side_of({"dp": 8, "eq": 8}, "decode")


def test_a_closed_loop_that_takes_too_many_steps_is_answered_from_its_first_waves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pools = {"prefill": {"workers": 1}, "decode": {"workers": 4}}
    case = {"model": MODEL, "gpu": "H200", "isl": 300, "osl": 400, "spread": 0.2, "concurrency": 16, **pools}
    whole = answer(from_dict(case | {"requests": 400}))
    assert not any("are simulated" in note for note in whole["notes"])
    monkeypatch.setattr(answers, "MOST_ROUNDS", 16_000)
    part = answer(from_dict(case | {"requests": 400}))
    assert any("the first 110 are simulated" in note for note in part["notes"])
    assert part["tpot_ms"] == pytest.approx(whole["tpot_ms"], rel=0.02)
    assert part["output_tokens_per_s"] == pytest.approx(whole["output_tokens_per_s"], rel=0.1)
    alone = answer(from_dict(case | {"requests": 400, "prefill": None, "decode": None}))
    assert not any("are simulated" in note for note in alone["notes"])  # one engine's steps run in stretches
