"""Two commands on one store, a folder that cannot be written, and a disk that fills up: typed errors, nothing lost."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.own_kernels.profile import plan, profile
from lab.own_kernels.space import space
from pipewave.errors import BadFile
from pipewave.files import store
from pipewave.nets.calibration.corrections import load
from qa.chaos import made
from qa.chaos.launcher import Formula

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs limits on file sizes")
PLAN = ["--plan", "quick", "--device", "fake", "--quiet", "--limit", "300", "--batch", "8"]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pipewave", *arguments]


def at_most(size: int) -> Callable[[], None]:
    """Files of a child end at `size` bytes, as on a disk that is full."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


def run(arguments: list[str], size: int | None = None) -> subprocess.CompletedProcess[str]:
    limit = None if size is None else at_most(size)
    return subprocess.run(arguments, capture_output=True, text=True, preexec_fn=limit)


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, done.stderr[-800:]
    assert "Traceback" not in done.stderr
    return next(line for line in done.stderr.splitlines() if line.startswith("error"))


def unwritable(folder: Path) -> Path:
    """A folder where nothing can be made, for root too."""
    if os.geteuid() == 0:
        return Path("/proc/self/fdinfo")
    folder.chmod(0o500)
    return folder


@pytest.mark.slow
def test_two_commands_measure_into_one_store(tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    both = [subprocess.Popen(command("measure", "--store", str(rows), *PLAN)) for _ in range(2)]
    assert [one.wait() for one in both] == [0, 0]
    contents = store.read(rows)
    assert contents.damaged == 0
    assert len(store.done_keys(contents)) == 300
    again = run(command("measure", "--store", str(rows), *PLAN))
    assert again.returncode == 0
    assert store.read(rows).records == contents.records


@pytest.mark.slow
def test_a_store_on_a_full_disk_is_refused_and_goes_on_later(tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    told = one_line(run(command("measure", "--store", str(rows), *PLAN), size=60_000))
    assert "nothing is lost" in told
    before = store.done_keys(store.read(rows))
    assert before
    assert run(command("measure", "--store", str(rows), *PLAN)).returncode == 0
    after = store.read(rows)
    assert before < store.done_keys(after)
    assert len(store.done_keys(after)) == 300
    assert after.damaged <= 1


@pytest.mark.slow
def test_a_store_in_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    told = one_line(run(command("measure", "--store", str(unwritable(tmp_path) / "rows"), *PLAN)))
    assert "cannot be written" in told


def test_calibrating_on_a_full_disk_leaves_the_older_file(tmp_path: Path) -> None:
    rows, out = made.measurements(tmp_path / "new", factor=1.2), made.calibration(tmp_path / "h200.safetensors")
    whole = out.read_bytes()
    done = run(command("calibrate", "--store", str(rows), "--gpu", made.GPU, "--out", str(out)), size=2_000)
    assert "cannot be written" in one_line(done)
    assert out.read_bytes() == whole
    assert load(out).gpu == made.GPU
    assert sorted(path.name for path in tmp_path.iterdir()) == ["h200.rows", "h200.safetensors", "new"]


def test_calibrating_into_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    rows = made.measurements(tmp_path / "rows")
    out = unwritable(tmp_path) / "h200.safetensors"
    done = run(command("calibrate", "--store", str(rows), "--gpu", made.GPU, "--out", str(out)))
    assert "cannot be written" in one_line(done)


def test_a_profile_on_a_full_disk_goes_on_where_it_was(tmp_path: Path) -> None:
    of, path = space("gemm"), tmp_path / "gemm.profile"
    jobs = plan(of, range(20), seed=1, tests=0, anchors=40)[:30]
    device = Formula(of)
    child = os.fork()
    if child == 0:
        at_most(1_500)()
        try:
            profile(of, jobs, device, device.time, path, 1e9)
        except BadFile:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    kept = {row["job"] for row in store.read(path).records}
    assert 0 < len(kept) < len(jobs)
    rows = profile(of, jobs, device, device.time, path, 1e9)
    assert len(rows.shapes) == len(jobs)


def test_a_recording_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    of, device = space("gemm"), Formula(space("gemm"))
    jobs = plan(of, range(20), seed=1, tests=0, anchors=6)[:4]
    rows = profile(of, jobs, device, device.time, tmp_path / "gemm.profile", 1e9)
    made_of = rows.freeze({"kernel": "gemm"}, list(of.configs), [(0, 0, 0)] * len(of.configs))
    with pytest.raises(BadFile, match="cannot be written"):
        made_of.save(Path("/proc/self/fdinfo/gemm.npz"))
