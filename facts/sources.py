"""Source files of a release, read out of its package without installing or running it."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

INDEX = os.environ.get("PIPEWAVE_INDEX", "https://pypi.org/simple")
JSON = "application/vnd.pypi.simple.v1+json"
TEXT = (".py", ".json")  # what facts are read from; compiled kernels are not opened
VERSION = re.compile(r"^\d+(\.\d+)*(\.post\d+)?$")


@dataclass(frozen=True)
class Release:
    """One version of an engine as its package holds it."""

    engine: str  # name of the package, as `vllm`
    version: str
    day: str  # upload of its package, ISO date
    file: Path  # the package kept on disk, reduced to its text files

    @cached_property
    def files(self) -> Mapping[str, str]:
        """Text of each file by its path from the package's own folder, as `vllm/config/cache.py`."""
        with zipfile.ZipFile(self.file) as archive:
            return {name: archive.read(name).decode("utf-8", "replace") for name in archive.namelist()}


@cache
def _index(engine: str) -> Mapping[str, Any]:
    request = urllib.request.Request(f"{INDEX}/{engine}/", headers={"Accept": JSON})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return dict(json.load(answer))


def versions(engine: str) -> dict[str, str]:
    """Final versions of a package on the index and the day of each, oldest first."""
    days: dict[str, str] = {}
    for version, file in _packages(engine):
        days[version] = min(days.get(version, "9"), str(file.get("upload-time", ""))[:10])
    return dict(sorted(days.items(), key=lambda one: number(one[0])))


def number(version: str) -> tuple[int, ...]:
    """For ordering: `0.5.8.post1` is (0, 5, 8, 1)."""
    return tuple(map(int, re.findall(r"\d+", version)))


def _packages(engine: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    name = re.compile(rf"{engine}-(?P<version>[0-9][^-]*?)(-.*\.whl|\.tar\.gz)$", re.IGNORECASE)
    for file in _index(engine)["files"]:
        found = name.match(file["filename"])
        if found and VERSION.match(found["version"]) and not file.get("yanked"):
            yield found["version"], file


def fetch(engine: str, version: str, folder: Path) -> Release:
    """A release, downloaded once: of an sdist and a wheel the smaller. LookupError where the index has none."""
    day = versions(engine).get(version)
    if day is None:
        raise LookupError(f"{engine} {version}: not on the index; versions: {', '.join(versions(engine))}")
    kept = folder / f"{engine}-{version}.zip"
    if not kept.exists():
        files = [file for found, file in _packages(engine) if found == version]
        smallest = min(files, key=lambda file: file.get("size") or 1 << 60)
        with urllib.request.urlopen(smallest["url"], timeout=600) as answer:
            _keep_text(engine, smallest["filename"], answer.read(), kept)
    return Release(engine, version, day, kept)


def _keep_text(engine: str, name: str, package: bytes, kept: Path) -> None:
    """Only the package's own text files, written beside and renamed."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    beside = kept.with_suffix(".part")
    with zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in _members(name, package):
            inside = re.search(rf"(?:^|/)(?:python/)?({engine}/.*)$", path)
            if inside and path.endswith(TEXT) and "/test" not in path:
                archive.writestr(inside[1], data)
    beside.replace(kept)


def _members(name: str, package: bytes) -> Iterator[tuple[str, bytes]]:
    if name.endswith(".whl"):
        with zipfile.ZipFile(io.BytesIO(package)) as archive:
            yield from ((each, archive.read(each)) for each in archive.namelist() if each.endswith(TEXT))
        return
    with tarfile.open(fileobj=io.BytesIO(package)) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() and member.name.endswith(TEXT) else None
            if file:
                yield member.name.split("/", 1)[1], file.read()
