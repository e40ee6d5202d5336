"""Arrays and a JSON description in one safetensors file, with a checksum over both: whole, or refused.

The checksum covers the description and every array's name, type, shape and bytes, so no edit of the header passes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.errors import BadFile
from pipewave.files import packaged, whole

Arrays = Mapping[str, NDArray[Any]]
CARD, SEAL = "card", "sha256"
MOST_BYTES = 512 << 20


def write(path: Path, card: Mapping[str, Any], arrays: Arrays) -> None:
    """Write beside `path` and move it there: readers see the old file or the new one. BadFile if it cannot be done."""
    from safetensors.numpy import save

    text = json.dumps(card)
    plain = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    whole.write(path, save(plain, metadata={CARD: text, SEAL: seal(text, plain)}))


def read(path: Path, what: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The description and the arrays of a file. BadFile, calling it `what`, where it is not what was written."""
    from safetensors import SafetensorError, safe_open

    packaged.check(path)
    try:
        if path.stat().st_size > MOST_BYTES:
            raise BadFile(f"{path}: larger than any {what}", field="path")
        with safe_open(path, framework="numpy") as file:
            meta = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        text, said = meta[CARD], meta[SEAL]
        card = json.loads(text)
    # TypeError and AttributeError: tensors of a type that numpy lacks (bfloat16, float8).
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadFile(f"{path}: not a {what} ({error})", field="path") from error
    if said != seal(text, arrays) or not isinstance(card, dict):
        raise BadFile(f"{path}: this {what} is corrupted: its checksum does not match", field="path")
    return card, arrays


def seal(text: str, arrays: Arrays) -> str:
    """SHA-256 of a description and of all arrays by name, type, shape and bytes."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"\n{name}|{array.dtype.str}|{array.shape}|".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
