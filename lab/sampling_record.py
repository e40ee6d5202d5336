"""Kernels that choose tokens, and eager steps of transformers, as torch.profiler records them: a GPU is needed.

    python -m lab.sampling_record OUT [--vllm FOLDER] [--quick]

Writes OUT/sampling.jsonl, one row an operation, number of requests and size of vocabulary, with the median of the GPU
time of each of its kernels, and OUT/trace-*.json.gz, eager steps of a Llama of two layers with shapes and modules.
FOLDER holds `gumbel.py`, `min_p.py` and `topk_topp_triton.py` of vLLM as a package `vllm`, so that its own kernels run.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROWS, VOCABULARIES = (1, 4, 8, 16, 32, 64, 128, 256), (32_000, 50_304, 128_256, 151_936, 202_048, 262_144)
REPEATS, WARM = 7, 3
TOP_K, TOP_P = 50, 0.9


def operations(torch: Any, vllm: bool) -> dict[str, Callable[[Any], Any]]:
    """What is done to logits of [requests, vocabulary], float32."""
    found: dict[str, Callable[[Any], Any]] = {
        "argmax": lambda x: x.argmax(dim=-1),
        "softmax": lambda x: x.softmax(dim=-1),
        "log_softmax": lambda x: x.log_softmax(dim=-1),
        "topk": lambda x: x.topk(TOP_K, dim=-1),
        "sort": lambda x: x.sort(dim=-1, descending=False),
        "cumsum": lambda x: x.cumsum(dim=-1),
        "exponential": lambda x: x.exponential_(),
        "multinomial": lambda x: torch.multinomial(x.abs_(), 1),
    }
    return found | (_of_vllm(torch) if vllm else {})


def _of_vllm(torch: Any) -> dict[str, Callable[[Any], Any]]:
    from vllm import gumbel, min_p, topk_topp_triton

    def requests(x: Any) -> tuple[Any, Any, Any]:
        return tuple(
            torch.arange(len(x), device="cuda", dtype=kind) for kind in (torch.int32, torch.int64, torch.int64)
        )

    def temperatures(x: Any) -> Any:
        return torch.full((len(x),), 0.7, device="cuda")

    def masked(x: Any, *, k: bool, p: bool) -> Any:
        ks = torch.full((len(x),), TOP_K, device="cuda", dtype=torch.int32) if k else None
        ps = torch.full((len(x),), TOP_P, device="cuda") if p else None
        return topk_topp_triton.apply_top_k_top_p_triton(x, ks, ps)

    return {
        "gumbel": lambda x: gumbel.gumbel_sample(x, requests(x)[0], temperatures(x), *requests(x)[1:], False),
        "temperature": lambda x: gumbel.apply_temperature(x, requests(x)[0], temperatures(x)),
        "min_p": lambda x: min_p.apply_min_p(x, requests(x)[0], torch.full((len(x),), 0.1, device="cuda")),
        "mask_top_k": lambda x: masked(x, k=True, p=False),
        "mask_top_p": lambda x: masked(x, k=False, p=True),
        "mask_top_k_top_p": lambda x: masked(x, k=True, p=True),
    }


def rows(torch: Any, vllm: bool, quick: bool) -> Iterator[dict[str, Any]]:
    """One row a case. Logits are written right before, as by the product that makes them."""
    sizes = [(n, v) for v in VOCABULARIES for n in ROWS] if not quick else [(4, 32_000)]
    for name, run in operations(torch, vllm).items():
        for count, vocabulary in sizes:
            made = 3.0 * torch.randn(count, vocabulary, device="cuda")
            logits = torch.empty_like(made)
            for _ in range(WARM):
                run(logits.copy_(made))
            torch.cuda.synchronize()
            yield {"op": name, "rows": count, "vocabulary": vocabulary, "kernels": _timed(torch, run, logits, made)}


def _timed(torch: Any, run: Callable[[Any], Any], logits: Any, made: Any) -> list[dict[str, Any]]:
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(REPEATS):
            logits.copy_(made)
            with record_function("measured"):
                run(logits)
            torch.cuda.synchronize()
    path = Path("/tmp/sampling.trace.json")
    profiler.export_chrome_trace(str(path))
    return list(_kernels(json.loads(path.read_text())["traceEvents"]))


def _kernels(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The kernels launched within the marked ranges, each with its median time in µs and how often a call runs it."""
    marked = [e for e in events if e.get("name") == "measured" and e.get("cat") == "user_annotation"]
    marks = [(e["ts"], e["ts"] + e["dur"]) for e in marked]
    inside = {e["args"]["correlation"] for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver")
              and "correlation" in e.get("args", {}) and any(a <= e["ts"] <= b for a, b in marks)}  # fmt: skip
    times: dict[tuple[Any, ...], list[float]] = {}
    for e in events:
        if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") and e["args"].get("correlation") in inside:
            key = (e["name"], *(tuple(e["args"].get(name, ())) for name in ("grid", "block")))
            times.setdefault(key, []).append(e["dur"])
    for (name, grid, block), found in times.items():
        yield {"name": name[:240], "grid": grid, "block": block, "us": statistics.median(found),
               "calls": len(found) / REPEATS}  # fmt: skip


