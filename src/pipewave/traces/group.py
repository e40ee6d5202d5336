"""Kernels that one predicted call launches, put together, and the call as operators recorded it.

Split-k and its sum, attention and its merge, the products of a layer of experts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipewave.errors import BadInput
from pipewave.gpus import GPU
from pipewave.kernels import family_of, registered
from pipewave.kernels.profiler import Given, KernelName, Launched, Shaped, Step
from pipewave.traces.kernel_names import kind_of, tile_of
from pipewave.traces.trace import Dims, Kernel, Op

Shapes = Sequence[Shaped | None]  # of groups, where they are known


@dataclass(frozen=True, slots=True)
class Where:
    """What predictions of a trace are for."""

    gpu: GPU
    protocol: str
    stack: str | None = None


@dataclass(slots=True, eq=False)
class Group(Launched):
    """A call as it grows kernel by kernel."""

    products: int = 0  # of a routed layer, so far
    operator: Op | None = None  # that is the call as a whole

    @property
    def measured_us(self) -> float:
        """GPU time of all kernels."""
        return sum(kernel.duration_us for kernel in self.kernels)

    @property
    def tile(self) -> Dims | None:
        """Tile of the working kernel, where its name says it."""
        return tile_of(self.head.name)

    def take(self, kernel: Kernel, kind: KernelName) -> None:
        """Add the next kernel of the call."""
        self.kernels = (*self.kernels, kernel)
        self.products += kind.role == "moe"

    def wants(self, kind: KernelName) -> bool:
        """Whether a kernel of this kind, next on the stream, still belongs here."""
        if kind.joins == "previous":
            return kind.family == self.kind.family
        if self.kind.role != "moe":
            return False
        # A routed layer: first product, activation (and quantisation), second product, sum over the chosen experts.
        return (kind.role in ("moe", "act", "quantize") and self.products == 1) or kind.role == "sum"


def group(kernels: Iterable[Kernel]) -> list[Group]:
    """All kernels, each in one group, in time order; what prepares a call waits for it."""
    done: list[Group] = []
    latest: dict[int, Group] = {}
    waiting: dict[str | None, list[Kernel]] = {}
    wholes = {
        name: KernelName(0, "", "sample", family=family.name)
        for family in registered()
        for name in family.profile.whole
    }
    for kernel in kernels:
        kind, last = kind_of(kernel.name), latest.get(kernel.stream)
        operator = next((op for op in kernel.ops if op.name in wholes), None)  # that is one call as a whole
        if operator is not None and last is not None and last.operator is operator:
            last.take(kernel, last.kind)
        elif operator is not None:
            latest[kernel.stream] = Group(wholes[operator.name], kernel, (kernel,), operator=operator)
            done.append(latest[kernel.stream])
        elif kind.joins == "next":
            waiting.setdefault(kind.family, []).append(kernel)
        elif last is not None and last.wants(kind):
            last.take(kernel, kind)
        else:
            before = (*_quantised(kind, kernel, done), *waiting.pop(kind.family, ())) if not kind.joins else ()
            latest[kernel.stream] = Group(kind, kernel, before)
            latest[kernel.stream].take(kernel, kind)
            done.append(latest[kernel.stream])
    alone = [Group(kind_of(kernel.name), kernel, (kernel,)) for rest in waiting.values() for kernel in rest]
    return sorted([*done, *alone], key=lambda one: one.head.start_us)


def _quantised(kind: KernelName, kernel: Kernel, done: list[Group]) -> tuple[Kernel, ...]:
    """The quantisation that ran right before an expert layer is the layer's own: taken back out of what is done."""
    earlier = (at for at in reversed(range(len(done))) if done[at].kind.role != "fill")
    at = next(earlier, None) if kind.role == "moe" else None
    if at is None or done[at].kind.role != "quantize" or done[at].head.stream != kernel.stream:
        return ()
    return done.pop(at).kernels


def by_step(groups: Sequence[Group]) -> dict[int, list[Group]]:
    """Groups by the step their working kernel belongs to."""
    steps: dict[int, list[Group]] = {}
    for one in groups:
        steps.setdefault(one.head.step, []).append(one)
    return steps


def recorded_call(group: Group, step: Step | None, given: Given) -> Shaped | None:
    """The call behind a group as its operators or its own event give it; None where they do not."""
    if group.family is None:
        return None
    profile = family_of(group.family).profile
    try:
        whole = profile.group(group, step, given) if profile.group else None
        if whole:
            return whole
        for op in reversed(group.head.ops):
            call = profile.operators[op.name](op, group) if op.name in profile.operators and op.dims else None
            if call is not None:
                return Shaped(op.name, call)
    except BadInput:  # sizes that no such kernel can have: the operator is not what its name says
        return None
    return None
