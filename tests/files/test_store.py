"""The store keeps every acknowledged record: through kills, torn lines, flipped bytes and concurrent writers."""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path

import pytest

from pipewave.errors import BadFile
from pipewave.files import store

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")


def _child(path: Path, ack: int, name: str, count: int) -> None:
    """Append `count` records, writing each number to `ack` only after the store took it."""
    with store.Store(path) as out:
        for number in range(count):
            out.append({"t": "row", "key": f"{name}-{number}", "payload": "x" * (number % 300)})
            os.write(ack, f"{name}-{number}\n".encode())


def _fork(path: Path, name: str, count: int) -> tuple[int, int]:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        _child(path, write_end, name, count)
        os._exit(0)
    os.close(write_end)
    return pid, read_end


def _at_least(pipe: int, size: int) -> bytes:
    """So many bytes of acknowledgements, however few of them a read brings."""
    found = b""
    while len(found) < size and (more := os.read(pipe, size - len(found))):
        found += more
    return found


def _drain(fd: int) -> bytes:
    with os.fdopen(fd, "rb") as pipe:
        return pipe.read()


@pytest.mark.slow
def test_random_kills_lose_no_acknowledged_record(tmp_path: Path) -> None:
    path, rng, acknowledged, cut_short = tmp_path / "rows", random.Random(1), [], 0
    for attempt in range(80):
        pid, pipe = _fork(path, f"c{attempt}", 2000)
        early = _at_least(pipe, rng.randrange(1, 500))  # some acknowledgements, then kill wherever the child is
        os.kill(pid, signal.SIGKILL)
        cut_short += os.WIFSIGNALED(os.waitpid(pid, 0)[1])
        acknowledged += (early + _drain(pipe)).decode().splitlines()
    contents = store.read(path)
    assert cut_short > 60
    assert contents.damaged <= cut_short  # a kill inside a write tears a line that nobody was told of
    assert len(acknowledged) > 400
    assert set(acknowledged) <= store.done_keys(contents)


def test_two_writers_interleave_without_damage(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    children = [_fork(path, name, 2000) for name in "ab"]
    for pid, pipe in children:
        _drain(pipe)
        os.waitpid(pid, 0)
    contents = store.read(path)
    assert contents.damaged == 0
    assert store.done_keys(contents) == {f"{name}-{number}" for name in "ab" for number in range(2000)}


def test_a_flipped_byte_costs_at_most_two_records(tmp_path: Path) -> None:
    path, rng = tmp_path / "rows", random.Random(2)
    records = [{"t": "row", "key": str(number), "value": number / 7} for number in range(50)]
    with store.Store(path) as out:
        out.extend(records)
    clean = path.read_bytes()
    for _ in range(300):
        damaged = bytearray(clean)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        kept = store.read(path).records
        assert len(kept) >= 48
        assert all(record in records for record in kept)


def test_a_torn_tail_costs_one_record_and_not_the_next(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    with store.Store(path) as out:
        out.extend({"t": "row", "key": str(number)} for number in range(10))
    clean = path.read_bytes()
    last = clean.rindex(b"\n{")
    for cut in range(last + 2, len(clean) - 1):
        path.write_bytes(clean[:cut])
        with store.Store(path) as out:
            out.append({"t": "row", "key": "after"})
        contents = store.read(path)
        assert [record["key"] for record in contents.records] == [*map(str, range(9)), "after"]
        assert contents.damaged == 1


def test_a_full_disk_is_an_error_not_a_silent_loss() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    out = store.Store("/dev/full")
    with pytest.raises(BadFile, match="nothing is lost"):
        out.append({"t": "row", "key": "x"})


def test_a_missing_file_is_empty_and_failed_rows_can_be_retried(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "rows"
    assert store.read(path) == store.Contents((), 0)
    with store.Store(path) as out:
        out.append({"t": "row", "key": "a", "status": "ok"})
        out.append({"t": "row", "key": "b", "status": "failed"})
        out.append({"t": "env", "id": "e"})
    contents = store.read(path)
    assert store.done_keys(contents) == {"a", "b"}
    assert store.done_keys(contents, retry_failed=True) == {"a"}
    assert [record["id"] for record in contents.of("env")] == ["e"]
