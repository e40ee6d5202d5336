"""Chrome traces of torch.profiler, read event by event: kernels joined to the operators that launched them.

Most events of a profile are Python frames and flow arrows. Only events that are looked at are kept, and the text is
never in memory whole.
"""

from __future__ import annotations

import codecs
import json
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from pipewave.errors import BadFile
from pipewave.traces.trace import INPUT, WAITS, At, Kernel, Op, Span, Step, Trace, bad, dims_of, named, open_at, step_of

LARGEST_VALUE = 32 << 20  # characters of one event, or of one entry beside the events
SPACE = re.compile(r"[ \t\r\n]*")
DECODER = json.JSONDecoder()
EVENTS = "traceEvents"
GPU_WORK = frozenset(("kernel", "gpu_memcpy", "gpu_memset"))
LAUNCHES = frozenset(("cuda_runtime", "cuda_driver"))
LOOKED_AT = GPU_WORK | LAUNCHES | {"cpu_op", "user_annotation"}
MODULE = "nn.Module: "  # frames of modules, where stacks were recorded
KEPT = ("bytes", "In msg nelems", "Out msg nelems", "Group size", "dtype", "Collective name")
READ = ("ph", "cat", "name", "ts", "dur", "tid")
READ_ARGS = ("External id", "correlation", "stream", "grid", "block", "Input Dims", "Input type", "Input types",
             "Concrete Inputs", *KEPT)  # fmt: skip
START = attrgetter("start_us")
MOST = 1e18  # µs and counts beyond are damage
Event = Mapping[str, Any]


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
            raise self.broken("Expecting " + " or ".join(map(repr, characters)))
        self._at += 1
        return found

    def items(self, opening: str, closing: str) -> Iterator[None]:
        """Once at each item of a list or an object, which the caller consumes."""
        self.expect(opening)
        if self.peek() == closing:
            self.expect(closing)
            return
        while True:
            yield
            if self.expect(",", closing) == closing:
                return

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
                    raise self.broken(message, at) from problem
            except (ValueError, RecursionError) as problem:
                raise bad(self._source, f"not valid JSON ({problem})") from problem

    def _more(self) -> bool:
        """Read on, at least as much again as waits, so that a long value is not tried too often."""
        if self._ended:
            return False
        self._passed += len(self._text[: self._at].encode("utf-8", "surrogateescape"))
        parts, self._at = [self._text[self._at :]], 0
        wanted = 2 * len(parts[0]) + 1
        if wanted > 2 * LARGEST_VALUE:
            raise bad(self._source, f"a value of more than {LARGEST_VALUE:,} characters")
        while wanted > sum(map(len, parts)) and not self._ended:
            piece = next(self._pieces, None)
            self._ended = piece is None
            parts.append(self._decode(piece or b"", self._ended))
        self._text = "".join(parts)
        return len(parts[0]) < len(self._text)

    def broken(self, message: str, ahead: int = 0) -> BadFile:
        """What is wrong with the text, so many characters ahead of what was consumed."""
        at = self._at + ahead
        byte = self._passed + len(self._text[:at].encode("utf-8", "surrogateescape"))
        left = self._text[at:].strip()
        what = "truncated" if len(left) <= 1 or "Unterminated" in message else "not valid JSON"
        return bad(self._source, f"{what} at byte {byte} ({message})")


def document(pieces: Iterable[bytes], source: str, keep: Callable[[Any], Any], most_events: int) -> Any:
    """The document, of each event what `keep` keeps, those of which it keeps None left out; a list alone stays a list.

    Raises BadFile where the text is no JSON, and at which byte, or where more than `most_events` are kept.
    """
    scanner = Scanner(pieces, source)

    def events() -> list[Any]:
        found = []
        for _ in scanner.items("[", "]"):
            if (kept := keep(scanner.value())) is not None:
                found.append(kept)
            if len(found) > most_events:
                raise bad(source, f"more than {most_events:,} events of kernels, launches and operators")
        return found

    if scanner.peek() == "\ufeff":
        scanner.expect("\ufeff")
    found: Any = {}
    if scanner.peek() == "[":
        found = events()
    else:
        for _ in scanner.items("{", "}"):
            name = scanner.value()
            scanner.expect(":")
            found[str(name)] = events() if name == EVENTS and scanner.peek() == "[" else scanner.value()
    if scanner.peek():
        raise scanner.broken("Extra data")
    return found


def thinned(event: Any) -> Event | None:
    """What is read of an event: most hold far more. None where nothing is, as of most: Python frames and arrows."""
    if not isinstance(event, dict) or event.get("ph") != "X" or not isinstance(event.get("cat"), str):
        return None
    kind, args = event["cat"].lower(), event.get("args")
    if kind not in LOOKED_AT and not (kind == "python_function" and str(event.get("name", "")).startswith(MODULE)):
        return None
    kept = {name: args[name] for name in READ_ARGS if name in args} if isinstance(args, dict) else {}
    return {name: event[name] for name in READ if name in event} | {"cat": kind, "args": kept}


