"""Whole engine steps: the driver and the rows, against a made-up engine that schedules ahead as vLLM does."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections import deque
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import pytest

from lab.vllm_engine import gates, launch, points, timing, traces, worker
from lab.vllm_engine.__main__ import Run, Writer, options, setup_of, trace_suffix
from lab.vllm_engine.drive import Driver, RunningEngine
from pipewave.errors import BadInput

LAUNCH_S = 1e-4
BUDGET = 8192


def step_s(tokens: int, context: int) -> float:
    """The made-up engine's law."""
    return 1e-3 + 1e-5 * tokens + 1e-8 * context


@dataclass
class FakeRequest:
    prompt: list[int]
    new_tokens: int
    num_computed_tokens: int = 0
    in_flight: int = 0
    texts: list[int] = field(default_factory=list)


class FakeScheduler:
    def __init__(self) -> None:
        self.requests: dict[str, FakeRequest] = {}
        self.seen: list[int] = []

    def schedule(self) -> dict[str, int]:
        left, chosen = BUDGET, {}
        for name, request in self.requests.items():
            goal = len(request.prompt) + request.in_flight + len(request.texts)
            wanted = min(goal - request.num_computed_tokens, left)
            if request.in_flight + len(request.texts) >= request.new_tokens or wanted <= 0:
                continue
            request.num_computed_tokens += wanted
            request.in_flight += request.num_computed_tokens >= len(request.prompt)
            chosen[name], left = wanted, left - wanted
        return chosen

    def update_from_output(self, scheduled: SimpleNamespace, output: object) -> list[str]:
        finished = []
        for name in scheduled.sampled:
            request = self.requests[name]
            request.in_flight -= 1
            request.texts.append(len(request.texts) + request.prompt[0])
            finished += [name] * (len(request.texts) == request.new_tokens)
        self.seen.append(sum(scheduled.num_scheduled_tokens.values()))
        return finished


class FakeEngine:
    """One batch in flight: `step` launches the next one, then waits for the one before."""

    def __init__(self) -> None:
        self.scheduler = FakeScheduler()
        self.now = self.busy_until = 0.0
        self.flying: deque[tuple[float, SimpleNamespace]] = deque()

    def clock(self) -> float:
        return self.now

    def add_request(self, name: str, prompt: dict[str, object], params: int) -> str:
        assert prompt["type"] == "token"
        self.now += 1e-4
        self.scheduler.requests[name + "-x"] = FakeRequest(list(prompt["prompt_token_ids"]), params)  # type: ignore[call-overload]
        return name + "-x"

    def has_unfinished_requests(self) -> bool:
        return bool(self.scheduler.requests)

    def abort_request(self, names: list[str], internal: bool) -> None:
        assert internal
        for name in names:
            del self.scheduler.requests[name]
        self.flying.clear()

    def step(self) -> list[SimpleNamespace]:
        requests = self.scheduler.requests
        chosen = self.scheduler.schedule()
        self.now += LAUNCH_S
        sampled = [name for name in chosen if requests[name].num_computed_tokens >= len(requests[name].prompt)]
        context = sum(requests[name].num_computed_tokens for name in chosen)
        took = step_s(sum(chosen.values()), context) if chosen else 0.0
        self.busy_until = max(self.busy_until, self.now) + took
        batch = SimpleNamespace(num_scheduled_tokens=chosen, sampled=sampled)
        self.flying.append((self.busy_until, batch))
        if chosen and len(self.flying) < 2:
            return []
        ended, batch = self.flying.popleft()
        self.now = max(self.now, ended)
        finished = self.scheduler.update_from_output(batch, None)
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=requests.pop(name).texts)]) for name in finished]


def driver_of(fake: FakeEngine, kv_tokens: int = 1 << 20) -> Driver:
    parts = RunningEngine(fake, fake.scheduler, lambda tokens: tokens, 1000, kv_tokens, BUDGET, 40960)  # type: ignore[arg-type]
    return Driver(parts, fake.clock)


@pytest.fixture
def fake() -> FakeEngine:
    return FakeEngine()


def test_decode_time_is_the_steps_own_time_at_the_context_asked_for(fake: FakeEngine) -> None:
    row = timing.measure(driver_of(fake), points.decode(8, 1024))
    assert row["n"] == timing.DECODE_STEPS
    assert row["mean_context"] == pytest.approx(1024, abs=4)
    assert row["step_ms"] == pytest.approx(1e3 * step_s(8, 8 * round(row["mean_context"])), rel=1e-3)
    assert set(fake.scheduler.seen) == {8}, "a seeded batch never prefills"
    assert not fake.has_unfinished_requests()


def test_computed_context_prefills_first_and_gives_the_same_step(fake: FakeEngine) -> None:
    row = timing.measure(driver_of(fake), points.decode(32, 1024, "computed"))
    seeded = timing.measure(driver_of(FakeEngine()), points.decode(32, 1024))
    assert max(fake.scheduler.seen) == BUDGET
    assert row["step_ms"] == pytest.approx(seeded["step_ms"], rel=0.02)
    assert row["mean_context"] == pytest.approx(1024, abs=8)


