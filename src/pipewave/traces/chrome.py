"""Chrome trace events of torch.profiler to a Trace: kernels joined to the operators that launched them."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipewave.errors import BadFile
from pipewave.traces.trace import Dims, Kernel, Op, Step, Trace

GPU_WORK = frozenset(("kernel", "gpu_memcpy", "gpu_memset"))
LAUNCHES = frozenset(("cuda_runtime", "cuda_driver"))
LOOKED_AT = GPU_WORK | LAUNCHES | {"cpu_op", "user_annotation"}
# vLLM names its steps: requests(tokens) that run prompts, then requests(tokens) that generate.
STEP = re.compile(r"execute\w*?_context_(\d+)\((\d+)\)_generation_(\d+)\((\d+)\)")
KEPT = ("bytes", "In msg nelems", "Out msg nelems", "Group size", "dtype", "Collective name")
MOST = 1e18  # µs and counts beyond are damage
Event = Mapping[str, Any]


def wanted(event: Any) -> bool:
    """Whether anything is read of an event: most are Python frames and arrows."""
    if not isinstance(event, dict) or event.get("ph") != "X" or not isinstance(event.get("cat"), str):
        return False
    return event["cat"].lower() in LOOKED_AT


def trace(document: Any, source: str) -> Trace:
    """The Trace in a decoded document. Raises BadFile when it holds no events or no GPU work."""
    kinds = _by_kind(_events(document, source))
    work = [event for kind in GPU_WORK for event in kinds[kind]]
    if not work:
        raise BadFile(f"{source}: no GPU kernels; profile with ProfilerActivity.CUDA", field="file")
    steps = _steps(kinds["user_annotation"])
    launches = _launches(kinds)
    above = _stacks(kinds["cpu_op"], [launches[key] for key in sorted(launches)])
    by_id = {_key(_args(event).get("External id")): event for event in kinds["cpu_op"]}
    starts = [step.start_us for step in steps]
    kernels = []
    for event in work:
        launch = launches.get(_correlation(event))
        ops = above.get(_correlation(event), ())
        number = _key(_args(event).get("External id"))
        if not ops and number is not None and number in by_id:
            ops = (_op(by_id[number]),)
        begun = launch[0] if launch else _number(event, "ts", source)
        kernels.append(_kernel(event, ops, bisect_right(starts, begun) - 1, source))
    kernels.sort(key=lambda kernel: kernel.start_us)
    return Trace(source, _gpu(document), tuple(kernels), tuple(steps))


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


def _launches(kinds: Mapping[str, list[Event]]) -> dict[Any, tuple[float, Any, Any]]:
    """(host time, thread, correlation) of every launch, by correlation."""
    found = {}
    for kind in LAUNCHES:
        for event in kinds[kind]:
            key, ts = _correlation(event), _finite(event.get("ts"))
            if isinstance(key, int) and ts is not None:
                found[key] = (ts, _key(event.get("tid")), key)
    return found


def _stacks(ops: Iterable[Event], launches: Iterable[tuple[float, Any, Any]]) -> dict[Any, tuple[Op, ...]]:
    """The operators open on the launching thread at each launch, outermost first, by correlation.

    One sweep a thread: operators nest, so those still open form a stack.
    """
    threads: dict[Any, list[tuple[float, float, Event]]] = defaultdict(list)
    for event in ops:
        ts, dur = _finite(event.get("ts")), _finite(event.get("dur", 0))
        if ts is not None and dur is not None:
            threads[_key(event.get("tid"))].append((ts, ts + dur, event))
    waiting: dict[Any, list[tuple[float, Any]]] = defaultdict(list)
    for ts, thread, key in launches:
        waiting[thread].append((ts, key))
    found: dict[Any, tuple[Op, ...]] = {}
    for thread, starts in waiting.items():
        found |= _sweep(sorted(threads[thread], key=lambda op: (op[0], -op[1])), sorted(starts))
    return found


def _sweep(
    ops: Sequence[tuple[float, float, Event]], launches: Sequence[tuple[float, Any]]
) -> dict[Any, tuple[Op, ...]]:
    found: dict[Any, tuple[Op, ...]] = {}
    stack: list[tuple[float, Event]] = []
    made: dict[int, Op] = {}
    at = 0
    for ts, key in launches:
        while at < len(ops) and ops[at][0] <= ts:
            stack = [op for op in stack if op[0] >= ops[at][0]]
            stack.append((ops[at][1], ops[at][2]))
            at += 1
        stack = [op for op in stack if op[0] >= ts]
        for _, event in stack:
            if id(event) not in made:
                made[id(event)] = _op(event)
        found[key] = tuple(made[id(event)] for _, event in stack)
    return found


def _steps(annotations: Iterable[Event]) -> list[Step]:
    steps = []
    for event in annotations:
        match = STEP.search(str(event.get("name", "")))
        ts = _finite(event.get("ts"))
        if match and ts is not None:
            steps.append(Step(ts, *(int(part[:12]) for part in match.groups())))
    return sorted(steps, key=lambda step: step.start_us)


def _gpu(document: Any) -> str | None:
    """Name of the first device, as the driver gives it."""
    devices = document.get("deviceProperties") if isinstance(document, dict) else None
    first = devices[0] if isinstance(devices, list) and devices else None
    name = first.get("name") if isinstance(first, dict) else None
    return name if isinstance(name, str) else None
