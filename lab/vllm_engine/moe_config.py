"""What a file of fused-MoE configurations is worth in vLLM: kernel time and time to first token, with and without it.

`python -m lab.vllm_engine.moe_config kernels --files DIR --out ROWS` times `fused_experts` (a CUDA graph, cold
L2) at many numbers of tokens; `… ttft --model NAME …` starts an engine once and changes files between requests. `DIR`
holds one folder of files a variant (`data/vllm/h200`); variant `own` is what vLLM ships, `default` what
it runs where it ships nothing. Variants take turns, in shuffled order. Needs vLLM and a GPU; one JSON line a row.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.vllm_engine import launch
from lab.vllm_engine.drive import Driver
from lab.vllm_engine.launch import Setup
from lab.vllm_engine.timing import random_prompts
from pipewave.tune.export import Layer

TOKENS = (1, 4, 8, 16, 32, 40, 64, 80, 128, 160, 256, 320, 512, 640, 1024, 1280, 2048, 2560, 4096, 5120, 8192, 10240,
          16384)  # fmt: skip
VARIANTS = ("default", "table", "profiled")
ROUNDS = 15
PROMPTS = (512, 1024, 2048, 4096, 8192, 16384)
BATCH = 4
TTFT_ROUNDS = 5
DEVICE = "NVIDIA_H200"
FRAME = "Qwen3-30B-A3B"  # whose layers hold the experts of a model that has no other way in
WHOLE = (FRAME, "Qwen1.5-MoE-A2.7B", "Qwen3-235B-A22B")  # run as they are: this engine build has their attention
Row = dict[str, Any]
LAYERS = {
    "DeepSeek-V2-Lite": Layer(64, 6, 2048, 1408),
    "Qwen1.5-MoE-A2.7B": Layer(60, 4, 2048, 1408),
    "Qwen3-235B-A22B": Layer(128, 8, 4096, 1536),
    "DeepSeek-V3 on 8 GPUs": Layer(256, 8, 7168, 256),
    "Qwen3-30B-A3B": Layer(128, 8, 2048, 768),  # vLLM ships a file for this one
}


def binary(e: int, top_k: int, m: int, block: int) -> tuple[Any, ...]:
    """What Triton compiles vLLM's kernels anew for, beside the configuration: which integers are multiples of 16, …"""
    pairs = m * top_k
    padded = min(pairs * block, pairs + e * (block - 1))
    return top_k, pairs * 4 <= e, pairs % 16 == 0, padded % 16 == 0, pairs == 1


def variants(files: Path, layer: Layer) -> dict[str, Path | None]:
    """Folder of each variant; None is none: vLLM's own file, which `own` needs."""
    file = layer.file("vllm", DEVICE)
    found: dict[str, Path | None] = {name: files / name for name in VARIANTS if (files / name / file).exists()}
    return found | ({"own": None} if layer == LAYERS[FRAME] else {})


def use(folder: Path | None) -> None:
    """Make vLLM look its configurations up in a folder from now on, by its own setting."""
    import vllm.envs
    from vllm.model_executor.layers.fused_moe import fused_moe

    vllm.envs.disable_envs_cache()
    os.environ.pop("VLLM_TUNED_CONFIG_FOLDER", None)
    if folder is not None:
        os.environ["VLLM_TUNED_CONFIG_FOLDER"] = str(folder.resolve())
    fused_moe.get_moe_configs.cache_clear()


def in_turns(names: Sequence[str], rounds: int, seed: int = 0) -> Iterator[str]:
    """Every name once a round, in another order each."""
    draw = random.Random(seed)
    for _ in range(rounds):
        yield from draw.sample(names, len(names))


