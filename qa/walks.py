"""Files of the package that a warm question executes: a GEMM, an estimate, a published serving case."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pipewave as pw
from pipewave.files.packaged import ROOT

CASE = {
    "id": 1, "model": "Llama-3.1-70B", "gpu": "H200", "engine": "vllm", "version": "0.22.1", "tp": 4, "mode": "serve",
    "isl": 1000, "osl": 100, "concurrency": 8, "requests": 80,
}  # fmt: skip


def executed(work: Callable[[], object]) -> list[str]:
    """Modules of which some function runs when the work is done a second time; what it imports is loaded by then."""
    work()
    seen: set[str] = set()

    def note(frame: FrameType, _event: str, _argument: object) -> None:
        seen.add(frame.f_code.co_filename)

    before = sys.gettrace()
    sys.settrace(note)
    try:
        work()
    finally:
        sys.settrace(before)
    root = str(ROOT)
    return sorted(path[len(root) + 1 :] for path in seen if path.startswith(root) and path.endswith(".py"))


def walks() -> dict[str, list[str]]:
    """Files by question."""
    from pipewave.published.answers import answer
    from pipewave.published.cases import from_dict

    return {
        "GEMM": executed(lambda: pw.predict(pw.gemm(4096, 4096, 4096), "H200")),
        "estimate": executed(lambda: pw.estimate("Llama-3.1-70B", "H200", tp=4, batch=8, input_len=512, output_len=64)),
        "serve case": executed(lambda: answer(from_dict(dict(CASE)))),
    }