def eager(torch: Any, out: Path) -> None:
    """Prompts and decodes of a Llama with the widths of 8B, sampled in eager PyTorch, as users profile them."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=2, num_attention_heads=32, num_key_value_heads=8,
        vocab_size=128_256, max_position_embeddings=8192, rms_norm_eps=1e-5, rope_theta=500000.0,
    )  # fmt: skip
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    for name, requests, length, steps in (("prefill", 1, 2048, 1), ("decode", 16, 1024, 3)):
        for modules in (False, True):
            _step_traces(torch, model, out / f"trace-hf-llama-2layers-{name}{'-modules' * modules}.json.gz",
                         requests, length, steps, modules)  # fmt: skip


def _step_traces(torch: Any, model: Any, path: Path, requests: int, length: int, steps: int, modules: bool) -> None:
    from torch.profiler import ProfilerActivity, profile

    tokens = torch.randint(0, 128_000, (requests, length), device="cuda")

    @torch.inference_mode()
    def run(_profiled: bool) -> Any:
        past = model(tokens, use_cache=True, logits_to_keep=1).past_key_values if steps > 1 else None
        torch.cuda.synchronize()
        with profile(
            activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True, with_stack=modules
        ) as p:
            given = tokens if past is None else tokens[:, -1:]
            for _ in range(steps):
                output = model(given, past_key_values=past, use_cache=True, logits_to_keep=1)
                past = output.past_key_values
                given = _sampled(torch, output.logits[:, -1].float())
                given.tolist()  # the host waits for the tokens, as a server that streams them does
        return p

    run(False)
    plain = path.with_suffix("")
    run(True).export_chrome_trace(str(plain))
    packed = gzip.compress(_trimmed(plain.read_text()).encode(), 9, mtime=0)
    plain.unlink()
    path.write_bytes(packed)


def _sampled(torch: Any, logits: Any) -> Any:
    """Top-k of the scaled logits, drawn from: what `generate` does."""
    values, _ = logits.div(0.7).topk(TOP_K, dim=-1)
    kept = logits.div(0.7).masked_fill_(logits.div(0.7) < values[:, -1:], float("-inf"))
    return torch.multinomial(kept.softmax(dim=-1), 1)


def _trimmed(text: str) -> str:
    """Python frames that are no module are most of a trace with stacks, and nothing reads them."""
    document = json.loads(text)
    heavy = ("python_function", "ac2g", "Trace")
    kept = [
        e for e in document["traceEvents"] if e.get("cat") not in heavy or str(e.get("name")).startswith("nn.Module")
    ]
    document["traceEvents"] = kept
    return json.dumps(document, separators=(",", ":"))


def main() -> int:
    """Record all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--vllm", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.vllm:
        sys.path.insert(0, str(options.vllm))
    import torch

    eager(torch, options.out)
    print("eager traces written", flush=True)
    with (options.out / "sampling.jsonl").open("w") as file:
        file.write(json.dumps({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}) + "\n")
        for row in rows(torch, options.vllm is not None, options.quick):
            file.write(json.dumps(row) + "\n")
            file.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
