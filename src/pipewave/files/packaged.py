"""Files that come with the package: each read is compared with the manifest, so that no damaged byte becomes an answer.

`manifest.sha256` at the package's root holds a SHA-256 for every file that is not code, in the form that `sha256sum -c`
reads. A file is compared when it is read, which a process does once; what lies outside the package is the user's own
and read as it is. After a file was changed on purpose: `python -m pipewave.files.manifest --write`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from pipewave.errors import BadFile

ROOT = Path(__file__).parents[1]
MANIFEST = ROOT / "manifest.sha256"
REMEDY = "reinstall pipewave (edited on purpose? python -m pipewave.files.manifest --write)"
_LINE = re.compile(r"([0-9a-f]{64})  (\S+)")


def content(path: Path) -> bytes:
    """The bytes of a file. BadFile where it cannot be read, or is the package's and not as the manifest says."""
    return hashed(path)[0]


def hashed(path: Path) -> tuple[bytes, str]:
    """The bytes of a file and their SHA-256, checked as in `content`."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BadFile(f"{path.name}: cannot be read ({error.strerror}); reinstall pipewave", field="path") from error
    found = hashlib.sha256(raw).hexdigest()
    if (name := name_of(path)) is not None and (said := known().get(name)) != found:
        wrong = "its checksum is not the manifest's" if said else "not in the manifest"
        raise BadFile(f"{name}: {wrong}; {REMEDY}", field="path")
    return raw, found


def check(path: Path) -> None:
    """Refuse a damaged file of the package that something else is going to read."""
    if path.is_file() and name_of(path) is not None:
        content(path)


def text(path: Path) -> str:
    """A file's text, checked as in `content`."""
    try:
        return content(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadFile(f"{path.name}: not text ({error}); {REMEDY}", field="path") from error


def document(path: Path) -> Any:
    """What a JSON file holds, checked as in `content`."""
    try:
        return json.loads(content(path))
    except ValueError as error:
        raise BadFile(f"{path.name}: not JSON ({error}); {REMEDY}", field="path") from error


@contextmanager
def well_formed(path: Path) -> Iterator[None]:
    """Where a table is taken apart: BadFile for a row without a part, or one whose value is of another type."""
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        raise BadFile(f"{path.name}: cannot be read ({error!r}); reinstall pipewave", field="rules") from error


@cache
def shared(path: Path) -> Any:
    """What a JSON or YAML file holds, read once for all who ask: none of them changes it."""
    return yaml(path) if path.suffix == ".yaml" else document(path)


def yaml(path: Path) -> Any:
    """What a YAML file holds, checked as in `content`."""
    from yaml import YAMLError, safe_load

    try:
        return safe_load(text(path))
    except YAMLError as error:
        raise BadFile(f"{path.name}: not YAML ({error}); {REMEDY}", field="path") from error


def name_of(path: Path) -> str | None:
    """A path below the package's root as the manifest writes it, None for one elsewhere."""
    root = next((root for root in (ROOT, ROOT.resolve()) if path.is_relative_to(root)), None)
    return None if root is None else path.relative_to(root).as_posix()


@cache
def known() -> Mapping[str, str]:
    """Checksums by name. BadFile where the manifest is damaged."""
    try:
        rows = [_LINE.fullmatch(line) for line in MANIFEST.read_bytes().decode("ascii").removesuffix("\n").split("\n")]
    except (OSError, ValueError) as error:
        raise BadFile(f"{MANIFEST.name}: cannot be read ({error}); {REMEDY}", field="path") from error
    if not all(rows):
        raise BadFile(f"{MANIFEST.name}: damaged in line {rows.index(None) + 1}; {REMEDY}", field="path")
    return {row[2]: row[1] for row in rows if row}
