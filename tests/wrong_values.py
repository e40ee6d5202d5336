"""Documents with one value that is of the wrong type or beyond what a number can be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

WRONG: tuple[Any, ...] = (None, True, -1, 1e400, float("nan"), 10**30, "x", "", [], [1], [[1]], {}, {"a": 1}, [{}])


def replaced(document: Any) -> Iterator[Any]:
    """The document with each of its values in turn replaced by each wrong one."""
    for path in _paths(document):
        for wrong in WRONG:
            copy = here = json.loads(json.dumps(document))
            for key in path[:-1]:
                here = here[key]
            here[path[-1]] = wrong
            yield copy


def _paths(value: Any) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (key,)
        yield from ((key, *path) for path in _paths(inner))
