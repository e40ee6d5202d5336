"""Mutants of the laws and whether the tests notice: `python -m qa.mutate [--rooms physics,step] [--count 30]`.

`--named` tries the mutants of NAMED instead, each a law or a rule that once could be lost without a test failing.

`make mutate` installs cosmic-ray, which writes the mutants. Each room is copied with the tests to a scratch folder, a
seeded sample of its mutants is drawn, and each runs the tests that mirror the room until the first failure. Left out
are mutants that cannot change an answer: `|` between types, caches, and options of dataclasses.

`--json` keeps one record for each room and seed beside those of earlier runs: size of the sample, killed, survivors,
and the commit. Survivors are what new tests are written against, so that only a seed drawn after the tests says how
many mutants die: the table names each seed, and the share to report is that of a room's last one.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
COPIED = (
    *("src", "tests", "bench", "corpus", "lab", "paper", "qa", "studies", "train", "docs"),
    *("examples", "data", "pyproject.toml"),
)
TESTS = {
    "physics": "tests/physics tests/step/test_power_at_the_limit.py tests/gpus/test_architectures.py",
    "step": "tests/step",
    "prediction": (  # the quick ones first
        "tests/prediction/test_paths.py tests/prediction/test_few_calls.py tests/prediction/test_prediction_laws.py "
        "tests/prediction tests/step/test_power_at_the_limit.py"
    ),
    "planning": (
        "tests/planning/test_answers_by_hand.py tests/planning/test_spaces_by_hand.py "
        "tests/planning/test_screens_by_hand.py tests/planning/test_served_by_hand.py "
        "tests/planning/test_commands_by_hand.py tests/planning/test_search_by_hand.py tests/planning -m 'not slow'"
    ),
    "models": "tests/models/test_written_down.py tests/models",
    "simulate": (
        "tests/simulate/test_simulation_by_hand.py tests/simulate/test_figures_by_hand.py "
        "tests/simulate/test_steps_by_hand.py tests/simulate -m 'not slow'"
    ),
    "tune": (  # the quick ones first; with Triton those that read and choose kernels of users
        "tests/tune/test_source_by_hand.py tests/tune/test_counts_by_hand.py tests/tune/test_model_by_hand.py "
        "tests/tune/test_launches_by_hand.py tests/tune tests/with_triton -m 'not slow' "
        "--ignore tests/with_triton/test_operands.py --ignore tests/with_triton/test_moe_layer.py "
        "--ignore tests/with_triton/test_random_shapes.py"
    ),
}
LEFT_OUT = (  # in SQL: operators, by the name that cosmic-ray gives them
    "operator_name LIKE 'core/ReplaceBinaryOperator_BitOr_%'",
    "operator_name = 'core/RemoveDecorator' AND definition_name IS NOT NULL",
)
UNSEEN = ("@dataclass(", "@lru_cache(")  # lines whose options no answer shows
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
        "latent attention draws no energy", "kernels/attention/family.py", "work = Work(flops,",
        "work = Work(0.0 * flops if real.layout.latent else flops,", "tests/step/test_power_at_the_limit.py",
    ),
    Named(
        "the rule of the A40 is gone", "software/stack_rules.json", '{"when": {"gpu": "A40"}, "value": false},', "",
        "tests/kernels/test_kernel_collective.py -k pair_of_a40",
    ),
    Named(
        "int4 weights take twice their bytes", "calls/dtypes.py", '"int4": 0.5 + 2.0 / 128', '"int4": 1.0 + 4.0 / 128',
        "tests/step/test_power_at_the_limit.py",
    ),
    Named(
        "an hour has 4,000 seconds", "planning/plan.py", "usd / (3600 * fleet", "usd / (4000 * fleet",
        "tests/planning/test_plan.py -k serves_its_rate",
    ),
    Named(
        "layers left over go to the first stages", "models/shard.py", "sizes[max(pp - 2 - i, 0)] += 1",
        "sizes[i] += 1", "tests/models/test_model_totals.py -k left_over",
    ),
    Named(
        "the gate is left out of the input map", "data/model_parts.json",
        "(bottleneck or heads * head_dim) + gate + kv_heads", "(bottleneck or heads * head_dim) + kv_heads",
        "tests/models/test_model_blocks.py -k gate",
    ),
    Named(
        "lengths of servers are rounded down", "planning/launch.py", "-(-length // LENGTH_STEP) * LENGTH_STEP",
        "length // LENGTH_STEP * LENGTH_STEP", "tests/planning/test_launch.py -k never_below",
    ),
    Named(
        "activations never come from DRAM in serving", "kernels/gemm/machine.py",
        "weights + xp.maximum(x + y - at.l2_bytes, 0.0)", "weights + xp.maximum(y - at.l2_bytes, 0.0)",
        "tests/kernels/test_kernel_gemm.py -k beyond_the_l2",
    ),
    Named(
        "errors of a step have nothing in common", "step/predict.py", "COMMON = 0.5", "COMMON = 0.0",
        "tests/step/test_step.py",
    ),
)  # fmt: skip


# The fifth mutant that once survived, errors of a collector that predictions of fused MoE answered with, has no place
# any more: its rule left the package, and such rows are dropped before training (`corpus`).


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of the code, and whether a test failed under it."""

    room: str
    place: str
    operator: str
    killed: bool
    diff: str


