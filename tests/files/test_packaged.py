"""Packaged files: the manifest knows each of them, and no damaged byte is read as an answer."""

import subprocess
import sys
from pathlib import Path

import pytest

import pipewave as pw
from pipewave.errors import BadFile
from pipewave.files import manifest, packaged
from qa.chaos import flips


def test_the_manifest_is_of_the_files_as_they_lie_there() -> None:
    wrong = manifest.differing(packaged.known(), manifest.today())
    assert not wrong, f"run: python -m pipewave.files.manifest --write ({', '.join(wrong[:5])})"


@pytest.mark.slow
def test_every_kind_of_packaged_file_has_a_reader_that_takes_it() -> None:
    known = flips.readers()
    of = {path: flips.reader(str(packaged.name_of(path)), known) for path in manifest.files()}
    read = {path: flips.noticed(lambda at=path, read=each: read(at)) for path, each in of.items()}  # type: ignore[misc]
    assert [path.name for path, verdict in read.items() if verdict != "silent"] == []
    assert set(known.values()) == set(of.values())


@pytest.mark.slow
def test_flipped_bytes_of_packaged_and_user_files_are_noticed() -> None:
    found = flips.run(250, seed=1)
    assert found["noticed"] == found["flips"], found["examples"]
    assert found["files"] > 100


WATCHED = """
import sys
from pathlib import Path
from pipewave.files import packaged

unchecked = []

def watch(event, arguments):
    path = str(arguments[0]) if event == "open" else ""
    if not path.startswith(str(packaged.ROOT)) or path.endswith((".py", ".so")) or "manifest" in path:
        return
    if "__pycache__" in path:  # Python's own, which it writes under a passing name
        return
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_filename != packaged.__file__:
        frame = frame.f_back
    if frame is None:
        unchecked.append(path)

sys.addaudithook(watch)
import pipewave as pw
from pipewave.traces import explain_trace
from pipewave.tune import load_table
for gpu in ("H200", "MI300X"):
    pw.predict([pw.gemm(64, 4096, 4096), pw.attention([1], [900], 32, 8, 128)], gpu)
pw.estimate("Mixtral-8x7B", "H200", batch=4, input_len=64, output_len=4, tp=2, engine="sglang").to_dict()
pw.serve("Llama-3.1-8B", "H100", isl=64, osl=4, concurrency=2, requests=4)
pw.plan("Llama-3.1-8B", "H100", isl=64, osl=4)
load_table("gemm", gpu="H200", env={})
assert not unchecked, unchecked
"""


@pytest.mark.slow
def test_nothing_of_the_package_is_read_past_the_manifest() -> None:
    done = subprocess.run([sys.executable, "-c", WATCHED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-1500:]


def small(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of one file, with its manifest."""
    (folder / "a.json").write_text('{"x": 1}')
    monkeypatch.setattr(packaged, "ROOT", folder)
    monkeypatch.setattr(packaged, "MANIFEST", folder / "manifest.sha256")
    manifest.write()
    return folder / "a.json"


@pytest.fixture(autouse=True)
def _own_manifest():  # type: ignore[no-untyped-def]
    yield
    packaged.known.cache_clear()


def test_a_changed_file_is_refused_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = small(tmp_path, monkeypatch)
    assert packaged.document(path) == {"x": 1}
    path.write_text('{"x": 2}')
    with pytest.raises(BadFile, match=r"a\.json: its checksum.*manifest --write"):
        packaged.document(path)
    manifest.write()
    assert packaged.document(path) == {"x": 2}


def test_a_file_that_the_manifest_does_not_know_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(tmp_path, monkeypatch)
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(BadFile, match="not in the manifest"):
        packaged.document(tmp_path / "b.json")
    assert manifest.differing(packaged.known(), manifest.today()) == ["b.json"]


@pytest.mark.parametrize("damage", [b"", b"x", b"0" * 64 + b" a.json\n"])
def test_a_damaged_manifest_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes) -> None:
    path = small(tmp_path, monkeypatch)
    packaged.MANIFEST.write_bytes(damage)
    packaged.known.cache_clear()
    with pytest.raises(BadFile, match="manifest"):
        packaged.document(path)


def test_a_package_without_its_manifest_answers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = small(tmp_path, monkeypatch)
    packaged.MANIFEST.unlink()
    packaged.known.cache_clear()
    with pytest.raises(BadFile, match="manifest"):
        packaged.document(path)


def test_files_outside_the_package_are_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "package").mkdir()
    small(tmp_path / "package", monkeypatch)
    (tmp_path / "own.json").write_text("[1]")
    assert packaged.document(tmp_path / "own.json") == [1]


def test_checking_what_an_estimate_reads_takes_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 3 MB are hashed, each once: about 2 ms at 1.5 GB/s, beside a manifest that is read in 0.4 ms."""
    read: list[tuple[Path, int]] = []
    hashed = packaged.hashed

    def counted(path: Path) -> tuple[bytes, str]:
        found = hashed(path)
        read.append((path, len(found[0])))
        return found

    monkeypatch.setattr(packaged, "hashed", counted)
    flips.forget()
    pw.estimate("Llama-3.1-8B", "H200", batch=16, input_len=2048, output_len=256)
    assert len({path for path, _ in read}) == len(read) > 30
    assert sum(size for _, size in read) < 3_000_000
