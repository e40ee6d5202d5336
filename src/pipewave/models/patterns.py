"""Which modules a quantisation section names: whole dotted parts, globs, and `re:` expressions, indexed by layer.

Checkpoints name one module differently (`model.layers.0.mlp`, `language_model.model.layers.0.mlp`,
`backbone.layers.0.mixer`); names are compared from `layers.` on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache

from pipewave.errors import BadInput

_LAYER = re.compile(r"^(?:[\w*]+\.)*?layers\.(\d+)(?=[.*]|$)")
_OTHER_EXPERT = re.compile(r"\.experts\.[1-9]")
_PREFIX = re.compile(r"^(?:(?:model|language_model|backbone|transformer|decoder|text_model|llm|thinker)\.)+")


def short_name(module: str) -> str:
    """A module or a pattern without the prefixes of its wrapper."""
    return _PREFIX.sub("", module)


def matches(module: str, pattern: str) -> bool:
    """True when an entry names the module: `re:` expressions, globs, or whole dotted parts."""
    if pattern.startswith("re:"):
        expression = _expression(pattern[3:])
        return any(expression.match(prefix + short_name(module)) for prefix in ("", "model.", "language_model.model."))
    module, pattern = short_name(module), short_name(pattern)
    if "*" in pattern:
        return fnmatchcase(module, pattern) or fnmatchcase(module, pattern.rstrip(".") + ".*")
    return f".{pattern}." in f".{module}."


@lru_cache(maxsize=256)
def _expression(text: str) -> re.Pattern[str]:
    # A repeated group can take exponential time on hostile input; no real list of modules needs one.
    if len(text) > 2000 or re.search(r"\)[*+{]", text) or len(re.findall(r"[*+{]", text)) > 12:
        raise BadInput(f"quantization ignore pattern {text[:40]!r}: too complex", field="ignore")
    try:
        return re.compile(text)
    except re.error as problem:
        raise BadInput(f"quantization ignore pattern {text[:40]!r}: {problem}", field="ignore") from problem


@dataclass(frozen=True, slots=True)
class Names:
    """A list of module patterns, split into those of one layer and those of any."""

    general: tuple[str, ...] = ()
    by_layer: dict[int, frozenset[str]] = field(default_factory=dict)
    indexed: bool = False  # an expression speaks of layer numbers, so every layer may differ

    @classmethod
    def of(cls, patterns: Iterable[str]) -> Names:
        """Sort patterns by the layer they name."""
        general: dict[str, None] = {}
        layers: dict[int, set[str]] = {}
        for pattern in patterns:
            if ".experts." in pattern and _OTHER_EXPERT.search(pattern):
                continue  # lists that name every expert say the same of each
            found = None if pattern.startswith("re:") else _LAYER.match(short_name(pattern))
            if found:
                layers.setdefault(int(found[1]), set()).add(short_name(pattern).replace(found[1], "#", 1))
            else:
                general[pattern] = None
        indexed = any(
            p.startswith("re:") and "layers" in p and re.search(r"\d", p.partition("layers")[2]) for p in general
        )
        return cls(tuple(general), {index: frozenset(found) for index, found in layers.items()}, indexed)

    def key(self, index: int) -> object:
        """Equal for layers that the list treats alike."""
        return index if self.indexed else self.by_layer.get(index, frozenset())

    def name(self, module: str) -> bool:
        """Whether any pattern names the module."""
        if any(matches(module, pattern) for pattern in self.general):
            return True
        parts = short_name(module).split(".")
        own = self.by_layer.get(int(parts[1])) if parts[0] == "layers" and parts[1:] and parts[1].isdigit() else None
        if not own:
            return False
        parts[1] = "#"
        heads = {".".join(parts[:size]) for size in range(2, len(parts) + 1)}
        return not heads.isdisjoint(own) or any(matches(".".join(parts), each) for each in own if "*" in each)