def trace(document: Any, source: str) -> Trace:
    """The Trace in a document of thinned events. Raises BadFile when it holds no events or no GPU work."""
    events = document.get(EVENTS) if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise bad(source, "JSON without a list of traceEvents: not a Chrome trace")
    kinds: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        kinds[event["cat"]].append(event)
    work = [event for kind in GPU_WORK for event in kinds[kind]]
    if not work:
        raise bad(source, "no GPU kernels; profile with ProfilerActivity.CUDA")
    operators, notes = _ranges(kinds["cpu_op"]), _ranges(kinds["user_annotation"])
    calls = [span for kind in LAUNCHES for span in _ranges(kinds[kind])]
    launches = {key: span for span in calls if isinstance(key := _correlation(span.what), int)}
    moments = [At(launches[key].start_us, launches[key].thread, key) for key in sorted(launches)]
    above, modules = open_at(operators, moments), open_at(_ranges(kinds["python_function"]), moments)
    steps = sorted((step for one in notes if (step := step_of(_name(one.what), one.start_us))), key=START)
    by_id = {_key(event["args"].get("External id")): event for event in kinds["cpu_op"]}
    made: dict[int, Op] = {}  # each operator once, by the identity of its event

    def kernel(event: Event) -> Kernel:
        key, number = _correlation(event), _key(event["args"].get("External id"))
        outer = above.get(key) or ((by_id[number],) if number is not None and number in by_id else ())
        for one in outer:
            if id(one) not in made:
                made[id(one)] = _op(one)
        scope = (_name(module).removeprefix(MODULE) for module in modules.get(key, ()))
        return _kernel(event, tuple(made[id(one)] for one in outer), launches.get(key), tuple(scope), steps, source)

    kernels = tuple(sorted(map(kernel, work), key=START))
    waits, inputs = named(calls, WAITS.match, _name), named((*notes, *operators), INPUT.search, _name)
    return Trace(source, _gpu(document), kernels, tuple(steps), waits=waits, inputs=inputs)


def _name(event: Event) -> str:
    return str(event.get("name", ""))


def _ranges(events: Iterable[Event]) -> list[Span]:
    """Events as ranges of their threads, without those that have no time."""
    found = []
    for event in events:
        ts, dur = _finite(event.get("ts")), _finite(event.get("dur", 0))
        if ts is not None and dur is not None:
            found.append(Span(ts, ts + max(dur, 0.0), _key(event.get("tid")), event))
    return found


def _key(value: Any) -> Any:
    """The value if it can be looked up, else None (a damaged file may hold a list)."""
    return value if isinstance(value, (int, str)) else None


def _correlation(event: Event) -> Any:
    return _key(event["args"].get("correlation"))


def _number(event: Event, name: str, source: str) -> float:
    value = _finite(event.get(name))
    if value is None:
        raise bad(source, f"event {_name(event)[:60]!r} has no finite {name!r}")
    return value


def _finite(value: Any) -> float | None:
    """A number that is one; comparison, unlike conversion, takes integers of any length."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and -MOST < value < MOST
    return float(value) if number else None


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(value if isinstance(value, str) else "" for value in values) if isinstance(values, list) else ()


def _op(event: Event) -> Op:
    args = event["args"]
    dims, number = args.get("Input Dims"), args.get("External id")
    return Op(
        number if isinstance(number, int) else -1,
        _name(event),
        tuple(map(dims_of, dims)) if isinstance(dims, list) else (),
        _texts(args.get("Input type", args.get("Input types"))),
        _texts(args.get("Concrete Inputs")),
    )


def _kernel(
    event: Event, ops: tuple[Op, ...], call: Span | None, scope: tuple[str, ...], steps: Sequence[Step], source: str
) -> Kernel:
    args, name = event["args"], _name(event)
    start, duration, stream = _number(event, "ts", source), _number(event, "dur", source), args.get("stream")
    if duration < 0:
        raise bad(source, f"event {name[:60]!r} lasts {duration} µs")
    return Kernel(
        name,
        start,
        duration,
        dims_of(args.get("grid")),
        dims_of(args.get("block")),
        stream if isinstance(stream, int) else 0,
        ops,
        bisect_right(steps, call.start_us if call else start, key=START) - 1,
        tuple((name, args[name]) for name in KEPT if name in args),
        (call.start_us, call.end_us) if call else None,
        scope,
    )


def _gpu(document: Any) -> str | None:
    """Name of the first device, as the driver gives it."""
    devices = document.get("deviceProperties") if isinstance(document, dict) else None
    first = devices[0] if isinstance(devices, list) and devices else None
    name = first.get("name") if isinstance(first, dict) else None
    return name if isinstance(name, str) else None
