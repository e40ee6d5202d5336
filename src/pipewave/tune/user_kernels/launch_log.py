"""Launches seen in a real run, as lines of JSON: set PIPEWAVE_TUNE_LOG to a file, and every new launch is noted there.

`pipewave tune profile FILE.py:kernel --from-log FILE` then measures these launches.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.errors import BadFile
from pipewave.tune.law.anchors import Floats
from pipewave.tune.source.launch import tensor_of
from pipewave.tune.user_kernels.kernel import KernelDescription

VARIABLE = "PIPEWAVE_TUNE_LOG"


def path() -> Path | None:
    """The file named by the environment."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else None


def write(target: Path, of: KernelDescription, named: Mapping[str, Any], grid: Any, numbers: Mapping[str, Any],
          counts: Floats) -> None:  # fmt: skip
    """Append a launch as one line, in one write, so that processes do not mix theirs."""
    given = [{**named, **config} for config in of.configs]
    grids = [_extents(grid(each) if callable(grid) else grid) for each in given]
    record = {"kernel": of.name, "source_sha256": of.source_sha256, "args": {n: _plain(v) for n, v in named.items()},
              "grids": grids, "numbers": dict(numbers), "counts": np.round(counts, 6).tolist()}  # fmt: skip
    line = json.dumps(record, separators=(",", ":"), default=str).encode() + b"\n"
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def _extents(size: Any) -> list[int]:
    return [int(extent) for extent in (size if isinstance(size, tuple | list) else (size,))]


def _plain(value: Any) -> Any:
    """An argument as text that makes another like it: a tensor by type and extents."""
    tensor = tensor_of(value)
    if tensor is None:
        return value if isinstance(value, int | float | str | bool) or value is None else str(value)
    of = getattr(value, "base", value) if hasattr(value, "block_shape") else value
    extents = list(getattr(of, "shape", [tensor.elements]))
    return {"tensor": str(getattr(of, "dtype", tensor.element_bytes)), "shape": [int(extent) for extent in extents],
            "strides": [int(step) for step in of.stride()] if hasattr(of, "stride") else None}  # fmt: skip


def read(source: Path, kernel: str) -> list[dict[str, Any]]:
    """Launches of a kernel, each once. BadFile where there is no such file or a line is no record."""
    try:
        lines = source.read_text().splitlines()
    except OSError as problem:
        raise BadFile(f"{source}: cannot be read ({problem.strerror})", field="from_log") from problem
    found = {line: record for line, record in _records(source, lines) if record.get("kernel") == kernel}
    if not found:
        raise BadFile(
            f"{source} has no launch of {kernel}; run your program with {VARIABLE}={source}", field="from_log"
        )
    return list(found.values())


def _records(source: Path, lines: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as problem:
            raise BadFile(f"{source}:{number}: no launch ({problem})", field="from_log") from problem
        if isinstance(record, dict) and "args" in record:
            yield line, record
