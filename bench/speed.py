"""What is measured: scalar and batch predictions, the million-case command, start-up, installed size."""

from __future__ import annotations

import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distribution, requires
from pathlib import Path

import numpy as np

import pipewave as pw
from bench.every_gpu import measured
from pipewave.calls.families import Attention
from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.load import FOLDER as MODELS


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure and its bar; `sign` says on which side of the bar it must lie."""

    name: str
    value: float
    unit: str
    sign: str
    bar: float

    @property
    def met(self) -> bool:
        """Whether the figure is on the right side of its bar."""
        return self.value <= self.bar if self.sign == "<=" else self.value >= self.bar

    def to_dict(self) -> dict[str, object]:
        """The figure with its verdict."""
        return asdict(self) | {"met": self.met}


def measure_all(scale: float = 1.0) -> list[Figure]:
    """Every figure; `scale` shrinks the amount of work."""
    return [*scalar(scale), *every_gpu(), *batch(scale), *command(scale), *startup(), *loading(), *size()]


def best_of(work: Callable[[], object], repeats: int) -> float:
    """Median seconds of `work` after one warm-up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def scalar(scale: float) -> Iterator[Figure]:
    """One call at a time, every call a new shape so that no cache helps."""
    rng = random.Random(0)
    repeats = int(3000 * scale)
    shapes = iter([[rng.randrange(1, 8192) for _ in range(3)] for _ in range(repeats + 1)])
    seconds = best_of(lambda: pw.predict(pw.gemm(*next(shapes)), "H200"), repeats)
    yield Figure("scalar GEMM", seconds * 1e6, "µs", "<=", 45)
    lengths = iter([[rng.randrange(3000, 4000) for _ in range(8)] for _ in range(repeats + 1)])

    def prefill() -> object:
        lens = next(lengths)
        return pw.predict(pw.attention(lens, lens, 40, 8, 128), "H200")

    yield Figure("scalar attention, 8 requests of 3.5k", best_of(prefill, repeats) * 1e6, "µs", "<=", 150)


def every_gpu() -> Iterator[Figure]:
    """One GEMM and a table of them on every GPU of the registry: the slowest of each."""
    found = measured()
    slowest, fewest = max(found, key=lambda gpu: found[gpu][0]), min(found, key=lambda gpu: found[gpu][1])
    yield Figure(f"scalar GEMM on the slowest GPU, {slowest}", found[slowest][0], "µs", "<=", 40)
    yield Figure(f"batch GEMM on the slowest GPU, {fewest}", found[fewest][1], "calls/s", ">=", 300_000)


def batch(scale: float) -> Iterator[Figure]:
    """A table of arrays, and a list of calls that cannot be one."""
    gpu, rng, n = find("H200"), np.random.default_rng(0), int(200_000 * scale)
    m, (width, k) = rng.integers(1, 32768, n), rng.integers(64, 65536, (2, n))
    table = {"kernel": "gemm", "m": m, "n": width, "k": k}
    seconds = best_of(lambda: pw.predict(table, gpu), 5)
    yield Figure("batch GEMM", n / seconds, "calls/s", ">=", 300_000)
    calls = [_ragged_call(rng) for _ in range(int(20_000 * scale))]
    seconds = best_of(lambda: pw.predict(calls, gpu), 3)
    yield Figure("batch ragged attention", len(calls) / seconds, "calls/s", ">=", 20_000)


def _ragged_call(rng: np.random.Generator) -> Attention:
    q = rng.integers(1, 2048, rng.integers(1, 17))
    kv = q + rng.integers(0, 4096, len(q))
    return pw.attention(q.tolist(), kv.tolist(), 32, 8, 128)


def command(scale: float) -> Iterator[Figure]:
    """A million GEMM cases through `pipewave predict --cases`, with the memory it takes."""
    n = int(1_000_000 * scale)
    with tempfile.TemporaryDirectory() as folder:
        cases, answers = Path(folder, "cases.jsonl"), Path(folder, "answers.jsonl")
        _write_cases(cases, n)
        start = time.perf_counter()
        peak_kib = _run(["predict", "--cases", str(cases), "--gpu", "H200", "--out", str(answers)])
        seconds = time.perf_counter() - start
        with answers.open() as lines:
            assert sum(1 for _ in lines) == n
    yield Figure(f"{n:,} GEMM cases through the command", seconds, "s", "<=", 30 * scale)
    yield Figure("its memory", peak_kib / 1024, "MiB", "<=", 500)


def _write_cases(path: Path, n: int) -> None:
    rng = np.random.default_rng(0)
    with path.open("w") as out:
        for i, (m, width, k) in enumerate(rng.integers(1, 16384, (n, 3)).tolist()):
            out.write(json.dumps({"id": i, "kernel": "gemm", "m": m, "n": width, "k": k}) + "\n")


def _run(arguments: list[str]) -> int:
    """Run the command and return its peak memory in KiB."""
    subprocess.run([sys.executable, "-m", "pipewave", *arguments], check=True, stdout=subprocess.DEVNULL)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss


def startup() -> Iterator[Figure]:
    """Cold starts; the interpreter's own start is part of the commands and not of the import."""
    yield Figure("pipewave --help", best_of(lambda: _run(["--help"]), 5) * 1e3, "ms", "<=", 200)
    one = ["predict", "gemm", "4096", "4096", "4096", "--gpu", "H200"]
    yield Figure("one cold command", best_of(lambda: _run(one), 5) * 1e3, "ms", "<=", 500)
    bare, ours = (best_of(lambda c=code: _python(c), 7) for code in ("pass", "import pipewave"))  # type: ignore[misc]
    yield Figure("import pipewave", (ours - bare) * 1e3, "ms", "<=", 150)


def loading() -> Iterator[Figure]:
    """The slowest config to read, of those beside the measured data or else of the built-in ones."""
    beside = sorted((Path(os.environ.get("PIPEWAVE_DATA", "shared/data")) / "models").glob("*/config.json"))
    paths = beside or sorted(MODELS.glob("*.json"))
    slowest = max(best_of(lambda p=path: load(p), 5) for path in paths)  # type: ignore[misc]
    yield Figure(f"slowest of {len(paths)} configs read", slowest * 1e3, "ms", "<=", 20)


def _python(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)


def size() -> Iterator[Figure]:
    """Installed size of the core and all that it needs, without byte-code and measured rows."""
    total, seen, todo = 0, set[str](), ["pipewave"]
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        total += _bytes_of(name)
        todo += _needs(name)
    yield Figure(f"installed size, {len(seen)} distributions", total / 1e6, "MB", "<=", 120)


def _needs(name: str) -> list[str]:
    try:
        return [_name(text) for text in requires(name) or [] if "extra ==" not in text]
    except PackageNotFoundError:  # a marker excluded it on this platform
        return []


def _name(requirement: str) -> str:
    for i, char in enumerate(requirement):
        if not (char.isalnum() or char in "-_."):
            return requirement[:i]
    return requirement


def _bytes_of(name: str) -> int:
    if name == "pipewave":
        root = Path(pw.__file__).parent
        return sum(f.stat().st_size for f in root.rglob("*") if f.is_file() and f.suffix != ".pyc")
    try:
        files = distribution(name).files or []
    except PackageNotFoundError:  # a marker excluded it on this platform
        return 0
    paths = (Path(str(f.locate())) for f in files if f.suffix != ".pyc")
    return sum(os.path.getsize(p) for p in paths if p.exists())
