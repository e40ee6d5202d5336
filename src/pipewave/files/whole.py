"""Atomic writes (to a temporary file, then renamed), resumable output of lines, and reads of whole files.

A kill leaves the file that was there before, and beside it the unfinished one, which a resumed run continues.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TextIO

from pipewave.errors import BadFile, BadInput, cause

STANDARD = "-"  # standard input or output in place of a path
READING = 1 << 20  # bytes at a time


def read(path: Path, field: str, most_bytes: int = 1 << 40) -> str:
    """The text of a file. Raises BadFile, naming `field`, where it cannot be read, is no text, or holds more bytes."""
    try:
        if path.stat().st_size > most_bytes:
            raise BadFile(f"{path}: larger than {most_bytes >> 20} MiB", field=field)
        return path.read_text("utf-8-sig")
    except (OSError, ValueError) as error:
        raise BadFile(f"{path}: cannot be read ({cause(error)})", field=field) from error


def write(path: Path, content: bytes) -> None:
    """Put `content` at `path` in one step; no half of it is ever seen. BadFile if that fails."""
    part = ""
    try:
        target = _target(path)
        if _special(target):
            target.write_bytes(content)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
            part = file.name
            os.chmod(part, _mode(target))
            file.write(content)
        os.replace(part, target)
    except (OSError, ValueError) as error:
        if part:
            Path(part).unlink(missing_ok=True)
        raise BadFile(f"{path}: cannot be written ({cause(error)})", field="out") from error


def distinct(out: str | Path, *inputs: str | Path | None, field: str = "out") -> None:
    """Refuse an output that is one of the inputs, through whatever link or spelling. Raises BadInput."""
    for one in inputs:
        try:
            same = one is not None and os.path.samestat(os.stat(_standard(out, 1)), os.stat(_standard(one, 0)))
            regular = same and os.path.isfile(_standard(out, 1))
        except (OSError, ValueError):
            continue
        if same and regular:
            raise BadInput(f"{out} is the input {one} itself: name another file", field=field)


def _standard(path: str | Path, descriptor: int) -> str | Path:
    return f"/dev/fd/{descriptor}" if path == STANDARD else path


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A file being written: where, and how many whole lines an interrupted run left in it."""

    file: TextIO
    count: int = 0

    def kept(self) -> Iterator[str]:
        """The lines of the interrupted run."""
        if self.count:
            self.file.seek(0)
            yield from self.file


@contextmanager
def lines(path: str | Path, *, of: str = "", resume: bool = False, field: str = "out") -> Iterator[Unfinished]:
    """Write lines of text to `path`, which becomes whole when the block ends without an error.

    Args:
        path: where the file will be, a device or a pipe; BadFile where it cannot be, or another run is writing it.
        of: a fingerprint of what is asked for; only an unfinished file of the same one is continued.
        resume: continue the unfinished file of an interrupted run after its last whole line.
        field: the option that an error names.
    """
    target = _target(Path(path))
    part = target.with_name(f".{target.name}.{of}.partial" if of else f".{target.name}.partial")
    special = _special(target)
    with _named(path, field):
        found = _whole_lines(part) if resume and not special else 0
        file = (target if special else part).open("w" if special else "a+", encoding="utf-8", errors="replace")
    with file:
        if special:
            yield Unfinished(file)
            return
        _lock(file, path, field)
        if not resume:
            file.truncate(0)
        yield Unfinished(file, found)
        with _named(path, field):
            file.flush()
            os.chmod(part, _mode(target))
            os.replace(part, target)


@contextmanager
def _named(path: str | Path, field: str) -> Iterator[None]:
    """Errors of the system as BadFile, with the path that the user gave."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise BadFile(f"{path}: cannot be written ({cause(error)})", field=field) from error


def fingerprint(path: str | Path, *words: str) -> str:
    """Sixteen hexadecimal digits of a file's content and of some words. BadFile if it cannot be read."""
    digest = hashlib.sha256("\0".join(words).encode())
    try:
        with Path(path).open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    except OSError as error:
        raise BadFile(f"{path}: {cause(error)}", field="cases") from error
    return digest.hexdigest()[:16]


def _target(path: Path) -> Path:
    """The file itself where the path is a link to it, so that the link stays."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _special(path: Path) -> bool:
    """Whether something lies there that is no plain file: a device, a pipe."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _mode(path: Path) -> int:
    """Permissions of the file that is replaced, or of a new one."""
    if path.exists():
        return path.stat().st_mode & 0o7777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _whole_lines(part: Path) -> int:
    """Lines of an unfinished file that are whole; what was torn behind them is cut off."""
    if not part.exists():
        return 0
    count, end, at = 0, 0, 0
    with part.open("rb+") as file:
        while piece := file.read(READING):
            count += piece.count(b"\n")
            last = piece.rfind(b"\n")
            end = at + last + 1 if last >= 0 else end
            at += len(piece)
        file.truncate(end)
    return count


def _lock(file: IO[str], path: str | Path, field: str) -> None:
    """Refuse a second writer of one file, where the system has locks."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # of this process alone: what it forks may outlive it
    except OSError as error:
        raise BadFile(f"{path}: another run is writing it", field=field) from error
