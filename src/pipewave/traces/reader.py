"""Bytes of a file to a Trace, plain or gzip; BadFile for what is none of these:

a Chrome trace (torch.profiler), a SQLite export of Nsight Systems or tables of `nsys stats`, a table of `ncu --csv`.
"""

from __future__ import annotations

import gc
import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from pipewave.errors import cause
from pipewave.traces import chrome, csv_tables, nsys
from pipewave.traces.trace import Trace, bad

KINDS = "neither a Chrome trace (JSON), an export or table of Nsight Systems, nor `ncu --csv` output"
GZIP = b"\x1f\x8b"
MOST_TABLE_BYTES, ROW_BYTES = 256 << 20, 128  # a table of counters is read whole; its rows are about so long
CHUNK = 1 << 22
# Beyond the first, no file unpacks to more than this times its size: real profiles grow 5 to 40 times.
FREE_BYTES, MOST_GROWTH = 64 << 20, 100


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a file is read."""

    unpacked_bytes: int = 4 << 30  # what it may hold or unpack to; a database of Nsight Systems is read where it lies
    events: int = 20_000_000  # events, or rows of a table, that are looked at and kept: about 1 kB of memory each


ROOMY = Limits()


def read(path: str | Path, limits: Limits = ROOMY) -> Trace:
    """The trace in a file. Raises BadFile that says what is wrong and, where a file breaks off, at which byte."""
    try:
        with Path(path).open("rb") as file:
            if nsys.looks_like(file.read(len(nsys.MAGIC))):
                return nsys.read(Path(path), str(path), limits.events)
        data = Path(path).read_bytes()
    except (OSError, ValueError) as problem:
        raise bad(str(path), f"cannot be read ({cause(problem)})") from problem
    return parse(data, str(path), limits)


def parse(data: bytes, source: str, limits: Limits = ROOMY) -> Trace:
    """The trace in these bytes; `source` is what messages call them."""
    opened = unzip if data.startswith(GZIP) else cut
    pieces = opened(data, source, limits.unpacked_bytes)
    first = next(pieces, b"")
    pieces = chain((first,), pieces)
    head = first[:4096].lstrip(b"\xef\xbb\xbf \t\r\n")
    if head[:1] in (b"{", b"["):
        running = gc.isenabled()
        gc.disable()  # millions of live events make each pass of the collector slow: four times as long in all
        try:
            return chrome.trace(chrome.document(pieces, source, chrome.thinned, limits.events), source)
        finally:
            if running:
                gc.enable()
    if nsys.looks_like(first):
        return nsys.read(whole(pieces, source), source, limits.events)
    if not head:
        raise bad(source, "empty, no byte 0")
    if csv_tables.looks_like(first):
        table = whole(pieces, source, min(MOST_TABLE_BYTES, ROW_BYTES * limits.events))
        return csv_tables.trace(table.decode("utf-8", "replace"), source)
    raise bad(source, f"byte 0 begins no profile: {KINDS}")


def cut(data: bytes, source: str, most_bytes: int) -> Iterator[bytes]:
    """Bytes in pieces. BadFile when they are too many."""
    if len(data) > most_bytes:
        raise bad(source, f"more than {most_bytes >> 20:,} MiB")
    return (data[start : start + CHUNK] for start in range(0, len(data), CHUNK))


def whole(pieces: Iterable[bytes], source: str, most_bytes: int = MOST_TABLE_BYTES) -> bytes:
    """All pieces together. BadFile when they are more than a table of counters is."""
    parts, size = [], 0
    for piece in pieces:
        parts.append(piece)
        size += len(piece)
        if size > most_bytes:
            raise bad(source, f"a table of more than {most_bytes >> 20:,} MiB, the limit here")
    return b"".join(parts)


def unzip(data: bytes, source: str, most_bytes: int) -> Iterator[bytes]:
    """Contents of a gzip file of one or more members, in pieces. BadFile when they are damaged or far too many."""
    packed, size = io.BytesIO(data), 0
    try:
        with gzip.GzipFile(fileobj=packed) as file:
            while piece := file.read(CHUNK):
                size += len(piece)
                if size > most_bytes:
                    raise bad(source, f"unpacks to more than {most_bytes >> 20:,} MiB, the limit here")
                if size > max(FREE_BYTES, MOST_GROWTH * len(data)):
                    raise bad(source, f"unpacks to more than {MOST_GROWTH} times its size: no profile does")
                yield piece
    except EOFError as problem:
        raise bad(source, f"truncated: the gzip stream ends early at byte {len(data)}") from problem
    except (OSError, zlib.error) as problem:
        raise bad(source, f"corrupted gzip near byte {packed.tell()} ({problem})") from problem
