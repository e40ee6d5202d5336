"""Configs that a Hugging Face hub cache on this machine already holds; nothing is downloaded."""

from __future__ import annotations

import os
import re
from pathlib import Path

REPOSITORY = re.compile(r"[\w.-]+(/[\w.-]+)?")


def cached(name: str) -> Path | None:
    """The config.json of a repository `organisation/name` (or `name` alone) in the local cache, newest revision."""
    if not REPOSITORY.fullmatch(name):
        return None
    folder = _cache()
    pattern = f"models--{name.replace('/', '--')}" if "/" in name else f"models--*--{name}"
    try:
        found = [path for each in folder.glob(pattern) if (path := _config(each))]
    except OSError:
        return None
    return found[0] if found else None


def _cache() -> Path:
    """Where the hub's own tools look: HF_HUB_CACHE, else HF_HOME/hub, else the user's cache."""
    if stated := os.environ.get("HF_HUB_CACHE"):
        return Path(stated)
    home = os.environ.get("HF_HOME") or str(Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface")
    return Path(home).expanduser() / "hub"


def _config(repository: Path) -> Path | None:
    """The config of the main revision, else of the newest snapshot that has one."""
    main = repository / "refs" / "main"
    named = [repository / "snapshots" / main.read_text("utf-8").strip()] if main.is_file() else []
    others = sorted((repository / "snapshots").glob("*"), key=lambda path: path.stat().st_mtime, reverse=True)
    return next((path / "config.json" for path in [*named, *others] if (path / "config.json").is_file()), None)
