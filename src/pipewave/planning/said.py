"""Notes of a plan over many GPUs: what is said alike of several is said once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def by_gpu(notes: Iterable[str], gpus: Sequence[str]) -> list[str]:
    """Notes that differ in the GPU alone as one that lists the GPUs, in the order in which they were first said."""
    longest_first = sorted(gpus, key=len, reverse=True)
    named = re.compile(rf"(?<=\bon )(?:{'|'.join(map(re.escape, longest_first))})(?= were)")
    said: dict[tuple[str, str], dict[str, None]] = {}
    for note in notes:
        found = named.search(note) if gpus else None
        start, end = found.span() if found else (len(note), len(note))
        said.setdefault((note[:start], note[end:]), {})[note[start:end]] = None
    return [before + ", ".join(names) + after for (before, after), names in said.items()]
