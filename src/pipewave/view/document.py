"""Blocks of an answer that a terminal, an HTML report or a Markdown file shows: facts, tables, charts, notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipewave.files import packaged

BLOCKS = " ▏▎▍▌▋▊▉█"
SECONDS_MS = 1e4  # from which on times are said in seconds
INTERVALS = "90 % intervals"  # begins the note that says what an answer's intervals hold
# Names of fields as people read them, by the part of an answer that has them.
LABELS: Mapping[str, Any] = packaged.document(Path(__file__).with_name("labels.json"))
BASIS: Mapping[str, str] = LABELS["basis"]  # words of `basis` in an answer


@dataclass(frozen=True, slots=True)
class Fact:
    """A number that matters, with what it is and how sure."""

    name: str
    value: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """The numbers first read."""

    facts: tuple[Fact, ...]
    detail: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under named columns; numbers are written by `number`, to the right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    note: str = ""
    droppable: tuple[str, ...] = ()  # columns that a narrow terminal goes without, in order
    detail: bool = False  # a terminal shows it on request only


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing as SVG. What it shows is also in a table or a fact, for those who cannot see it."""

    title: str
    svg: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Code:
    """Text to copy."""

    title: str
    text: str
    detail: bool = False


@dataclass(frozen=True, slots=True)
class Notes:
    """What a reader must know before relying on the numbers."""

    items: tuple[str, ...]
    detail: bool = True


Block = Facts | Table | Chart | Code | Notes


@dataclass(frozen=True, slots=True)
class Document:
    """A whole answer."""

    title: str
    subtitle: str
    blocks: tuple[Block, ...]
    confidence: str = ""  # what the answer rests on, in a sentence
    headline: tuple[str, ...] = ()  # sentences to read first, where the numbers need them

    @property
    def notes(self) -> tuple[str, ...]:
        """Every note that is a detail, each once."""
        kept = (item for block in self.blocks if isinstance(block, Notes) and block.detail for item in block.items)
        return tuple(dict.fromkeys(kept))


def number(value: Any) -> str:
    """A value as people read it: four significant digits, grouped thousands, nothing for what is absent."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def is_number(value: Any) -> bool:
    """Numbers, and texts that are numbers with a sign, a per cent or an interval."""
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return True
    parts = str(value).removesuffix(" %").split(" – ")
    return all(part.lstrip("+-").replace(".", "", 1).replace(",", "").isdigit() for part in parts)


def between(low: float, high: float, unit: str) -> str:
    """A 90 % interval in words."""
    return f"90 % between {number(low)} and {number(high)} {unit}"


def interval(answer: Mapping[str, Any], field: str, unit: str = "") -> str:
    """The 90 % interval of an answer's field in words, its ends alone without a unit; empty where it has none."""
    low, high = answer.get(f"{field}_low"), answer.get(f"{field}_high")
    if low is None or high is None:
        return ""
    if unit == "ms" and answer[field] >= SECONDS_MS:  # as the answer itself
        low, high, unit = low / 1e3, high / 1e3, "s"
    return between(low, high, unit) if unit else ends(low, high)


def ends(low: float, high: float) -> str:
    """The two ends of an interval in one cell."""
    return f"{number(float(low))} – {number(float(high))}"


def percent(share: float) -> str:
    """A share in per cent."""
    return f"{100 * share:.1f} %"


def bar(share: float, width: int = 12) -> str:
    """A bar that fills `share` of `width` characters, in eighths."""
    full, part = divmod(round(min(max(share, 0.0), 1.0) * width * 8), 8)
    return BLOCKS[8] * full + (BLOCKS[part] if part else "")


def ms(value: float) -> str:
    """Milliseconds, or seconds where they are many."""
    return f"{number(value / 1e3)} s" if value >= SECONDS_MS else f"{number(float(value))} ms"


def words(name: str) -> str:
    """A field name as words."""
    return name.replace("_", " ")


def table_of(
    title: str, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], note: str = "", **how: Any
) -> Table:
    """Chosen fields of rows under readable names; columns that no row fills are left out. `how`: as of `Table`."""
    kept = {field: name for field, name in columns.items() if any(row.get(field) not in (None, "") for row in rows)}
    body = tuple(tuple(row.get(field) for field in kept) for row in rows)
    return Table(title, tuple(kept.values()), body, note, **how)


def shares_of(first: str, names: Sequence[str], parts: Mapping[str, Mapping[str, float]], whole: str = "") -> Table:
    """Rows of ms and of their share of each column's sum, which is a row of its own under the name `whole`."""
    columns = (first, *(text for head in parts for text in (f"{head}, ms", "share")))
    sums = {head: sum(each.values()) for head, each in parts.items()}
    cells = {name: [(float(each.get(name, 0.0)), sums[head]) for head, each in parts.items()] for name in names}
    cells |= {whole: [(total, total) for total in sums.values()]} if whole else {}
    rows = ((words(name), *(cell for value, total in row for cell in (value, percent(value / (total or 1.0)))))
            for name, row in cells.items())  # fmt: skip
    return Table("", columns, tuple(rows))


def evidence_of(basis: Mapping[str, float]) -> str:
    """What an answer rests on, in a sentence, from shares of time by basis; empty without any."""
    shares = sorted(((share, name) for name, share in basis.items() if share > 0), reverse=True)
    said = [(f"{100 * share:.0f} %", BASIS.get(name, words(name))) for share, name in shares]
    return ", ".join(f"{share}{'' if place else ' of the time is'} {what}" for place, (share, what) in enumerate(said))


def confidence_of(basis: Mapping[str, float], answer: Mapping[str, Any]) -> str:
    """What an answer rests on and what its intervals hold, in a sentence."""
    told = [str(note) for note in answer.get("notes", ()) if str(note).startswith(INTERVALS)]
    return "; ".join(part for part in (evidence_of(basis), *told[:1]) if part)


def costs_of(answer: Mapping[str, Any]) -> list[Fact]:
    """What its output tokens cost, where an answer says so."""
    found = answer.get("cost", {})
    texts = {name: number(float(value)) for name, value in found.items()}
    if found:
        texts["tokens_per_mwh"] = f"{number(1e-6 * found['tokens_per_mwh'])} million"
    return [Fact(said, texts[name]) for name, said in LABELS["costs"].items() if name in texts]


def notes_and_command(answer: Mapping[str, Any]) -> tuple[Block, ...]:
    """An answer's notes, first those that it is of something else than was asked, and the command that repeats it."""
    notes, command = [str(note) for note in answer.get("notes", ())], answer.get("command")
    first = tuple(note for note in notes if any(said in note for said in LABELS["read_first"]))
    blocks = (Notes(first, detail=False), Notes(tuple(note for note in notes if note not in first)))[not first :]
    return (*blocks, Code("The same numbers again", str(command), detail=True)) if command else blocks
