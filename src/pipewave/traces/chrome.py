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
from dataclasses import replace
from typing import Any

from pipewave.errors import BadFile
from pipewave.traces.trace import INPUT, WAITS, At, Dims, Kernel, Op, Span, Step, Trace, open_at, step_of

LARGEST_VALUE = 32 << 20  # characters of one event, or of one entry beside the events
SPACE = re.compile(r"[ \t\r\n]*")
DECODER = json.JSONDecoder()
EVENTS = "traceEvents"


class Scanner:
    """JSON text that arrives in pieces of bytes. What was read is dropped; BadFile says at which byte a text breaks."""

    def __init__(self, pieces: Iterable[bytes], source: str, most_events: int) -> None:
        self.most_events = most_events
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

    def bad(self, message: str) -> BadFile:
        """What is wrong with the text."""
        return BadFile(f"{self._source}: {message}", field="file")

    def _broken(self, message: str, at: int) -> BadFile:
        byte = self._passed + len(self._text[:at].encode("utf-8", "surrogateescape"))
        left = self._text[at:].strip()
        what = "truncated" if len(left) <= 1 or "Unterminated" in message else "not valid JSON"
        return BadFile(f"{self._source}: {what} at byte {byte} ({message})", field="file")


def document(pieces: Iterable[bytes], source: str, keep: Callable[[Any], Any], most_events: int) -> Any:
    """The document, of each event what `keep` keeps, those of which it keeps None left out; a list alone stays a list.

    Raises BadFile where the text is no JSON, and at which byte, or where more than `most_events` are kept.
    """
    scanner = Scanner(pieces, source, most_events)
    if scanner.peek() == "\ufeff":
        scanner.expect("\ufeff")
    alone = scanner.peek() == "["
    found = _kept(scanner, keep) if alone else dict(_members(scanner, keep))
    scanner.end()
    return found


def _kept(scanner: Scanner, keep: Callable[[Any], Any]) -> list[Any]:
    found = []
    for event in _elements(scanner):
        if (kept := keep(event)) is not None:
            found.append(kept)
        if len(found) > scanner.most_events:
            raise scanner.bad(f"more than {scanner.most_events:,} events of kernels, launches and operators")
    return found


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


GPU_WORK = frozenset(("kernel", "gpu_memcpy", "gpu_memset"))
LAUNCHES = frozenset(("cuda_runtime", "cuda_driver"))
LOOKED_AT = GPU_WORK | LAUNCHES | {"cpu_op", "user_annotation"}
MODULE = "nn.Module: "  # frames of modules, where stacks were recorded
KEPT = ("bytes", "In msg nelems", "Out msg nelems", "Group size", "dtype", "Collective name")
READ = ("ph", "cat", "name", "ts", "dur", "tid")
READ_ARGS = ("External id", "correlation", "stream", "grid", "block", "Input Dims", "Input type", "Input types",
             "Concrete Inputs", *KEPT)  # fmt: skip
MOST = 1e18  # µs and counts beyond are damage
Event = Mapping[str, Any]


def wanted(event: Any) -> bool:
    """Whether anything is read of an event: most are Python frames and arrows."""
    if not isinstance(event, dict) or event.get("ph") != "X" or not isinstance(event.get("cat"), str):
        return False
    kind = event["cat"].lower()
    return kind in LOOKED_AT or (kind == "python_function" and str(event.get("name", "")).startswith(MODULE))


def thinned(event: Any) -> Event | None:
    """What is read of an event: most hold far more. None where nothing is."""
    if not wanted(event):
        return None
    args = _args(event)
    return {name: event[name] for name in READ if name in event} | {
        "args": {n: args[n] for n in READ_ARGS if n in args}
    }


def trace(document: Any, source: str) -> Trace:
    """The Trace in a decoded document. Raises BadFile when it holds no events or no GPU work."""
    kinds = _by_kind(_events(document, source))
    work = [event for kind in GPU_WORK for event in kinds[kind]]
    if not work:
        raise BadFile(f"{source}: no GPU kernels; profile with ProfilerActivity.CUDA", field="file")
    steps = _steps(kinds["user_annotation"])
    launches = _launches(kinds)
    above, modules = _stacks(kinds["cpu_op"], launches), _stacks(kinds["python_function"], launches)
    made = _Made()
    by_id = {_key(_args(event).get("External id")): event for event in kinds["cpu_op"]}
    starts = [step.start_us for step in steps]
    kernels = []
    for event in work:
        key = _correlation(event)
        launch, number = launches.get(key), _key(_args(event).get("External id"))
        outer = above.get(key, ()) or ((by_id[number],) if number is not None and number in by_id else ())
        begun = launch[0].start_us if launch else _number(event, "ts", source)
        kernel = _kernel(event, tuple(map(made.op, outer)), bisect_right(starts, begun) - 1, source)
        scope = tuple(str(module["name"]).removeprefix(MODULE) for module in modules.get(key, ()))
        kernels.append(replace(kernel, launch=(begun, launch[1]) if launch else None, scope=scope))
    kernels.sort(key=lambda kernel: kernel.start_us)
    waits = _spans((event for kind in LAUNCHES for event in kinds[kind]), WAITS.match)
    inputs = _spans((*kinds["user_annotation"], *kinds["cpu_op"]), INPUT.search)
    return Trace(source, _gpu(document), tuple(kernels), tuple(steps), waits=waits, inputs=inputs)


