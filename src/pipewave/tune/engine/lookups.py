"""Which files an engine looks up for a model split over GPUs: names and folders as its source spells them.

The rules are rows of `lookups.json`, each with the version and the function it was read in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipewave.calls.gemm import Gemm
from pipewave.calls.operators import FusedMoe
from pipewave.errors import BadInput
from pipewave.files import packaged
from pipewave.models import ModelSpec
from pipewave.models.kernels import Deployment
from pipewave.models.shard import Parallel
from pipewave.models.stage import Batch

BLOCK = 128  # rows and columns that share a scale in block-scaled FP8
ENGINES = ("vllm", "sglang")


@dataclass(frozen=True, slots=True)
class Lookup:
    """A kernel that an engine looks configurations up for: `kind` `moe`, of `e` experts on a GPU, `top_k`, widths `k`
    (hidden) and `n` (intermediate, sharded), or `block_fp8`, C[m, n] = A[m, k] · B[n, k]ᵀ; `used_by`: model's names.
    """

    engine: str
    kind: str
    n: int
    k: int
    dtype: str
    e: int = 0
    top_k: int = 0
    used_by: tuple[str, ...] = ()

    @property
    def blocks(self) -> tuple[int, int] | None:
        """Rows and columns of a scale, None where scales are not by block."""
        return (BLOCK, BLOCK) if self.dtype == "fp8_block" else None


def rules() -> Mapping[str, Any]:
    """The rows of `lookups.json`."""
    return dict(packaged.shared(Path(__file__).with_name("lookups.json")))


def file_name(of: Lookup, device: str, *, down: bool = False) -> str:
    """Name of the file that holds a kernel's configurations on a GPU, as the driver names it."""
    rule = rules()[of.engine][of.kind]
    dtype = rule.get("dtypes", {}).get(of.dtype, "")
    blocks = rule["blocks"].format(block_n=BLOCK, block_k=BLOCK) if of.blocks else ""
    named = {"e": of.e, "n": of.n, "k": of.k, "device": device_name(device, rule), "down": "_down" if down else ""}
    return str(rule["name"].format(**named, dtype=f",dtype={dtype}" if dtype else "",
                                   blocks=f",block_shape={blocks}" if blocks else ""))  # fmt: skip


def device_name(device: str, rule: Mapping[str, Any]) -> str:
    """A GPU as the engine spells it in file names."""
    spelled = device.replace(" ", "_")
    return next((name for word, name in rule["device_family"].items() if word in spelled.split("_")), spelled)


def path_of(of: Lookup, device: str, triton: str) -> Path:
    """Where the file stands below the folder that is written to."""
    folder = str(rules()[of.engine][of.kind]["folder"]).format(triton=re.sub(r"\.", "_", triton))
    return Path(of.engine) / of.kind / folder / file_name(of, device)


def lookups(model: ModelSpec, tp: int, engine: str, ep: int = 1) -> list[Lookup]:
    """Every kernel of a model that an engine looks up: routed experts of types it has files for, block-scaled FP8.
    BadInput for an engine without such files, or a split that does not fit the model.
    """
    if engine not in ENGINES:
        raise BadInput(f"engine = {engine!r}: files are known of {', '.join(ENGINES)}", field="engine")
    found: dict[tuple[Any, ...], Lookup] = {}
    uses = Deployment(model, Parallel(tp, 1, ep)).kernels(Batch.of([64], [64]))
    for each in (each for use in uses for each in _lookups(engine, model.model_type, use.name, use.call)):
        key = each.kind, each.e, each.n, each.k, each.dtype
        before = found[key].used_by if key in found else ()
        found[key] = replace(each, used_by=(*before, *each.used_by))
    return list(found.values())


def _lookups(engine: str, model_type: str, name: str, call: Any) -> Iterator[Lookup]:
    if isinstance(call, Gemm) and call.dtype == "fp8_block":
        yield Lookup(engine, "block_fp8", call.n, call.k, call.dtype, used_by=(name,))
    rule = rules()[engine]["moe"]
    if isinstance(call, FusedMoe) and call.dtype in rule["dtypes"]:
        n = call.inter // (call.tp if call.ep == 1 else 1) * rule.get("named_width", {}).get(call.dtype, 1)
        experts = call.experts // call.ep
        yield Lookup(engine, "moe", n, call.hidden, call.dtype, experts, call.topk, (name,))
        if model_type in rule.get("fuses_shared_experts", ()):
            yield Lookup(engine, "moe", n, call.hidden, call.dtype, experts + 1, call.topk + 1, (f"{name}, shared",))
