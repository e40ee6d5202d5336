"""Typed access to the fields of a config.json, which remembers what was read so that nothing is dropped unseen."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pipewave.calls.fields import LARGEST_SIZE, is_number, short
from pipewave.errors import BadInput, MissingField, UnsupportedModel
from pipewave.files import packaged

# Names that configs and checkpoints use. `synonyms`: a field as readers ask for it, and the names that configs use for
# it, of which the first present decides. `harmless` and its patterns: fields that change no shape and launch no kernel:
# identity, training, generation, numerics of kernels. `shapely_patterns`: names that speak of a shape: where such a
# field is set and no part explains it, the model is not known well enough. `unit_patterns`: counts whose value 1 says
# that nothing is repeated, skipped or grouped. `modules`: of one matrix, or of the fused map that holds it.
# `uncounted`: what a config names and engines leave out, or does not say how large it is.
FILE = packaged.ROOT / "data" / "config_fields.json"
_MISSING: Any = object()


def words(section: str) -> Any:
    """A section of the file of names."""
    return packaged.shared(FILE)[section]


@cache
def _pattern(section: str) -> re.Pattern[str]:
    return re.compile("|".join(words(section)))


@cache
def synonyms_of(name: str) -> frozenset[str]:
    """All names that configs use for what `name` says, itself included."""
    return frozenset({name}.union(*(names for names in words("synonyms").values() if name in names)))


def is_off(value: Any) -> bool:
    """True for values by which configs say "not used": null, false, zero, empty."""
    return value is None or value is False or value in (0, 0.0, "", [], {}, "none")


class Fields:
    """Typed, checked access to a config; every field is in the end either read, harmless, off, noted, or an error.

    Names are canonical: `get("experts")` reads the first of the names that configs use for it. `defaults`: what the
    family's config class supplies where files leave a field out.
    """

    def __init__(self, raw: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> None:
        self.raw = raw
        self.defaults = defaults or {}
        self.seen: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        """The raw value; null counts as absent."""
        found = self._found(name)[1]
        return default if found is None else found

    def _found(self, name: str) -> tuple[str, Any]:
        """The name that a config uses for a field, and its value (None where absent)."""
        names = words("synonyms").get(name)
        if names is None:
            self.seen.add(name)
            value = self.raw.get(name)
            return name, self.defaults.get(name) if value is None else value
        self.seen.update(names)
        for each in names:
            if (value := self.raw.get(each)) is not None:
                return each, value
        return names[0], self.defaults.get(name)

    def named(self, name: str) -> str:
        """How the config calls a field."""
        return self._found(name)[0]

    def has(self, name: str) -> bool:
        """Whether a field is there and not off."""
        return not is_off(self.get(name))

    def needed_but_missing(self, name: str, where: tuple[str, ...]) -> bool:
        """Whether a field is left out (null and zero are statements) although another speaks of what it counts."""
        stated = any(each in self.raw for each in words("synonyms").get(name, (name,)))
        return not stated and self.get(name) is None and any(self.has(each) for each in where)

    def integer(self, name: str, default: Any = _MISSING, *, low: int = 1, high: int = LARGEST_SIZE) -> int:
        """A whole number in [low, high]."""
        value = self.need(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._bad(name, value, f"an integer from {low} to {high}")
        return value

    def _bad(self, name: str, value: Any, wanted: str) -> BadInput:
        return BadInput(f"{self.named(name)} = {short(value)}: must be {wanted}", field=self.named(name))

    def optional(self, name: str) -> int | None:
        """A positive whole number, or None when absent, null, zero or -1."""
        return None if self.get(name) in (None, 0, -1) else self.integer(name)

    def at(self, name: str, index: int, default: Any = _MISSING) -> int:
        """A whole number of one layer: a field may hold one for all, or a list with one a layer."""
        value = self.get(name)
        if not isinstance(value, list):
            return self.integer(name, default, low=0)
        chosen = value[index] if index < len(value) else None
        return Fields({canonical(name): chosen}).integer(name, low=0)

    def number(self, name: str) -> float | None:
        """A finite positive number, or None when absent or null."""
        value = self.get(name)
        if value is None:
            return None
        if not (is_number(value) and 0 < value < math.inf):
            raise self._bad(name, value, "a positive number")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self._bad(name, value, "true or false")
        return value

    def text(self, name: str, default: str = "") -> str:
        """A word."""
        value = self.get(name, default)
        if not isinstance(value, str):
            raise self._bad(name, value, "a text")
        return value

    def ints(self, name: str) -> list[int]:
        """A list of whole numbers, empty when absent."""
        value = self.get(name, [])
        if not isinstance(value, list) or any(isinstance(v, bool) or not isinstance(v, int) for v in value):
            raise self._bad(name, value, "a list of integers")
        return value

    def listed(self, name: str, count: int) -> list[Any] | None:
        """A list with one entry a layer (more, for draft layers, are cut off), or None when absent."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, (list, str)) or len(value) < count:
            raise BadInput(f"{self.named(name)}: must list all {count} layers", field=self.named(name))
        return list(value)[:count]

    def section(self, name: str) -> Mapping[str, Any]:
        """A nested object, empty when absent."""
        value = self.get(name, {})
        if not isinstance(value, Mapping):
            raise BadInput(f"{name} = {short(value)}: must be an object", field=name)
        return value

    def need(self, name: str, default: Any = _MISSING) -> Any:
        """The raw value, or MissingField when it is absent and has no default."""
        value = self.get(name, default)
        if value is _MISSING:
            names = words("synonyms").get(name, (name,))
            usual = name if name in names else names[0]
            raise MissingField(f"config has no {usual!r}: it is needed to know the model's shape", field=usual)
        return value

    def leftovers(self, ignore: frozenset[str] = frozenset()) -> Iterator[str]:
        """Fields that were neither read nor are known to be harmless. Raises UnsupportedModel for one with a shape."""
        known = self.seen | ignore | set(words("harmless"))
        for name, value in self.raw.items():
            if name in known or name.startswith("_") or is_off(value) or _pattern("harmless_patterns").search(name):
                continue
            if _has_shape(name, value):
                raise UnsupportedModel(
                    f"{name} = {short(value)}: no part that is modelled explains this field, and it may change the "
                    f"computation; ignore it explicitly if it does not",
                    field=name,
                )
            yield name


def _has_shape(name: str, value: Any) -> bool:
    """Whether an unexplained field may change work or memory: a count, a list or an object that speaks of a shape."""
    if isinstance(value, Mapping) and any(_has_shape(str(inner), each) for inner, each in value.items()):
        return True
    counts = isinstance(value, (int, list, Mapping)) and not isinstance(value, bool)
    once = value == 1 and _pattern("unit_patterns").search(name) is not None
    return counts and not once and _pattern("shapely_patterns").search(name) is not None


def canonical(name: str) -> str:
    """The name that decides a field where a config holds several for it."""
    found: str = words("synonyms").get(name, (name,))[0]
    return found
