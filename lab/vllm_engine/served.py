"""What a vLLM server's engine does first, in its own process: a plugin that a folder on PYTHONPATH names.

`vllm serve` starts its engine in another process, so that nothing can be replaced from outside. vLLM runs every
function of the entry point `vllm.general_plugins` there before the engine starts.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from pathlib import Path

from lab.vllm_engine import gates, packed

ENGINE = "EngineCore"  # what vLLM calls the engine's process
RANDOM_GATES = "PIPEWAVE_RANDOM_GATES"  # set: experts are drawn (`gates`)
UNTIL = "PIPEWAVE_UNTIL"  # a file: the engine takes the GPU when it exists


def plugin_folder() -> Path:
    """A folder that makes `begin` a plugin of vLLM wherever it is on PYTHONPATH."""
    folder = Path(tempfile.mkdtemp(prefix="pipewave-plugin-"))
    named = folder / "pipewave_served-1.dist-info"
    named.mkdir()
    (named / "METADATA").write_text("Metadata-Version: 2.1\nName: pipewave-served\nVersion: 1\n")
    (named / "entry_points.txt").write_text(f"[vllm.general_plugins]\npipewave = {__name__}:begin\n")
    return folder


def begin() -> None:
    """In the engine's process alone: packed weights drawn, experts drawn where asked, then wait where asked."""
    if not multiprocessing.current_process().name.startswith(ENGINE):
        return
    packed.draw()
    if os.environ.get(RANDOM_GATES):
        gates.draw()
    until = os.environ.get(UNTIL)
    while until and not Path(until).exists():
        time.sleep(0.05)
