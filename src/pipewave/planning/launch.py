"""The command that starts a chosen design."""

from __future__ import annotations

import shlex

from pipewave.planning.space import Split
from pipewave.step import find_engine


def command(model: str, split: Split, batch: int, budget: int, replicas: int = 1) -> str:
    """Shell command for one replica of a design, with the engine's own flag names."""
    name = find_engine(split.engine).name
    words = _WORDS[name](model, split, batch, budget)
    if replicas > 1:
        words += ["--data-parallel-size" if name == "vllm" else "--dp-size", str(replicas)]
    return shlex.join(words)


def _vllm(model: str, split: Split, batch: int, budget: int) -> list[str]:
    words = ["vllm", "serve", model, "--tensor-parallel-size", str(split.tp)]
    words += ["--pipeline-parallel-size", str(split.pp)] if split.pp > 1 else []
    words += ["--enable-expert-parallel"] if split.ep > 1 else []
    words += ["--max-num-seqs", str(batch), "--max-num-batched-tokens", str(budget)]
    words += ["--gpu-memory-utilization", f"{find_engine('vllm').memory_share:g}"]
    return words + (["--kv-cache-dtype", split.kv_dtype] if split.kv_dtype else [])


def _sglang(model: str, split: Split, batch: int, budget: int) -> list[str]:
    words = ["python", "-m", "sglang.launch_server", "--model-path", model, "--tp-size", str(split.tp)]
    words += ["--pp-size", str(split.pp)] if split.pp > 1 else []
    words += ["--ep-size", str(split.ep)] if split.ep > 1 else []
    words += ["--max-running-requests", str(batch), "--chunked-prefill-size", str(budget)]
    words += ["--mem-fraction-static", f"{find_engine('sglang').memory_share:g}"]
    return words + (["--kv-cache-dtype", "fp8_e4m3"] if split.kv_dtype == "fp8" else [])


def _trtllm(model: str, split: Split, batch: int, budget: int) -> list[str]:
    words = ["trtllm-serve", "serve", model, "--backend", "pytorch", "--tp_size", str(split.tp)]
    words += ["--pp_size", str(split.pp)] if split.pp > 1 else []
    words += ["--ep_size", str(split.ep)] if split.ep > 1 else []
    words += ["--max_batch_size", str(batch), "--max_num_tokens", str(budget)]
    return [*words, "--kv_cache_free_gpu_memory_fraction", f"{find_engine('trtllm').memory_share:g}"]


_WORDS = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}