def run(room: str, count: int, seed: int, timeout: float) -> dict[str, Any]:
    """Sample the mutants of a room and run its tests on each; CalledProcessError where they fail without a mutant."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, commit = _copied(Path(scratch)), _commit()
        text = SETTINGS.format(room=room, timeout=timeout, python=sys.executable, tests=TESTS[room])
        (folder / "mutate.toml").write_text(text)
        _tool(folder, "baseline", "mutate.toml")  # tests that fail without a mutant would kill them all
        _tool(folder, "init", "mutate.toml", "mutants.sqlite")
        mutants = _sample(folder / "mutants.sqlite", folder, count, seed)
        _tool(folder, "exec", "mutate.toml", "mutants.sqlite")
        return _record(_found(folder / "mutants.sqlite", room), room, seed, mutants, commit)


def _record(found: Sequence[Mutant], room: str, seed: int, mutants: int, commit: str) -> dict[str, Any]:
    """What is kept of a run; `mutants`: how many of the room the sample was drawn from; `commit`: of what was tried."""
    alive = [asdict(mutant) for mutant in found if not mutant.killed]
    known = {"room": room, "seed": seed, "mutants": mutants, "sample": len(found), "killed": len(found) - len(alive)}
    return known | {"commit": commit, "survivors": alive}


def _commit() -> str:
    words = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True).stdout.strip()


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
    return _run(folder, "pytest", "-x", "-q", "-p", "no:cacheprovider", *shlex.split(tests)) == 0


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


def _sample(session: Path, folder: Path, count: int, seed: int) -> int:
    """Leave a seeded sample of the session's jobs, and say of how many."""
    with sqlite3.connect(session) as db:
        for rule in LEFT_OUT:
            db.execute(f"DELETE FROM mutation_specs WHERE {rule}")
        query = "SELECT module_path, start_pos_row, operator_name, occurrence, job_id FROM mutation_specs"
        jobs = [job for job in sorted(db.execute(query)) if not _line(folder, *job[:2]).startswith(UNSEEN)]
        kept = {job for *_, job in random.Random(seed).sample(jobs, min(count, len(jobs)))}
        for table in ("mutation_specs", "work_items"):
            found = [job for (job,) in db.execute(f"SELECT job_id FROM {table}")]
            gone = [(job,) for job in found if job not in kept]
            db.executemany(f"DELETE FROM {table} WHERE job_id = ?", gone)
    return len(jobs)


@cache
def _lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines()


def _line(folder: Path, path: str, row: int) -> str:
    return _lines(folder / path)[row - 1].strip()


def _found(session: Path, room: str) -> list[Mutant]:
    query = """SELECT module_path, start_pos_row, operator_name, test_outcome, diff
               FROM mutation_specs JOIN work_results USING (job_id)"""
    with sqlite3.connect(session) as db:
        return [
            Mutant(room, f"{path}:{row}", operator, outcome.lower() != "survived", diff)
            for path, row, operator, outcome, diff in sorted(db.execute(query))
        ]


def report(runs: Sequence[Mapping[str, Any]]) -> str:
    """The share killed, by room and seed, and the mutants that live."""
    lines = ["| room | seed | mutants | sample | killed | share |", "|---|---|---|---|---|---|"]
    for run in runs:
        cells = (run[name] for name in ("room", "seed", "mutants", "sample", "killed"))
        lines.append(f"| {' | '.join(map(str, cells))} | {100 * run['killed'] / run['sample']:.0f} % |")
    alive = [f"{one['place']} {one['operator']}\n{one['diff']}" for run in runs for one in run["survivors"]]
    return "\n".join([*lines, "", *alive])


def merged(path: Path, runs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The runs a file holds with new ones at the end; a room and seed that ran again replaces its earlier record."""
    new = {(run["room"], run["seed"]) for run in runs}
    kept = json.loads(path.read_text("utf-8")) if path.exists() else []
    return [*(run for run in kept if (run["room"], run["seed"]) not in new), *runs]


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
    if given.named:
        runs = [_record(run_named(), "named", 0, len(NAMED), _commit())]
    else:
        runs = [run(room, given.count, given.seed, given.timeout) for room in given.rooms.split(",")]
    print(report(runs))
    if given.json:
        given.json.write_text(json.dumps(merged(given.json, runs), indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
