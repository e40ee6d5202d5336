"""Configs of families as test data, lists written as runs.

`families.json`: class defaults of public implementations, with what their modules add up to when built without memory.
`published.json`: configs as vendors publish them, shortened, with the totals of their cards in billions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
FAMILIES: dict[str, Any] = json.loads((DATA / "families.json").read_text("utf-8"))
PUBLISHED: dict[str, Any] = json.loads((DATA / "published.json").read_text("utf-8"))


def expand(value: Any) -> Any:
    """A config with its runs written out: 3*sliding_attention."""
    if isinstance(value, dict) and "@" in value:
        return [word for run in value["@"] for word in [run.split("*", 1)[1]] * int(run.split("*", 1)[0])]
    return {name: expand(each) for name, each in value.items()} if isinstance(value, dict) else value


# A small dense model, for tests that change one field of it.
LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
}
