"""Options of data-parallel attention, drafts and disaggregation in each engine's own words.

TensorRT-LLM takes them from a YAML file; the command writes it in place, as bash does with `<(...)`.
"""

from __future__ import annotations

import json
import shlex

from pipewave.planning.space import Split
from pipewave.simulate.speculative import Speculative
from pipewave.simulate.speculative import of as speculative_of

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
    return {"vllm": _vllm, "sglang": _sglang}.get(engine, _nothing)(split, drafts, role)


def _nothing(_split: Split, _drafts: Speculative | None, _role: str) -> list[str]:
    return []


def _vllm(split: Split, drafts: Speculative | None, role: str) -> list[str]:
    words = ["--data-parallel-size", str(split.dp)] if split.dp > 1 else []
    if drafts:
        config = {"method": VLLM_METHODS.get(drafts.method, drafts.method), "num_speculative_tokens": drafts.tokens}
        words += ["--speculative-config", json.dumps(config | ({"model": drafts.model} if drafts.model else {}))]
    return words + (["--kv-transfer-config", json.dumps(NIXL)] if role else [])


def _sglang(split: Split, drafts: Speculative | None, role: str) -> list[str]:
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
