"""Decisions of shipped tables: in Python while the C function is compiled aside, then by it, and the same."""

from __future__ import annotations

import shutil
import time

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from lab.own_kernels.shapes import draw
from pipewave.tune import load_table

needs_compiler = pytest.mark.skipif(not (shutil.which("gcc") or shutil.which("clang")), reason="no C compiler")


@needs_compiler
def test_the_c_function_chooses_as_python_does_while_it_is_compiled() -> None:
    table, shapes = load_table("gemm", env={}), draw("gemm", 77, 60)
    first = [table.select(**shape) for shape in shapes]
    chooser, _ = table.key(shapes[0])
    end = time.monotonic() + 60
    while chooser._compiled is None and time.monotonic() < end:
        time.sleep(0.05)
    assert chooser._compiled is not None
    table._memo.clear()
    chooser.memo.clear()
    assert [table.select(**shape) for shape in shapes] == first
