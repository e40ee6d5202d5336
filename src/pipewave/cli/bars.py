"""What a person sees on standard error while an answer takes long; programs and files see nothing of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bar(what: str) -> Iterator[Callable[..., None] | None]:
    """A progress bar, gone when its work is done; None where nobody watches.

    It is called with how many more are done, and with how many there are in all where that is known.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total=None: progress.update(task, advance=done, total=total)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """A turning sign beside what is being done, gone when it is; nothing where nobody watches."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield
