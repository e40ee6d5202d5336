"""Commands started cold, beside those of another revision: wall and processor seconds, the two in turn.

python -m qa.cold --base e18dbaf [--also DIR]     # DIR: what that revision imports and this environment lacks
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

ROOT = Path(__file__).parents[1]
CASES = 300_000
ESTIMATE = "estimate --model Llama-3.1-70B --gpu H100 --tp 4 --batch 16 --isl 2048 --osl 256"
COMMANDS = {  # by name: words, and how often it runs
    "--help": ("--help", 15),
    "predict": ("predict gemm 4096 4096 4096 --gpu H200", 15),
    "estimate": (ESTIMATE, 15),
    f"{CASES:,} cases": ("predict --cases cases.jsonl --gpu H200 --out answers.jsonl", 5),
}


def write_cases(path: Path) -> None:
    """Products of sizes drawn at random."""
    draw = random.Random(0)
    with path.open("w") as file:
        for i in range(CASES):
            sizes = {"m": draw.randrange(1, 8192), "n": 64 * draw.randrange(1, 256), "k": 64 * draw.randrange(1, 256)}
            file.write(json.dumps({"id": i, "kernel": "gemm"} | sizes) + "\n")


def seconds(words: Sequence[str], path: str, folder: Path) -> tuple[float, float]:
    """(wall, processor) seconds of a command whose modules are found on `path`."""
    (folder / "answers.jsonl").unlink(missing_ok=True)
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"PYTHONPATH": path}
    before, began = getrusage(RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-P", "-m", "pipewave", *words], env=env, cwd=folder, check=True, capture_output=True
    )
    wall, after = time.perf_counter() - began, getrusage(RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print a row a command: medians of both revisions, and the median of their ratios."""
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--base", required=True)
    ask.add_argument("--also", default="")
    args = ask.parse_args()
    known = ["git", "rev-parse", "--quiet", "--verify", f"{args.base}^{{commit}}"]
    if subprocess.run(known, cwd=ROOT, capture_output=True).returncode:
        ask.error(f"--base {args.base}: no revision of this repository; see git log")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_cases(folder / "cases.jsonl")
        subprocess.run(["git", "worktree", "add", "-q", "--detach", folder / "base", args.base], cwd=ROOT, check=True)
        paths = (f"{folder / 'base' / 'src'}{os.pathsep}{args.also}", str(ROOT / "src"))
        print(f"| command | s at {args.base} | s now | wall, ratio | processor, ratio |\n|---|---|---|---|---|")
        try:
            for command, (words, times) in COMMANDS.items():
                runs = [[seconds(words.split(), path, folder) for path in paths] for _ in range(times + 1)][1:]
                wall, spent = ([(base[at], now[at]) for base, now in runs] for at in (0, 1))
                middles = [f"{statistics.median(side):.3f}" for side in zip(*wall, strict=True)]
                ratios = [f"{statistics.median(now / base for base, now in pairs):.2f}" for pairs in (wall, spent)]
                print(f"| {command} | {' | '.join((*middles, *ratios))} |", flush=True)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", folder / "base"], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
