"""The gate: what it finds, what it lets pass, and how it ends; and its scores on published runs that were repeated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipewave.cli import build
from pipewave.errors import BadInput
from pipewave.told.check import changes_of, check
from studies import told_gate
from tests.command_line import CliRunner

LOADS = [{"isl": 1000.0, "osl": 100.0, "concurrency": many} for many in (4, 16, 64)]
BEFORE: list[dict[str, Any]] = [
    load | {"ttft_ms": 50.0 + k, "tpot_ms": 5.0 + k, "output_tokens_per_s": 500.0 * (k + 1)}
    for k, load in enumerate(LOADS)
]


def file(folder: Path, name: str, runs: list[dict[str, Any]]) -> str:
    (folder / name).write_text(json.dumps(runs))
    return str(folder / name)


def slower(by: float, name: str = "tpot_ms") -> list[dict[str, Any]]:
    return [run | {name: run[name] * by} for run in BEFORE]


@pytest.mark.parametrize(("by", "status"), [(0.8, 0), (1.0, 0), (1.05, 0), (1.15, 1)])
def test_three_loads_find_what_noise_does_not_explain(by: float, status: int, tmp_path: Path) -> None:
    base, new = file(tmp_path, "base.json", BEFORE), file(tmp_path, "new.json", slower(by))
    summary = tmp_path / "summary.md"
    result = CliRunner().invoke(build(), ["check", new, "--baseline", base, "--markdown", str(summary)])
    assert result.exit_code == status
    assert summary.read_text().startswith("**Slower" if status else "**Not slower")
    assert f"| time per output token | 3 | {100 * (by - 1):.1f} |" in summary.read_text()


def test_seconds_beside_milliseconds_do_not_pass_the_gate(tmp_path: Path) -> None:
    base, new = file(tmp_path, "base.json", BEFORE), file(tmp_path, "new.json", slower(1e-3))
    with pytest.raises(BadInput, match="are both in ms"):
        check([new], [base])


def test_one_load_says_what_it_may_miss_and_lower_throughput_is_slower(tmp_path: Path) -> None:
    base = file(tmp_path, "base.json", BEFORE)
    one = check([file(tmp_path, "one.json", slower(1.08)[:1])], [base])
    assert not one.slower
    assert any("three loads" in note for note in one.notes)
    assert check([file(tmp_path, "few.json", slower(0.8, "output_tokens_per_s"))], [base]).slower
    assert not check([file(tmp_path, "more.json", slower(1.3, "output_tokens_per_s"))], [base]).slower


def test_a_load_that_the_baseline_lacks_is_predicted_or_refused(tmp_path: Path) -> None:
    base = file(tmp_path, "base.json", BEFORE)
    other = file(tmp_path, "other.json", [BEFORE[1] | {"concurrency": 24, "tpot_ms": 60.0}])
    result = CliRunner().invoke(build(), ["check", other, "--baseline", base])
    assert result.exception is not None
    assert "no such load" in str(result.exception)
    found = check([other], [base], model="Qwen3-0.6B", gpu="H100")
    assert found.slower
    assert {one.loads for one in found.changes} == {1}


def test_the_study_counts_alarms_and_misses() -> None:
    same = [[(run, run) for run in BEFORE]]
    assert told_gate.score(same) == {"pairs": 1, "false alarms": 0.0, "slow-downs found": 100.0}
    (tpot, *_) = changes_of([(run, told_gate.slowed(run)) for run in BEFORE])
    assert tpot.slower == pytest.approx(1.15)
