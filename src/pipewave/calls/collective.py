"""Collectives and point-to-point transfers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from pipewave.calls.fields import Call, check_divides, documented, of


@dataclass(frozen=True, slots=True)
class Collective(Call):
    """One collective; `bytes` as nccl-tests counts size, `world` ranks over `nodes` hosts."""

    bytes: int = of("int", high=1 << 50)
    world: int = of("int", low=2, high=65_536)
    nodes: int = of("int", 1, high=65_536)

    def check(self) -> None:
        """Raise BadInput where sizes do not fit together."""
        check_divides("nodes", self.nodes, "world", self.world)


@dataclass(frozen=True, slots=True)
class AllReduce(Collective):
    """Sum over all ranks; `bytes` per rank."""

    kernel: ClassVar[str] = "all_reduce"


@dataclass(frozen=True, slots=True)
class AllGather(Collective):
    """Every rank ends with all parts; `bytes` of the gathered output."""

    kernel: ClassVar[str] = "all_gather"


@dataclass(frozen=True, slots=True)
class ReduceScatter(Collective):
    """Every rank ends with its part of the sum; `bytes` of the input."""

    kernel: ClassVar[str] = "reduce_scatter"


@dataclass(frozen=True, slots=True)
class AllToAll(Collective):
    """Every rank sends a part to every other; `bytes` per rank."""

    kernel: ClassVar[str] = "all_to_all"


@dataclass(frozen=True, slots=True)
class SendRecv(Collective):
    """One rank sends to the next; `bytes` per rank."""

    kernel: ClassVar[str] = "send_recv"


COLLECTIVES: tuple[type[Collective], ...] = (AllReduce, AllGather, ReduceScatter, AllToAll, SendRecv)
C = TypeVar("C", bound=Collective, covariant=True)


class Maker(Protocol[C]):
    """What makes calls of one collective."""

    def __call__(self, bytes: int, world: int, **options: Any) -> C:
        """The call."""


def _maker(collective: type[C], about: str, size: str, work: str, *usual: int) -> Maker[C]:
    """A documented maker of calls; `usual`: ranks where none are said."""

    def make(bytes: int, world: int, **options: Any) -> C:
        return collective(bytes, world, **options)

    make.__defaults__ = usual
    make.__name__ = make.__qualname__ = collective.kernel
    make.__doc__ = f"""{about}

    Args:
        bytes: bytes {size}, as nccl-tests counts size.
        world: ranks.
        **options: fields of `Collective`: `nodes` (hosts, must divide `world`), {{options}}.

    {{call}}

    Work: {work} (`kernels/collective/algorithms.py`).
    """
    return documented(make)


RING = "(world − 1)/world · bytes cross each link of a ring"
all_reduce = _maker(AllReduce, "A sum over all ranks that every rank receives.", "on each rank", f"2·{RING}")
all_gather = _maker(AllGather, "A gather after which every rank holds all parts.", "of the gathered output", RING)
reduce_scatter = _maker(
    ReduceScatter, "A sum over all ranks of which every rank receives its part.", "of the input on each rank", RING
)
all_to_all = _maker(
    AllToAll,
    "An exchange in which every rank sends a part to every other.",
    "on each rank",
    "(world − 1)/world · bytes leave each rank",
)
send_recv = _maker(SendRecv, "A transfer from each rank to the next.", "on each rank", "all bytes cross one link", 2)
