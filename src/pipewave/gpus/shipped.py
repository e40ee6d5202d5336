"""The GPUs that come with the package, and how the few numbers that a datasheet prints become a whole one.

What is missing is derived, and says so. Shipped specs and users' files pass the same door, so a user's fifteen lines
are worth as much as ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pipewave.errors import MissingField, UnknownField, meant_or_known
from pipewave.files import packaged
from pipewave.files.formulas import Terms
from pipewave.gpus.architectures import architecture_of
from pipewave.gpus.spec import GPU, NUMBER_FIELDS, NUMBERS, Source, checked

REQUIRED = ("compute_capability", "sms", "boost_clock_mhz", "dram_gb", "dram_gbps", "l2_mb", "tdp_w")
PEAKS = ("bf16_tflops", "fp16_tflops", "tf32_tflops", "fp8_tflops", "int8_tops", "fp4_tflops")
_OF_CAPABILITY: Sequence[str] = packaged.shared(NUMBERS)["of_capability"]
_DATA = Path(__file__).parent / "data"  # one JSON file a GPU, every number beside its source


def complete(name: str, values: Mapping[str, Any], sources: Mapping[str, Source], aliases: tuple[str, ...] = ()) -> GPU:
    """Return the GPU that `values` (field → number) describe, the rest derived from its compute capability.

    Raises:
        MissingField: one of REQUIRED, or every 16-bit peak, is absent.
        UnknownField, BadInput: as `checked`.
    """
    _require(values)
    known = {key: checked(key, value) for key, value in values.items()}
    facts = architecture_of(known["compute_capability"])
    derived = {"architecture": Source("derived", f"compute capability {known['compute_capability']}")}
    known["architecture"] = facts.name

    def fill(key: str, value: Any, note: str) -> None:
        if key not in known:
            known[key], derived[key] = value, Source("derived", note)

    base, ratios = known.get("fp16_tflops") or known["bf16_tflops"], {"fp16_tflops": 1.0, **facts.of_16bit}
    for key in PEAKS:
        if key in ratios:
            fill(key, base * ratios[key], f"{ratios[key]:g} × the 16-bit peak")
        else:
            fill(key, None, f"no such tensor core on {facts.name}")
    for key in _OF_CAPABILITY:
        fill(key, getattr(facts, key), f"CUDA programming guide, compute capability {known['compute_capability']}")
    derived_fields = packaged.shared(NUMBERS)["derived"]
    for key, (formula, note) in derived_fields.items():  # a formula may use what an earlier one filled in
        value = Terms({}, **known, capability=facts).of(formula)
        fill(key, value, f"{note} ({facts.l2_note})" if key == "l2_gbps" else note)
    return GPU(name=name, aliases=aliases, sources={**derived, **sources}, **known)


def _require(values: Mapping[str, Any]) -> None:
    for key in values:
        if key not in NUMBER_FIELDS:
            raise UnknownField(f"unknown GPU field {key!r}:{meant_or_known(key, NUMBER_FIELDS)}", field=key)
    for key in REQUIRED:
        if values.get(key) is None:
            needed = ", ".join(REQUIRED) + " and bf16_tflops or fp16_tflops"
            raise MissingField(f"{key} is missing: a GPU needs at least {needed}", field=key)
    if values.get("bf16_tflops") is None and values.get("fp16_tflops") is None:
        raise MissingField(
            "bf16_tflops is missing: give it or fp16_tflops (dense, fp32 accumulate)", field="bf16_tflops"
        )


# One GPU has many spellings: what drivers, frameworks, clusters and data sets call it, brought to one key.

_NOISE = frozenset({"nvidia", "tesla", "geforce", "generation", "gpu", "shared"})
_LISTED = re.compile(r"GPU \d+: (?P<name>.*?)(?: \(UUID: .*\))?$")
_IN_FILE_NAME = re.compile(r"device_name=(?P<name>[^,]+?)(?:,|\.json$|$)")


def key_of(name: str) -> str:
    """Return the key under which a spelling is looked up: lower case, no punctuation, no vendor words.

    Accepts a line of `nvidia-smi -L`, the names that NVML and torch give, vLLM's `device_name=NVIDIA_H200` and whole
    names of its tuned-configuration files, and Kubernetes product labels (a `-SHARED` suffix included). A MIG slice
    keeps its suffix and so never passes for the whole GPU.
    """
    for pattern in (_LISTED, _IN_FILE_NAME):
        if match := pattern.search(name):
            name = match["name"]
    words = re.split(r"[^a-z0-9.]+", name.lower())
    return "".join(word for word in words if word not in _NOISE)


def stem_of(name: str) -> str | None:
    """Return the file stem of the GPU that goes by this name, or None."""
    return spellings().get(key_of(name))


@cache
def shipped(stem: str) -> GPU:
    """Return the GPU of one data file."""
    raw = raw_specs()[stem]
    values: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    for fact in raw["facts"]:
        values |= fact["values"]
        sources |= dict.fromkeys(fact["values"], Source(fact["kind"], fact["note"], fact.get("date", "")))
    return complete(raw["name"], values, sources, tuple(raw["aliases"]))


@cache
def raw_specs() -> Mapping[str, Mapping[str, Any]]:
    """Return every data file by its stem, as parsed: building a `GPU` costs more and is done when one is asked for."""
    return {path.stem: packaged.document(path) for path in sorted(_DATA.glob("*.json"))}


@cache
def spellings() -> Mapping[str, str]:
    """Return key of every spelling → stem of the data file; the stem is a spelling too."""
    return {key_of(word): stem for stem, raw in raw_specs().items() for word in (stem, raw["name"], *raw["aliases"])}
