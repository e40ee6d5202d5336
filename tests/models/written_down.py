"""Kernels, parts and sizes of models that between them take every turn of the reader, written down line by line.

    python tests/models/written_down.py     # writes data/written_down.txt anew; read the diff

A section of a model has the lines that no section before it has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import model_families

from pipewave.calls.fields import defaults
from pipewave.errors import CannotShard
from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.config import parse
from pipewave.models.kernels import Batch, Deployment, Use
from pipewave.models.lora_and_drafts import Lora, adapter_bytes, draft_bytes, drafter
from pipewave.models.shard import Parallel, cache_bytes, kv_bytes_per_token, stage_bytes, state_bytes
from pipewave.models.spec import ModelSpec
from pipewave.models.summary import blocks, rows, summary
from pipewave.step import Runner, find_engine

FILE = Path(__file__).parent / "data" / "written_down.txt"
SHIPPED = (
    *("Command-R", "Command-R7B", "DeepSeek-V2-Lite", "DeepSeek-V4-Flash", "GLM-5.2-FP8", "Kimi-K2.5", "Kimi-K3"),
    *("Llama-3.1-8B", "Llama-4-Maverick-17B-128E", "MiniMax-M3", "Nemotron-3-Ultra-550B-A55B", "Qwen3-Next-80B-A3B"),
    *("gpt-oss-120b", "Qwen/Qwen2.5-7B-Instruct-AWQ"),
)
FAMILIES = (
    *("bitnet", "deepseek_v4", "distilbert", "falcon", "flex_olmo", "gemma3n_text", "jamba", "minimax"),
    "qwen4_exp_text",
)
PUBLISHED = (
    *("DeepSeek-OCR", "ERNIE-4.5-300B-A47B", "Grok-2", "LFM2-1.2B", "LongCat-Flash", "ModernBERT-large"),
    *("Qwen2.5-VL-7B", "Qwen3-Omni-30B-A3B", "SmolLM3", "Step3", "nomic-embed-text-v1.5"),
)
BATCH = Batch.of([300, 40, 1, 1], [500, 40, 1000, 70])  # prompts with and without a cached beginning, and decodes
DECODES = Batch.of([1] * 6, [900, 7, 64, 2000, 1, 333])
CUT, RANKS = Parallel(2, 2), Parallel(2, 1, 4, 4)
ENGINE, GPU = "vllm:0.22.1", "H200"
LORA = Lora(16, 4)


def model(name: str) -> ModelSpec:
    """A model that ships or is listed, or one of the configurations in `data`."""
    known = model_families.FAMILIES if name in FAMILIES else model_families.PUBLISHED if name in PUBLISHED else None
    return parse(model_families.expand(known[name]["config"]), name) if known else load(name)


def lines(name: str) -> list[str]:
    """All sections of a model."""
    spec, seen, out = model(name), set[str](), list[str]()
    for title, section in _sections(spec):
        new = [line for line in section if line not in seen]
        seen.update(new)
        out += [f"-- {title}", *new] if new else []
    return out


def _sections(spec: ModelSpec) -> Iterator[tuple[str, list[str]]]:
    for split in (CUT, RANKS):
        with suppress(CannotShard):
            split.check(spec)
            told = f"tp {split.tp}, pp {split.pp}, ep {split.ep}, dp {split.dp}"
            yield f"sizes, {told}", list(_sizes(spec, split))
            deployment = Deployment(spec, split)
            for stage in range(split.pp):
                yield f"kernels, {told}, stage {stage}", _told(deployment.kernels(BATCH, stage))
            engine = Runner.of(Deployment(spec, split, "fp8"), find(GPU), find_engine(ENGINE))
            yield f"{ENGINE}, {told}", _told(engine.deployment.kernels(DECODES))
    yield "adapters", _told(Deployment(spec, Parallel(2), lora=LORA).kernels(BATCH))
    if spec.tower:
        yield "images", _told(Deployment(spec, Parallel(2)).images(3))
    for method in ("mtp", "eagle3"):
        draft = drafter(spec, method)
        assert draft is not None
        held = f"bytes {draft_bytes(draft, 2, 4):.0f}"
        yield method, [held, *_told(Deployment(draft, Parallel(2)).kernels(BATCH))]


def _told(uses: list[Use]) -> list[str]:
    return [f"{use.count} x {use.name}: {use.call.kernel} {_fields(use)}" for use in uses]


def _fields(use: Use) -> str:
    usual = defaults(type(use.call))
    said = {name: value for name, value in use.call.to_dict().items() if name != "kernel" and value != usual.get(name)}
    return " ".join(f"{name}={value}".replace(" ", "") for name, value in said.items())


def _sizes(spec: ModelSpec, split: Parallel) -> Iterator[str]:
    yield from (f"{name}: {value}" for name, value in summary(spec, split).items())
    held = [f"{stage_bytes(spec, split, stage):.0f}" for stage in range(split.pp)]
    yield f"bytes of stages {' '.join(held)}; of adapters {adapter_bytes(spec, split, LORA):.0f}"
    caches = [f"{cache_bytes(spec, 5000, split, kind, chunk=512):.0f}" for kind in (None, "fp8")]
    yield f"cache of 5000 tokens {' '.join(caches)}; a token {kv_bytes_per_token(spec, split):.0f}"
    yield f"states {state_bytes(spec, split):.0f}; of two bytes an element {state_bytes(spec, split, 2):.0f}"
    yield from (" | ".join(map(str, row.values())) for row in rows(spec, split))
    found = blocks(spec, split)
    yield f"pattern {found.pattern}"
    for block in found.blocks:
        for part in block.parts:
            yield f"{block.letter} {block.layers} {block.count} | {' | '.join(map(str, asdict(part).values()))}"


def written() -> dict[str, list[str]]:
    """The file, by model."""
    sections = FILE.read_text("utf-8").split("== ")[1:]
    return {text.split("\n", 1)[0]: text.rstrip("\n").split("\n")[1:] for text in sections}


def main() -> None:
    """Write the file."""
    every = (*SHIPPED, *FAMILIES, *PUBLISHED)
    FILE.write_text("".join("\n".join([f"== {name}", *lines(name), ""]) for name in every), "utf-8")


if __name__ == "__main__":
    main()
