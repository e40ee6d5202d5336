"""Long scores in slices: answers are written as they come, and a command that is given again goes on where it stopped.

A file holds one JSON line a row. What it was answered with is its first line (version of the package and a digest of
its code): answers of other code are not mixed with new ones.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from pipewave.errors import BadInput
from pipewave.files import manifest

Answer = dict[str, Any]


def resumed(path: Path, rows: Iterable[str], ask: Callable[[str], Answer], until_s: float) -> dict[str, Answer]:
    """Answers of `path` by row, with those that `ask` gives to the others until `time.monotonic()` is `until_s`."""
    found = _kept(path)
    with path.open("a", encoding="utf-8") as file:
        for row in rows:
            if row in found:
                continue
            if time.monotonic() > until_s:
                break
            found[row] = ask(row)
            file.write(json.dumps(found[row]) + "\n")
            file.flush()
    return found


def _kept(path: Path) -> dict[str, Answer]:
    """What the file holds; it is begun where there is none. A line that a kill cut short is dropped."""
    if not path.exists():
        path.write_text(json.dumps({"code": code()}) + "\n", "utf-8")
    first, *lines = path.read_text("utf-8").splitlines(keepends=True)
    if json.loads(first).get("code") != code():
        raise BadInput(f"{path}: answers of other code; give another file or remove it", field="answers")
    whole = [line for line in lines if line.endswith("\n")]
    if whole != lines:
        path.write_text("".join([first, *whole]), "utf-8")
    return {one["id"]: one for one in map(json.loads, whole)}


@cache
def code() -> str:
    """A digest of every file of the package, code and data."""
    return hashlib.sha256(json.dumps(manifest.today(code=True) | manifest.today()).encode()).hexdigest()[:16]
