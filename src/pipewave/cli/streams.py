"""Files of cases and answers as streams; - is standard input or output. Notes below an answer."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import ExitStack
from io import TextIOWrapper
from pathlib import Path
from typing import Literal, TextIO

from pipewave.errors import BadFile

GZIP = b"\x1f\x8b"


def open_stream(stack: ExitStack, path: str, mode: Literal["r", "w"]) -> TextIO:
    """The stream of a path, closed with the stack; BadFile when it cannot be opened or is compressed."""
    encoding = "utf-8-sig" if mode == "r" else "utf-8"  # some editors begin a file with a mark of byte order
    if path == "-":
        return _standard(encoding) if mode == "r" else sys.stdout
    try:
        file = stack.enter_context(Path(path).open(mode, encoding=encoding, errors="replace"))  # noqa: SIM115
    except OSError as error:
        raise BadFile(f"{path}: {error.strerror}", field="cases" if mode == "r" else "out") from error
    if mode == "r" and file.buffer.peek(2).startswith(GZIP):  # type: ignore[attr-defined]
        raise BadFile(f"{path} is compressed: gunzip -c {path} | pipewave ... --cases -", field="cases")
    return file


def _standard(encoding: str) -> TextIO:
    """Standard input, read as files are."""
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(encoding=encoding, errors="replace")
    return sys.stdin


def ended(failed: int) -> int:
    """Exit status after a file of cases; refused ones are told on stderr, since their errors are among the answers."""
    if failed:
        sys.stderr.write(f"refused cases: {failed}; each says why in `error` of its answer\n")
    return 1 if failed else 0


def print_notes(notes: Iterable[str]) -> None:
    """What an answer rests on, each note once, below its tables."""
    for note in dict.fromkeys(notes):
        print(f"note: {note}")


def say(line: str) -> None:
    """A line for people, beside the answer."""
    sys.stderr.write(f"{line}\n")
