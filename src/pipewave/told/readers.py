"""Reads result files of benchmarks as measured runs, by each tool's names of fields in `formats.yaml`."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

from pipewave.errors import BadFile, MissingField
from pipewave.files import packaged, whole
from pipewave.published.cases import MEAN, MEASURED

FORMATS = Path(__file__).with_name("formats.yaml")
LARGEST = 256 << 20  # bytes
WHOLE = ("requests", "concurrency", "tp", "pp", "ep", "max_num_seqs", "max_num_batched_tokens")
NEEDED = {"isl": "mean prompt tokens", "osl": "mean output tokens"}
METRIC = re.compile(r"([A-Za-z_:][\w:]*)(?:\{[^}]*\})?\s+(\S+)")
BUCKET = "_bucket"  # of a histogram, whose sum and count are enough
Run = dict[str, Any]  # a told run, as cases take it


@dataclass(frozen=True, slots=True)
class Results:
    """Runs of a file, and the tool that wrote it."""

    path: str
    tool: str
    runs: tuple[Run, ...]


def read(path: str | Path, also: Mapping[str, Any] | None = None) -> Results:
    """The runs that a result file holds; `also`: fields that it leaves out, or that are otherwise than it says.

    Raises BadFile where it cannot be read or no known tool wrote it, MissingField where a run lacks its lengths, its
    load or every mean, BadInput where one of these cannot be.
    """
    known: list[tuple[dict[str, Any], Mapping[str, Any]]] = []
    for held in _objects(whole.read(Path(path), "file", LARGEST)):
        forms = (form for form in _formats() if all(name in held for name in form["has"]))
        known += [(form, held) for form in islice(forms, 1)]
    if not known:
        tools = ", ".join(one["tool"] for one in _formats())
        raise BadFile(f"{path}: no result of a known tool ({tools}) and no list of told runs", field="file")
    runs = tuple(_run(f"{path}, result {i + 1}", form, held, also or {}) for i, (form, held) in enumerate(known))
    return Results(str(path), str(known[0][0]["tool"]), runs)


@cache
def _formats() -> list[dict[str, Any]]:
    own = {name: [name] for name in (*MEASURED, "isl", "osl", "concurrency", "requests", "rate")}
    return [*packaged.yaml(FORMATS), {"tool": "told runs", "has": ["isl", "osl"], "fields": own, "whole": True}]


def _objects(text: str) -> Iterator[Mapping[str, Any]]:
    """Every object that may be a result: of JSON, of JSON lines, of a CSV of metrics, of Prometheus text."""
    try:
        documents = [json.loads(text)]
    except (ValueError, RecursionError):
        documents = _lines(text) if text.startswith("{") else [(_csv if text.startswith("Metric,") else _metrics)(text)]
    for document in documents:
        inner = document.get("benchmarks") if isinstance(document, Mapping) else document
        yield from (one for one in (inner if isinstance(inner, list) else [document]) if isinstance(one, Mapping))


def _lines(text: str) -> list[Any]:
    try:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError):
        return []


def _csv(text: str) -> Run:
    """`Time to First Token (ms)` in a row is `time_to_first_token` with the columns of its header."""
    found: Run = {}
    header: list[str] = []
    with suppress(csv.Error):  # no table from there on
        for row in csv.reader(StringIO(text)):
            if row[:1] == ["Metric"]:
                header = ["avg" if name == "Value" else name for name in row[1:]]
            elif len(row) > 1:
                name = re.sub(r"\W+", "_", row[0].partition("(")[0].strip().lower())
                given = zip(header, row[1:], strict=False)
                found[name] = {key: _number(value.replace(",", "")) for key, value in given}
    return found


def _metrics(text: str) -> Run:
    """Prometheus text: each metric summed over its labels."""
    found: Run = {}
    for line in text.splitlines():
        if match := METRIC.match(line):
            name, value = match.group(1), _number(match.group(2))
            if value is not None and not name.endswith(BUCKET):
                found[name] = found.get(name, 0.0) + value
    return found


def _number(text: str) -> float | None:
    try:
        return float(text) if math.isfinite(float(text)) else None
    except ValueError:
        return None


def _run(where: str, form: Mapping[str, Any], held: Mapping[str, Any], also: Mapping[str, Any]) -> Run:
    """A told run of what a result holds."""
    said = dict(held) if form.get("whole") else dict(form.get("says", {}))
    for name, places in form["fields"].items():
        value = next((found for place in places if (found := _at(held, str(place))) not in (None, 0)), None)
        if value is not None:
            whole_number = name in WHOLE and isinstance(value, float) and math.isfinite(value)
            said[name] = max(round(value), 1) if whole_number else value
    said |= also
    if said.get("rate") in ("inf", math.inf):  # sent as fast as a cap lets them; without one, queued at once
        del said["rate"]
        if not said.get("concurrency"):
            said["mode"] = "offline"
    flight, seats = (said.get(name) for name in ("concurrency", "max_num_seqs"))
    if isinstance(flight, (int, float)) and isinstance(seats, (int, float)) and flight > seats:  # all were queued
        said |= {"mode": "offline", "concurrency": None}
    missing = [f"{name} ({what})" for name, what in NEEDED.items() if said.get(name) is None]
    if not any(said.get(name) for name in ("concurrency", "rate", "arrivals")) and said.get("mode") != "offline":
        missing.append("concurrency or rate")
    if missing:
        raise MissingField(
            f"{where} of {form['tool']} lacks {', '.join(missing)}: give --also NAME=VALUE", field="file"
        )
    if not any(said.get(name) for name in MEASURED):
        raise MissingField(f"{where} of {form['tool']} holds no measured mean", field="file")
    for name in (*NEEDED, *filter(said.get, MEASURED)):
        MEAN.check(name, said[name])
    return said


def _at(held: Any, place: str) -> Any:
    """What stands at a place: a path, a product or a quotient; None where a part is missing or no number."""
    for sign in (" / ", " * "):
        if sign in place:
            parts = [_at(held, part) for part in place.split(sign)]
            if not all(isinstance(part, (int, float)) for part in parts):
                return None
            return math.prod(parts) if sign == " * " else parts[0] / parts[1] if parts[1] else None
    if place.isdigit():
        return float(place)
    for key in place.split("."):
        if isinstance(held, list) and key.lstrip("-").isdigit() and held:
            held = held[int(key)]
        elif isinstance(held, Mapping):
            held = held.get(key)
        else:
            return None
    return held if isinstance(held, (int, float, str)) and not isinstance(held, bool) else None
