"""The command that starts a chosen design: the engine's own option names, a model it can load, lengths that fit."""

from __future__ import annotations

import json
import shlex
from functools import cache
from pathlib import Path

from pipewave.errors import BadInput, CannotShard
from pipewave.files import packaged
from pipewave.models import ModelSpec
from pipewave.models.quantization_config import ONLINE
from pipewave.models.spec import Mlp
from pipewave.planning import platforms
from pipewave.planning.manifests import Pool
from pipewave.planning.space import Split
from pipewave.simulate.speculative import Speculative
from pipewave.simulate.speculative import of as speculative_of
from pipewave.step import Engine, find_engine

QUANTISES = {"vllm": "--quantization", "sglang": "--quantization"}  # 16-bit weights while they are loaded
PREFILL, DECODE = "prefill", "decode"
WITH_FILE = ("trtllm",)  # engines that take options from a file
NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
VLLM_METHODS = {"draft": "draft_model"}
SGLANG_ALGORITHMS = {"mtp": "NEXTN", "eagle3": "EAGLE3", "ngram": "NGRAM", "draft": "STANDALONE"}
TRTLLM_TYPES = {"mtp": "MTP", "eagle3": "Eagle3", "ngram": "NGram", "draft": "DraftTarget"}
PRINT = r"printf '%s\n'"
TRTLLM_TOKENS = {"mtp": "num_nextn_predict_layers"}


def options(engine: str, split: Split, role: str = "") -> list[str]:
    """Words for a split; `role`: prefill or decode where the engines are apart. Prompts' engines do not draft."""
    drafts = speculative_of(split.speculative) if split.speculative and role != PREFILL else None
    return {"vllm": _vllm_options, "sglang": _sglang_options}.get(engine, _nothing)(split, drafts, role)


def _nothing(_split: Split, _drafts: Speculative | None, _role: str) -> list[str]:
    return []


def _vllm_options(split: Split, drafts: Speculative | None, role: str) -> list[str]:
    words = ["--data-parallel-size", str(split.dp)] if split.dp > 1 else []
    if drafts:
        config = {"method": VLLM_METHODS.get(drafts.method, drafts.method), "num_speculative_tokens": drafts.tokens}
        words += ["--speculative-config", json.dumps(config | ({"model": drafts.model} if drafts.model else {}))]
    return words + (["--kv-transfer-config", json.dumps(NIXL)] if role else [])


def _sglang_options(split: Split, drafts: Speculative | None, role: str) -> list[str]:
    words = ["--dp-size", str(split.dp), "--enable-dp-attention"] if split.dp > 1 else []
    if drafts:
        algorithm = "EAGLE" if drafts.heads_too else SGLANG_ALGORITHMS[drafts.method]
        words += ["--speculative-algorithm", algorithm]
        words += ["--speculative-num-steps", str(drafts.tokens), "--speculative-eagle-topk", "1"]
        words += ["--speculative-num-draft-tokens", str(drafts.tokens + 1)]
    return words + (["--disaggregation-mode", role, "--disaggregation-transfer-backend", "nixl"] if role else [])


def file_lines(engine: str, split: Split, role: str = "") -> list[str]:
    """Lines of the options file of an engine that takes one; none of others."""
    return yaml_lines(split, role) if engine in WITH_FILE else []


def yaml_lines(split: Split, role: str = "") -> list[str]:
    """TensorRT-LLM's options file, line by line."""
    drafts = speculative_of(split.speculative) if split.speculative and role != PREFILL else None
    lines = ["enable_attention_dp: true"] if split.dp > 1 else []
    if drafts:
        tokens = TRTLLM_TOKENS.get(drafts.method, "max_draft_len")
        lines += [
            "speculative_config:",
            f"  decoding_type: {TRTLLM_TYPES[drafts.method]}",
            f"  {tokens}: {drafts.tokens}",
        ]
    return lines + (["cache_transceiver_config:", "  backend: DEFAULT"] if role else [])


def in_place(lines: list[str]) -> str:
    """The option and a file that bash makes of these lines; empty without any."""
    return f" --extra_llm_api_options <({PRINT} {shlex.join(lines)})" if lines else ""


REPOSITORIES = Path(__file__).with_name("repositories.yaml")
BLOCK = 128  # rows and columns of one scale in block-scaled FP8 weights
LENGTH_STEP = 64  # lengths are rounded up to this
PYTORCH = ("--backend", "pytorch")


