"""A Chrome trace read event by event: only events that are looked at are kept, the text is never in memory whole.

Most events of a profile are Python frames and flow arrows. Parsing the document at once holds all of them, ten times
the size of the file.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pipewave.errors import BadFile

LARGEST_VALUE = 32 << 20  # characters of one event, or of one entry beside the events
SPACE = re.compile(r"[ \t\r\n]*")
DECODER = json.JSONDecoder()
EVENTS = "traceEvents"


class Scanner:
    """JSON text that arrives in pieces of bytes. What was read is dropped; BadFile says at which byte a text breaks."""

    def __init__(self, pieces: Iterable[bytes], source: str) -> None:
        self._pieces, self._source = iter(pieces), source
        self._decode = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode
        self._text, self._at, self._passed = "", 0, 0
        self._ended = False

    def peek(self) -> str:
        """The next character that is no space, not consumed; empty at the end."""
        while True:
            self._at = SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def expect(self, *characters: str) -> str:
        """Consume one of these characters."""
        found = self.peek()
        if found not in characters or not found:
            raise self._broken("Expecting " + " or ".join(map(repr, characters)), self._at)
        self._at += 1
        return found

    def end(self) -> None:
        """Nothing may follow."""
        if self.peek():
            raise self._broken("Extra data", self._at)

    def value(self) -> Any:
        """Consume one value of any kind."""
        self.peek()
        while True:
            try:
                value, end = DECODER.raw_decode(self._text, self._at)
                if end < len(self._text) or not self._more():  # a number at the edge may go on
                    self._at = end
                    return value
            except json.JSONDecodeError as problem:
                message, at = problem.msg, problem.pos - self._at
                if not self._more():
                    raise self._broken(message, self._at + at) from problem
            except (ValueError, RecursionError) as problem:
                raise BadFile(f"{self._source}: not valid JSON ({problem})", field="file") from problem

    def _more(self) -> bool:
        """Read on, at least as much again as waits, so that a long value is not tried too often."""
        if self._ended:
            return False
        self._passed += len(self._text[: self._at].encode("utf-8", "surrogateescape"))
        parts, self._at = [self._text[self._at :]], 0
        wanted = 2 * len(parts[0]) + 1
        if wanted > 2 * LARGEST_VALUE:
            raise BadFile(f"{self._source}: a value of more than {LARGEST_VALUE:,} characters", field="file")
        while wanted > sum(map(len, parts)) and not self._ended:
            piece = next(self._pieces, None)
            self._ended = piece is None
            parts.append(self._decode(piece or b"", self._ended))
        self._text = "".join(parts)
        return len(parts[0]) < len(self._text)

    def _broken(self, message: str, at: int) -> BadFile:
        byte = self._passed + len(self._text[:at].encode("utf-8", "surrogateescape"))
        left = self._text[at:].strip()
        what = "truncated" if len(left) <= 1 or "Unterminated" in message else "not valid JSON"
        return BadFile(f"{self._source}: {what} at byte {byte} ({message})", field="file")


def document(pieces: Iterable[bytes], source: str, keep: Callable[[Any], Any]) -> Any:
    """The document, of each event what `keep` keeps, those of which it keeps None left out; a list alone stays a list.

    Raises BadFile where the text is no JSON, and at which byte.
    """
    scanner = Scanner(pieces, source)
    if scanner.peek() == "\ufeff":
        scanner.expect("\ufeff")
    alone = scanner.peek() == "["
    found = _kept(scanner, keep) if alone else dict(_members(scanner, keep))
    scanner.end()
    return found


def _kept(scanner: Scanner, keep: Callable[[Any], Any]) -> list[Any]:
    return [kept for event in _elements(scanner) if (kept := keep(event)) is not None]


def _members(scanner: Scanner, keep: Callable[[Any], Any]) -> Iterator[tuple[str, Any]]:
    scanner.expect("{")
    if scanner.peek() == "}":
        scanner.expect("}")
        return
    while True:
        name = scanner.value()
        scanner.expect(":")
        thinned = name == EVENTS and scanner.peek() == "["
        yield str(name), _kept(scanner, keep) if thinned else scanner.value()
        if scanner.expect(",", "}") == "}":
            return


def _elements(scanner: Scanner) -> Iterator[Any]:
    scanner.expect("[")
    if scanner.peek() == "]":
        scanner.expect("]")
        return
    while True:
        yield scanner.value()
        if scanner.expect(",", "]") == "]":
            return