def summary(samples: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    """Median and quartiles of each variant, and of its ratio to `default` in the same round."""
    found = {}
    for name, taken in samples.items():
        ratio = [one / base for one, base in zip(taken, samples["default"], strict=True)]
        low, middle, high = statistics.quantiles(taken, n=4)
        least, ratio_median, most = statistics.quantiles(ratio, n=4)
        found[name] = {"median": middle, "low": low, "high": high, "to_default": ratio_median,
                       "to_default_low": least, "to_default_high": most}  # fmt: skip
    return found


class Experts:
    """Weights of one layer and `fused_experts` over them, as CUDA graphs."""

    def __init__(self, layer: Layer, *, fill: bool = True) -> None:
        import torch

        self.layer, self._torch = layer, torch
        sizes = ((layer.e, 2 * layer.inter, layer.hidden), (layer.e, layer.hidden, layer.inter))
        self._w13, self._w2 = (torch.empty(size, dtype=torch.bfloat16, device="cuda") for size in sizes)
        for weight in (self._w13, self._w2) if fill else ():
            weight.normal_(0, 0.05)

    def call(self, m: int) -> Callable[[], Any]:
        """Return one layer's experts at m tokens, routed evenly at random."""
        from vllm.model_executor.layers.fused_moe.fused_moe import fused_experts

        from lab.own_kernels.operands import routing

        x = self._torch.randn(m, self.layer.hidden, dtype=self._torch.bfloat16, device="cuda")
        shape = {"m": m, "e": self.layer.e, "top_k": self.layer.top_k, "skew": 0, "seed": 1_000 + m}
        ids = routing(shape, "cuda").to(self._torch.int32)
        weights = self._torch.rand(ids.shape, device="cuda")
        return lambda: fused_experts(x, self._w13, self._w2, weights, ids)

    def graph(self, call: Callable[[], Any]) -> Any:
        """Capture a call, run twice before so that nothing is compiled meanwhile."""
        call()
        call()
        self._torch.cuda.synchronize()
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(graph):
            call()
        return graph


def served(layer: Layer, m: int) -> Row:
    """The configuration that vLLM looks up now."""
    from vllm.model_executor.layers.fused_moe.fused_moe import try_get_optimal_moe_config

    w13, w2 = (layer.e, 2 * layer.inter, layer.hidden), (layer.e, layer.hidden, layer.inter)
    return dict(try_get_optimal_moe_config(w13, w2, layer.top_k, None, m))


def kernel_rows(name: str, layer: Layer, files: Path, timer: Any) -> Iterator[Row]:
    """Time every variant of a layer at every number of tokens; µs."""
    experts = Experts(layer)
    folders = variants(files, layer)
    for m in TOKENS:
        call, graphs, configs = experts.call(m), {}, {}
        for variant, folder in folders.items():
            use(folder)
            configs[variant], graphs[variant] = served(layer, m), experts.graph(call)
        order = list(in_turns(list(folders), ROUNDS, m))
        taken = timer([[graphs[variant].replay] for variant in order])
        samples = {variant: [us for at, us in zip(order, taken, strict=True) if at == variant] for variant in folders}
        yield {"kind": "kernel", "model": name, "e": layer.e, "n": layer.inter, "top_k": layer.top_k,
               "hidden": layer.hidden, "tokens": m, "configs": configs, "us": summary(samples)}  # fmt: skip


def compile_shard(files: Path, shard: str) -> None:
    """Run a share of the (layer, variant, tokens) once each, so that Triton's cache holds their kernels."""
    index, count = (int(part) for part in shard.split("/"))
    for layer in LAYERS.values():
        distinct: dict[Any, tuple[Path | None, int]] = {}
        for folder in variants(files, layer).values():
            use(folder)
            for m in TOKENS:
                config = served(layer, m)
                distinct.setdefault(
                    (repr(config), binary(layer.e, layer.top_k, m, config["BLOCK_SIZE_M"])), (folder, m)
                )
        experts = Experts(layer, fill=False)
        for folder, m in list(distinct.values())[index::count]:
            use(folder)
            experts.call(m)()


def config_of(name: str, layers: int | None) -> dict[str, Any]:
    """The model's config; of one whose attention this engine build lacks, the experts only, in another's layers.

    A context shorter than the longest prompt is widened: it moves no kernel.
    """
    if name in WHOLE:
        config = launch.config_of(name, layers)
        return config | {"max_position_embeddings": max(config["max_position_embeddings"], 2 * PROMPTS[-1])}
    layer = LAYERS[name]
    experts = {"num_experts": layer.e, "num_experts_per_tok": layer.top_k, "moe_intermediate_size": layer.inter}
    return launch.config_of(FRAME, layers) | {"hidden_size": layer.hidden, **experts}


def ttft_ms(driver: Driver, length: int) -> float:
    """Time from the arrival of a batch of prompts in an idle engine to the last of their first tokens."""
    prompts = random_prompts(driver, BATCH, length)
    began = driver.clock()
    driver.add(prompts, 1)
    return 1e3 * (driver.drain()[-1].ended_s - began)


def ttft_rows(
    name: str, driver: Driver, files: Path, layers: int | None, lengths: Sequence[int], deadline: float
) -> Iterator[Row]:
    """Time every variant at every prompt length that fits, after a round that compiles."""
    folders = variants(files, LAYERS[name])
    for length in (one for one in lengths if one < driver.limits.max_model_len):
        if time.monotonic() > deadline:
            return
        samples: dict[str, list[float]] = {variant: [] for variant in folders}
        for turn, variant in enumerate(in_turns(list(folders), 1 + TTFT_ROUNDS, length)):
            use(folders[variant])
            taken = ttft_ms(driver, length)
            if turn >= len(folders):
                samples[variant].append(taken)
        yield {"kind": "ttft", "model": name, "layers": layers, "batch": BATCH, "input_len": length,
               "max_batched_tokens": driver.limits.max_batched_tokens, "ms": summary(samples)}  # fmt: skip


def ttft(options: argparse.Namespace, write: Callable[[Row], None]) -> None:
    """Start an engine of one model and time it."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{options.model.replace(' ', '-')}.json")
        path.write_text(json.dumps(config_of(options.model, options.layers)))
        llm, log_lines = launch.start(
            Setup(str(path), eager=options.eager, max_batched_tokens=options.max_batched_tokens)
        )
    write({"kind": "engine", "model": options.model, "load_s": round(time.monotonic() - started, 1),
           "eager": options.eager, "log": [line for line in log_lines.lines if "MoE" in line]})  # fmt: skip
    driver, deadline = Driver(launch.engine_of(llm)), started + options.budget_s
    try:
        for row in ttft_rows(options.model, driver, options.files, options.layers, options.prompts, deadline):
            write(row)
    finally:
        llm.llm_engine.engine_core.shutdown()


def kernels(options: argparse.Namespace, write: Callable[[Row], None]) -> None:
    """Time the experts of every layer."""
    from pipewave.tune.user_kernels.gpu import ColdTimer

    timer, deadline = ColdTimer(), time.monotonic() + options.budget_s
    for name, layer in LAYERS.items():
        for row in kernel_rows(name, layer, options.files, timer):
            write(row)
            if time.monotonic() > deadline:
                return


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; see the module's description."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("kernels", "ttft"))
    parser.add_argument("--files", type=Path, required=True, help="one folder of configuration files a variant")
    parser.add_argument("--out", type=Path, required=True, help="file of rows, appended to")
    parser.add_argument("--compile", default="", help="I/N: compile that share of the kernels, time nothing")
    parser.add_argument("--model", choices=tuple(LAYERS), default=FRAME)
    parser.add_argument("--layers", type=int, help="keep only the model's first layers")
    parser.add_argument("--prompts", type=int, nargs="*", default=PROMPTS, help="tokens of each prompt of a batch")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--max-batched-tokens", type=int, default=16384)
    parser.add_argument("--budget-s", type=float, default=120.0)
    parser.add_argument("--after", type=int, help="import at once, but start when this process has ended")
    options = parser.parse_args(argv)
    launch.prepare_environment()
    launch.preload()
    launch.wait_for(options.after)
    if options.compile:
        compile_shard(options.files, options.compile)
        return

    def write(row: Row) -> None:
        with options.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        sys.stderr.write(json.dumps(row)[:300] + "\n")

    (kernels if options.what == "kernels" else ttft)(options, write)


if __name__ == "__main__":
    main()