class _Made:
    """Operators, each made once."""

    def __init__(self) -> None:
        self._made: dict[int, Op] = {}

    def op(self, event: Event) -> Op:
        """The operator of an event."""
        if id(event) not in self._made:
            self._made[id(event)] = _op(event)
        return self._made[id(event)]


def _events(document: Any, source: str) -> Sequence[Any]:
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise BadFile(f"{source}: JSON without a list of traceEvents: not a Chrome trace", field="file")
    return events


def _by_kind(events: Iterable[Any]) -> dict[str, list[Event]]:
    kinds: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if wanted(event):
            kinds[event["cat"].lower()].append(event)
    return kinds


def _args(event: Event) -> Mapping[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def _key(value: Any) -> Any:
    """The value if it can be looked up, else None (a damaged file may hold a list)."""
    return value if isinstance(value, (int, str)) else None


def _correlation(event: Event) -> Any:
    return _key(_args(event).get("correlation"))


def _number(event: Event, name: str, source: str) -> float:
    value = _finite(event.get(name))
    if value is None:
        raise BadFile(f"{source}: event {str(event.get('name'))[:60]!r} has no finite {name!r}", field="file")
    return value


def _finite(value: Any) -> float | None:
    """A number that is one; comparison, unlike conversion, takes integers of any length."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and -MOST < value < MOST
    return float(value) if number else None


def _integers(values: Any) -> Dims:
    if not isinstance(values, (list, tuple)):
        return ()
    whole = all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 1 << 50 for v in values)
    return tuple(values) if whole else ()


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(value if isinstance(value, str) else "" for value in values) if isinstance(values, list) else ()


def _op(event: Event) -> Op:
    args = _args(event)
    dims = args.get("Input Dims")
    types = args.get("Input type", args.get("Input types"))
    number = args.get("External id")
    return Op(
        number if isinstance(number, int) else -1,
        str(event.get("name", "")),
        tuple(map(_integers, dims)) if isinstance(dims, list) else (),
        _texts(types),
        _texts(args.get("Concrete Inputs")),
    )


def _kernel(event: Event, ops: tuple[Op, ...], step: int, source: str) -> Kernel:
    args = _args(event)
    duration = _number(event, "dur", source)
    if duration < 0:
        raise BadFile(f"{source}: event {str(event.get('name'))[:60]!r} lasts {duration} µs", field="file")
    stream = args.get("stream")
    return Kernel(
        str(event.get("name", "")),
        _number(event, "ts", source),
        duration,
        _integers(args.get("grid")),
        _integers(args.get("block")),
        stream if isinstance(stream, int) else 0,
        ops,
        step,
        tuple((name, args[name]) for name in KEPT if name in args),
    )


def _launches(kinds: Mapping[str, list[Event]]) -> dict[Any, tuple[At, float]]:
    """Every call of CUDA that has a correlation, by it, and when it returned."""
    found = {}
    for kind in LAUNCHES:
        for event in kinds[kind]:
            key, ts = _correlation(event), _finite(event.get("ts"))
            if isinstance(key, int) and ts is not None:
                found[key] = (At(ts, _key(event.get("tid")), key), ts + max(_finite(event.get("dur")) or 0.0, 0.0))
    return found


def _stacks(events: Iterable[Event], launches: Mapping[Any, tuple[At, float]]) -> dict[Any, tuple[Event, ...]]:
    """The events open on the launching thread at each launch, outermost first, by correlation."""
    spans = []
    for event in events:
        ts, dur = _finite(event.get("ts")), _finite(event.get("dur", 0))
        if ts is not None and dur is not None:
            spans.append(Span(ts, ts + dur, _key(event.get("tid")), event))
    return open_at(spans, (launches[key][0] for key in sorted(launches)))


def _spans(events: Iterable[Event], named: Callable[[str], Any]) -> tuple[tuple[float, float], ...]:
    """(start, end) of the events of such names, in time order."""
    found = []
    for event in events:
        ts, dur = _finite(event.get("ts")), _finite(event.get("dur"))
        if ts is not None and dur is not None and dur >= 0 and named(str(event.get("name", ""))):
            found.append((ts, ts + dur))
    return tuple(sorted(found))


def _steps(annotations: Iterable[Event]) -> list[Step]:
    times = ((str(event.get("name", "")), _finite(event.get("ts"))) for event in annotations)
    steps = (step_of(name, ts) for name, ts in times if ts is not None)
    return sorted((step for step in steps if step), key=lambda step: step.start_us)


def _gpu(document: Any) -> str | None:
    """Name of the first device, as the driver gives it."""
    devices = document.get("deviceProperties") if isinstance(document, dict) else None
    first = devices[0] if isinstance(devices, list) and devices else None
    name = first.get("name") if isinstance(first, dict) else None
    return name if isinstance(name, str) else None
