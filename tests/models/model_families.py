"""Configs of families as test data: the class defaults of public implementations, lists written as runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FAMILIES: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "families.json").read_text("utf-8"))


def expand(value: Any) -> Any:
    """A config with its runs written out: 3*sliding_attention."""
    if isinstance(value, dict) and "@" in value:
        return [word for run in value["@"] for word in [run.split("*", 1)[1]] * int(run.split("*", 1)[0])]
    return {name: expand(each) for name, each in value.items()} if isinstance(value, dict) else value