def test_prefill_rows_hold_each_chunk(fake: FakeEngine) -> None:
    row = timing.measure(driver_of(fake), points.prefill(1, 16384))
    assert row["chunk_tokens"] == [8192, 8192]
    assert sum(row["chunk_ms"]) == pytest.approx(row["step_ms"], rel=1e-6)
    assert row["ttft_ms"] == pytest.approx(row["step_ms"] + 0.1, abs=1e-3), "queueing the prompt counts"
    assert row["step_ms"] == pytest.approx(1e3 * (2e-3 + 0.16384 + 1e-8 * 24576 + LAUNCH_S), rel=1e-3)


def test_generate_is_timed_without_its_first_call(fake: FakeEngine) -> None:
    calls = []

    def generate(prompts: list[list[int]]) -> None:
        calls.append(prompts)
        fake.now += 1.0 if len(calls) == 1 else 0.004

    row = timing.measure(driver_of(fake), points.prefill(4, 512), generate)
    assert row["generate_ms"] == pytest.approx(4.0)
    assert [len(prompt) for prompt in calls[0]] == [512] * 4


def test_mixed_steps_are_those_that_carry_the_whole_prompt(fake: FakeEngine) -> None:
    row = timing.measure(driver_of(fake), points.mixed(32, 1024, 2048))
    assert fake.scheduler.seen.count(32 + 2048) == row["n"] + 1
    assert row["step_ms"] == pytest.approx(1e3 * step_s(2080, 32 * 1024 + 2048), rel=0.02)


@pytest.mark.parametrize("point", [points.decode(256, 4096), points.prefill(1, 40960)])
def test_points_that_do_not_fit_are_not_tried(fake: FakeEngine, point: points.Point) -> None:
    with pytest.raises(timing.TooLargeError):
        timing.measure(driver_of(fake, kv_tokens=500_000), point)
    assert not fake.scheduler.seen


def test_a_failing_point_is_noted_and_the_next_one_runs(fake: FakeEngine, tmp_path) -> None:
    given = options(["--model", "Llama-3.1-8B", "--out", str(tmp_path / "rows")])
    write = Writer(given.out, setup_of(given))
    driver = driver_of(fake)

    def measured(point: points.Point) -> dict[str, object]:
        if point.batch == 2:
            driver.add([[1, 2]], 3)
            raise RuntimeError("CUDA error")
        return timing.measure(driver, point)

    plan = [points.decode(batch, 1024) for batch in (1, 2, 4)] + [points.decode(256, 8192)]
    Run(driver, write, float("inf"), lambda: {"sm_mhz": 1980}).each("step", plan, measured)
    rows = [json.loads(line) for line in (tmp_path / "rows" / "engine-Llama-3.1-8B-tp1.jsonl").read_text().splitlines()]
    assert [row["status"] for row in rows] == ["ok", "failed", "ok", "skipped"]
    assert rows[1]["reason"] == "RuntimeError: CUDA error"
    assert rows[2]["sm_mhz"] == 1980
    assert {row["mode"] for row in rows} == {"graph"}


def test_no_point_starts_after_the_deadline(fake: FakeEngine, tmp_path) -> None:
    given = options(["--model", "Llama-3.1-8B", "--out", str(tmp_path)])
    run = Run(driver_of(fake), Writer(given.out, setup_of(given)), float("-inf"), dict)
    run.each("step", points.every(), lambda point: pytest.fail("ran"))


def test_points_cover_the_ranges_and_come_once() -> None:
    plan = points.every()
    assert len(plan) == len(set(plan)) >= 45
    assert {128, 16384} <= {point.input_len for point in plan if point.phase == "prefill"}
    assert {1, 256} <= {point.batch for point in plan if point.phase == "decode"}
    assert {256, 16384} <= {point.context for point in plan if point.phase == "decode"}


@pytest.mark.parametrize("model", ["Llama-3.1-8B", "Llama-3.1-70B", "Qwen2.5-14B", "Qwen3-32B", "Qwen3-30B-A3B"])
def test_configs_hold_what_an_engine_needs(model: str) -> None:
    config = launch.config_of(model, None)
    needed = {"architectures", "model_type", "vocab_size", "rope_theta", "max_position_embeddings", "torch_dtype"}
    assert needed <= config.keys()
    assert launch.config_of(model, 4) == config | {"num_hidden_layers": 4}
    assert launch.Setup(model).name == model


def test_layer_kinds_are_cut_with_the_layers() -> None:
    assert len(launch.config_of("gpt-oss-20b", 4)["layer_types"]) == 4


def test_an_unknown_model_is_an_error() -> None:
    with pytest.raises(BadInput, match="nor a config"):
        launch.config_of("no-such-model", None)


