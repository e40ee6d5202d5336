"""What every GPU of one compute capability shares: numbers per SM and clock, and traits that formulas ask for.

The rows are data (`architectures.json`), each field with its source. A capability that has no row is refused by name,
never answered as some other: add a row, or `register` one (a GPU file does so with `traits`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from pipewave.errors import BadInput, UnknownArchitecture
from pipewave.files import packaged

# The fastest tensor instruction says how operands reach tensor cores: from registers (`mma`), from shared memory that
# clusters of SMs fill together (`wgmma`), through tensor memory, two SMs to a product (`tcgen05`).
Mma = Literal["mma", "wgmma", "tcgen05"]
_DATA = Path(__file__).with_name("architectures.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Traits of one compute capability."""

    name: str
    smem_kb_per_sm: int
    max_threads_per_sm: int
    max_ctas_per_sm: int
    fma_per_clk_per_sm: int
    xu_per_clk_per_sm: int = 16
    smem_bytes_per_clk_per_sm: int = 128
    registers_per_sm: int = 65_536
    pcie_gbps: int
    l2_bytes_per_clk_per_sm: float
    l2_note: str = "given with the traits"
    of_16bit: Mapping[str, float]  # other peaks as multiples of the 16-bit one, absent = cannot run
    fp4_types: tuple[str, ...] = ("nvfp4", "mxfp4")  # 4-bit operands its tensor instruction scales
    mma: Mma
    l2_partitions: int  # pieces of the L2, each keeping its own copy of what several read
    l2_carries: bool = True  # what a kernel wrote is in the L2 of the SMs that read it next
    family_code: bool = False  # code can be made for all capabilities of the generation at once
    joules_per_flop: float  # of a dense 16-bit FLOP at the power limit
    nvlink_reduces: bool = False  # switches add up in flight
    clock_drops_when_cold: bool = False  # a product after a pause brings the clock down
    stand_in: str = ""  # the stack whose kernels answer for all others, where none was measured here
    stand_in_kernels: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # by family and phase, of others

    def __post_init__(self) -> None:
        object.__setattr__(self, "fp4_types", tuple(self.fp4_types))
        kernels = {net: (stack, impl) for net, (stack, impl) in self.stand_in_kernels.items()}
        object.__setattr__(self, "stand_in_kernels", kernels)
        if self.mma not in get_args(Mma):
            raise BadInput(f"mma = {self.mma!r}: must be one of {', '.join(get_args(Mma))}", field="mma")
        for name in (one.name for one in fields(self) if one.type in ("int", "float")):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < float("inf"):
                raise BadInput(f"{name} = {value!r}: must be a positive number", field=name)

    @property
    def asynchronous(self) -> bool:
        """Whether tensor instructions run beside the warps that issue them."""
        return self.mma != "mma"


_REGISTERED: dict[int, Architecture] = {}


@cache
def shipped() -> Mapping[int, Architecture]:
    """The rows of the data file by compute capability."""
    rows = packaged.document(_DATA)["capabilities"]
    return {int(capability): Architecture(**row) for capability, row in rows.items()}


def architecture_of(compute_capability: object) -> Architecture:
    """Return the traits of one compute capability, given as major·10 + minor (90 for 9.0).

    Raises:
        UnknownArchitecture: it has none; the message says which to give.
    """
    found = None
    if isinstance(compute_capability, int):
        found = shipped().get(compute_capability) or _REGISTERED.get(compute_capability)
    if found is None:
        known = ", ".join(map(str, sorted({*shipped(), *_REGISTERED})))
        raise UnknownArchitecture(
            f"compute_capability = {compute_capability!r} has no traits: use one of {known} (9.0 is 90), or give "
            f"`traits` with {', '.join(required())}",
            field="compute_capability",
        )
    return found


def register(compute_capability: int, traits: Mapping[str, Any]) -> Architecture:
    """Give a compute capability its traits, by the names of `Architecture`; the same traits again are no error.

    Raises:
        BadInput: the capability has other traits, one is missing, or one is not known.
    """
    if not isinstance(traits, Mapping):
        raise BadInput(f"traits = {traits!r} is not possible: give 'trait: value' pairs", field="traits")
    names = {trait.name for trait in fields(Architecture)}
    if wrong := [str(name) for name in traits if name not in names]:
        raise BadInput(f"traits names {wrong[0]!r}: there are {', '.join(sorted(names))}", field="traits")
    if missing := [name for name in required() if name not in traits]:
        raise BadInput(f"traits lacks {', '.join(missing)}", field="traits")
    made = Architecture(**traits)
    taken = shipped().get(compute_capability) or _REGISTERED.get(compute_capability)
    if taken is not None and taken != made:
        raise BadInput(f"compute_capability = {compute_capability} has other traits already", field="traits")
    _REGISTERED.setdefault(compute_capability, made)
    return made


def required() -> tuple[str, ...]:
    """Traits that a new architecture must name."""
    given = (trait for trait in fields(Architecture) if trait.default is MISSING and trait.default_factory is MISSING)
    return tuple(trait.name for trait in given)


def generation(capability: int) -> int:
    """Parts that run the same kernels: before Hopper one generation, then one a major capability."""
    return min(capability // 10, 8) if capability < 90 else capability // 10
