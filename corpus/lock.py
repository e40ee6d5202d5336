"""`corpus/lock.json`: which files of which upstream commit the weights were trained on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from corpus.cache import file_hash
from corpus.sources import TABLES

LOCK = Path(__file__).with_name("lock.json")
ORIGINS = {
    "aiconfigurator": ("https://github.com/ai-dynamo/aiconfigurator", "095f58a51c4c", "Apache-2.0"),
    "pipeweave": ("https://github.com/zksainx/pipeweave", "55e03178d15a", "Apache-2.0"),
    "vidur": ("https://github.com/microsoft/vidur", "7d47513363ec", "MIT"),
    "llmservingsim": ("https://github.com/casys-kaist/LLMServingSim", "5daddb21a545", "MIT"),
}


def state(folder: Path) -> dict[str, Any]:
    """Origins, and a sha256 for each file read from the corpus folder (short: 16 hex digits)."""
    files = {file for table in TABLES if not table.own for file in table.files(folder)}
    files.add(folder / "CLEAN_RULES.json")
    hashes = {file.relative_to(folder).as_posix(): file_hash(file)[:16] for file in sorted(files)}
    whole = hashlib.sha256("\n".join(f"{name} {value}" for name, value in hashes.items()).encode()).hexdigest()
    origins = {
        name: {"url": url, "commit": commit, "licence": licence} for name, (url, commit, licence) in ORIGINS.items()
    }
    return {"sha256": whole, "origins": origins, "files": hashes}


def write(folder: Path) -> None:
    """Record the folder's present state."""
    LOCK.write_text(json.dumps(state(folder), indent=1) + "\n", encoding="utf-8")


def differences(folder: Path) -> list[str]:
    """Files missing, added or changed since the lock was written."""
    if not LOCK.exists():
        return [f"{LOCK.name} does not exist: run with --lock write"]
    locked, now = json.loads(LOCK.read_text(encoding="utf-8"))["files"], state(folder)["files"]
    return sorted(name for name in locked.keys() | now.keys() if locked.get(name) != now.get(name))
