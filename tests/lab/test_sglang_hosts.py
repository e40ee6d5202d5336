"""Rounds over several engines: whose turn it is, where the scheduler runs, what stands beside a row."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab import sglang_hosts as hosts

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
CHILD = """
import json, os, sys
print(json.dumps({"pid": os.getpid()}), flush=True)
for text in sys.stdin:
    batch, length = json.loads(text)
    cores = sorted(os.sched_getaffinity(0))
    print(json.dumps({"batch": batch, "input_len": length, "cores": cores}), flush=True)
"""


class Child(hosts.Engine):
    """An engine that answers with the cores it may use."""

    def __init__(self, model: str) -> None:
        self.name = model
        self._process = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         text=True, start_new_session=True)  # fmt: skip

    def stops(self, within_s: float = 5.0) -> bool:
        """Whether its process stops; a signal takes effect when the process is next scheduled."""
        until, stat = time.monotonic() + within_s, Path(f"/proc/{self._process.pid}/stat")
        while (state := stat.read_text().rpartition(")")[2].split()[0]) != "T" and time.monotonic() < until:
            time.sleep(0.01)
        return state == "T"

    def end(self) -> None:
        """Kill and take in its process."""
        self.signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def test_engines_take_turns_and_every_other_round_gives_the_scheduler_its_core() -> None:
    own = max(os.sched_getaffinity(0))
    engines = [Child("Llama-3.2-3B"), Child("Llama-3.1-8B")]
    try:
        pids = [one.line()["pid"] for one in engines]
        free = list(hosts.turn(engines[0], pids[0], "free", own))
        pinned = list(hosts.turn(engines[0], pids[0], "own core", own))
        assert engines[0].stops() and not engines[1].stops(0.0)
    finally:
        for one in engines:
            one.end()
    assert [(row["batch"], row["input_len"]) for row in free] == list(hosts.LENGTHS)
    assert all(row["cores"] == [own] and row["core"] == own for row in pinned)
    assert all(len(row["cores"]) == os.cpu_count() for row in free)
    assert all(row["ran_ms"] >= 0 and row["waited_ms"] >= 0 and row["stolen_s"] >= 0 for row in free + pinned)


def test_rows_of_every_engine_name_their_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((0.0, 0.0, 1.0, 1.0, 2.0, 2.0))
    monkeypatch.setattr(hosts.time, "monotonic", lambda: next(clock))
    engines = [Child("Llama-3.2-3B"), Child("Llama-3.1-8B")]
    try:
        hosts.measure(engines, tmp_path, 1.5, 0)
    finally:
        for one in engines:
            one.end()
    for one in engines:
        text = (tmp_path / f"sglang-{one.name}-tp1-rounds.jsonl").read_text()
        first, *rest = [json.loads(line) for line in text.splitlines()]
        assert first["kind"] == "engine" and first["cpus"] == os.cpu_count()
        placements = {row["round"]: row["placement"] for row in rest}
        assert placements == {0: "free", 1: "own core"} and len(rest) == 2 * len(hosts.LENGTHS)


def test_a_core_is_its_own_sibling() -> None:
    assert all(core in hosts.siblings(core) for core in range(os.cpu_count() or 1))
