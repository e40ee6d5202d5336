"""One GPU has many spellings: what drivers, frameworks, clusters and data sets call it, brought to one key."""

from __future__ import annotations

import re

_NOISE = frozenset({"nvidia", "tesla", "geforce", "generation", "gpu", "shared"})
_LISTED = re.compile(r"GPU \d+: (?P<name>.*?)(?: \(UUID: .*\))?$")
_IN_FILE_NAME = re.compile(r"device_name=(?P<name>[^,]+?)(?:,|\.json$|$)")


def key_of(name: str) -> str:
    """Return the key under which a spelling is looked up: lower case, no punctuation, no vendor words.

    Accepts a line of `nvidia-smi -L`, the names that NVML and torch give, vLLM's `device_name=NVIDIA_H200` and whole
    names of its tuned-configuration files, and Kubernetes product labels (a `-SHARED` suffix included). A MIG slice
    keeps its suffix and so never passes for the whole GPU.
    """
    for pattern in (_LISTED, _IN_FILE_NAME):
        if match := pattern.search(name):
            name = match["name"]
    words = re.split(r"[^a-z0-9.]+", name.lower())
    return "".join(word for word in words if word not in _NOISE)
