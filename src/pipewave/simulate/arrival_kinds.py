"""Kinds of arrival files: by which columns each is known, what they mean, and in which units (`arrival_kinds.yaml`).

A file is of a kind when it has all columns that the kind needs and no other than those listed. What fits no kind is
refused: a column that nobody knows may be the times under another name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from pipewave.errors import BadInput, MissingField, did_you_mean
from pipewave.files import packaged

SECONDS = {"seconds": 1.0, "milliseconds": 1e-3, "nanoseconds": 1e-9}  # of a unit
DATES, TELLS_ITSELF = "dates", "tells_itself"


@dataclass(frozen=True, slots=True)
class ArrivalKind:
    """Columns of a kind; of several names for one thing a file must have exactly one."""

    name: str
    times: Mapping[str, str]  # column of arrival times → its unit; empty: the kind has none
    prompt: tuple[str, ...]  # tokens
    answer: tuple[str, ...]
    unread: tuple[str, ...] = ()  # other columns that it may have, as patterns
    needs: tuple[str, ...] = ()  # other columns that it must have
    hashes: str = ""  # optional column: hashes of the prompt's blocks
    session: str = ""  # optional columns of turns
    turn: str = ""
    prefix: str = ""
    think: str = ""
    note: str = ""

    @property
    def told(self) -> tuple[str, ...]:
        """Columns that are read where they are there."""
        turns = (self.hashes, self.session, self.turn, self.prefix, self.think)
        return (*self.times, *self.prompt, *self.answer, *self.needs, *filter(None, turns))

    def fits(self, columns: Collection[str]) -> bool:
        """Whether a file with these columns is of this kind."""
        roles = ((self.prompt, 1), (self.answer, 1), (tuple(self.times), len(self.times) > 0))
        one_each = all(sum(name in columns for name in names) == wanted for names, wanted in roles)
        return one_each and not self.missing(columns) and not self.unknown(columns)

    def missing(self, columns: Collection[str]) -> list[str]:
        """Columns that it needs and a file lacks."""
        return [name for name in self.needs if name not in columns]

    def unknown(self, columns: Collection[str]) -> list[str]:
        """Columns of a file that it does not know."""
        known = self.told
        return [c for c in columns if c not in known and not any(fnmatchcase(c, pattern) for pattern in self.unread)]


@cache
def kinds() -> tuple[ArrivalKind, ...]:
    """All kinds; the first one that fits counts."""
    listed: list[dict[str, Any]] = packaged.yaml(Path(__file__).with_suffix(".yaml"))
    for one in listed:
        one |= {name: tuple(value) for name, value in one.items() if isinstance(value, list)}
    return tuple(ArrivalKind(**one) for one in listed)


def kind_of(columns: Collection[str]) -> ArrivalKind:
    """The kind of a file with these columns. Raises MissingField or BadInput, which say what is nearest."""
    for kind in kinds():
        if kind.fits(columns):
            return kind

    def lacks(kind: ArrivalKind) -> int:
        strange = len(kind.unknown(columns)) + len(kind.missing(columns))
        return strange - sum(name in columns for name in kind.told)

    nearest = min(kinds()[::-1], key=lacks)
    for what, names in (("prompt", nearest.prompt), ("output", nearest.answer), ("time", tuple(nearest.times))):
        said = [name for name in names if name in columns]
        if len(said) > 1:
            raise BadInput(f"trace has two columns of one meaning: {' and '.join(said)}; drop one", field=said[1])
        if not said and names and what != "time":
            stranger = next(iter(nearest.unknown(columns)), "")
            meant = did_you_mean(stranger, names) if stranger else ""
            has = ", ".join(sorted(columns)[:9])
            wanted = f"name a column {', '.join(names)}{meant}"
            raise MissingField(f"trace has no {what} length, only columns {has}: {wanted}", field="trace")
    if missing := nearest.missing(columns):
        raise MissingField(f"trace looks like {nearest.name}, but has no column {missing[0]}", field="trace")
    stranger = next(iter(nearest.unknown(columns)), "")
    raise BadInput(
        f"trace column {stranger!r} is not known, and might be a time; drop it, or name it as one of "
        f"{', '.join(nearest.told)}{did_you_mean(stranger, nearest.told)}",
        field=stranger or "trace",
    )
