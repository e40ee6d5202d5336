"""Start vLLM with random weights from nothing but a config, and write down how it was set up."""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.vllm_engine import worker
from lab.vllm_engine.drive import RunningEngine
from pipewave.errors import BadInput
from pipewave.files import packaged

BUILT_IN = packaged.ROOT / "data" / "models"
# the engine must run in this process to be stepped by hand; NVLink multicast and its users stay off
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}
KEPT = re.compile(r"memory|KV cache|backend|took|Asynchronous|[Cc]hunked|MoE|all.?reduce|graph|config|[Cc]oncurrency")
SETTINGS = {
    "kv_blocks": "cache_config.num_gpu_blocks",
    "block_size": "cache_config.block_size",
    "memory_share": "cache_config.gpu_memory_utilization",
    "prefix_caching": "cache_config.enable_prefix_caching",
    "kv_dtype": "cache_config.cache_dtype",
    "max_batched_tokens": "scheduler_config.max_num_batched_tokens",
    "max_requests": "scheduler_config.max_num_seqs",
    "async_scheduling": "scheduler_config.async_scheduling",
    "chunked_prefill": "scheduler_config.enable_chunked_prefill",
    "max_model_len": "model_config.max_model_len",
    "dtype": "model_config.dtype",
    "quantization": "model_config.quantization",
    "eager": "model_config.enforce_eager",
    "tp": "parallel_config.tensor_parallel_size",
    "custom_all_reduce_off": "parallel_config.disable_custom_all_reduce",
    "executor": "parallel_config.distributed_executor_backend",
    "graph_mode": "compilation_config.cudagraph_mode",
    "graph_sizes": "compilation_config.cudagraph_capture_sizes",
    "compile_mode": "compilation_config.mode",
    "compile_s": "compilation_config.compilation_time",
    "custom_ops": "compilation_config.custom_ops",
    "passes": "compilation_config.pass_config",
    "second_runner": "use_v2_model_runner",
}
LAYER_LISTS = ("layer_types", "mlp_layer_types", "hybrid_override_pattern", "layers_block_type")
ROUTING = "VLLM_MOE_ROUTING_SIMULATION_STRATEGY"  # random weights alone route all tokens of deep layers alike
SPACING = 7919  # between the tokens of two requests: prime, so that they repeat after a whole vocabulary only


@dataclass(frozen=True, slots=True)
class Setup:
    """How to start the engine; what is None is left to vLLM's own default."""

    model: str
    tp: int = 1
    layers: int | None = None
    eager: bool = False
    max_batched_tokens: int | None = 8192
    memory_share: float | None = None
    traces: Path | None = None
    more: Mapping[str, Any] = field(default_factory=dict)  # further arguments of `vllm.LLM` by name

    @property
    def name(self) -> str:
        """Name of the model, of the directory where a path was given."""
        path = Path(self.model)
        return path.parent.name if path.name == "config.json" else path.stem if path.suffix == ".json" else path.name

    @property
    def mode(self) -> str:
        """Whether steps run as CUDA graphs or kernel by kernel."""
        return "eager" if self.eager else "graph"


LOCAL = re.compile(r"(/(tmp|root|home)/[\w.,=/-]+|tcp://[\d.]+:\d+)")  # says nothing to who reads the rows elsewhere


class LogLines(logging.Handler):
    """Keeps the lines of vLLM's log that say how memory and kernels were chosen."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the start of a line that says something of use."""
        text = record.getMessage()
        if KEPT.search(text):
            self.lines.append(LOCAL.sub("LOCAL", text[:2000]))

    def kv_tokens(self) -> int | None:
        """The size of the KV cache as vLLM logs it."""
        found = re.search(r"GPU KV cache size: ([\d,]+) tokens", "\n".join(self.lines))
        return int(found.group(1).replace(",", "")) if found else None


