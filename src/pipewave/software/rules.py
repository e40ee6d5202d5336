"""Rules of an engine as data: what holds from a version, on a kind of GPU, for a kind of model and split.

A YAML file of rules is read from top to bottom; each rule whose condition holds sets fields, later ones override
earlier ones (of a mapping, the entries that they name), and each names its source. Conditions: `since` and `before` a
version; `NAME_from` (at least) and `NAME_below` for numbers of the setting; for anything else the value itself or a
list of values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pipewave.files import packaged
from pipewave.software.stacks import version_of

HERE = Path(__file__).parent
USUAL = "vllm"  # the engine of an answer where none is named
CHOICE = (
    "backend",
    "stack",
    "impl",
    "quantize",
    "rescans",
    "note",
    "default",
    "pads",
    "blocks",
    "flops_per_clk",
    "runs",
    "launches",
    "exchange",
    "masked",
    "laid_out",
    "cache",
    "beside",
    "phase",
)
FROM, BELOW = "_from", "_below"


@dataclass(frozen=True, slots=True)
class DeploymentFacts:
    """What an engine chooses its defaults by: the GPU, the split and what kind of model it is.

    gpu: name; vendor: `nvidia` or `amd`; mma: its tensor instruction (`Architecture.mma`); gib: the GPU's memory as
    nvidia-smi states it; attention: `gqa` or `mla`; dtype: of the weights; dense_dtype: of the maps outside the
    experts; sinks: attention has them; dp: data parallelism of attention; model_type: as the model's config names it;
    hidden: width of its residual stream; states: kind of its recurrent layers, empty without.
    """

    gpu: str = "H200"
    mma: str = "wgmma"
    gib: float = 140.4
    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1
    attention: str = "gqa"
    experts: bool = False
    shared_experts: bool = False
    dtype: str = "bf16"
    dense_dtype: str = "bf16"
    sinks: bool = False
    model_type: str = ""
    vendor: str = "nvidia"
    hidden: int = 4096
    states: str = ""


@dataclass(frozen=True, slots=True)
class KernelRule:
    """How a deployment runs calls of a family and operand type: from rows of which stack, as which implementation.

    backend: the engine's own name of the choice, empty where there is none. quantize: whether products pay a
    kernel of their own for it; rescans: where they do not, the kernel before them reads its rows twice (for the scales,
    then to write), which is free only while they stay in L2. note: why another stack's rows answer. pads: an expert's
    hidden and inner width, this rank's part, are stored as multiples of these. blocks: rows that a grouped product
    walks for every expert, filled or not. flops_per_clk: the most that one SM does in a clock where the kernel cannot
    use all of the tensor cores (0: it can; of latent attention, kernels of prompts that stay in latent space). runs:
    the operand type it runs in where that is not the weights' own.
    launches: launches whose host time equals that of one call (0: as many as its family has).
    exchange: it holds where tokens reach experts this way. masked: what grouped products take over masked rows, few
    for each rank: µs to start, times the time to read their weights, times the time to multiply at the peak. laid_out:
    the same over rows laid out one expert after the other. cache: the type of cache that attention is answered with
    where rows of the deployment's own would mislead. beside: small kernels that come with a call and that no row holds.
    phase: it holds for calls of this phase alone (empty: of any).
    """

    family: str
    dtype: str
    backend: str = ""
    stack: str = ""
    impl: str = ""
    quantize: bool = True
    rescans: bool = False
    note: str = ""
    default: bool = True
    pads: tuple[int, int] = (1, 1)
    blocks: int = 0
    flops_per_clk: float = 0.0
    runs: str = ""
    launches: int = 0
    exchange: str = ""
    masked: tuple[float, ...] = ()
    laid_out: tuple[float, ...] = ()
    cache: str = ""
    beside: int = 0
    phase: str = ""


@cache
def read(engine: str) -> Mapping[str, Any]:
    """The rules of an engine: `version` (its default), `rules` and `kernels`."""
    return dict(packaged.yaml(HERE / f"{engine}.yaml"))


def names() -> tuple[str, ...]:
    """Engines with rules, the usual one first."""
    known = sorted(path.stem for path in HERE.glob("*.yaml"))
    return tuple(sorted(known, key=lambda name: (name != USUAL, name)))


def fields(engine: str, version: str, setting: DeploymentFacts) -> dict[str, Any]:
    """Every field that the rules set for a version of an engine in a setting."""
    found: dict[str, Any] = {}
    for rule in _holding(read(engine)["rules"], version, setting):
        found |= {name: _over(found.get(name), value) for name, value in rule["set"].items()}
    return found


def _over(earlier: Any, value: Any) -> Any:
    """What a rule sets over what earlier ones did: of a mapping, only the entries that it names."""
    return {**earlier, **value} if isinstance(earlier, Mapping) and isinstance(value, Mapping) else value


def kernels(engine: str, version: str, setting: DeploymentFacts) -> tuple[KernelRule, ...]:
    """The kernel rules that hold, first match first."""
    listed = _holding(read(engine).get("kernels", ()), version, setting)
    return tuple(
        KernelRule(family, dtype, **{name: _frozen(rule[name]) for name in CHOICE if name in rule})
        for rule in listed
        for family in _list(rule["family"])
        for dtype in _list(rule.get("dtype", ""))
    )


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _holding(rules: Any, version: str, setting: DeploymentFacts) -> Iterator[Mapping[str, Any]]:
    return (rule for rule in rules if holds(rule.get("when", {}), version, setting))


def holds(when: Mapping[str, Any], version: str, setting: DeploymentFacts) -> bool:
    """Whether every condition of a rule is met."""
    return all(_meets(name, value, version, setting) for name, value in when.items())


def _meets(name: str, value: Any, version: str, setting: DeploymentFacts) -> bool:
    if name == "since":
        return version_of(version) >= version_of(value)
    if name == "before":
        return version_of(version) < version_of(value)
    return meets(setting, name, value)


def meets(fields: Any, name: str, value: Any) -> bool:
    """Whether a field of an object meets a condition of a rule."""
    if name.endswith(FROM):
        return bool(getattr(fields, name.removesuffix(FROM)) >= value)
    if name.endswith(BELOW):
        return bool(getattr(fields, name.removesuffix(BELOW)) < value)
    return getattr(fields, name) in _list(value)
