"""Prints answers, streams files of cases (- is standard input or output), shows progress on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from pipewave.errors import BadFile, BadInput
from pipewave.files import whole
from pipewave.files.json_text import dumps

if TYPE_CHECKING:
    from pipewave.prediction.jsonl import Counts

GZIP = b"\x1f\x8b"
ERROR = '"error": {'  # of an answer that is an error
CLEAR = "\r\033[K"  # to the start of the line, and the rest of it away
EVERY_S = 0.1  # between two looks of a bar
WIDTH = 30  # of a bar


def answer_cases(
    cases: str, out: str, answers: Callable[[Iterable[str], TextIO], Counts], *, resume: bool, asked: Sequence[str]
) -> int:
    """Answer every line of a file (- is a standard stream) into another, which is whole or not there; 1 where some are
    in error. Raises BadInput where the two are one or a stream is to be resumed, BadFile where one cannot be read.

    resume: go on after the last whole line of a run that was interrupted, with the same cases and options (`asked`).
    """
    whole.distinct(out, cases)
    regular = Path(cases).is_file()
    if resume and (out == whole.STANDARD or not regular):
        raise BadInput("resume: needs a file of cases and a file of answers, not a stream", field="resume")
    with ExitStack() as stack:
        lines = (line for line in _opened(stack, cases) if line.strip())
        if out == whole.STANDARD:
            failed = answers(lines, sys.stdout).failed
        else:
            of = whole.fingerprint(cases, *asked) if regular else ""
            sink = stack.enter_context(whole.lines(out, of=of, resume=resume))
            failed = sum(ERROR in line for line in sink.kept())
            failed += answers(islice(lines, sink.count, None), sink.file).failed
    if failed:  # on stderr, since their errors are among the answers
        say(f"refused cases: {failed}; each says why in `error` of its answer")
    return 1 if failed else 0


def _opened(stack: ExitStack, path: str) -> TextIO:
    """The stream of a path, closed with the stack; BadFile when it cannot be opened or is compressed."""
    encoding = "utf-8-sig"  # some editors begin a file with a mark of byte order
    if path == whole.STANDARD:
        if isinstance(sys.stdin, TextIOWrapper):
            sys.stdin.reconfigure(encoding=encoding, errors="replace")
        return sys.stdin
    try:
        file = stack.enter_context(Path(path).open(encoding=encoding, errors="replace"))  # noqa: SIM115
    except OSError as error:
        raise BadFile(f"{path}: {error.strerror}", field="cases") from error
    if file.buffer.peek(2).startswith(GZIP):  # type: ignore[attr-defined]
        raise BadFile(f"{path} is compressed: gunzip -c {path} | pipewave ... --cases -", field="cases")
    return file


def put(text: str, out: str, *inputs: str | None) -> None:
    """Print a text, or write it to a file that is none of the inputs. Raises BadInput and BadFile."""
    if out == whole.STANDARD:
        sys.stdout.write(text)
        return
    whole.distinct(out, *inputs)
    whole.write(Path(out), text.encode("utf-8", "replace"))


def print_json(answer: Mapping[str, Any]) -> None:
    """An answer as one line of JSON, which begins with the version of its schema."""
    print(dumps({"schema_version": 1, **answer}))


def give(answer: Mapping[str, Any], as_json: bool, *, verbose: bool = False) -> None:
    """An answer as JSON, or as its document in short or with every detail. Raises NotFinite."""
    if as_json:
        print_json(answer)
    else:
        from pipewave.view import document_of, terminal

        sys.stdout.write(terminal.write(document_of(answer), verbose=verbose))


def show(
    rows: Sequence[Mapping[str, Any]],
    form: str,
    *,
    title: str = "",
    schema: str = "rows",
    droppable: Sequence[str] = (),
) -> None:
    """Print rows of equal keys as a table, JSON or CSV. `droppable`: columns a narrow terminal goes without."""
    if form == "json":
        print_json({schema: [dict(row) for row in rows]})
    elif form == "csv":
        import csv

        writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]) if rows else [])
        writer.writeheader()
        for row in rows:
            lists = {name: "; ".join(map(str, one)) for name, one in row.items() if isinstance(one, (list, tuple))}
            writer.writerow({**row, **lists})
    else:
        from pipewave.view import terminal

        print(terminal.rows_of(rows, title, droppable))


def say(line: str) -> None:
    """A line for people, beside the answer."""
    sys.stderr.write(f"{line}\n")


@contextmanager
def bar(what: str) -> Iterator[Callable[..., None] | None]:
    """A progress bar on standard error, gone when its work is done; None where nobody watches.

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
        _tell(f"{CLEAR}{what} {of} {now - began:.0f} s")

    try:
        yield tell
    finally:
        _tell(CLEAR)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """What is being done on standard error, gone when it is; nothing where nobody watches."""
    seen = sys.stderr.isatty()
    _tell(f"{what} ..." * seen)
    try:
        yield
    finally:
        _tell(CLEAR * seen)


def _tell(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
