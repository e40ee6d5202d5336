"""Block-scaled FP8 products of vLLM as installed and with our files: `python -m lab.vllm_block_files --files DIR …`.

Engines of Qwen3-8B with the quantisation of its FP8 checkpoint share the GPU and are asked in turn: `triton`, vLLM's
Triton kernel as installed; `ours`, the same with files of `pipewave tune engine vllm --model FP8_CONFIG --out DIR`
copied to where vLLM looks for them, in a copy of its folder; `auto`, the library's kernel that vLLM itself prefers
where there is one. Prompts until their last first token, and steps of requests that decode. Needs vLLM and a GPU;
`--config FILE` alone writes the model's config and needs neither.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lab.in_turns import Served, compared
from lab.vllm_engine import launch, timing
from lab.vllm_engine.drive import Driver
from lab.vllm_engine.points import Point, decode, prefill

MODEL = "Qwen3-8B"
QUANTISED = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
CONTEXT = 512
POINTS = (*(prefill(4, length) for length in (512, 1024, 2048, 4096, 8192)), *(prefill(1, n) for n in (128, 512, 2048)),
          *(decode(batch, CONTEXT) for batch in (1, 8, 16, 32, 64, 128, 256)))  # fmt: skip
ENGINES = {"triton": "triton", "ours": "triton", "auto": "auto"}  # and their linear backends
ROUNDS = {"prefill": 7, "decode": 3}
KV_BYTES = 22 << 30  # of 256 requests at CONTEXT, with room for what they decode
FOLDER = Path("model_executor/layers/quantization/utils")
READER = "fp8_utils.py"  # which looks for `configs` beside itself


def config() -> dict[str, Any]:
    """The model as its maker's FP8 checkpoint has it."""
    return launch.config_of(MODEL, None) | {"quantization_config": QUANTISED}


def overlaid(vllm: Path, files: Path, folder: Path) -> Path:
    """A folder to import vLLM from: links to the installed one, but for the reader of files; the files with ours."""
    shutil.copytree(vllm, folder / "vllm", copy_function=os.symlink)
    here = folder / "vllm" / FOLDER
    (here / READER).unlink()
    shutil.copy(vllm / FOLDER / READER, here)
    for file in files.rglob("*.json"):
        (here / "configs" / file.name).unlink(missing_ok=True)
        shutil.copy(file, here / "configs")
    return folder


def answer(driver: Driver, point: Point) -> dict[str, float]:
    """One batch of prompts until its last first token, or the median of some decode steps; ms."""
    if point.phase == "decode":
        return {"ms": timing.decode_row(driver, point)["step_ms"]}
    prompts = timing.random_prompts(driver, point.batch, point.input_len)
    arrived = driver.clock()
    driver.add(prompts, 1)
    return {"ms": 1e3 * (driver.drain()[-1].ended_s - arrived)}


def serve(backend: str, layers: int | None) -> None:
    """Start an engine, say so, and answer points until the input ends. Answers go to the standard output alone."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    launch.prepare_environment()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.json")
        path.write_text(json.dumps(config()))
        more = {
            "linear_backend": backend,
            "kv_cache_memory_bytes": KV_BYTES,
            "gpu_memory_utilization": 0.1,
            "max_num_seqs": POINTS[-1].batch,
        }
        llm, log_lines = launch.start(launch.Setup(str(path), layers=layers, more=more))
    driver = Driver(launch.engine_of(llm))
    print(json.dumps({"backend": backend, **launch.facts(llm, log_lines)}, default=str), file=answers, flush=True)
    for text in sys.stdin:
        print(json.dumps(answer(driver, Point(*json.loads(text)))), file=answers, flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; see the module's description."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, help="write the model's config here")
    parser.add_argument("--files", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--layers", type=int, help="of the model; default: all")
    parser.add_argument("--engines", default=",".join(ENGINES), help="of these, the first one the base")
    parser.add_argument("--serve", help="what each engine's process runs, with this --linear-backend")
    options = parser.parse_args(argv)
    if options.config:
        options.config.write_text(json.dumps(config(), indent=1) + "\n")
    elif options.serve:
        serve(options.serve, options.layers)
    elif options.files is None or options.out is None:
        parser.error("--files and --out are needed")
    else:
        measure(options.files, options.out, options.layers, options.engines.split(","))


def started(engine: Served) -> Any:
    """What an engine says when it runs; that it failed is said too, and costs the others nothing."""
    try:
        return engine.line()
    except RuntimeError as problem:
        return {"failed": str(problem)}


def measure(files: Path, out: Path, layers: int | None, names: Sequence[str]) -> None:
    """Start the engines beside each other and ask them all points."""
    began, folder = time.monotonic(), Path(tempfile.mkdtemp(prefix="pipewave-"))
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    path = f"{overlaid(Path(spec.origin).parent, files, folder)}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    command = [sys.executable, "-m", "lab.vllm_block_files", *([f"--layers={layers}"] if layers else []), "--serve"]
    engines = [Served(name, [*command, ENGINES[name]], {"PYTHONPATH": path} if name == "ours" else {},
                      out.parent / f"vllm-{name}.log") for name in names]  # fmt: skip
    try:
        facts = {engine.name: started(engine) for engine in engines}
        running = [engine for engine in engines if "failed" not in facts[engine.name]]
        found: dict[str, Any] = {"model": MODEL, "layers": layers, "engines": facts, "rows": [],
                                 "start_s": round(time.monotonic() - began, 1)}  # fmt: skip
        for point in POINTS:
            of = [point.phase, point.batch, point.input_len, point.context, point.kv]
            row = dict(zip(("phase", "batch", "input_len", "context", "kv"), of, strict=True))
            found["rows"].append(row | compared(running, of, ROUNDS[point.phase]))
            out.write_text(json.dumps(found, indent=1) + "\n")
            print(of[:4], found["rows"][-1]["ms"], found["rows"][-1]["speed_up"], flush=True)
    finally:
        for engine in engines:
            engine.close()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
