"""GPU specifications: `find` a part by any of its names, or by a user's spec file."""

from __future__ import annotations

from pipewave.gpus.registry import all_gpus, find, names
from pipewave.gpus.spec import DTYPES, GPU, Source

__all__ = ["DTYPES", "GPU", "Source", "all_gpus", "find", "names"]
