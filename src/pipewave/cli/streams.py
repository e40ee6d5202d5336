"""Files of cases and answers as streams; - is standard input or output. What is printed beside an answer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TextIO

from pipewave.errors import BadFile, BadInput
from pipewave.files import whole
from pipewave.files.json_text import dumps

GZIP = b"\x1f\x8b"
ERROR = '"error": {'  # of an answer that is an error


class Counts(Protocol):
    """How many lines of a file were in error."""

    failed: int


def answer_cases(
    cases: str,
    out: str,
    answers: Callable[[Iterable[str], TextIO], Counts],
    *,
    resume: bool,
    asked: Sequence[str],
) -> int:
    """Answer every line of one file into another, which is whole or not there.

    Args:
        cases: path of the cases; - is standard input.
        out: path of the answers; - is standard output.
        answers: answers lines into a file and counts what failed.
        resume: go on after the last whole line of a run that was interrupted; its cases and options must be the same.
        asked: options that the answers depend on.

    Returns:
        0 all answered, 1 some in error.

    Raises:
        BadInput: the two files are one, or a stream cannot be resumed. BadFile: one cannot be read or written.
    """
    whole.distinct(out, cases)
    regular = Path(cases).is_file()
    if resume and (out == whole.STANDARD or not regular):
        raise BadInput("resume: needs a file of cases and a file of answers, not a stream", field="resume")
    with ExitStack() as stack:
        lines = (line for line in _opened(stack, cases) if line.strip())
        if out == whole.STANDARD:
            return _ended(answers(lines, sys.stdout).failed)
        of = whole.fingerprint(cases, *asked) if regular else ""
        sink = stack.enter_context(whole.lines(out, of=of, resume=resume))
        failed = sum(ERROR in line for line in sink.kept())
        return _ended(failed + answers(islice(lines, sink.count, None), sink.file).failed)


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


def _ended(failed: int) -> int:
    """Exit status after a file of cases; refused ones are told on stderr, since their errors are among the answers."""
    if failed:
        say(f"refused cases: {failed}; each says why in `error` of its answer")
    return 1 if failed else 0


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


def print_notes(notes: Iterable[str]) -> None:
    """What an answer rests on, each note once, below its tables."""
    for note in dict.fromkeys(notes):
        print(f"note: {note}")


def say(line: str) -> None:
    """A line for people, beside the answer."""
    sys.stderr.write(f"{line}\n")
