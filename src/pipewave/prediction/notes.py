"""What answers say beside their numbers: each thing once, with all that it is said of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

Note = tuple[str, str]  # the kernel that it concerns (empty: none in particular), and what is said
SAID = re.compile(r"([a-z0-9_]+(?:, [a-z0-9_]+)*): ")  # the kernels that a note begins with


def said_of(notes: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Notes, each once, behind the names it concerns: of pairs of a name and a note."""
    names: dict[str, dict[str, None]] = {}
    for name, note in notes:
        names.setdefault(note, {})[name] = None
    return tuple(f"{', '.join(those)}: {note}" for note, those in names.items())


def merged(notes: Iterable[str]) -> tuple[str, ...]:
    """Notes of several lists, each once: of what the same is said of several kernels, one note with all their names."""
    parts = [(SAID.match(note), note) for note in notes]
    names = said_of((name, note[found.end() :]) for found, note in parts if found for name in found[1].split(", "))
    plain = [note for found, note in parts if not found]
    return (*dict.fromkeys(plain), *names)


def by_gpu(notes: Iterable[str], gpus: Sequence[str]) -> list[str]:
    """Notes that differ in the GPU alone as one that lists the GPUs, in the order in which they were first said."""
    named = _named(gpus)
    said: dict[tuple[str, str], dict[str, None]] = {}
    for note in notes:
        found = named.search(note) if gpus else None
        start, end = found.span() if found else (len(note), len(note))
        said.setdefault((note[:start], note[end:]), {})[note[start:end]] = None
    return [before + ", ".join(names) + after for (before, after), names in said.items()]


def _named(gpus: Sequence[str]) -> re.Pattern[str]:
    """Where a note names its GPU: `on H200 were`, `of H200 bf16 are`, `of H200:`."""
    longest_first = "|".join(map(re.escape, sorted(gpus, key=len, reverse=True)))
    return re.compile(rf"(?<=\b(?:on|of) )(?:{longest_first})(?= were| are|:| \w+ are\b)")


def compared(notes: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Notes of answers for several GPUs, (GPU, its notes), each once, with the GPUs that it is said of if not all."""
    gpus = [gpu for gpu, _ in notes]
    pairs = [(gpu, note) for gpu, those in notes for note in those]
    general = {note for _, note in pairs if all(note in those for _, those in notes)}
    silent = {note for _, note in pairs if note not in general and not _named(gpus).search(note)}
    shared = dict.fromkeys(note for _, note in pairs if note in general)
    return [
        *shared,
        *by_gpu((n for _, n in pairs if n not in general | silent), gpus),
        *said_of(p for p in pairs if p[1] in silent),
    ]
