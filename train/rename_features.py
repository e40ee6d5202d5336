"""Features under new names in weights and run logs: `python -m train.rename_features OLD=NEW … [FILE …]`.

A net's inputs are kept by place; names only say which feature stands there. So a feature can be renamed without
training anew: tensors stay as they are, byte for byte. FILE: cards or logs of runs; by default all cards that ship.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipewave.files import manifest
from pipewave.files.sealed import replace
from train.__main__ import WEIGHTS


def renamed(document: Any, names: Mapping[str, str]) -> Any:
    """The document with new names in every list of features."""
    if isinstance(document, dict):
        return {
            key: [names.get(name, name) for name in value] if key == "features" and isinstance(value, list)
            else renamed(value, names)
            for key, value in document.items()
        }  # fmt: skip
    return [renamed(value, names) for value in document] if isinstance(document, list) else document


def rename(path: Path, names: Mapping[str, str]) -> bool:
    """Rename the features of a file; whether there were any."""
    before = json.loads(path.read_text("utf-8"))
    after = renamed(before, names)
    if after != before:
        replace(path, (json.dumps(after, indent=1) + "\n").encode())
    return bool(after != before)


def main(words: Sequence[str]) -> None:
    """Rename, print which files changed, and bring the manifest up to date."""
    names = dict(word.split("=", 1) for word in words if "=" in word)
    paths = [Path(word) for word in words if "=" not in word] or sorted(WEIGHTS.glob("*.json"))
    for path in paths:
        if rename(path, names):
            print(path)
    manifest.write()


if __name__ == "__main__":
    main(sys.argv[1:])
