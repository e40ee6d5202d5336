"""What the pages show is what the commands print; `make docs-update` refreshes the pages.

Words are compared exactly, numbers loosely (docs/tools/compare.py says how).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.tools.__main__ import PAGES, write
from docs.tools.blocks import RUNNABLE, Block, blocks
from docs.tools.compare import differences, near
from docs.tools.session import ROOT, run_page

SHELL = ("sh", "bash", "shell")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    wrong = {entry.typed: problems for entry in run_page(page, tmp_path) if (problems := entry.problems())}
    assert not wrong, "\n".join([f"{page.name}: run make docs-update, then read the change", *_told(wrong)])


def _told(wrong: dict[str, list[str]]) -> list[str]:
    return [line for typed, problems in wrong.items() for line in (f"$ {typed}", *problems)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_not_run_says_why(page: Path) -> None:
    silent = [block.text for block in blocks(page) if block.language in SHELL and not block.not_run]
    lines = [line for text in silent for line in text.splitlines() if line.strip()]
    assert [line for line in lines if not _is_make(line)] == [], "mark with <!-- not run: reason -->, or use console"


def _is_make(line: str) -> bool:
    """Whether a line is a target of the Makefile, which the pipeline runs."""
    named = re.match(r"make ([\w-]+)\s*(#.*)?$", line.strip())
    return named is not None and re.search(rf"^{named[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE) is not None


def test_few_blocks_are_left_unrun() -> None:
    runnable = [block for page in PAGES for block in blocks(page) if block.language in (*RUNNABLE, *SHELL)]
    reasons = [block.not_run for block in runnable if block.not_run]
    assert len(reasons) <= len(runnable) // 4, reasons


@pytest.mark.parametrize(
    ("shown", "printed", "agrees"),
    [
        ("latency 187.4 µs", "latency 190 µs", True),
        ("latency 187.4 µs", "latency 287.4 µs", False),
        ("latency 187.4 µs", "duration 187.4 µs", False),
        ("█████▌ 69%", "████  51%", False),
        ("█████▌ 69%", "████▏ 58%", True),
        ("a\n...\nz", "a\nb\nc\nz", True),
        ("a\n...\nz", "a\nb\nc", False),
        ("a\nb", "a", False),
        ("a\n...\na", "a", False),
    ],
)
def test_words_are_compared_exactly_and_numbers_loosely(shown: str, printed: str, agrees: bool) -> None:
    assert (not differences(shown.splitlines(), printed.splitlines())) is agrees


def test_numbers_agree_within_the_tolerance_or_their_last_digits() -> None:
    assert near("1,000", "1,190")
    assert not near("1,000", "1,300")
    assert near("0.1", "0.3")
    assert near("−2.0", "-2.1")
    assert not near("-2.0", "2.0")
    assert near("1e-3", "1.1e-3")


def test_a_wrong_page_is_found_and_refreshed(tmp_path: Path) -> None:
    page, folder = tmp_path / "page.md", tmp_path / "run"
    folder.mkdir()
    page.write_text(
        'Text.\n\n```text title="words"\none\ntwo\nthree\nfour\n```\n\n'
        "```console\n$ cat words\none\nfive\n...\nfour\n$ echo done\n```\n\n```pycon\n>>> 6 * 7\n40000\n```\n"
    )
    entries = run_page(page, folder)
    assert [bool(entry.problems()) for entry in entries] == [True, False, True]
    assert write(page, entries)
    text = page.read_text()
    assert "$ cat words\none\ntwo\n...\nfour\n$ echo done\n```" in text
    assert ">>> 6 * 7\n42\n" in text


def test_a_failing_command_is_a_problem_unless_the_page_shows_the_error(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ false\n$ echo 'error: no' && false\nerror: no\n```\n\n```python\n1 / 0\n```\n")
    (folder := tmp_path / "run").mkdir()
    assert [bool(entry.problems()) for entry in run_page(page, folder)] == [True, False, True]


def test_an_open_fence_is_an_error(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ true\n")
    with pytest.raises(ValueError, match="never closed"):
        blocks(page)


def test_markers_are_read(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- not run: needs a GPU -->\n```console\n$ x\n```\n\n<!-- numbers: any -->\n```pycon\n>>> 1\n```\n"
    )
    found: list[Block] = blocks(page)
    assert [(block.not_run, block.any_numbers) for block in found] == [("needs a GPU", False), ("", True)]
