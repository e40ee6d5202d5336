"""The command that starts a chosen design: the engine's own option names, a model it can load, lengths that fit."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipewave.errors import CannotShard
from pipewave.files import packaged
from pipewave.models import ModelSpec
from pipewave.models.quantization_config import ONLINE
from pipewave.models.spec import Mlp
from pipewave.planning.manifests import Pool, engine_words, platform_of
from pipewave.planning.space import Split
from pipewave.simulate.speculative import of as speculative_of
from pipewave.step import Engine, find_engine

REPOSITORIES = Path(__file__).with_name("repositories.yaml")
PREFILL, DECODE = "prefill", "decode"
BLOCK = 128  # rows and columns of one scale in block-scaled FP8 weights
LENGTH_STEP = 64  # lengths are rounded up to this
TRANSFER = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
IN_PLACE = r" --extra_llm_api_options <(printf '%s\n' {lines})"  # a file that bash makes of these lines


def command(
    model: str,
    split: Split,
    batch: int,
    budget: int,
    *,
    length: int | None = None,
    engine: Engine | None = None,
    role: str = "",
) -> str:
    """Shell command for one replica of a design.

    length: the longest request in tokens, None for the model's own limit. engine: the resolved profile, for the share
    of memory that it would choose on this GPU. role: prefill or decode, where these engines are apart.
    """
    engine = engine or find_engine(split.engine)
    words = engine_words(engine.name)
    several = {name: getattr(split, name) for name in ("pp", "ep", "dp", "dcp") if getattr(split, name) > 1}
    values: dict[str, Any] = {
        **dict.fromkeys(("pp", "ep", "dp", "dcp", "drafts", "heads", "draft_len", "draft_config")),
        **several,
        **_drafts(split, words.get("drafts", {}), role),
        "model": repository(model),
        "tp": split.tp,
        "group": split.tp * split.dp,
        "batch": batch,
        "rank_batch": -(-batch // split.dp),
        "budget": budget,
        "memory": f"{engine.memory.memory_share:g}",
        "kv_dtype": split.kv_dtype,
        "fp8_cache": split.kv_dtype == "fp8",
        "length": length and -(-length // LENGTH_STEP) * LENGTH_STEP,
        "role": role,
        "transfer": json.dumps(TRANSFER),
        "quantization": split.weights if split.weights in ONLINE else None,
    }
    line = [word.format(**values) for part in _kept(words["command"], values) for word in part.split()]
    lines = [part.format(**values) for part in _kept(words.get("file", ()), values)]
    shown = shlex.join([*platform_of(split.gpu, engine.name).words, *line])
    return shown + (IN_PLACE.format(lines=shlex.join(lines)) if lines else "")


def _kept(lines: Sequence[str], values: Mapping[str, Any]) -> Iterator[str]:
    """Lines without their condition, `name? `, where that value is not empty."""
    for line in lines:
        name, asked, words = line.partition("? ")
        if not asked or values[name]:
            yield words if asked else line


def _drafts(split: Split, words: Mapping[str, str], role: str) -> dict[str, Any]:
    """Values of speculative decoding; prompts' engines do not draft."""
    if not split.speculative or role == PREFILL:
        return {}
    how = speculative_of(split.speculative)
    method = words["heads_too"] if how.heads_too and "heads_too" in words else words.get(how.method, how.method)
    config = {"method": method, "num_speculative_tokens": how.tokens} | ({"model": how.model} if how.model else {})
    mtp = how.method == "mtp"
    return {"drafts": how.tokens, "verified": how.tokens + 1, "method": method, "draft_config": json.dumps(config),
            "heads": how.tokens if mtp else None, "draft_len": None if mtp else how.tokens}  # fmt: skip


def pools(model: str, split: Split, batch: int, budget: int, *, length: int | None, engine: Engine) -> list[Pool]:
    """The engines of a design: one server, or those of prompts and those of later tokens. `batch`: of all of them."""
    if split.prefill is None:
        line = command(model, split, batch, budget, length=length, engine=engine)
        return [Pool("server", 1, split.parallel.world, line)]
    each, found = -(-batch // split.workers[1]), list[Pool]()
    for role, side, count in zip((PREFILL, DECODE), (split.prefill, split), split.workers, strict=True):
        line = command(model, side, each, budget, length=length, engine=engine, role=role)
        found.append(Pool(role, count, side.parallel.world, line, side.gpu))
    return found


def repository(model: str) -> str:
    """The name an engine can load: a built-in model's repository, `owner--name` as `owner/name`, else as it is."""
    return str(packaged.shared(REPOSITORIES).get(model) or model.replace("--", "/", 1))


def check_blocks(model: ModelSpec, split: Split) -> None:
    """Raise CannotShard where engines refuse to start: a block-scaled FP8 block cut by the split."""
    parallel = split.parallel
    for layer, _ in model.grouped():
        for moe in layer.moes:
            if moe.precision.dtype == "fp8_block" and moe.inter // parallel.moe_tp % BLOCK:
                raise CannotShard(_cut("expert width", moe.inter, parallel.moe_tp, "expert parallelism"), field="ep")
        for part in layer.ffns:
            if isinstance(part, Mlp) and part.up.precision.dtype == "fp8_block" and part.inter // split.tp % BLOCK:
                raise CannotShard(_cut("intermediate size", part.inter, split.tp, "fewer GPUs"), field="tp")


def _cut(name: str, size: int, ways: int, instead: str) -> str:
    return (
        f"{name} {size} over {ways} GPUs leaves {size // ways}, no multiple of the {BLOCK} that share one FP8 scale: "
        f"engines refuse to start; use {instead}"
    )