def command(
    model: str,
    split: Split,
    batch: int,
    budget: int,
    replicas: int = 1,
    *,
    length: int | None = None,
    engine: Engine | None = None,
    role: str = "",
) -> str:
    """Shell command for one replica of a design, or several where the engine runs them behind one port.

    length: the longest request in tokens, None for the model's own limit. engine: the resolved profile, for the share
    of memory that it would choose on this GPU. role: prefill or decode, where these engines are apart.
    """
    engine = engine or find_engine(split.engine)
    words = platforms.of(split.gpu, engine.name).words
    words += _WORDS[engine.name](repository(model), split, batch, budget, engine)
    if length is not None:
        words += [_LENGTH[engine.name], str(-(-length // LENGTH_STEP) * LENGTH_STEP)]
    if replicas > 1 and split.dp == 1 and engine.name in _REPLICAS:  # TensorRT-LLM: one server a replica
        words += [_REPLICAS[engine.name], str(replicas)]
    words += options(engine.name, split, role)
    words += [QUANTISES[engine.name], split.weights] if split.weights in ONLINE else []
    return shlex.join(words) + in_place(file_lines(engine.name, split, role))


def pools(model: str, split: Split, batch: int, budget: int, *, length: int | None, engine: Engine) -> list[Pool]:
    """The engines of a design: one server, or those of prompts and those of later tokens. `batch`: of all of them."""
    if split.prefill is None:
        line = command(model, split, batch, budget, length=length, engine=engine)
        return [Pool("server", 1, split.parallel.world, line)]
    each = -(-batch // split.workers[1])
    sides = ((PREFILL, split.prefill, split.workers[0]), (DECODE, split, split.workers[1]))
    return [
        Pool(
            role,
            count,
            side.parallel.world,
            command(model, side, each, budget, length=length, engine=engine, role=role),
        )
        for role, side, count in sides
    ]


@cache
def _repositories() -> dict[str, str]:
    return dict(packaged.yaml(REPOSITORIES))


def repository(model: str) -> str:
    """The name an engine can load: a built-in model's repository, `owner--name` as `owner/name`, else as it is."""
    return _repositories().get(model) or model.replace("--", "/", 1)


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


def check_weights(split: Split) -> None:
    """Raise BadInput where an engine does not quantise 16-bit weights while it loads them."""
    name = find_engine(split.engine).name
    if split.weights in ONLINE and name not in QUANTISES:
        raise BadInput(f"{name} does not quantise weights while it loads them: name a checkpoint", field="quantize")


def _cut(name: str, size: int, ways: int, instead: str) -> str:
    return (
        f"{name} {size} over {ways} GPUs leaves {size // ways}, no multiple of the {BLOCK} that share one FP8 scale: "
        f"engines refuse to start; use {instead}"
    )


def _vllm(model: str, split: Split, batch: int, budget: int, engine: Engine) -> list[str]:
    words = ["vllm", "serve", model, "--tensor-parallel-size", str(split.tp)]
    words += ["--pipeline-parallel-size", str(split.pp)] if split.pp > 1 else []
    words += ["--enable-expert-parallel"] if split.ep > 1 else []
    seqs = -(-batch // split.dp)  # of a data-parallel rank
    words += ["--max-num-seqs", str(seqs), "--max-num-batched-tokens", str(budget)]
    words += ["--gpu-memory-utilization", f"{engine.memory.memory_share:g}"]
    return words + (["--kv-cache-dtype", split.kv_dtype] if split.kv_dtype else [])


def _sglang(model: str, split: Split, batch: int, budget: int, engine: Engine) -> list[str]:
    words = ["python", "-m", "sglang.launch_server", "--model-path", model, "--tp-size", str(split.tp * split.dp)]
    words += ["--pp-size", str(split.pp)] if split.pp > 1 else []
    words += ["--ep-size", str(split.ep)] if split.ep > 1 else []
    words += ["--max-running-requests", str(batch), "--chunked-prefill-size", str(budget)]
    words += ["--mem-fraction-static", f"{engine.memory.memory_share:g}"]
    return words + (["--kv-cache-dtype", "fp8_e4m3"] if split.kv_dtype == "fp8" else [])


def _trtllm(model: str, split: Split, batch: int, budget: int, engine: Engine) -> list[str]:
    words = ["trtllm-serve", "serve", model, *PYTORCH, "--tp_size", str(split.tp * split.dp)]
    words += ["--pp_size", str(split.pp)] if split.pp > 1 else []
    words += ["--ep_size", str(split.ep)] if split.ep > 1 else []
    words += ["--max_batch_size", str(-(-batch // split.dp)), "--max_num_tokens", str(budget)]
    return [*words, "--kv_cache_free_gpu_memory_fraction", f"{engine.memory.memory_share:g}"]


_WORDS = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}
_LENGTH = {"vllm": "--max-model-len", "sglang": "--context-length", "trtllm": "--max_seq_len"}
_REPLICAS = {"vllm": "--data-parallel-size", "sglang": "--dp-size"}
