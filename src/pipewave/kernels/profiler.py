"""What a profiler records of a launch, as values: kernels, the operators above them, the engine's steps.

Families read calls off these (`Profile` in `kernels.family_metadata`); `traces` fills them from files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from pipewave.calls.fields import Call
from pipewave.errors import BadInput
from pipewave.files import packaged

Dims = tuple[int, ...]
# Operand types and widths in bytes by the type names that PyTorch records; operand types as kernel names spell them, of
# which the first found wins, so narrow types come before what they are scaled in.
_KNOWN = packaged.document(Path(__file__).with_name("operand_types.json"))
TYPES: Mapping[str, str] = _KNOWN["types"]
WIDTHS: Mapping[str, int] = _KNOWN["widths"]
DTYPES = tuple((re.compile(pattern), dtype) for pattern, dtype in _KNOWN["in_kernel_names"])
LONGEST = 4096  # characters of a name that are looked at


@dataclass(frozen=True, slots=True)
class Op:
    """One operator call on the host: of each argument, tensors have dims and a type, scalars a value, lists neither."""

    id: int
    name: str
    dims: tuple[Dims, ...] = ()
    types: tuple[str, ...] = ()
    values: tuple[str, ...] = ()  # as text

    def shape(self, index: int) -> Dims:
        """Sizes of a tensor argument, empty where it is none."""
        return self.dims[index] if index < len(self.dims) else ()

    def value(self, index: int) -> str:
        """Text of a scalar argument, empty where it is none."""
        return self.values[index] if index < len(self.values) else ""

    def type(self, index: int) -> str:
        """Recorded type of an argument, empty where there is none."""
        return self.types[index] if index < len(self.types) else ""

    def width(self, index: int) -> int:
        """Bytes of an element of a tensor argument, 0 where its type is not known."""
        return WIDTHS.get(self.type(index), 0)

    def bytes(self, index: int) -> int:
        """Bytes of a tensor argument; 0 for any other. BadInput where no types were recorded."""
        if not self.types and self.shape(index):
            raise BadInput(f"{self.name}: no operand types were recorded", field="types")
        return prod(self.shape(index)) * self.width(index) if index < len(self.dims) else 0

    def dtype(self, index: int, launched: Launched) -> str | None:
        """Operand type of an argument, or what the kernel's name says."""
        return TYPES.get(self.type(index)) or launched.dtype


@dataclass(frozen=True, slots=True)
class Kernel:
    """One piece of GPU work. Times in µs."""

    name: str
    start_us: float
    duration_us: float
    grid: Dims = ()
    block: Dims = ()
    stream: int = 0
    ops: tuple[Op, ...] = ()  # it was launched under, outermost first
    step: int = -1  # index into `Trace.steps`, or -1
    args: tuple[tuple[str, Any], ...] = ()  # what else the event says (bytes of a copy, sizes of a collective)
    # Of the call that launched it (start, end); a graph's kernels share theirs.
    launch: tuple[float, float] | None = None
    scope: tuple[str, ...] = ()  # modules or ranges it was launched in, outermost first
    device: int = 0  # number of its GPU

    def arg(self, name: str) -> Any:
        """A field of the event, or None."""
        return next((value for key, value in self.args if key == name), None)


@dataclass(frozen=True, slots=True)
class Step:
    """One engine iteration as the trace names it: requests and tokens of its prompts and of its decodes."""

    start_us: float
    prompts: int
    prompt_tokens: int
    decodes: int
    decode_tokens: int

    @property
    def requests(self) -> int:
        """All requests of the step."""
        return self.prompts + self.decodes

    @property
    def tokens(self) -> int:
        """All new tokens of the step, before any padding."""
        return self.prompt_tokens + self.decode_tokens


class KernelName(NamedTuple):
    """A pattern found in names of kernels. The first match in the order of ranks says what a kernel is: its kind.

    Names carry templates and arguments, in which the words of other families occur, so ranks go from the particular to
    the general: 10 a compiler's templates, 20 its fusions, 30 collectives, 40 layers with a state, 50 latent attention,
    60 attention, 70 routed experts, 80 norms, 90 activations and other pointwise work, 100 products, 110 copies.
    """

    rank: int
    pattern: str
    role: str  # its part in a model
    impl: str | None = None  # whose it is
    joins: str = ""  # it belongs to the call of the `previous` or `next` kernel of its family
    family: str | None = None  # what predicts it (None: nothing does)


@lru_cache(maxsize=65536)
def dtype_of(name: str) -> str | None:
    """Operand type as the contract names it, or None where the name does not say."""
    head = name[:LONGEST]
    return next((dtype for pattern, dtype in DTYPES if pattern.search(head)), None)


@dataclass(slots=True, eq=False)
class Launched:
    """The kernels of one call in time order. `kind` is that of the kernel that does the work, `head`."""

    kind: KernelName
    head: Kernel
    kernels: tuple[Kernel, ...]

    @property
    def role(self) -> str:
        """Its part in a model."""
        return self.kind.role

    @property
    def family(self) -> str | None:
        """What predicts it."""
        return self.kind.family

    @property
    def impl(self) -> str | None:
        """Whose kernel it is."""
        return self.kind.impl

    @property
    def dtype(self) -> str | None:
        """Operand type that the names give away."""
        return next(filter(None, (dtype_of(kernel.name) for kernel in (self.head, *self.kernels))), None)

    def op(self, *names: str) -> Op | None:
        """The innermost operator of one of these names above any of the kernels."""
        above = (op for kernel in (self.head, *self.kernels) for op in reversed(kernel.ops))
        return next((op for op in above if op.name in names), None)


@dataclass(frozen=True, slots=True)
class Shaped:
    """A call read off a launch."""

    name: str
    call: Call
    read: bool = True  # all numbers are the trace's, the model's or the user's; else `note` says so
    note: str = ""


@dataclass(frozen=True, slots=True)
class Given:
    """Lengths the user gave; one number stands for every request of a step."""

    q_lens: tuple[int, ...] = ()
    kv_lens: tuple[int, ...] = ()

    def q(self, requests: int, tokens: int) -> tuple[int, ...]:
        """Given new tokens if they fit a step of so many requests and tokens, else none."""
        spread = _spread(self.q_lens, requests)
        return spread if sum(spread) == tokens else ()

    def kv(self, q_lens: tuple[int, ...]) -> tuple[int, ...]:
        """Given cache lengths if they fit these requests and hold their new tokens, else none (another step's)."""
        spread = _spread(self.kv_lens, len(q_lens))
        return spread if all(q <= kv for q, kv in zip(q_lens, spread, strict=False)) else ()


def _spread(values: tuple[int, ...], requests: int) -> tuple[int, ...]:
    return values * requests if len(values) == 1 else values if len(values) == requests else ()
