"""A call's numbers in one line, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

QUIET = ("dtype", "op", "impl", "causal", "stack")


def shape_text(call: Mapping[str, Any]) -> str:
    """`m=4096 n=4096 k=128`; long lists of lengths as `first*count`."""
    return " ".join(
        f"{name}={_brief(value)}" for name, value in call.items() if name not in QUIET and value is not False
    )


def _brief(value: Any) -> str:
    if not isinstance(value, (list, tuple)) or not value:
        return str(value)
    if len(set(value)) == 1:
        return f"{value[0]}*{len(value)}" if len(value) > 1 else str(value[0])
    return f"{min(value)}..{max(value)} ({len(value)})"
