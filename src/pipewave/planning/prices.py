"""What a GPU costs an hour: a dated table with its sources, and the user's own prices on top."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pipewave.errors import BadFile, BadInput, UnknownGPU
from pipewave.files import packaged
from pipewave.gpus import find

FILE = Path(__file__).parent.parent / "data" / "prices.json"


@dataclass(frozen=True, slots=True)
class Price:
    """USD per GPU and hour, whose price it is, of when, and whether it was read rather than recalled."""

    gpu: str
    usd_per_hour: float
    provider: str
    date: str
    verified: bool


@cache
def table() -> dict[str, Price]:
    """The shipped prices by GPU name."""
    rows = packaged.document(FILE)["rows"]
    return {row["gpu"]: Price(**row) for row in rows}


def prices(own: Mapping[str, float] | None = None) -> dict[str, Price]:
    """Shipped prices, overridden by the caller's (any name or alias of a GPU → USD an hour)."""
    mine = {}
    for name, usd in (own or {}).items():
        if not isinstance(usd, (int, float)) or not 0 < usd < 1e6:
            raise BadInput(f"price of {name} = {usd!r}: must be a positive number of USD per hour", field="price")
        gpu = _named(name)
        mine[gpu] = Price(gpu, float(usd), "yours", "", verified=True)
    return {**table(), **mine}


def read_prices(path: str) -> dict[str, float]:
    """A JSON object of USD per GPU and hour by GPU. Raises BadFile."""
    try:
        found = json.loads(Path(path).read_text("utf-8"))
    except OSError as problem:
        raise BadFile(f"{path}: cannot be read ({problem.strerror})", field="price_file") from problem
    except ValueError as problem:
        raise BadFile(f"{path}: not valid JSON ({problem})", field="price_file") from problem
    if not isinstance(found, dict):
        raise BadFile(f'{path}: must be an object such as {{"H100": 2.5}}', field="price_file")
    return found


def _named(name: str) -> str:
    try:
        return find(name).name
    except UnknownGPU as problem:
        raise UnknownGPU(problem.message, field="price") from problem
