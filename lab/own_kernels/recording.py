"""Measured configuration spaces in one compact file each (npz, numpy only), to be replayed without a GPU.

A row is one timed launch: which shape, which configuration, which half of the repeats, µs. Halves keep choosing the
optimum apart from scoring it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from pipewave.errors import BadFile, cause
from pipewave.files.whole import write as replace

SAID = {"driver": "driver_version", "sm_clock": "clocks.max.sm", "power_limit": "power.limit",
        "mig": "mig.mode.current"}  # fmt: skip
TEST, ANCHOR = 0, 1  # roles of a shape: scored only, fitted; 2 of older recordings: placed on waves, not used


@dataclass(frozen=True, slots=True)
class Recording:
    """`configs` [c, names], `shapes` [s, fields], `role` [s], rows as parallel arrays, `meta` as plain JSON.

    `built` [c, 3]: shared memory bytes, registers and stack bytes a thread, of each configuration's binary.
    `counts` [s, experts]: tokens each expert got (MoE only, else empty).
    """

    meta: dict[str, Any]
    configs: NDArray[np.int32]
    shapes: NDArray[np.int64]
    role: NDArray[np.uint8]
    built: NDArray[np.int32]
    counts: NDArray[np.int32]
    row_shape: NDArray[np.int32]
    row_config: NDArray[np.int16]
    row_half: NDArray[np.uint8]
    row_us: NDArray[np.float32]

    def save(self, path: Path) -> None:
        """Write the file whole: to a neighbour first, then renamed over the target. BadFile if it cannot."""
        arrays = {name: getattr(self, name) for name in self.__slots__ if name != "meta"}
        packed = io.BytesIO()
        np.savez_compressed(packed, meta=np.frombuffer(json.dumps(self.meta).encode(), np.uint8), **arrays)
        replace(path, packed.getvalue())

    @staticmethod
    def load(path: Path) -> Recording:
        """Read a file.

        Raises:
            BadFile: missing, truncated, or not a recording.
        """
        try:
            with np.load(path, allow_pickle=False) as data:
                meta = json.loads(data["meta"].tobytes())
                return Recording(meta, *(data[name] for name in Recording.__slots__ if name != "meta"))
        except (OSError, ValueError, KeyError, BadZipFile) as error:
            raise BadFile(f"{path} is not a readable recording: {cause(error)}", field="path") from error


@dataclass(slots=True)
class Rows:
    """Grows while recording."""

    shapes: list[list[int]] = field(default_factory=list)
    roles: list[int] = field(default_factory=list)
    counts: list[list[int]] = field(default_factory=list)
    parts: list[tuple[int, list[int], list[int], list[float]]] = field(default_factory=list)

    def add_shape(self, values: list[int], role: int, counts: list[int]) -> int:
        """Append a shape; returns its index."""
        self.shapes.append(values)
        self.roles.append(role)
        self.counts.append(counts)
        return len(self.shapes) - 1

    def add(self, shape: int, configs: list[int], half: list[int], us: list[float]) -> None:
        """Append timed launches of one shape."""
        self.parts.append((shape, configs, half, us))

    def freeze(self, meta: dict[str, Any], configs: list[tuple[int, ...]], built: list[tuple[int, ...]]) -> Recording:
        """Turn what was gathered into arrays."""
        width = max((len(counts) for counts in self.counts), default=0)
        padded = [counts + [0] * (width - len(counts)) for counts in self.counts]
        return Recording(
            meta, np.array(configs, np.int32), np.array(self.shapes, np.int64), np.array(self.roles, np.uint8),
            np.array(built, np.int32), np.array(padded, np.int32).reshape(len(padded), width),
            np.concatenate([np.full(len(p[1]), p[0], np.int32) for p in self.parts]),
            np.concatenate([np.array(p[1], np.int16) for p in self.parts]),
            np.concatenate([np.array(p[2], np.uint8) for p in self.parts]),
            np.concatenate([np.array(p[3], np.float32) for p in self.parts]),
        )  # fmt: skip


def flat(env: Mapping[str, Any]) -> dict[str, Any]:
    """The environment of a recording, with what `nvidia-smi` said of it beside the rest."""
    smi = env.get("nvidia_smi") or {}
    named = {name: smi[field] for name, field in SAID.items() if field in smi}
    return {name: value for name, value in env.items() if name != "nvidia_smi"} | named
