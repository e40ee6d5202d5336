"""Append-only records that survive `kill -9`.

A record is one line, `json TAB crc32`, framed by a newline on both sides and written by one `os.write` on an
`O_APPEND` descriptor. The leading newline means that a line torn by a crash or a full disk damages only itself: the
next record starts on a line of its own. Several processes may append to one file. Records are never rewritten.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from pipewave.errors import BadFile

Record = dict[str, Any]


def encode(record: Mapping[str, Any]) -> bytes:
    """Frame one record: newline, compact JSON, tab, CRC-32 of the JSON in hex, newline."""
    body = json.dumps(record, separators=(",", ":"), allow_nan=False).encode()
    return b"\n%s\t%08x\n" % (body, zlib.crc32(body))


def decode(line: bytes) -> Record | None:
    """The record of one line without its newlines, or None when it is torn or corrupt."""
    body, _, crc = line.rpartition(b"\t")
    if crc != b"%08x" % zlib.crc32(body):
        return None
    try:
        record = json.loads(body)
    except ValueError:  # a checksum that matches by chance over something that is not JSON
        return None
    return record if isinstance(record, dict) else None


class Store:
    """A file open for appending. `append` returns once the operating system holds the record."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open or create `path`, or BadFile."""
        self.path = Path(path)
        self._fd = -1
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise BadFile(f"{path}: cannot be written ({error.strerror})", field="store") from error

    def append(self, record: Mapping[str, Any]) -> None:
        """Append one record; raises BadFile when the file system took only part of it (a full disk)."""
        self.extend([record])

    def extend(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Append several records with one write; a kill in between keeps a prefix of them."""
        data = b"".join(map(encode, records))
        try:
            written = os.write(self._fd, data) if data else 0
        except OSError as error:
            raise self._full(str(error.strerror)) from error
        if written != len(data):
            raise self._full(f"{written} of {len(data)} bytes written")

    def _full(self, why: str) -> BadFile:
        return BadFile(f"{self.path}: cannot be written ({why}); run again once it can: nothing is lost", field="store")

    def close(self) -> None:
        """Close the file; closing twice is harmless."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Contents:
    """What a store holds: the intact records in file order, and how many lines were damaged."""

    records: tuple[Record, ...]
    damaged: int

    def of(self, kind: str) -> Iterator[Record]:
        """Records whose type field `t` is `kind`."""
        return (record for record in self.records if record.get("t") == kind)


def read(path: str | os.PathLike[str]) -> Contents:
    """Read every intact record; damaged lines are skipped and counted. A missing file is an empty store."""
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return Contents((), 0)
    except OSError as error:
        raise BadFile(f"cannot read store {path}: {error.strerror}") from error
    decoded = [decode(line) for line in data.split(b"\n") if line]
    records = tuple(record for record in decoded if record is not None)
    return Contents(records, len(decoded) - len(records))


def done_keys(contents: Contents, *, retry_failed: bool = False) -> set[str]:
    """Keys of all finished rows: what a resumed run need not do again. Failed ones may get a retry."""
    return {row["key"] for row in contents.of("row") if not (retry_failed and row.get("status") == "failed")}
