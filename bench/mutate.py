"""Mutants of the laws and whether the tests notice: `python -m bench.mutate [--rooms physics,step] [--count 30]`.

`--named` tries the mutants of NAMED instead, each a law or a rule that once could be lost without a test failing.

`make mutate` installs cosmic-ray, which writes the mutants. Each room is copied with the tests to a scratch folder, a
seeded sample of its mutants is drawn, and each runs the tests that mirror the room until the first failure. Left out
are mutants that cannot change an answer: `|` between types, and caches.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
COPIED = ("src", "tests", "bench", "train", "examples", "data", "pyproject.toml")
TESTS = {
    "physics": "tests/physics tests/step/test_energy.py tests/gpus/test_architectures.py",
    "step": "tests/step",
    "prediction": "tests/prediction tests/step/test_energy.py",
}
LEFT_OUT = (  # in SQL: operators, by the name that cosmic-ray gives them
    "operator_name LIKE 'core/ReplaceBinaryOperator_BitOr_%'",
    "operator_name = 'core/RemoveDecorator' AND definition_name IS NOT NULL",
)
SETTINGS = """[cosmic-ray]
module-path = ["src/pipewave/{room}"]
timeout = {timeout}
excluded-modules = []
test-command = "{python} -m pytest -x -q -p no:cacheprovider {tests}"
[cosmic-ray.distributor]
name = "local"
"""


@dataclass(frozen=True, slots=True)
class Named:
    """A text of a file in src/pipewave, what stands in its place, and the tests that must notice."""

    what: str
    path: str
    old: str
    new: str
    tests: str


NAMED = (
    Named(
        "latent attention draws no energy", "kernels/attention/analyse.py", "return Work(flops,",
        "return Work(0.0 * flops if layout.latent else flops,", "tests/step/test_energy.py",
    ),
    Named(
        "the rule of the A40 is gone", "software/stack_rules.json", '{"when": {"gpu": "A40"}, "value": false},', "",
        "tests/kernels/test_kernel_collective_rows.py",
    ),
    Named(
        "int4 weights take twice their bytes", "calls/dtypes.py", '"int4": 0.5 + 2.0 / 128', '"int4": 1.0 + 4.0 / 128',
        "tests/step/test_energy.py",
    ),
    Named(
        "errors of a step have nothing in common", "step/predict.py", "COMMON = 0.5", "COMMON = 0.0",
        "tests/step/test_step.py",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of the code, and whether a test failed under it."""

    room: str
    place: str
    operator: str
    killed: bool
    diff: str


def run(room: str, count: int, seed: int, timeout: float) -> list[Mutant]:
    """Sample the mutants of a room and run its tests on each; CalledProcessError where they fail without a mutant."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = _copied(Path(scratch))
        text = SETTINGS.format(room=room, timeout=timeout, python=sys.executable, tests=TESTS[room])
        (folder / "mutate.toml").write_text(text)
        _tool(folder, "baseline", "mutate.toml")  # tests that fail without a mutant would kill them all
        _tool(folder, "init", "mutate.toml", "mutants.sqlite")
        _sample(folder / "mutants.sqlite", count, seed)
        _tool(folder, "exec", "mutate.toml", "mutants.sqlite")
        return _found(folder / "mutants.sqlite", room)


def run_named() -> list[Mutant]:
    """Each mutant of NAMED in turn. ValueError where its text is not in the file; tests must pass without it."""
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = _copied(Path(scratch))
        for one in NAMED:
            path = folder / "src" / "pipewave" / one.path
            text = path.read_text("utf-8")
            if text.count(one.old) != 1 or not _passes(folder, one.tests):
                raise ValueError(f"{one.what}: {one.old!r} is not once in {one.path}, or {one.tests} fail without it")
            path.write_text(text.replace(one.old, one.new), "utf-8")
            _run(folder, "pipewave.files.manifest", "--write")  # else a checksum would notice, and no test
            found.append(Mutant("named", one.path, one.what, not _passes(folder, one.tests), f"{one.old} → {one.new}"))
            path.write_text(text, "utf-8")
            _run(folder, "pipewave.files.manifest", "--write")
    return found


def _passes(folder: Path, tests: str) -> bool:
    return _run(folder, "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests.split()) == 0


def _run(folder: Path, *words: str) -> int:
    command = ["env", f"PYTHONPATH={folder / 'src'}:{folder}", sys.executable, "-m", *words]
    return subprocess.run(command, cwd=folder, capture_output=True).returncode


def _copied(folder: Path) -> Path:
    for name in COPIED:
        source = CHECKOUT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, folder / name)
    return folder


def _tool(folder: Path, *words: str) -> None:
    path = f"{folder / 'src'}:{folder}"
    subprocess.run(["env", f"PYTHONPATH={path}", "cosmic-ray", *words], cwd=folder, check=True)


def _sample(session: Path, count: int, seed: int) -> None:
    """Leave a seeded sample of the session's jobs."""
    with sqlite3.connect(session) as db:
        for rule in LEFT_OUT:
            db.execute(f"DELETE FROM mutation_specs WHERE {rule}")
        jobs = sorted(
            db.execute("SELECT module_path, start_pos_row, operator_name, occurrence, job_id FROM mutation_specs")
        )
        kept = {job for *_, job in random.Random(seed).sample(jobs, min(count, len(jobs)))}
        for table in ("mutation_specs", "work_items"):
            found = [job for (job,) in db.execute(f"SELECT job_id FROM {table}")]
            gone = [(job,) for job in found if job not in kept]
            db.executemany(f"DELETE FROM {table} WHERE job_id = ?", gone)


def _found(session: Path, room: str) -> list[Mutant]:
    query = """SELECT module_path, start_pos_row, operator_name, test_outcome, diff
               FROM mutation_specs JOIN work_results USING (job_id)"""
    with sqlite3.connect(session) as db:
        return [
            Mutant(room, f"{path}:{row}", operator, outcome.lower() != "survived", diff)
            for path, row, operator, outcome, diff in sorted(db.execute(query))
        ]


def report(mutants: Sequence[Mutant]) -> str:
    """The share killed, by room, and the mutants that live."""
    lines = ["| room | mutants | killed | share |", "|---|---|---|---|"]
    for room in dict.fromkeys(mutant.room for mutant in mutants):
        killed = [mutant.killed for mutant in mutants if mutant.room == room]
        lines.append(f"| {room} | {len(killed)} | {sum(killed)} | {100 * sum(killed) / len(killed):.0f} % |")
    alive = [f"{mutant.place} {mutant.operator}\n{mutant.diff}" for mutant in mutants if not mutant.killed]
    return "\n".join([*lines, "", *alive])


def main() -> None:
    """Run and print; write with `--json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rooms", default=",".join(TESTS))
    parser.add_argument("--count", type=int, default=30, help="mutants of each room")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds of a test run")
    parser.add_argument("--named", action="store_true", help="the mutants of NAMED")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rooms = [] if given.named else given.rooms.split(",")
    mutants = [one for room in rooms for one in run(room, given.count, given.seed, given.timeout)]
    mutants += run_named() if given.named else []
    print(report(mutants))
    if given.json:
        given.json.write_text(json.dumps([asdict(mutant) for mutant in mutants], indent=1) + "\n")


if __name__ == "__main__":
    main()