def prepare_environment() -> None:
    """Settings that vLLM reads when it is imported; what is set already stays."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def preload() -> None:
    """Import vLLM, which takes longer than many a measurement and needs no GPU."""
    import vllm

    logging.getLogger("vllm").info("vLLM %s imported from %s", vllm.__version__, vllm.LLM.__module__)


def wait_for(process: int | None) -> None:
    """Return when the process of that id has ended, so that one engine can load its code while another measures."""
    while process is not None and Path("/proc", str(process)).exists():
        time.sleep(0.05)


def config_of(model: str, layers: int | None) -> dict[str, Any]:
    """The config of a built-in name, a config.json or a directory holding one, cut to its first `layers`."""
    path = Path(model)
    path = path / "config.json" if path.is_dir() else path if path.is_file() else BUILT_IN / f"{model}.json"
    if not path.is_file():
        raise BadInput(f"model: {model!r} is neither a built-in model nor a config.json", field="model")
    config: dict[str, Any] = json.loads(path.read_text())
    return config if layers is None else _cut(config, layers)


def _cut(config: dict[str, Any], layers: int) -> dict[str, Any]:
    """The config of a model of the first `layers`; lists and patterns of a letter a layer are cut with it."""
    if "text_config" in config:
        return config | {"text_config": _cut(config["text_config"], layers)}
    kinds = {name: config[name][:layers] for name in LAYER_LISTS if config.get(name)}
    return config | kinds | {"num_hidden_layers": layers}


def arguments(setup: Setup, folder: str) -> dict[str, Any]:
    """Keyword arguments of `vllm.LLM` for a model whose config lies in `folder`."""
    chosen: dict[str, Any] = {
        "model": folder,
        "tensor_parallel_size": setup.tp,
        "dtype": "bfloat16",
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "enable_prefix_caching": False,
        "enforce_eager": setup.eager,
        "max_num_batched_tokens": setup.max_batched_tokens,
        "seed": 0,
    }
    chosen |= setup.more
    if setup.memory_share is not None:
        chosen["gpu_memory_utilization"] = setup.memory_share
    if setup.traces is not None:
        chosen["profiler_config"] = {
            "profiler": "torch",
            "torch_profiler_dir": str(setup.traces.resolve()),
            "torch_profiler_record_shapes": setup.eager,
            "torch_profiler_with_stack": False,
            "torch_profiler_dump_cuda_time_total": False,
        }
    return chosen


def start(setup: Setup) -> tuple[Any, LogLines]:
    """A running `vllm.LLM` and what it said while it started."""
    from vllm import LLM

    log_lines = LogLines()
    logging.getLogger("vllm").addHandler(log_lines)
    folder = tempfile.mkdtemp(prefix="pipewave-")
    Path(folder, "config.json").write_text(json.dumps(config_of(setup.model, setup.layers)))
    return LLM(**arguments(setup, folder)), log_lines


def engine_of(llm: Any, *, own_tokens: bool = False) -> RunningEngine:
    """The parts of a running `vllm.LLM` that are driven by hand.

    `own_tokens`: every request decodes a token of its own, by a bias on its logits. With random weights all requests
    otherwise come to decode one and the same token, and a mixture of experts then routes them alike.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    config = llm.llm_engine.vllm_config
    vocab = config.model_config.get_vocab_size()
    tokens = (number * SPACING % vocab for number in itertools.count(1))

    def sampling(new_tokens: int) -> Any:
        kind = RequestOutputKind.FINAL_ONLY
        bias = {next(tokens): 100.0} if own_tokens else None
        return SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True, detokenize=False,
                              output_kind=kind, logit_bias=bias)  # fmt: skip

    return RunningEngine(
        engine=llm.llm_engine,
        scheduler=llm.llm_engine.engine_core.engine_core.scheduler,
        sampling=sampling,
        vocab=vocab,
        kv_tokens=config.cache_config.num_gpu_blocks * config.cache_config.block_size,
        max_batched_tokens=config.scheduler_config.max_num_batched_tokens,
        max_model_len=config.model_config.max_model_len,
    )


def facts(llm: Any, log_lines: LogLines) -> dict[str, Any]:
    """Settings, memory and log of a running engine."""
    settings = {name: worker.read(llm.llm_engine.vllm_config, path) for name, path in SETTINGS.items()}
    return {
        **settings,
        "kv_tokens_logged": log_lines.kv_tokens(),
        "memory": llm.llm_engine.collective_rpc(worker.memory),
        "versions": versions(),
        "simulated_routing": os.environ.get(ROUTING),
        "log": log_lines.lines,
    }


def versions() -> Mapping[str, str | None]:
    """Versions of what computes."""
    import torch
    import vllm

    return {"vllm": vllm.__version__, "torch": torch.__version__, "cuda": torch.version.cuda}
