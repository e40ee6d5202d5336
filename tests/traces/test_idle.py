"""When the GPU waits and why; sums by operator and layer; an eager run beside a model's own names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipewave.models import load
from pipewave.models.kernels import Deployment
from pipewave.traces import Workload, explain_trace
from pipewave.traces.entry import by_layer, by_operator
from pipewave.traces.idle import CAUSES, idle
from pipewave.traces.reader import read
from pipewave.traces.trace import Kernel, Trace

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "data" / "measured" / "h100" / "traces"
DECODE, PREFILL = (FOLDER / f"trace-hf-llama-2layers-{name}.json.gz" for name in ("decode-modules", "prefill"))


def kernel(start: float, duration: float, launch: tuple[float, float] | None = None, **more: Any) -> Kernel:
    return Kernel("any_kernel", start, duration, launch=launch, **more)


def causes(second: Kernel, waits: tuple[tuple[float, float], ...] = ()) -> dict[str, float]:
    found = idle(Trace("made", None, (kernel(0, 10, (-5, -4)), second), waits=waits))
    assert found is not None
    assert found.idle_us == pytest.approx(sum(found.causes.values()))
    return {cause: us for cause, us in found.causes.items() if us}


def test_a_launch_in_time_leaves_the_device() -> None:
    assert causes(kernel(12, 1, (3, 4))) == {"device": 2}


def test_a_late_launch_is_the_hosts_code_and_the_call() -> None:
    assert causes(kernel(50, 1, (44, 47))) == {"cpu": 34, "launch": 6}


def test_a_launch_after_a_wait_for_the_gpu_is_the_waits() -> None:
    assert causes(kernel(50, 1, (44, 47)), waits=((2, 11),)) == {"sync": 34, "launch": 6}
    assert causes(kernel(50, 1, (44, 47)), waits=((2, 9),)) == {"cpu": 34, "launch": 6}  # it came back before


def test_a_long_wait_is_code_of_the_host_or_its_loader() -> None:
    late = kernel(2000, 1, (1990, 1995))
    assert causes(late) == {"host": 1980, "launch": 10}
    assert causes(late, waits=((2, 11),)) == {"sync": 1, "host": 1979, "launch": 10}
    found = idle(Trace("made", None, (kernel(0, 10, (-5, -4)), late), inputs=((20, 1800),)))
    assert found is not None and found.causes["input"] == 1980


def test_without_a_launch_the_cause_is_unknown() -> None:
    assert causes(kernel(50, 1)) == {"unknown": 40}


def test_streams_that_overlap_leave_no_gap_and_devices_are_counted_apart() -> None:
    both = (kernel(0, 10, (-5, -4)), kernel(5, 20, (-3, -2), stream=1), kernel(25, 5, (20, 21)))
    assert idle(Trace("made", None, both)).idle_us == 0  # type: ignore[union-attr]
    apart = (*both[:2], replace(both[2], device=1, start_us=100))
    assert idle(Trace("made", None, apart)).idle_us == 0  # type: ignore[union-attr]


times = st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 100), st.floats(-50, 1e4)), min_size=1, max_size=20)


@given(times, st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 500)), max_size=5))
def test_causes_add_up_and_busy_is_the_union(made: list[tuple[float, float, float]], waited: list[tuple[float, float]]) -> None:  # fmt: skip
    kernels = tuple(sorted((kernel(s, d, (min(s, at), s)) for s, d, at in made), key=lambda one: one.start_us))
    found = idle(Trace("made", None, kernels, waits=tuple((s, s + d) for s, d in waited)))
    assert found is not None
    assert all(found.causes[cause] >= 0 for cause in CAUSES)
    assert found.busy_us + found.idle_us == pytest.approx(found.span_us, abs=1e-6)
    assert found.busy_us <= sum(one.duration_us for one in kernels) + 1e-6


def test_a_table_without_a_clock_has_no_idle_time() -> None:
    assert explain_trace(ROOT / "tests" / "data" / "traces" / "ncu-h200.csv").to_dict()["idle"] is None


@pytest.mark.parametrize("path", [DECODE, PREFILL])
def test_every_sum_is_the_gpu_time(path: Path) -> None:
    answer = explain_trace(path).to_dict()
    assert sum(leaf["measured_us"] for leaf in answer["flame"]) == pytest.approx(answer["gpu_us"])
    assert len({leaf["path"] for leaf in answer["flame"]}) > 20
    for rows in (answer["by_operator"], answer["by_layer"]):
        assert sum(row["measured_us"] for row in rows) in (pytest.approx(answer["gpu_us"]), 0)
        assert sum(row["recoverable_us"] for row in rows) in (pytest.approx(answer["recoverable_us"]), 0)


def test_a_part_without_a_prediction_leaves_its_sum_without_one() -> None:
    rows = {row.name: row for row in by_operator(explain_trace(DECODE).ran)}
    assert rows["aten::mm"].predicted_us
    assert rows["copy"].predicted_us is None
    assert all(row.predicted_us is None for row in by_layer(explain_trace(DECODE).ran))


def test_an_eager_run_takes_a_models_names_without_being_told_its_lengths() -> None:
    alone = explain_trace(PREFILL)
    named = explain_trace(PREFILL, workload=Workload(Deployment(load("Llama-3.1-8B"))))
    names = {entry.name for entry in named.entries}
    assert {"o_proj", "down_proj", "lm_head"} <= names  # what the model has; q, k and v apart keep their own
    assert {"qkv_proj", "gate_up_proj"}.isdisjoint(names)
    own = lambda report: {(e.kernels, e.count, str(e.call)) for e in report.entries if e.family == "gemm"}  # noqa: E731
    assert own(alone) == own(named)


def test_layers_of_a_captured_run_come_from_the_model() -> None:
    from studies import e2e_kernels

    rows = e2e_kernels.explained("Llama-3.1-8B-tp1-graph-decode").to_dict()["by_layer"]
    layers = [row for row in rows if row["name"].startswith("layer")]
    assert len(layers) == 32
    spread = [row["measured_us"] for row in layers]
    assert max(spread) < 1.25 * min(spread)  # equal layers take equal times


def test_modules_and_waits_are_read() -> None:
    found = read(DECODE)
    assert any("LlamaDecoderLayer_1" in one.scope for one in found.kernels)
    assert len(found.waits) >= 3  # a step ends when its tokens are read
