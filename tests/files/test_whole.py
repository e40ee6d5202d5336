"""Files are whole or not there: a kill leaves what was there before, and an interrupted run goes on."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from pipewave.cli import build
from pipewave.errors import BadFile, BadInput
from pipewave.files import whole
from tests.command_line import CliRunner

CASES = [
    {"id": i, "kernel": "gemm", "m": 1 + i % 4096, "n": 4096, "k": 64 + i % 7, "gpu": "H200"} for i in range(15_000)
]
TEXT = "".join(json.dumps(case) + "\n" for case in CASES)


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    path = tmp_path / "cases.jsonl"
    path.write_text(TEXT)
    return path


def predict(cases: Path, out: Path, *options: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "pipewave", "predict", "--cases", str(cases), "--out", str(out), *options]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def same(one: Path, other: Path) -> bool:
    """Whether two files hold the same answers. The last digit depends on what is predicted together."""
    ours, theirs = ([json.loads(line) for line in path.read_text().splitlines()] for path in (one, other))
    us = [[row.pop("latency_us") for row in rows] for rows in (ours, theirs)]
    return [row["id"] for row in ours] == [row["id"] for row in theirs] and us[0] == pytest.approx(us[1], rel=1e-6)


@pytest.mark.slow
def test_a_kill_at_any_moment_keeps_the_old_file_and_a_resumed_run_ends_as_an_undisturbed_one(
    cases: Path, tmp_path: Path
) -> None:
    out, whole_out = tmp_path / "answers.jsonl", tmp_path / "whole.jsonl"
    began = time.monotonic()
    assert predict(cases, whole_out).wait() == 0
    took = time.monotonic() - began
    old = "what was there before\n"
    out.write_text(old)
    pick = random.Random(0)
    for _ in range(2):
        run = predict(cases, out, "--resume")
        time.sleep(pick.uniform(0.5, 0.95) * took)
        run.send_signal(signal.SIGKILL)
        run.wait()
        assert out.read_text() == old or same(out, whole_out)
    assert predict(cases, out, "--resume").wait() == 0
    assert same(out, whole_out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answers.jsonl", "cases.jsonl", "whole.jsonl"]


def interrupted(out: Path) -> None:
    """Two whole lines and a torn one of a run that never came to its end."""
    with suppress(KeyboardInterrupt), whole.lines(out, of="a") as first:
        first.file.write('{"id": 1}\n{"id": 2}\n{"id"')
        raise KeyboardInterrupt


def test_a_resumed_run_keeps_whole_lines_and_only_those_of_the_same_question(cases: Path, tmp_path: Path) -> None:
    out = tmp_path / "answers.jsonl"
    interrupted(out)
    assert not out.exists()
    with whole.lines(out, of="b", resume=True) as other:
        assert other.count == 0
    out.unlink()
    with whole.lines(out, of="a", resume=True) as again:
        assert again.count == 2
        assert list(again.kept()) == ['{"id": 1}\n', '{"id": 2}\n']
        again.file.write("3\n")
    assert out.read_text() == '{"id": 1}\n{"id": 2}\n3\n'


@pytest.mark.parametrize("spelling", ["same", "dotted", "symlink", "hard link"])
@pytest.mark.parametrize("command", ["predict", "serve"])
def test_an_output_that_is_the_input_is_refused(cases: Path, tmp_path: Path, spelling: str, command: str) -> None:
    out = tmp_path / "link"
    if spelling == "same":
        out = cases
    elif spelling == "dotted":
        out = Path(f"{tmp_path}/./../{tmp_path.name}/{cases.name}")
    elif spelling == "symlink":
        out.symlink_to(cases)
    else:
        out.hardlink_to(cases)
    found = CliRunner().invoke(build(), [command, "--cases", str(cases), "--out", str(out)])
    assert isinstance(found.exception, BadInput) and found.exception.field == "out"
    assert cases.read_text() == TEXT


def test_a_stream_cannot_be_resumed() -> None:
    found = CliRunner().invoke(build(), ["predict", "--cases", "-", "--resume"])
    assert isinstance(found.exception, BadInput) and found.exception.field == "resume"


def test_two_runs_never_write_one_file_at_once(tmp_path: Path) -> None:
    code = f"from pipewave.files import whole\nwith whole.lines({str(tmp_path / 'a')!r}): pass"
    with whole.lines(tmp_path / "a"):
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "another run is writing it" in other.stderr


def test_links_permissions_and_devices_stay_what_they_are(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    target.chmod(0o600)
    link.symlink_to(target)
    whole.write(link, b"new")
    assert link.is_symlink() and target.read_bytes() == b"new" and target.stat().st_mode & 0o777 == 0o600
    with whole.lines(link) as out:
        out.file.write("newer\n")
    assert link.is_symlink() and target.read_text() == "newer\n" and target.stat().st_mode & 0o777 == 0o600
    whole.write(Path(os.devnull), b"x")
    with whole.lines(os.devnull) as out:
        out.file.write("x")
    assert Path(os.devnull).is_char_device()


@pytest.mark.parametrize("name", ["no folder/a", "a\0b"])
def test_a_place_that_cannot_be_written_is_a_typed_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadFile, match="cannot be written"), whole.lines(tmp_path / name):
        pass


def test_a_report_never_takes_the_place_of_the_answer_it_reads(tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    answer.write_text("{}")
    found = CliRunner().invoke(build(), ["report", str(answer), "--out", str(answer)])
    assert found.exception is not None and answer.read_text() == "{}"
