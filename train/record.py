"""What a card says of its training: the commit of the code, the data, the seed, the time and memory that it took."""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from corpus.frame import repository
from corpus.lock import LOCK
from train.cards import read


def of_run(log: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a run by its log (`train.fit`): what `git checkout COMMIT` and the lock's data give again."""
    known = {name: log[name] for name in ("seconds", "peak_mb", "threads", "device") if name in log}
    begun = {"started_from_sha256": log["start"]} if log.get("start") else {}
    begun |= {"trainer": log["trainer"]} if "trainer" in log else {}
    told = {"commit": log["commit"] or commit(), "corpus_lock_sha256": read(LOCK)["sha256"]}
    return told | {"seed": log["plan"]["seed"]} | known | begun


def commit() -> str:
    """The commit of this checkout, `+` after it where tracked code differs from it; empty outside a checkout."""
    if not (repository() / ".git").exists():
        return ""
    name = _git("rev-parse", "HEAD")
    changed = _git(
        "status", "--porcelain", "--untracked-files=no", "--", "src/pipewave/**/*.py", "corpus", "train", "data"
    )
    return f"{name}+" if changed else name


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=repository(), capture_output=True, text=True, check=True)
    return done.stdout.strip()


def begun(device: str, card: Path | None) -> Callable[[], dict[str, Any]]:
    """Note when training begins, from which weights and by which code; called when it ended, what the log keeps of it:
    seconds, the most memory that the process had in MB, threads, device, hash of the weights (empty: none), commit.
    """
    start, code = time.monotonic(), commit()
    weights = str(read(card)["sha256"]) if card else ""

    def ended() -> dict[str, Any]:
        from torch import get_num_threads

        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        took = {"seconds": round(time.monotonic() - start, 1), "peak_mb": peak_mb, "threads": get_num_threads()}
        return took | {"device": device, "start": weights, "commit": code}

    return ended
