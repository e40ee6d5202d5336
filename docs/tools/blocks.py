"""Fenced blocks of a page: what they are, where they stand, and what the page says about running them.

A marker is an HTML comment on the line before the fence:

    <!-- not run: needs a GPU -->      listed and counted, never run
    <!-- numbers: any -->              run; numbers may differ freely (timings)
    <!-- needs: pandas -->             run where that module is installed
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

RUNNABLE = ("console", "python", "pycon")
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)(?P<rest>.*)$")
_MARKER = re.compile(r"^\s*<!-- (?P<name>not run|numbers|needs): (?P<value>.+?) -->$")
_TITLE = re.compile(r'title="([^"]+)"')


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block; `first` is the line number (from 0) of its first line of text."""

    language: str
    lines: tuple[str, ...]
    first: int
    indent: str = ""
    title: str = ""
    not_run: str = ""
    needs: str = ""
    any_numbers: bool = False

    @property
    def text(self) -> str:
        """The block's text, indentation of the fence removed."""
        return "\n".join(line.removeprefix(self.indent) for line in self.lines)

    def shown(self, first: int, last: int) -> tuple[str, ...]:
        """Lines `first` to `last` of the page (half open), which this block holds."""
        return tuple(line.removeprefix(self.indent) for line in self.lines[first - self.first : last - self.first])

    @property
    def includes(self) -> bool:
        """Whether the site fills the block from a file, which has tests of its own."""
        return "--8<--" in self.text


def blocks(page: Path) -> list[Block]:
    """Every fenced block of a page, in order.

    Raises:
        ValueError: a fence is never closed.
    """
    lines = page.read_text(encoding="utf-8").splitlines()
    found, at = [], 0
    while at < len(lines):
        opened = _FENCE.match(lines[at])
        if opened is None:
            at += 1
            continue
        end = _closing(lines, at, page)
        found.append(_block(lines, at, end, opened))
        at = end + 1
    return found


def _closing(lines: list[str], at: int, page: Path) -> int:
    for end in range(at + 1, len(lines)):
        if lines[end].strip() == "```":
            return end
    raise ValueError(f"{page}:{at + 1}: this fence is never closed")


def _block(lines: list[str], at: int, end: int, opened: re.Match[str]) -> Block:
    title = _TITLE.search(opened["rest"])
    block = Block(
        opened["language"], tuple(lines[at + 1 : end]), at + 1, opened["indent"], title=title[1] if title else ""
    )
    while at > 0 and (marker := _MARKER.match(lines[at - 1])):
        block, at = _marked(block, marker), at - 1
    return block


def _marked(block: Block, marker: re.Match[str]) -> Block:
    if marker["name"] == "not run":
        return replace(block, not_run=marker["value"])
    if marker["name"] == "needs":
        return replace(block, needs=marker["value"])
    return replace(block, any_numbers=True)
