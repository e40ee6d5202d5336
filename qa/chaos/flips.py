"""Byte flips: `python -m qa.chaos.flips [--count 5000]`. Every damaged file has to be noticed when it is read.

A child process works on a copy of the package and of files that pipewave writes for a user. It changes one byte of one
file, reads the file as the package does, with all caches emptied, and puts the byte back. Noticed is a typed error, or,
for records that are appended line by line, a line reported as damaged. The manifest itself is one of the files: there
some read of the package has to fail.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

Read = Callable[[Path], object]
HERE = Path(__file__).resolve().parents[2]


def readers() -> dict[str, Read]:
    """How each kind of packaged file is read, by pattern of its name; the first that fits."""
    from pipewave.files import packaged
    from pipewave.gpus import architectures, shipped
    from pipewave.models.load import load
    from pipewave.nets import nets
    from pipewave.nets.calibration import corrections
    from pipewave.planning import launch
    from pipewave.planning.prices import table as prices
    from pipewave.published import recipes
    from pipewave.software import engine_rules, rules

    return {
        "data/accuracy/figures.json": packaged.document,
        "data/corrections/*.safetensors": corrections.load,
        "data/models/*.json": lambda path: load(path.stem),
        "data/prices.json": lambda _: prices(),
        "data/tables/*.safetensors": _table,
        "data/weights/*": lambda path: nets.trained(path.stem),
        "gpus/architectures.json": lambda _: architectures.shipped(),
        "gpus/data/*.json": lambda _: shipped.raw_specs(),
        "planning/repositories.yaml": lambda _: launch.repository("Qwen3-8B"),
        "simulate/interval.json": packaged.shared,
        "published/recipes.json": lambda _: recipes.every(),
        "published/*.yaml": packaged.yaml,
        "software/deployments/*.yaml": packaged.yaml,
        "tune/engine/lookups.json": packaged.document,
        "software/front.json": packaged.document,
        "software/stack_rules.json": lambda _: rules.table(),
        "software/times.json": packaged.document,
        "software/releases.json": lambda _: engine_rules.releases("vllm"),
        "software/tuned_experts.json": packaged.document,
        "software/[vst]*.json": lambda path: engine_rules.read(path.stem),
        "*": packaged.content,  # texts: the page, styles, lists of options
    }


def reader(name: str, known: dict[str, Read]) -> Read:
    """The reader of a file by its name in the manifest."""
    return next(read for pattern, read in known.items() if fnmatch(name, pattern))


def forget() -> None:
    """Empty every cache of the package, as a new process has them."""
    for module in [each for name, each in sys.modules.items() if name.startswith("pipewave")]:
        for value in list(vars(module).values()):
            if hasattr(value, "cache_clear"):
                value.cache_clear()


def written(folder: Path) -> dict[Path, Read]:
    """Files as pipewave writes them for a user, with their readers."""
    from pipewave.files import store
    from pipewave.nets.calibration import corrections
    from qa.chaos import made

    made.calibration(folder / "h200.safetensors")
    made.tune_table(folder / "gemm.safetensors")
    made.measurements(folder / "rows.jsonl")
    return {
        folder / "h200.safetensors": corrections.load,
        folder / "gemm.safetensors": _table,
        folder / "rows.jsonl": lambda path: _whole(store.read(path)),
    }


def _table(path: Path) -> object:
    from pipewave.tune import load_table

    return load_table(path.stem, path=path, env={})


def _whole(contents: Any) -> object:
    from pipewave.errors import BadFile

    if contents.damaged:
        raise BadFile(f"{contents.damaged} damaged lines")
    return contents


def noticed(read: Callable[[], object]) -> str:
    """`noticed`, `silent`, or the name of an error that no user should see."""
    from pipewave.errors import PipewaveError

    forget()
    try:
        read()
    except PipewaveError:
        return "noticed"
    except Exception as error:  # noqa: BLE001 (what is counted)
        return f"traceback {type(error).__name__}: {error}"[:200]
    return "silent"


def flip(path: Path, pick: random.Random) -> Iterator[int]:
    """Change one byte of a file by one bit or to another value, yield its place, and put it back."""
    whole = path.read_bytes()
    at = pick.randrange(len(whole))
    other = whole[at] ^ (1 << pick.randrange(8)) if pick.random() < 0.5 else (whole[at] + pick.randrange(1, 256)) % 256
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([other]))
    try:
        yield at
    finally:
        path.write_bytes(whole)


def flips(count: int, seed: int, folder: Path) -> Iterator[tuple[str, int, str]]:
    """(file, place, verdict) of each flip; every file in turn, the others at random."""
    from pipewave.files import manifest, packaged

    manifest.write()
    known, pick = readers(), random.Random(seed)
    files: dict[Path, Read] = {path: reader(str(packaged.name_of(path)), known) for path in manifest.files()}
    own = written(folder)
    files = {path: read for path, read in files.items() if path.stat().st_size} | own
    names = [*files, packaged.MANIFEST]
    order = (names + list(own) * 40 + [packaged.MANIFEST] * 40 + pick.choices(names, k=count))[:count]
    for path in order:
        for at in flip(path, pick):
            target = path
            if path == packaged.MANIFEST:
                target = packaged.ROOT / (_named_at(path, at) or packaged.MANIFEST.name)
            read = files.get(path, packaged.content)
            yield str(packaged.name_of(path) or path.name), at, noticed(partial(read, target))


def _named_at(_path: Path, at: int) -> str | None:
    """The file that the manifest's line at a byte was about, by its place among today's files."""
    from pipewave.files import manifest

    lines, start = [f"{digest}  {name}\n" for name, digest in manifest.today().items()], 0
    for line in lines:
        start += len(line)
        if at < start:
            return line.split("  ")[1].rstrip("\n")
    return None


def child(count: int, seed: int) -> None:
    """Flip in the package that this process imports; prints the figures as JSON."""
    verdicts: Counter[str] = Counter()
    bad, touched = [], set()
    with tempfile.TemporaryDirectory() as folder:
        for name, at, verdict in flips(count, seed, Path(folder)):
            verdicts[verdict.split(" ")[0]] += 1
            touched.add(name)
            if verdict != "noticed":
                bad.append([name, at, verdict])
    figures = {"flips": count, "files": len(touched), **{k: verdicts[k] for k in ("noticed", "silent", "traceback")}}
    print(json.dumps(figures | {"examples": bad[:20]}))


def run(count: int, seed: int) -> dict[str, Any]:
    """Figures of `count` flips in a copy of the package."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(HERE / "src", Path(folder) / "src", ignore=shutil.ignore_patterns("__pycache__"))
        environment = os.environ | {"PYTHONPATH": f"{folder}/src:{HERE}", "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "qa.chaos.flips", "--child", "--count", str(count), "--seed", str(seed)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    """Print the figures; 1 where a flip went unnoticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.count, options.seed)
        return 0
    found = run(options.count, options.seed)
    print(json.dumps(found, indent=1))
    return 0 if found["noticed"] == found["flips"] else 1


if __name__ == "__main__":
    sys.exit(main())
