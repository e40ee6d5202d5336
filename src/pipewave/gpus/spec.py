"""One GPU as a frozen set of numbers, each with its unit in its name and its source beside it.

Two clocks, because a datasheet's peaks and the fastest a part may run differ: tensor peaks are quoted at
`sustained_clock_mhz` (1830 on an H100), while `boost_clock_mhz` (1980) is the highest clock the part can reach and
therefore the one a physical lower bound must use. All peaks are dense, with fp32 accumulation.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import prod
from numbers import Real
from pathlib import Path
from typing import Any, Literal

from pipewave.errors import BadInput, UnknownField, UnsupportedDtype, meant_or_known
from pipewave.files import packaged
from pipewave.gpus.architectures import Architecture, architecture_of

Kind = Literal["datasheet", "measured", "derived", "unverified"]

NUMBERS = Path(__file__).with_name("numbers.json")
_PEAK_FIELD: Mapping[str, str] = packaged.shared(NUMBERS)["peaks"]
DTYPES = tuple(_PEAK_FIELD)
LINKS = ("nvlink", "xgmi", "pcie")
GFX = 900  # numbers of AMD's instruction sets start here, NVIDIA's end below
_FOLLOWS: Mapping[str, Sequence[str]] = packaged.shared(NUMBERS)["follows"]


@dataclass(frozen=True, slots=True)
class Limit:
    """Closed range of a number; wide enough for any what-if, narrow enough to catch a wrong unit."""

    low: float
    high: float
    whole: bool = False
    optional: bool = False

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        return f"{kind} from {self.low:g} to {self.high:g}" + (" or null" if self.optional else "")


def limited(low: float, high: float, *, whole: bool = False, optional: bool = False) -> Any:
    """Declare a field of a dataclass with what it may hold; None is the default where it may be None."""
    limit = {"limit": Limit(low, high, whole, optional)}
    return field(default=None, metadata=limit) if optional else field(metadata=limit)


@dataclass(frozen=True, slots=True)
class Source:
    """Where one number comes from; `date` is that of the source, when known."""

    kind: Kind
    note: str
    date: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GPU:
    """Specification of one GPU. Peaks are dense, with fp32 accumulation; None says that the part lacks the type.

    Attributes:
        name: its name.
        aliases: other spellings.
        origin: GPU that a copy with other numbers was made of.
        architecture: such as `hopper`.
        compute_capability: 90 for 9.0.
        sms: streaming multiprocessors.
        boost_clock_mhz: highest clock that the part can reach, MHz.
        sustained_clock_mhz: clock at which the peaks are quoted, MHz.
        fp32_tflops: peak of plain FMA units, TFLOP/s.
        tf32_tflops: tensor peak, TFLOP/s; the next four likewise.
        fp16_tflops: TFLOP/s.
        bf16_tflops: TFLOP/s.
        fp8_tflops: TFLOP/s.
        int8_tops: Top/s.
        fp4_tflops: TFLOP/s.
        dram_gb: memory as on the box, 10⁹ bytes.
        dram_gib: memory as nvidia-smi reports it, MiB / 1024; memory budgets use this one.
        dram_gbps: bandwidth of the datasheet, GB/s.
        dram_pin_gbps: memory clock × bus width as the driver states them, GB/s; may be higher.
        dram_measured_gbps: highest bandwidth seen in measured rows, GB/s.
        l2_mb: L2 cache, MiB.
        l2_gbps: L2 to SM bandwidth, GB/s.
        smem_kb_per_sm: shared memory of an SM, KiB.
        smem_bytes_per_clk_per_sm: its bandwidth, bytes a clock.
        registers_per_sm: 32-bit registers of an SM.
        max_threads_per_sm: threads resident on an SM.
        max_ctas_per_sm: thread blocks resident on an SM.
        fma_per_clk_per_sm: fused multiply-adds a clock, two FLOP each.
        xu_per_clk_per_sm: special functions a clock.
        link: `nvlink`, `xgmi` or `pcie`.
        link_gbps: bandwidth to other GPUs, one direction, GB/s.
        pcie_gbps: bandwidth to the host, one direction, GB/s.
        tdp_w: power limit, W.
        gpus_per_node: GPUs of a host.
        sources: where each number comes from.

    Raises:
        BadInput: a value is impossible, or two contradict each other.
    """

    name: str
    aliases: tuple[str, ...] = ()
    origin: str = ""
    architecture: str
    compute_capability: int = limited(70, 999, whole=True)
    sms: int = limited(1, 4096, whole=True)
    boost_clock_mhz: float = limited(100, 10_000)
    sustained_clock_mhz: float = limited(100, 10_000)
    fp32_tflops: float = limited(0.01, 1e6)
    tf32_tflops: float | None = limited(0.01, 1e6, optional=True)
    fp16_tflops: float = limited(0.01, 1e6)
    bf16_tflops: float | None = limited(0.01, 1e6, optional=True)
    fp8_tflops: float | None = limited(0.01, 1e6, optional=True)
    int8_tops: float | None = limited(0.01, 1e6, optional=True)
    fp4_tflops: float | None = limited(0.01, 1e6, optional=True)
    dram_gb: float = limited(0.5, 100_000)
    dram_gib: float = limited(0.25, 100_000)
    dram_gbps: float = limited(1, 1e6)
    dram_pin_gbps: float | None = limited(1, 1e6, optional=True)
    dram_measured_gbps: float | None = limited(1, 1e6, optional=True)
    l2_mb: float = limited(0.1, 100_000)
    l2_gbps: float = limited(1, 1e7)
    smem_kb_per_sm: float = limited(16, 65_536)
    smem_bytes_per_clk_per_sm: float = limited(1, 65_536)
    registers_per_sm: int = limited(1024, 1 << 24, whole=True)
    max_threads_per_sm: int = limited(32, 1 << 20, whole=True)
    max_ctas_per_sm: int = limited(1, 1 << 16, whole=True)
    fma_per_clk_per_sm: float = limited(1, 65_536)
    xu_per_clk_per_sm: float = limited(1, 65_536)
    link: str
    link_gbps: float = limited(0.1, 1e6)
    pcie_gbps: float = limited(0.1, 1e5)
    tdp_w: float = limited(1, 1e6)
    gpus_per_node: int = limited(1, 2048, whole=True)
    sources: Mapping[str, Source] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in NUMBER_FIELDS:
            object.__setattr__(self, name, checked(name, getattr(self, name)))
        if self.sustained_clock_mhz > self.boost_clock_mhz * (1 + 1e-9):  # room for a what-if's rounding
            raise BadInput(
                f"sustained_clock_mhz = {self.sustained_clock_mhz:g} is above boost_clock_mhz = "
                f"{self.boost_clock_mhz:g}, which is the highest clock of the part",
                field="sustained_clock_mhz",
            )

    def __hash__(self) -> int:
        # Three fields tell any two specs apart in practice; hashing all forty would cost 2 µs on every cache look-up.
        return hash((self.name, self.sms, self.dram_gbps))

    def __str__(self) -> str:
        return self.name

    @property
    def traits(self) -> Architecture:
        """What its compute capability shares: tensor instruction, L2 pieces, energy of a FLOP."""
        return architecture_of(self.compute_capability)

    @property
    def vendor(self) -> str:
        """`amd` or `nvidia`, by the number of its instruction set."""
        return "amd" if self.compute_capability >= GFX else "nvidia"

    @property
    def dram_peak_gbps(self) -> float:
        """The highest bandwidth the part is known or said to reach, GB/s: what a lower bound on time must use."""
        return max(self.dram_gbps, self.dram_pin_gbps or 0.0, self.dram_measured_gbps or 0.0)

    @property
    def l2_peak_gbps(self) -> float:
        """Bound on L2 → SM traffic, GB/s: every SM's 64-byte port busy on every clock (no measured part exceeds it)."""
        return max(self.l2_gbps, 64e-3 * self.sms * self.boost_clock_mhz)

    def supports(self, dtype: str) -> bool:
        """Say whether operands of a type can run.

        Args:
            dtype: `fp32`, or an operand type of calls such as `bf16`.

        Returns:
            Whether they can.

        Raises:
            BadInput: no such type.
        """
        return self._peak_tflops(dtype) is not None

    def peak_flops(self, dtype: str, at: Literal["datasheet", "boost"] = "datasheet") -> float:
        """Dense peak: as the datasheet quotes it, or at the highest clock the part can reach.

        `int4` runs at the 16-bit rate; so does `mxfp4` from Ampere on where there is no fp4 tensor core (weights are
        unpacked on the way). `fp8_block` shares the fp8 rate, `nvfp4` and `mxfp4` the fp4 rate.

        Args:
            dtype: `fp32`, or an operand type of calls such as `bf16`.
            at: `datasheet` (at the sustained clock), or `boost`.

        Returns:
            FLOP/s, two per multiply-add.

        Raises:
            UnsupportedDtype: this GPU cannot run it.
            BadInput: no such dtype, or `at` is neither word.
        """
        tflops = self._peak_tflops(dtype)
        if tflops is None:
            runs = ", ".join(known for known in DTYPES if self.supports(known))
            raise UnsupportedDtype(f"{self.name} cannot run dtype {dtype!r}: it runs {runs}", field="dtype")
        if at == "datasheet":
            return tflops * 1e12
        if at == "boost":
            return max(tflops * 1e12, self.flops_per_clk_per_sm(dtype) * self.sms * self.boost_clock_mhz * 1e6)
        raise BadInput(f"at = {at!r} is not possible: give 'datasheet' or 'boost'", field="at")

    def flops_per_clk_per_sm(self, dtype: str) -> float:
        """Dense rate of an SM: of the lanes for fp32, else of the quoted tensor peak at the sustained clock.

        Args:
            dtype: `fp32`, or an operand type of calls such as `bf16`.

        Returns:
            FLOP per clock and SM, two per multiply-add.

        Raises:
            UnsupportedDtype, BadInput: as `peak_flops`.
        """
        peak = self.peak_flops(dtype)
        if dtype == "fp32":
            return 2.0 * self.fma_per_clk_per_sm
        return peak / (self.sms * self.sustained_clock_mhz * 1e6)

    @property
    def base_gpu(self) -> str:
        """The GPU whose measured rows are nearest: the one a copy was made of, or this one."""
        return self.origin or self.name

    def what_if(self, **changes: Any) -> GPU:
        """Return a copy with other numbers, e.g. `gpu.what_if(dram_gbps=6000)`; unchanged values give `self` back.

        What depends on a changed field follows in proportion unless it is given too: tensor peaks and L2 bandwidth
        follow SMs and sustained clock, that clock follows the boost clock, fp32 follows SMs, boost clock and lanes,
        measured and pin bandwidth follow `dram_gbps`, usable memory follows `dram_gb`. The copy's name and sources say
        what was assumed.

        Args:
            **changes: fields of `GPU` in their own units, and `name` for the copy.

        Returns:
            The copy, or this GPU where nothing changes.

        Raises:
            UnknownField, BadInput: naming the field, the value and the permitted range.
        """
        name = changes.pop("name", None)
        if "compute_capability" in changes:
            raise BadInput(
                "compute_capability cannot be a what-if: another architecture needs a spec of its own",
                field="compute_capability",
            )
        given = {key: new for key, value in changes.items() if (new := checked(key, value)) != getattr(self, key)}
        if not given:
            return self if name is None else replace(self, name=name, aliases=(), origin=self.base_gpu)
        followed = self._followers(given)
        sources = {key: Source("unverified", "what-if") for key in given}
        sources |= {key: Source("derived", f"what-if: follows {', '.join(_FOLLOWS[key])}") for key in followed}
        return replace(
            self, name=name or _what_if_name(self.name, given), aliases=(), origin=self.base_gpu,
            sources={**self.sources, **sources}, **{**followed, **given},
        )  # fmt: skip

    def _followers(self, given: Mapping[str, Any]) -> dict[str, float]:
        now = dict(given)
        for target, drivers in _FOLLOWS.items():  # in order: the clock that follows a clock comes before its dependants
            value = getattr(self, target)
            scale = prod(now.get(driver, getattr(self, driver)) / getattr(self, driver) for driver in drivers)
            if target not in given and value is not None and scale != 1.0:
                now[target] = value * scale
        return {key: value for key, value in now.items() if key not in given}

    def _peak_tflops(self, dtype: str) -> float | None:
        if not isinstance(dtype, str) or dtype not in _PEAK_FIELD:
            raise BadInput(f"dtype = {dtype!r} is not known: use one of {', '.join(DTYPES)}", field="dtype")
        tflops: float | None = getattr(self, _PEAK_FIELD[dtype])
        if tflops and dtype in ("nvfp4", "mxfp4") and dtype not in self.traits.fp4_types:
            tflops = None
        if dtype == "int4" or (dtype == "mxfp4" and tflops is None and self.compute_capability >= 80):
            return max(self.bf16_tflops or 0.0, self.fp16_tflops)
        return tflops


