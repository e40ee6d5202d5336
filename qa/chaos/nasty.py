"""Inputs gone wrong: values, documents and texts, changed at random but from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 3, 7, 1 << 31, 1 << 63, 10**30, -(10**30), 0.5, -0.0, 1e-300, 1e308, float("nan"),
    float("inf"), float("-inf"), "", " ", "0", "-1", "nan", "bf16", "fp8", "H200", "NOPE", "../../etc/passwd", "\x00",
    "\ud800", "💥" * 50, "a" * 5000, "9" * 400, [], [[]], [1], [1] * 300, [None], [-1], [1e9], {}, {"a": 1}, [{}] * 3,
    "!!int ''", "&a [*a]", "<script>alert(1)</script>", [[[[[[[[]]]]]]]],
)  # fmt: skip
MOST_CHANGES = 3  # of a document
SWALLOWED = ("{", "}", "[", "]", ",", ":", '"', "\n", " ", "e", "-", "\\u0000", "1" * 50)


def places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a nested document."""
    stack = [document]
    while stack:
        here = stack.pop()
        items = here.items() if isinstance(here, dict) else enumerate(here) if isinstance(here, list) else ()
        for key, value in list(items):
            yield here, key
            if isinstance(value, dict | list):
                stack.append(value)


def changed(document: Any, pick: random.Random) -> Any:
    """A copy with up to `MOST_CHANGES` values replaced, dropped, doubled or renamed; sometimes as it was."""
    copy = json.loads(json.dumps(document))
    for _ in range(pick.randrange(MOST_CHANGES + 1)):
        found = list(places(copy))
        if not found:
            break
        here, key = pick.choice(found)
        way = pick.random()
        if way < 0.7:
            here[key] = deepcopy(pick.choice(VALUES))
        elif way < 0.8:
            del here[key]
        elif way < 0.9 and isinstance(here, list):
            here.extend([here[key]] * pick.choice((1, 2, 50)))
        elif isinstance(here, dict):
            here[str(pick.choice(VALUES))[:60]] = here.pop(key)
    return copy


def damaged(text: bytes, pick: random.Random) -> bytes:
    """Bytes with one to four pieces changed, cut out, doubled or put in."""
    for _ in range(pick.randrange(1, 5)):
        at, size = pick.randrange(len(text) + 1), pick.choice((1, 1, 2, 8, 64, 512))
        way = pick.randrange(4)
        if way == 0:
            text = text[:at] + bytes([pick.randrange(256)]) + text[at + 1 :]
        elif way == 1:
            text = text[:at] + text[at + size :]
        elif way == 2:
            text = text[:at] + text[at : at + size] * 3 + text[at + size :]
        else:
            text = text[:at] + pick.choice(SWALLOWED).encode() + text[at:]
    return text


def said(document: Any, pick: random.Random) -> bytes:
    """A changed document as text, which now and then is damaged too."""
    text = json.dumps(changed(document, pick)).encode("utf-8", "surrogatepass")
    return damaged(text, pick) if pick.random() < 0.25 else text
