"""Measured against predicted and reachable time of every distinct call, ranked by what could be won back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from pipewave.calls.families import Call, Collective, Elementwise
from pipewave.errors import UnknownGPU
from pipewave.gpus import GPU, find
from pipewave.kernels.profiler import Shaped
from pipewave.kernels.streaming.metadata import DEPENDS
from pipewave.kernels.streaming.sampling import ARGMAX, LAWS
from pipewave.prediction.answers import Prediction
from pipewave.prediction.api import predict
from pipewave.prediction.notes import said_of
from pipewave.results import Shown
from pipewave.traces.entry import Entry, TracedCall, UnpredictedKernel, by_layer, by_operator, leaves
from pipewave.traces.group import Group, Shapes, Where
from pipewave.traces.idle import Idle, idle, paced
from pipewave.traces.kernel_names import short
from pipewave.traces.losses import MATTERS, Loss, first, losses
from pipewave.traces.trace import Trace

CLOSE = 0.10  # a prediction within a tenth of the measurement
JUDGED = 0.5  # of the GPU's time whose shapes were read: below it no recoverable time is told
IMPOSSIBLE, NOTED = 0.9, 0.02  # of its floor a call cannot take less; such calls' share of the GPU's time that is told
CAVEATS = {
    "sample": "sampling is predicted as a copy of its size: no such kernel was measured",
    "argmax": "argmax follows PyTorch's reduction kernel, fitted to 48 sizes on an H100",
    **{
        op: f"{op} was fitted to 48 sizes on an H100, {law.error_percent:.0f} % off where left out"
        for op, law in LAWS.items()
    },
    **dict.fromkeys(DEPENDS, "masks of top-k and top-p take what the logits let them take: fitted to random ones"),
    "topk": "top-k was fitted to one router, which picks 8 of 128 experts",
}
STAND_INS = ("sample", ARGMAX, *LAWS)  # nobody measured how fast another implementation would be
PREDICTED = ("latency_us", "low_us", "high_us", "floor_us", "ceiling_us", "bound", "basis")  # of an entry
WAITING = "the measured time of a collective includes waiting for the slowest rank"


@dataclass(frozen=True, slots=True)
class Report(Shown):
    """A trace explained. Shares are of `gpu_us`, the sum of all durations; entries are ranked by recoverable time,
    those that do not count after the others.

    `steps`: engine steps that ran kernels, as the trace names them; 1 where it names none. `idle`: waits of the GPU and
    their causes, None for a table without a clock. `ran`: every call, in time order.
    """

    source: str
    gpu: str
    protocol: str
    gpu_us: float
    entries: tuple[Entry, ...]
    unshaped: tuple[UnpredictedKernel, ...]
    unknown: tuple[UnpredictedKernel, ...]
    steps: int = 1
    idle: Idle | None = None
    losses: tuple[Loss, ...] = ()  # of the wall clock, largest first
    ran: tuple[TracedCall, ...] = ()
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()  # of the notes, those that must be read first
    _TABLE: ClassVar[str] = "calls"
    _DRAWN: ClassVar[tuple[str, ...]] = ("measured_us", "predicted_us")

    @property
    def recognized_share(self) -> float:
        """Of the kernels whose family is known."""
        return min(max(1.0 - sum(one.total_measured_us for one in self.unknown) / (self.gpu_us or 1.0), 0.0), 1.0)

    @property
    def shaped_share(self) -> float:
        """Of the calls whose shapes were read."""
        return min(sum(one.total_measured_us for one in self.entries if one.shaped) / (self.gpu_us or 1.0), 1.0)

    @property
    def close_share(self) -> float:
        """What is predicted within `CLOSE`, of what is recognised."""
        recognised = (self.gpu_us or 1.0) - sum(one.total_measured_us for one in self.unknown)
        close = sum(one.total_measured_us for one in self.entries if abs(one.error) <= CLOSE)
        return min(close / recognised, 1.0) if recognised > 0 else 0.0

    @property
    def recoverable_us(self) -> float:
        """Of the calls that count."""
        return sum(one.total_recoverable_us for one in self.entries if one.counted)

    @property
    def judged(self) -> bool:
        """Whether shapes of most of the GPU's time were read: else recoverable time says nothing."""
        return self.shaped_share >= JUDGED

    @property
    def headline(self) -> tuple[str, ...]:
        """Where the wall clock went and the remedy, then what kernels could win back, or why nobody knows."""
        ran, won = f"kernels took {self.gpu_us / 1e3:,.3f} ms", self.recoverable_us / (self.gpu_us or 1.0)
        kernels = f"{ran}; {self.recoverable_us / 1e3:,.3f} ms of them ({won:.1%}) could be won back"
        if not self.judged:
            remedy = "CUDA graphs record no shapes, which come from the model: name it"
            kernels = f"{ran}; what could be won back is not known: shapes of {self.shaped_share:.0%} are. {remedy}"
        if self.idle is None or not self.idle.span_us:
            return (*self.doubts, kernels)
        whole, loss = f"{self.idle.span_us / 1e3:,.3f} ms, GPU idle {self.idle.share:.1%}", first(self.losses)
        if loss is not None:
            size = f" ({loss.us / 1e3:,.3f} ms, {loss.share:.1%})" if loss.us else ""
            whole += f": {loss.what}{size}. {loss.action[0].upper()}{loss.action[1:]}"
        elif self.judged and not self.doubts:
            whole += f": healthy, nothing takes more than {MATTERS:.0%} in vain"
        return (*self.doubts, whole, kernels)

    def __repr__(self) -> str:
        """One line; `to_dict` has everything."""
        calls, won = len(self.entries), self.recoverable_us / self.gpu_us if self.gpu_us else 0.0
        said = f"{won:.1%} recoverable" if self.judged else "recoverable time not known"
        return (
            f"<{self.source} on {self.gpu} [{self.protocol}]: {self.gpu_us / 1e3:,.4g} ms of kernels, {said}, "
            f"{calls:,} distinct call{'s'[: calls != 1]}>"
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON of `pipewave trace`: one object in `calls` a distinct kernel call."""
        scalars = ("source", "gpu", "protocol", "gpu_us", "recognized_share", "shaped_share", "close_share")
        return {
            "schema_version": 1,
            "headline": list(self.headline),
            "judged": self.judged,
            **{name: getattr(self, name) for name in scalars},
            "recoverable_us": self.recoverable_us,
            # What the other calls would add if their assumptions held.
            "assumed_recoverable_us": sum(one.total_recoverable_us for one in self.entries if not one.counted),
            "steps": self.steps,
            "calls": [asdict(entry) for entry in self.entries],
            "unshaped": [asdict(left) for left in self.unshaped],
            "unrecognized": [asdict(left) for left in self.unknown],
            "idle": self.idle.to_dict() if self.idle else None,
            "losses": [asdict(loss) for loss in self.losses],
            "by_operator": [asdict(row) for row in by_operator(self.ran)],
            "by_layer": [asdict(row) for row in by_layer(self.ran)],
            "flame": leaves(self.ran),
            "notes": list(self.notes),
        }


def report(trace: Trace, groups: Sequence[Group], shapes: Shapes, layers: Sequence[int | None], where: Where) -> Report:
    """Predict every distinct call once and put measurement and prediction side by side."""
    gpu, protocol = where.gpu, where.protocol
    alike: dict[tuple[Any, ...], tuple[Shaped, list[Group]]] = {}
    bare: list[Group] = []
    for one, shape in zip(groups, shapes, strict=True):
        if shape is None or one.kind.family is None:
            bare.append(one)
        else:
            alike.setdefault((shape, short(one.head.name)), (shape, []))[1].append(one)
    found: Sequence[Prediction] = ()
    if alike:
        calls, members = [shape.call for shape, _ in alike.values()], [those for _, those in alike.values()]
        known = predict(calls, gpu, protocol=protocol, stack=where.stack)
        found = paced(known, members, groups, gpu) if protocol == "serving" else known
    entries = [_entry(shape, members, one) for (shape, members), one in zip(alike.values(), found, strict=True)]
    of = {id(one): entry for (_, members), entry in zip(alike.values(), entries, strict=True) for one in members}
    ran = tuple(_ran(trace, one, layer, of.get(id(one))) for one, layer in zip(groups, layers, strict=True))
    entries.sort(key=lambda entry: (not entry.counted, -entry.total_recoverable_us))
    said = ((shape.call.kernel, note) for (shape, _), p in zip(alike.values(), found, strict=True) for note in p.notes)
    doubts = tuple(_doubts(trace, entries, gpu))
    notes = (*trace.notes, *doubts, *said_of(said))
    waits, left = idle(trace), _unpredicted(bare)
    unshaped, unknown = (tuple(one for one in left if (one.family is None) is it) for it in (False, True))
    named = {kernel.step for kernel in trace.kernels if kernel.step >= 0 and trace.steps[kernel.step].requests}
    lost, whole = losses(trace, waits, entries, groups, shapes, gpu), (trace.source, gpu.name, protocol, trace.gpu_us)
    return Report(*whole, tuple(entries), unshaped, unknown, max(1, len(named)), waits, lost, ran, notes, doubts)


def _doubts(trace: Trace, entries: Sequence[Entry], gpu: GPU) -> Iterator[str]:
    """What is said where another GPU ran, or calls as they are understood are faster than any kernel can be."""
    with suppress(UnknownGPU):
        if trace.gpu and find(trace.gpu).name != gpu.name:
            yield f"recorded on {trace.gpu}: times of {gpu.name} stand beside those of another GPU"
    below = [entry for entry in entries if entry.measured_us < IMPOSSIBLE * entry.floor_us]
    share = sum(entry.total_measured_us for entry in below) / (trace.gpu_us or 1.0)
    if share >= NOTED:
        names = ", ".join(dict.fromkeys(entry.name for entry in below))
        yield f"{names}: {share:.0%} of the time, faster than {gpu.name} can be; another model, split, cache or GPU ran"


def _ran(trace: Trace, one: Group, layer: int | None, entry: Entry | None) -> TracedCall:
    known = (trace.step(one.head.step), layer, entry.name if entry else one.role, one.head.name, one.measured_us)
    if entry is None:
        return TracedCall(*known, one.family)
    lost = entry.recoverable_us if entry.counted else 0.0
    return TracedCall(*known, one.family, entry.latency_us, lost, entry.counted)


def _entry(shape: Shaped, members: Sequence[Group], found: Prediction) -> Entry:
    total, count = sum(one.measured_us for one in members), len(members)
    recoverable = max(total / count - found.ceiling_us, 0.0)
    # Another kernel is predicted in the place of this one, or its ceiling rests on no rows.
    stand_in = isinstance(shape.call, Elementwise) and shape.call.op in STAND_INS
    caveat = WAITING if isinstance(shape.call, Collective) else CAVEATS.get(getattr(shape.call, "op", ""), "")
    return Entry(
        family=shape.call.kernel,
        name=shape.name,
        count=count,
        measured_us=total / count,
        recoverable_us=recoverable,
        total_measured_us=total,
        total_recoverable_us=recoverable * count,
        shaped=shape.read,
        note=shape.note or caveat,
        call=describe(shape.call),
        kernels=tuple(dict.fromkeys(short(kernel.name) for one in members for kernel in one.kernels)),
        tile=members[0].tile,
        grid=members[0].head.grid,
        counted=shape.read and not stand_in,
        **{name: getattr(found, name) for name in PREDICTED},
    )


def describe(call: Call) -> dict[str, Any]:
    """Fields of a call without its family and without what nobody set."""
    return {name: value for name, value in call.to_dict().items() if name != "kernel"}


def _unpredicted(groups: Sequence[Group]) -> list[UnpredictedKernel]:
    """Groups without a prediction, alike ones together, longest first. Their shape is that of the innermost operator's
    tensors, else the bytes of a copy, else the grid; empty where none is known.
    """
    found: dict[tuple[str | None, str, str], list[float]] = {}
    for one in groups:
        dims = next((op.dims for op in reversed(one.head.ops) if any(op.dims)), ())
        moved, grid = one.head.arg("bytes"), f"grid {' '.join(map(str, one.head.grid))}" if one.head.grid else ""
        plain = f"{moved:,} bytes" if isinstance(moved, int) else grid
        sizes = " ".join(str(list(size)) for size in dims if size) or plain
        found.setdefault((one.kind.family, short(one.head.name), sizes), []).append(one.measured_us)
    rows = [UnpredictedKernel(*key, len(times), sum(times)) for key, times in found.items()]
    return sorted(rows, key=lambda left: -left.total_measured_us)
