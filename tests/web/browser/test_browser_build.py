"""The committed page is built from the committed sources: needs neither node nor a browser."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parents[3]
WEB, BUILT = ROOT / "web", ROOT / "src" / "pipewave" / "web" / "static"
SOURCES = ("index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.mjs", "src", "public")
LOCK = json.loads((WEB / "build.lock").read_text())


def digest(files: list[Path], root: Path) -> str:
    """What web/lock.mjs computes after a build."""
    names = sorted((file.relative_to(root).as_posix(), sha256(file.read_bytes()).hexdigest()) for file in files)
    return sha256("".join(f"{found}  {name}\n" for name, found in names).encode()).hexdigest()


def under(path: Path) -> list[Path]:
    return [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]


def test_build_is_of_these_sources() -> None:
    assert digest([file for name in SOURCES for file in under(WEB / name)], WEB) == LOCK["sources"], "run `make web`"


def test_nobody_edited_the_build() -> None:
    assert digest(under(BUILT), BUILT) == LOCK["built"], "run `make web`"


def test_page_names_no_other_origin_and_nothing_inline() -> None:
    document = (BUILT / "index.html").read_text()
    assert not re.search(r"(src|href)=\"(?!/)", document)
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", document)


def test_lock_file_names_no_registry() -> None:
    assert '"resolved"' not in (WEB / "package-lock.json").read_text()
