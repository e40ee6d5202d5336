"""Collectives and point-to-point transfers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from pipewave.calls.fields import Call, documented, of
from pipewave.errors import BadInput


@dataclass(frozen=True, slots=True)
class Collective(Call):
    """One collective; `bytes` as nccl-tests counts size, `world` ranks over `nodes` hosts."""

    bytes: int = of("int", high=1 << 50)
    world: int = of("int", low=2, high=65_536)
    nodes: int = of("int", 1, high=65_536)

    def check(self) -> None:
        """Raise BadInput where sizes do not fit together."""
        if self.world % self.nodes:
            raise BadInput(f"nodes = {self.nodes}: must divide world = {self.world}", field="nodes")


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


@documented
def all_reduce(bytes: int, world: int, **options: Any) -> AllReduce:
    """A sum over all ranks that every rank receives.

    Args:
        bytes: bytes on each rank, as nccl-tests counts size.
        world: ranks.
        **options: fields of `Collective`: `nodes` (hosts, must divide `world`), {options}.

    {call}

    Work: 2·(world − 1)/world · bytes cross each link of a ring (`kernels/collective/algorithms.py`).
    """
    return AllReduce(bytes, world, **options)


@documented
def all_gather(bytes: int, world: int, **options: Any) -> AllGather:
    """A gather after which every rank holds all parts.

    Args:
        bytes: bytes of the gathered output, as nccl-tests counts size.
        world: ranks.
        **options: fields of `Collective`: `nodes` (hosts, must divide `world`), {options}.

    {call}

    Work: (world − 1)/world · bytes cross each link of a ring (`kernels/collective/algorithms.py`).
    """
    return AllGather(bytes, world, **options)


@documented
def reduce_scatter(bytes: int, world: int, **options: Any) -> ReduceScatter:
    """A sum over all ranks of which every rank receives its part.

    Args:
        bytes: bytes of the input on each rank, as nccl-tests counts size.
        world: ranks.
        **options: fields of `Collective`: `nodes` (hosts, must divide `world`), {options}.

    {call}

    Work: (world − 1)/world · bytes cross each link of a ring (`kernels/collective/algorithms.py`).
    """
    return ReduceScatter(bytes, world, **options)


@documented
def all_to_all(bytes: int, world: int, **options: Any) -> AllToAll:
    """An exchange in which every rank sends a part to every other.

    Args:
        bytes: bytes on each rank, as nccl-tests counts size.
        world: ranks.
        **options: fields of `Collective`: `nodes` (hosts, must divide `world`), {options}.

    {call}

    Work: (world − 1)/world · bytes leave each rank (`kernels/collective/algorithms.py`).
    """
    return AllToAll(bytes, world, **options)


@documented
def send_recv(bytes: int, world: int = 2, **options: Any) -> SendRecv:
    """A transfer from each rank to the next.

    Args:
        bytes: bytes on each rank, as nccl-tests counts size.
        world: ranks.
        **options: fields of `Collective`: `nodes` (hosts, must divide `world`), {options}.

    {call}

    Work: all bytes cross one link (`kernels/collective/algorithms.py`).
    """
    return SendRecv(bytes, world, **options)
