"""Plans, the resumable loop, and packing, on a fake device."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from lab.pack import pack
from pipewave import measure
from pipewave.errors import BadFile, BadInput
from pipewave.files import store
from pipewave.measure import plan, protocol
from pipewave.measure.device import FakeDevice, Health, Outcome
from pipewave.measure.impls import runner
from pipewave.measure.impls.paged_attention import page_table
from pipewave.measure.plan import Job
from pipewave.measure.protocol import DeviceLostError, Event, Timing
from pipewave.measure.runner import Limits, Runner


@pytest.fixture(scope="module")
def full() -> list[Job]:
    return plan.built_in("full")


@pytest.fixture(scope="module")
def quick() -> list[Job]:
    return plan.built_in("quick")


@pytest.mark.slow
def test_the_full_plan_covers_what_a_data_set_needs(full: list[Job]) -> None:
    cold = [job for job in full if job.protocol == "cold" and not job.repeat and job.flush == "write"]
    assert len(cold) >= 20_000
    assert len({(job.case["n"], job.case["k"]) for job in cold if job.family == "gemm"}) >= 300
    layouts = {(job.case["heads"], job.case["kv_heads"], job.case["head_dim"]) for job in cold if job.impl == "fa3"}
    assert len(layouts) >= 60
    shapes = {
        (job.case["experts"], job.case["inter"], job.case["tp"], job.case["hidden"])
        for job in cold
        if job.family == "fused_moe"
    }
    assert len(shapes) >= 40
    kinds = Counter((job.protocol, job.repeat, job.flush) for job in full)
    assert kinds["graph", 0, "write"] == 2000
    assert kinds["cold", 1, "write"] == 500
    assert kinds["cold", 0, "read"] == 100
    assert {job.case["dtype"] for job in cold if job.family == "fused_moe"} == {"bf16", "fp8", "fp8_block"}


def test_block_scales_divide_the_experts_they_scale(full: list[Job]) -> None:
    cases = [job.case for job in full if job.family == "fused_moe" and job.case["dtype"] == "fp8_block"]
    assert cases
    assert all(case["hidden"] % 128 == case["inter"] // case["tp"] % 128 == 0 for case in cases)


@pytest.mark.slow
def test_plans_are_reproducible_and_every_job_can_be_built(full: list[Job]) -> None:
    assert [job.key for job in plan.built_in("full")] == [job.key for job in full]
    assert len({job.key for job in full}) == len(full)
    kinds = {(job.family, job.impl): job for job in full}
    assert len(kinds) >= 12
    assert all(runner(job).module for job in kinds.values())


def test_any_prefix_of_the_batches_is_balanced(full: list[Job]) -> None:
    def shares(jobs: Sequence[Job]) -> dict[str, float]:
        return {family: count / len(jobs) for family, count in Counter(job.family for job in jobs).items()}

    batches = plan.batches(full)
    half = [job for batch in batches[: len(batches) // 2] for job in batch]
    whole = shares(full)
    assert all(abs(share - whole[family]) < 0.02 for family, share in shares(half).items())
    assert Counter(job.key for batch in batches for job in batch) == Counter(job.key for job in full)
    assert all(len({(job.family, job.protocol, job.flush) for job in batch}) == 1 for batch in batches)


def test_in_order_ends_one_kind_before_the_next_begins(full: list[Job]) -> None:
    cold = [job for job in full if job.protocol == "cold" and job.flush == "write"]
    wanted = sorted(cold, key=lambda job: (not job.repeat, job.family != "rope"))
    kinds = [(job.family, job.repeat) for batch in plan.batches(wanted, in_order=True) for job in batch]
    seen = list(dict.fromkeys(kinds))
    assert seen[0] == ("rope", 1)
    assert seen.index(("gemm", 1)) < seen.index(("rope", 0)) < seen.index(("gemm", 0))
    assert [kind for i, kind in enumerate(kinds) if not i or kind != kinds[i - 1]] == seen


@pytest.mark.slow
def test_families_of_a_plan_are_the_same_jobs_alone_and_together(full: list[Job]) -> None:
    alone = plan.built_in("full", families=("rope", "gemm"))
    assert {job.key for job in alone} == {job.key for job in full if job.family in ("rope", "gemm")}
    assert alone[0].family == "rope"
    assert sum(job.repeat for job in alone) < 500


def test_the_card_rests_twice_as_long_as_a_burst_took(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept, waited = [0.0], list[float](), list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(protocol.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(protocol.time, "sleep", sleep)
    pace = protocol.Pace(2, lambda: waited.append(now[0]))
    for index, takes_s in enumerate((0.3, 0.2, 0.001, 0.001, 0.7)):
        pace.before(index)
        now[0] += takes_s
    assert slept == [protocol.REST_S, pytest.approx(1.0), protocol.REST_S]
    assert len(waited) == 3
    unpaced = protocol.Pace(0, lambda: waited.append(now[0]))
    unpaced.before(0)
    assert len(waited) == 3


def test_cases_files_are_read_and_bad_lines_named(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text('{"id": 1, "kernel": "gemm", "m": 8, "n": 16, "k": 32, "dtype": "fp8"}\n\n{"kernel": "rmsnorm"}\n')
    jobs = plan.from_file(path)
    assert [(job.family, job.impl, job.protocol) for job in jobs] == [
        ("gemm", "cutlass", "cold"),
        ("rmsnorm", "vllm", "cold"),
    ]
    assert "id" not in jobs[0].case
    for text in ("{", "[" * 100_000):
        path.write_text(text)
        with pytest.raises(BadInput, match=r"cases\.jsonl:1"):
            plan.from_file(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(BadFile, match=r"cases\.jsonl: cannot be read"):
        plan.from_file(path)
    with pytest.raises(BadInput, match="huge"):
        plan.built_in("huge")


def test_a_second_run_does_only_what_is_left(tmp_path: Path, quick: list[Job]) -> None:
    path = tmp_path / "rows"
    first = Runner(FakeDevice(), path, Limits()).run(quick[:100])
    second = Runner(FakeDevice(), path, Limits()).run(quick)
    third = Runner(FakeDevice(), path, Limits()).run(quick)
    assert first.statuses["ok"] == 100
    assert second.statuses["ok"] == len(quick) - 100
    assert third.statuses.total() == 0
    assert third.text() == "nothing measured; 0 left"
    assert len(measure.rows(path)) == len(quick)
    assert len(measure.environments(path)) == 1


class Breaking(FakeDevice):
    """A device that loses its context whenever one particular job is in the batch."""

    def __init__(self, culprit: str) -> None:
        super().__init__()
        self._culprit = culprit

    def measure(self, jobs: Sequence[Job]) -> list[Outcome]:
        if any(job.key == self._culprit for job in jobs):
            raise DeviceLostError("CUDA error: an illegal memory access was encountered")
        return super().measure(jobs)


def test_a_job_that_breaks_the_device_is_isolated_and_recorded(tmp_path: Path, quick: list[Job]) -> None:
    path, culprit = tmp_path / "rows", quick[37].key
    restarts = 0
    while True:
        try:
            Runner(Breaking(culprit), path, Limits()).run(quick)
        except DeviceLostError:
            restarts += 1
            assert restarts < 5
        else:
            break
    failed = measure.rows(path, statuses=("failed",))
    assert [row["key"] for row in failed] == [culprit]
    assert "illegal memory access" in failed[0]["reason"]
    assert len(measure.rows(path)) == len(quick) - 1


def test_a_job_that_kills_the_process_twice_alone_is_given_up(tmp_path: Path, quick: list[Job]) -> None:
    path, job = tmp_path / "rows", quick[0]
    with store.Store(path) as out:
        out.extend([{"t": "begin", "keys": [job.key]}] * 2)
    Runner(FakeDevice(), path, Limits()).run([job])
    assert measure.rows(path, statuses=("failed",))[0]["reason"] == "the process died twice while this ran alone"


class Failing(FakeDevice):
    """A device on which nothing is installed."""

    def measure(self, jobs: Sequence[Job]) -> list[Outcome]:
        return [Outcome("failed", "ImportError: no module named vllm") for _ in jobs]


def test_a_run_in_which_everything_fails_stops_and_can_be_retried(tmp_path: Path, quick: list[Job]) -> None:
    path = tmp_path / "rows"
    summary = Runner(Failing(), path, Limits()).run(quick)
    assert 300 <= summary.statuses["failed"] < len(quick)
    assert "no module named vllm" in summary.text()
    Runner(FakeDevice(), path, Limits(retry_failed=True)).run(quick)
    assert len(measure.rows(path)) == len(quick)


class Slow(FakeDevice):
    """A device that takes a while for each batch."""

    def measure(self, jobs: Sequence[Job]) -> list[Outcome]:
        time.sleep(0.3)
        return super().measure(jobs)


def test_the_budget_stops_between_batches(tmp_path: Path, quick: list[Job]) -> None:
    summary = Runner(Slow(), tmp_path / "rows", Limits(budget_s=0.5)).run(quick)
    assert 0 < summary.statuses["ok"] < len(quick)
    assert summary.left == len(quick) - summary.statuses["ok"]


class Detailed(FakeDevice):
    """Outcomes with kernels, clocks and a change of clock, as a GPU gives them."""

    def measure(self, jobs: Sequence[Job]) -> list[Outcome]:
        events = (Event("gemm<128>" * 50, 0.0, 8.0, (4, 2, 1), (256, 1, 1), 1024, 90), Event("tail", 9.0, 2.0))
        timing = Timing(10.0, 9.5, 11.0, 7, events, spin_us=20.25, spin_spread=0.3)
        return [Outcome("ok", timing=timing, extra={"config": {"BLOCK": 64}}, health=Health(1755, 650.5, 61))] * len(
            jobs
        )


def test_rows_survive_packing_with_their_kernels(tmp_path: Path, quick: list[Job]) -> None:
    path = tmp_path / "rows"
    Runner(Detailed(), path, Limits()).run(quick)
    sizes = pack(path, tmp_path / "packed")
    before = {row["key"]: row for row in measure.rows(path)}
    after = {row["key"]: row for row in measure.rows(tmp_path / "packed")}
    assert before == after
    row = next(iter(after.values()))
    assert row["kernels"][0] == {
        "name": "gemm<128>" * 50, "us": 8.0, "grid": [4, 2, 1], "block": [256, 1, 1], "smem": 1024, "regs": 90,
    }  # fmt: skip
    assert row["throttled"] is True
    assert row["sm_clock_mhz"] == 1755
    assert measure.environments(tmp_path / "packed") == measure.environments(path)
    assert sum(sizes.values()) < path.stat().st_size / 3


def test_a_foreign_or_cut_packed_file_is_refused(tmp_path: Path, quick: list[Job]) -> None:
    Runner(Detailed(), tmp_path / "rows", Limits()).run(quick[:20])
    pack(tmp_path / "rows", tmp_path / "packed")
    file = next((tmp_path / "packed").glob("*.json.gz"))
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(BadFile):
        measure.rows(file)
    with pytest.raises(BadFile, match="no rows"):
        measure.rows(tmp_path / "absent")


def test_pages_of_requests_do_not_overlap() -> None:
    lens = [1, 16, 17, 300]
    table, pages = page_table(lens, 16)
    used = [page for row, length in zip(table, lens, strict=True) for page in row[: -(-length // 16)]]
    assert sorted(used) == list(range(pages))


def test_job_keys_tell_every_field_apart() -> None:
    base = Job({"kernel": "gemm", "m": 1, "n": 2, "k": 3}, "cublas")
    others = [
        Job({"kernel": "gemm", "m": 2, "n": 2, "k": 3}, "cublas"),
        Job(base.case, "triton"),
        Job(base.case, "cublas", "graph"),
        Job(base.case, "cublas", repeat=1),
        Job(base.case, "cublas", flush="read"),
    ]
    assert len({job.key for job in [base, *others]}) == 6
    assert Job(json.loads('{"k": 3, "n": 2, "m": 1, "kernel": "gemm"}'), "cublas").key == base.key


@pytest.mark.parametrize(("order", "room"), [("random", 0), ("in_order", 0), ("scattered", 5000)])
def test_pages_lie_where_the_job_says(order: str, room: int) -> None:
    lens = [1, 16, 17, 300, 4000]
    table, pages = page_table(lens, 16, order=order, room=room)
    used = [page for row, length in zip(table, lens, strict=True) for page in row[: -(-length // 16)]]
    assert len(set(used)) == len(used)
    assert max(used) < pages == (room or len(used))
    assert (used == sorted(used)) is (order == "in_order")
    with pytest.raises(ValueError):
        page_table(lens, 16, order="scattered", room=10)


def test_the_order_of_pages_is_part_of_a_job_only_where_it_was_chosen(tmp_path: Path) -> None:
    case = {"kernel": "attention", "q_lens": [1], "kv_lens": [9], "heads": 8, "kv_heads": 1, "head_dim": 64}
    plain, scattered = Job(case, "fa3"), Job(case, "fa3", pages="scattered")
    assert plain.key == Job(case, "fa3", pages="random").key != scattered.key
    assert plain.key == "05b0d6dea94368b0"
    Runner(FakeDevice(), tmp_path / "rows", Limits(batch=1)).run([plain, scattered])
    found = {row["key"]: row.get("pages") for row in measure.rows(tmp_path / "rows")}
    assert found == {plain.key: None, scattered.key: "scattered"}
    begun = store.read(tmp_path / "rows").of("begin")
    assert [len(record["keys"]) for record in begun] == [1, 1]
