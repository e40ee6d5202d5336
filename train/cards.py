"""Cards of weights that ship, plans and tables beside the code: where they are, how they are read and written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from pipewave.files import manifest
from pipewave.nets.weights_metadata import Interval

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / ".cache" / "runs"
WEIGHTS = ROOT / "src" / "pipewave" / "data" / "weights"
TABLES, PLANS = (Path(__file__).with_name(name) for name in ("tables", "plans"))
Plan = TypeVar("Plan")


def read(path: Path) -> dict[str, Any]:
    """A JSON object."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def write(path: Path, content: Any, indent: int = 1) -> Path:
    """Write JSON as cards and tables have it; the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def ship(path: Path, content: Any, indent: int = 1) -> None:
    """Write JSON into the package, and the manifest with it."""
    write(path, content, indent)
    manifest.write()


@contextmanager
def altered(cards: Iterable[Path], change: Callable[[dict[str, Any]], dict[str, Any]]) -> Iterator[Path]:
    """A folder with these cards as `change` leaves each, and their weights beside them."""
    with TemporaryDirectory() as name:
        for path in cards:
            write(Path(name) / path.name, change(read(path)))
            weights = path.with_suffix(".safetensors")
            (Path(name) / weights.name).symlink_to(weights.resolve())
        yield Path(name)


def settings(*names: str) -> dict[str, Any]:
    """What these plans say, later ones over earlier ones."""
    found: dict[str, Any] = {}
    for file in (PLANS / f"{name}.json" for name in dict.fromkeys(names)):
        found |= read(file) if file.exists() else {}
    return found


def plan_of(kind: type[Plan], given: Mapping[str, Any]) -> Plan:
    """A plan of JSON. ValueError for an unknown field."""
    unknown = set(given) - set(signature(kind).parameters)
    if unknown:
        raise ValueError(f"plan: unknown fields {', '.join(sorted(unknown))}")
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


def put(path: Path, found: Mapping[str, Interval]) -> str:
    """Put intervals into a card beside its others; what they are."""
    card = read(path)
    card["intervals"] |= {name: one.given() for name, one in found.items()}
    write(path, card)
    return f"{path.stem}: " + ", ".join(f"{k} {v}" for k, v in found.items())
