"""The walk of docs/how-it-works.md: one call runs through every file and function that its table names."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import pipewave as pw
from docs.tools.session import ROOT
from pipewave.prediction import few_calls, resolve

PAGE = ROOT / "docs" / "how-it-works.md"
ROW = re.compile(r"^\| \d \| `([\w/]+\.py)` \| `(\w+)` \|", re.MULTILINE)
SOURCE = Path(pw.__file__).parent
MOST_FILES = 6


def walk() -> list[tuple[str, str]]:
    """File and function of each step."""
    return ROW.findall(PAGE.read_text(encoding="utf-8"))


@pytest.fixture
def executed() -> set[tuple[str, str]]:
    """Files of the package and functions that run while the call of the page is predicted, with nothing remembered."""
    few_calls._run.cache_clear()
    few_calls._context.cache_clear()
    few_calls._after.cache_clear()
    resolve.setting.cache_clear()
    resolve.resolve.cache_clear()
    seen: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(SOURCE):
            seen.add((file.relative_to(SOURCE).as_posix(), frame.f_code.co_name))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        pw.predict(pw.gemm(4096, 4096, 4096), "H200")
    finally:
        sys.setprofile(before)
    return seen


def test_the_walk_has_few_files() -> None:
    files = {file for file, _ in walk()}
    assert len(walk()) > len(files) > 1
    assert len(files) <= MOST_FILES


def test_every_step_of_the_walk_is_executed(executed: set[tuple[str, str]]) -> None:
    assert [step for step in walk() if step not in executed] == []