LIMITS: Mapping[str, Limit] = {f.name: f.metadata["limit"] for f in fields(GPU) if f.metadata}
VALUE_FIELDS = tuple(f.name for f in fields(GPU) if f.name not in ("name", "aliases", "origin", "sources"))
NUMBER_FIELDS = tuple(name for name in VALUE_FIELDS if name != "architecture")


def _what_if_name(name: str, given: Mapping[str, Any]) -> str:
    said = ", ".join(
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in given.items()
    )
    return f"{name[:-1]}, {said})" if "(what-if: " in name else f"{name} (what-if: {said})"


def checked(field: str, value: Any) -> Any:
    """Return `value` as the field's own type.

    Raises:
        UnknownField: no GPU has such a field.
        BadInput: wrong type, NaN, infinite or out of range; the message gives the permitted range.
    """
    if field == "link":
        if value not in LINKS:
            raise BadInput(f"link = {_short(value)} is not possible: give one of {', '.join(LINKS)}", field="link")
        return str(value)
    if (limit := LIMITS.get(field)) is None:
        raise UnknownField(f"unknown GPU field {field!r}:{meant_or_known(field, [*LIMITS, 'link'])}", field=field)
    if value is None and limit.optional:
        return None
    # Compared as it is: NaN fails, an int too big for a float does not overflow.
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not (number and limit.low <= value <= limit.high) or (limit.whole and int(value) != value):
        raise BadInput(f"{field} = {_short(value)} is not possible: give {limit}", field=field)
    return int(value) if limit.whole else float(value)


def _short(value: Any) -> str:
    # Python refuses to print integers of thousands of digits.
    return "a huge number" if isinstance(value, int) and abs(value) > 10**18 else reprlib.repr(value)
