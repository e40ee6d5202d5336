"""The interpreter of a version that starts: `python tests/packaging/pythons.py 3.12` prints its path, or nothing.

A name on the PATH may be a shim that refuses to start, and versions that pyenv installed need not be on the PATH at all.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ASK = "import sys, venv; print('%d.%d' % sys.version_info[:2])"


def candidates(version: str) -> Iterator[Path]:
    """Where it may be: the folders of PATH, then what pyenv installed, newest first."""
    yield from (Path(folder) / f"python{version}" for folder in os.get_exec_path())
    root = Path(os.environ.get("PYENV_ROOT") or said(["pyenv", "root"]) or Path.home() / ".pyenv")
    yield from sorted(root.glob(f"versions/{version}*/bin/python{version}"), reverse=True)


def said(command: list[str | Path]) -> str:
    """What a command prints; nothing where it cannot be run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def interpreter(version: str) -> Path | None:
    """The first candidate that is that version and can make virtual environments."""
    return next((path for path in candidates(version) if path.exists() and said([path, "-c", ASK]) == version), None)


if __name__ == "__main__":
    sys.stdout.write(f"{interpreter(sys.argv[1]) or ''}\n")
