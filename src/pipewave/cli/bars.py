"""What a person sees on standard error while an answer takes long; programs and files see nothing of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

CLEAR = "\r\033[K"  # to the start of the line, and the rest of it away
EVERY_S = 0.1  # between two looks of a bar
WIDTH = 30


@contextmanager
def bar(what: str) -> Iterator[Callable[..., None] | None]:
    """A progress bar, gone when its work is done; None where nobody watches.

    It is called with how many more are done, and with how many there are in all where that is known.
    """
    if not sys.stderr.isatty():
        yield None
        return
    began, shown, count, whole = time.monotonic(), 0.0, 0, 0

    def tell(done: int, total: int | None = None) -> None:
        nonlocal shown, count, whole
        count, whole, now = count + done, total or whole, time.monotonic()
        if now - shown < EVERY_S:
            return
        shown = now
        filled = round(WIDTH * count / whole) if whole else 0
        of = f"{'━' * filled}{' ' * (WIDTH - filled)} {count:,}/{whole:,}" if whole else f"{count:,}"
        sys.stderr.write(f"{CLEAR}{what} {of} {now - began:.0f} s")
        sys.stderr.flush()

    try:
        yield tell
    finally:
        sys.stderr.write(CLEAR)
        sys.stderr.flush()


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """What is being done, gone when it is; nothing where nobody watches."""
    seen = sys.stderr.isatty()
    if seen:
        sys.stderr.write(f"{what} ...")
        sys.stderr.flush()
    try:
        yield
    finally:
        if seen:
            sys.stderr.write(CLEAR)
            sys.stderr.flush()
