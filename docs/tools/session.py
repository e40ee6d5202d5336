"""Run a page as its reader would: files written, commands typed, Python entered, in one folder from top to bottom."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from docs.tools.blocks import RUNNABLE, Block, blocks
from docs.tools.compare import ELISION, differences

ROOT = Path(__file__).parents[2]
SHARED = ("data", "examples", "bench", "studies", "qa", "notebooks")  # folders of the repository that pages refer to
_RAISED = re.compile(r"^\w+(\.\w+)+: ")  # the last line of a traceback
COLUMNS = "112"  # wide enough for every table shown, narrow enough for the site


@dataclass(frozen=True, slots=True)
class Entry:
    """Something typed and what came of it; lines `first` to `last` of the page (half open) show it."""

    block: Block
    typed: str
    shown: tuple[str, ...]
    printed: tuple[str, ...]
    failed: bool
    first: int
    last: int

    def problems(self) -> list[str]:
        """What is wrong with it, in words."""
        if self.failed:
            return [f"{self.typed} failed", *self.printed]
        return differences(self.shown, self.printed, any_numbers=self.block.any_numbers) if self.shown else []

    def refreshed(self) -> tuple[str, ...]:
        """The output to show now: as many lines around an elision as the page showed before."""
        if ELISION not in self.shown:
            return self.printed
        at = self.shown.index(ELISION)
        tail = len(self.shown) - at - 1
        return (*self.printed[:at], ELISION, *self.printed[len(self.printed) - tail :])


def run_page(page: Path, folder: Path) -> list[Entry]:
    """Run every block of a page in `folder`, which starts as a copy of docs/fixtures."""
    _furnish(folder)
    found, python = blocks(page), _Python(folder)
    entries: list[Entry] = []
    for block in found:
        if block.title and not (folder / block.title).exists():
            (folder / block.title).write_text(block.text + "\n", encoding="utf-8")
        if block.language in RUNNABLE and runs(block):
            entries += _console(block, folder) if block.language == "console" else python.run(block)
    python.close()
    return entries


def runs(block: Block) -> bool:
    """Whether a block is to be run here."""
    return not block.not_run and not block.includes and (not block.needs or find_spec(block.needs) is not None)


def _furnish(folder: Path) -> None:
    for name in SHARED:
        if (ROOT / name).exists():
            (folder / name).symlink_to(ROOT / name)
    for file in (ROOT / "docs" / "fixtures").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())


def _environment(folder: Path) -> dict[str, str]:
    """Of a fresh shell: the package of this checkout first, no terminal, no calibration of the user's own."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PIPEWAVE_CALIBRATION", "FORCE_COLOR", "PYTEST_ADDOPTS")}
    path = os.pathsep.join([str(folder / ".bin"), str(Path(sys.executable).parent), kept.get("PATH", "")])
    home = {"HOME": str(folder), "XDG_DATA_HOME": str(folder / ".local" / "share")}
    source = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return kept | home | {"PATH": path, "PYTHONPATH": source, "COLUMNS": COLUMNS, "NO_COLOR": "1"}


def _commands(block: Block) -> Iterator[tuple[str, int, int]]:
    """(command, first line of output, line after it) of a console block; a trailing backslash continues a command."""
    lines = [line.removeprefix(block.indent) for line in block.lines]
    at = 0
    while at < len(lines):
        if not lines[at].startswith("$ "):
            raise ValueError(f"line {block.first + at + 1}: output without a command (a command starts with '$ ')")
        typed = [lines[at][2:]]
        while typed[-1].endswith("\\"):
            at += 1
            typed.append(lines[at].removeprefix("> "))
        first = at = at + 1
        while at < len(lines) and not lines[at].startswith("$ "):
            at += 1
        yield "\n".join(typed), block.first + first, block.first + _without_blank_end(lines, first, at)


def _without_blank_end(lines: list[str], first: int, last: int) -> int:
    while last > first and not lines[last - 1].strip():
        last -= 1
    return last


def _trimmed(text: str) -> tuple[str, ...]:
    """Printed lines without blank ones around them."""
    lines = [line.rstrip() for line in text.splitlines()]
    filled = [i for i, line in enumerate(lines) if line]
    return tuple(lines[filled[0] : filled[-1] + 1]) if filled else ()


def _console(block: Block, folder: Path) -> Iterator[Entry]:
    for typed, first, last in _commands(block):
        shown = block.shown(first, last)
        done = subprocess.run(
            ["bash", "-c", typed], cwd=folder, env=_environment(folder), capture_output=True, text=True, timeout=300
        )
        printed = _trimmed((done.stdout + done.stderr).replace(str(folder), "~"))
        refused = any(line.startswith("error") for line in shown)  # the page shows an error, so an error is right
        yield Entry(block, typed, shown, printed, (done.returncode != 0) != refused, first, last)


class _Python:
    """One interpreter a page, so that later blocks see the names of earlier ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None

    def run(self, block: Block) -> Iterator[Entry]:
        for source, symbol, first, last in _sources(block):
            shown = block.shown(first, last)
            answer = self._ask(source, symbol)
            refused = any(_RAISED.match(line) for line in shown)
            yield Entry(
                block, source, shown, _trimmed(str(answer["printed"])), answer["failed"] != refused, first, last
            )

    def _ask(self, source: str, symbol: str) -> dict[str, object]:
        if self.process is None:
            command = [sys.executable, "-m", "docs.tools.interpreter"]
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=_environment(self.folder), stdin=pipe, stdout=pipe, text=True
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"source": source, "symbol": symbol}) + "\n")
        self.process.stdin.flush()
        answer: dict[str, object] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        if self.process is not None:
            self.process.communicate(timeout=60)


def _sources(block: Block) -> Iterator[tuple[str, str, int, int]]:
    """(source, how to compile it, first line of output, line after it)."""
    end = block.first + len(block.lines)
    if block.language == "python":
        yield block.text, "exec", end, end
        return
    lines = [line.removeprefix(block.indent) for line in block.lines]
    starts = [i for i, line in enumerate(lines) if line.startswith(">>> ")]
    for start, after in zip(starts, [*starts[1:], len(lines)], strict=True):
        stop = start + 1
        while stop < after and lines[stop].startswith("... "):
            stop += 1
        source = "\n".join(line[4:] for line in lines[start:stop])
        last = _without_blank_end(lines, stop, after)
        yield source + ("\n" if stop - start > 1 else ""), "single", block.first + stop, block.first + last