def test_arguments_leave_vllms_defaults_alone(tmp_path) -> None:
    plain = launch.arguments(launch.Setup("Llama-3.1-8B"), "folder")
    assert not {"profiler_config", "gpu_memory_utilization", "compilation_config", "max_model_len"} & plain.keys()
    traced = launch.arguments(launch.Setup("Llama-3.1-8B", eager=True, traces=tmp_path), "folder")
    assert traced["profiler_config"]["torch_profiler_record_shapes"] is True


def test_the_kv_cache_size_is_read_from_the_log() -> None:
    log_lines = launch.LogLines()
    log = logging.getLogger("test.vllm")
    log.propagate = False
    log.setLevel(logging.INFO)
    log.addHandler(log_lines)
    log.info("GPU KV cache size: %s tokens", "871,232")
    log.info("nothing of use")
    assert log_lines.kv_tokens() == 871232
    assert len(log_lines.lines) == 1


def test_attributes_are_read_by_path() -> None:
    owner = SimpleNamespace(a=SimpleNamespace(b=3), c=[1])
    assert [worker.read(owner, path) for path in ("a.b", "a.x", "z.b", "c")] == [3, None, None, "[1]"]


def test_a_trace_holds_whole_steps_and_other_ranks_files_go(fake: FakeEngine, tmp_path) -> None:
    fake.start_profile = lambda: None  # type: ignore[attr-defined]
    count = iter(range(100))

    def stop_profile() -> None:
        for rank in (1, 0):
            (tmp_path / f"tp{rank}.{next(count)}.pt.trace.json.gz").write_bytes(bytes([rank]))

    fake.stop_profile = stop_profile  # type: ignore[attr-defined]
    driver = driver_of(fake)
    traces.warm_up(driver, tmp_path)
    rows = [traces.record(driver, point, tmp_path, f"trace-{point.phase}") for point in points.traced()]
    assert [row["step_tokens"] for row in rows] == [[2048], [32, 32, 32]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trace-decode.json.gz", "trace-prefill.json.gz"]
    assert (tmp_path / "trace-decode.json.gz").read_bytes() == bytes([0])


def test_waiting_ends_with_the_process_waited_for() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.2)"]) as child:
        threading.Thread(target=child.wait).start()
        launch.wait_for(child.pid)
        assert child.poll() == 0
    launch.wait_for(None)


def test_decode_points_alone_are_those_of_the_whole_plan() -> None:
    alone = points.decoding()
    assert set(alone) <= set(points.every())
    assert {point.phase for point in alone} == {"decode"} and alone[0] == points.decode(1, 1024)


def test_requests_with_tokens_of_their_own_never_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many requests as the vocabulary has tokens, each steered to another one; none by default."""
    vllm = ModuleType("vllm")
    vllm.SamplingParams = lambda **given: given  # type: ignore[attr-defined]
    inner = ModuleType("vllm.sampling_params")
    inner.RequestOutputKind = SimpleNamespace(FINAL_ONLY=0)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", inner)
    llm = MagicMock()
    llm.llm_engine.vllm_config.model_config.get_vocab_size.return_value = 1000
    llm.llm_engine.vllm_config.cache_config.num_gpu_blocks = llm.llm_engine.vllm_config.cache_config.block_size = 16
    sampling = launch.engine_of(llm, own_tokens=True).sampling
    assert len({token for _ in range(1000) for token in sampling(4)["logit_bias"]}) == 1000
    assert launch.engine_of(llm).sampling(4)["logit_bias"] is None


def test_engine_arguments_are_json_or_words(tmp_path) -> None:
    words = ["--set", "kv_cache_memory_bytes=7200000000", "--set", "gdn_prefill_backend=triton"]
    given = options(["--model", "Llama-3.1-8B", "--out", str(tmp_path), "--points", "none", *words])
    assert setup_of(given).more == {"kv_cache_memory_bytes": 7200000000, "gdn_prefill_backend": "triton"}


@pytest.mark.slow
def test_drawn_gates_differ_by_layer_and_keep_their_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    seen = []
    name = "vllm.model_executor.layers.fused_moe.experts"
    kernels = ModuleType("gpt_oss_triton_kernels_moe")
    kernels.triton_kernel_moe_forward = lambda hidden, *, gating_output, topk: seen.append(gating_output)  # type: ignore[attr-defined]
    package = ModuleType(name)
    package.gpt_oss_triton_kernels_moe = kernels  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, package)
    gates.draw()
    alike = torch.zeros(64, 32, dtype=torch.bfloat16)
    for _ in range(3):
        kernels.triton_kernel_moe_forward(None, gating_output=alike, topk=4)
    assert {(drawn.shape, drawn.dtype) for drawn in seen} == {(alike.shape, alike.dtype)}
    loads = torch.bincount(seen[0].topk(4).indices.ravel(), minlength=32)
    assert int((loads > 0).sum()) > 28  # of 32: tokens spread
    assert not torch.equal(seen[0], seen[1])


def test_traces_of_kinds_have_a_file_each() -> None:
    names = [trace_suffix(point) for point in (*points.traced(), *points.traced_kinds())]
    assert names == ["prefill", "decode", "prefill-1x8192", "prefill-4x2048", "decode"]
