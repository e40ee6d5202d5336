"""Bytes of a file to a Trace: plain or gzip, Chrome trace (torch.profiler) or `ncu --csv`; BadFile for all else."""

from __future__ import annotations

import gc
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipewave.errors import BadFile
from pipewave.traces import chrome, ncu
from pipewave.traces.trace import Trace

GZIP = b"\x1f\x8b"
MOST_BYTES = 4 << 30
CHUNK = 1 << 22


def read(path: str | Path) -> Trace:
    """The trace in a file. Raises BadFile that says what is wrong and, where a file breaks off, at which byte."""
    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError) as problem:
        raise BadFile(f"{path}: cannot be read ({problem})", field="file") from problem
    return parse(data, str(path))


def parse(data: bytes, source: str) -> Trace:
    """The trace in these bytes; `source` is what messages call them."""
    if data.startswith(GZIP):
        data = unzip(data, source)
    head = data[:4096].lstrip(b"\xef\xbb\xbf \t\r\n")
    if head[:1] in (b"{", b"["):
        with collector_paused():
            return chrome.trace(decode(data, source), source)
    if not head:
        raise BadFile(f"{source}: empty, no byte 0", field="file")
    if ncu.looks_like(data):
        return ncu.trace(data.decode("utf-8", "replace"), source)
    raise BadFile(f"{source}: byte 0 begins neither a Chrome trace (JSON) nor `ncu --csv` output", field="file")


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection meanwhile: millions of live events make each pass slow (four times as long in all)."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def unzip(data: bytes, source: str) -> bytes:
    """Contents of a gzip file of one or more members."""
    out, rest, size = [], data, 0
    while rest.startswith(GZIP):
        stream = zlib.decompressobj(wbits=31)
        for start in range(0, len(rest), CHUNK):
            try:
                out.append(stream.decompress(rest[start : start + CHUNK], MOST_BYTES))
            except zlib.error as problem:
                at = len(data) - len(rest) + start
                raise BadFile(f"{source}: corrupted gzip near byte {at} ({problem})", field="file") from problem
            size += len(out[-1])
            if size >= MOST_BYTES:
                raise BadFile(f"{source}: unpacks to more than {MOST_BYTES >> 30} GiB", field="file")
        if not stream.eof:
            raise BadFile(f"{source}: truncated: the gzip stream ends early at byte {len(data)}", field="file")
        rest = stream.unused_data
    return b"".join(out)


def decode(data: bytes, source: str) -> Any:
    """The JSON document in these bytes."""
    text = data.decode("utf-8", "surrogateescape")
    try:
        return json.loads(text.removeprefix("\ufeff"))
    except json.JSONDecodeError as problem:
        at = len(text[: problem.pos].encode("utf-8", "surrogateescape"))
        what = "truncated" if at >= len(data.rstrip()) - 1 or "Unterminated" in problem.msg else "not valid JSON"
        raise BadFile(f"{source}: {what} at byte {at} of {len(data)} ({problem.msg})", field="file") from problem
    except (ValueError, RecursionError) as problem:
        raise BadFile(f"{source}: not valid JSON ({problem})", field="file") from problem
