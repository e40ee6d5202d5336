"""What studies of the tuner share: one recording a kernel in, one JSON file out, written after every kernel."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipewave.tune.evaluate import recorded
from pipewave.tune.recording import Recording

Study = Callable[[Recording, str], dict[str, Any]]


def each_kernel(said: str | None, out: Path, study: Study) -> None:
    """The command of a study: `study(recording, kernel)` of every recorded kernel, or of those named."""
    parser = argparse.ArgumentParser(description=said)
    parser.add_argument("--recordings", type=Path, default=Path("data/recordings/h200"))
    parser.add_argument("--kernels", default="")
    parser.add_argument("--out", type=Path, default=out)
    options = parser.parse_args()
    found = json.loads(options.out.read_text())["kernels"] if options.out.exists() else {}
    for kernel in options.kernels.split(",") if options.kernels else recorded(options.recordings):
        found[kernel] = study(Recording.load(options.recordings / f"{kernel}.npz"), kernel)
        options.out.write_text(json.dumps({"schema_version": 1, "kernels": found}, indent=1) + "\n")
