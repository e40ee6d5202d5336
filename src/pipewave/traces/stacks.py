"""Which ranges of a host thread are open at each launch: ranges nest, so those still open form a stack."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class Span(NamedTuple):
    """A range of a thread, µs, and what it stands for."""

    start_us: float
    end_us: float
    thread: Any
    what: Any


class At(NamedTuple):
    """A moment on a thread, µs, under the key by which it is asked for."""

    start_us: float
    thread: Any
    key: Any


def open_at(spans: Iterable[Span], moments: Iterable[At]) -> dict[Any, tuple[Any, ...]]:
    """What is open on a moment's own thread, outermost first, by the moment's key. One sweep a thread."""
    threads: dict[Any, list[Span]] = defaultdict(list)
    for span in spans:
        threads[span.thread].append(span)
    waiting: dict[Any, list[At]] = defaultdict(list)
    for moment in moments:
        waiting[moment.thread].append(moment)
    found: dict[Any, tuple[Any, ...]] = {}
    for thread, asked in waiting.items():
        ordered = sorted(threads[thread], key=lambda span: (span.start_us, -span.end_us))
        found |= _sweep(ordered, sorted(asked, key=lambda moment: moment.start_us))
    return found


def _sweep(spans: Sequence[Span], moments: Sequence[At]) -> dict[Any, tuple[Any, ...]]:
    found: dict[Any, tuple[Any, ...]] = {}
    stack: list[Span] = []
    at = 0
    for moment in moments:
        while at < len(spans) and spans[at].start_us <= moment.start_us:
            stack = [span for span in stack if span.end_us >= spans[at].start_us]
            stack.append(spans[at])
            at += 1
        stack = [span for span in stack if span.end_us >= moment.start_us]
        found[moment.key] = tuple(span.what for span in stack)
    return found
