"""Published runs of real servers as cases of `pipewave serve --cases`, and what was measured of each.

Deployments that AIConfigurator generated are measured with as many requests in flight as all their workers take
together (`estimated_concurrency` of its rules: workers × batch of each), and their rows do not say how many workers
there were. They are counted apart.

So are runs of SGLang whose first prompts compile. DeepSeek-R1 in FP4 on B200 in November 2025, which kept no version,
was launched with chunks of 16,384 tokens (InferenceX benchmarks/dsr1_fp4_b200.sh). Where the first wave of prompts
holds more, a prompt is cut, its second part attends to a cached prefix for the first time, and the run's mean TTFT is
1.3 to 10 seconds more than its prompts take: times ten waves, 10 to 97 seconds once, whatever lengths, batch and GPUs.
No run of 0.5.9 shows it. Below that size the same server's first tokens are still 1.7 to 3.4 times as late as 0.5.9's
at the same load, 2 to 5 seconds once or 20 decode steps each: nothing tells which, and these twelve runs count.

And so are runs that drafted without saying so (`studies.published_series`). They are asked as such.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from pipewave.errors import PipewaveError
from pipewave.files import whole
from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.kernels import Deployment
from pipewave.models.shard import ALONE, active_parameters
from pipewave.published.unstated import degrees_of, releases
from pipewave.software.engine import numbered
from studies.published_series import drafting, series

DAY = re.compile(r"20\d\d-\d\d-\d\d")
WORDS = ("engine", "version", "gpu", "mode", "kv_dtype")
COUNTS = ("tp", "pp", "ep", "dp", "concurrency", "requests", "max_num_seqs", "max_num_batched_tokens")
NUMBERS = ("isl", "osl", "spread", "rate", "memory_fraction")
METRICS = ("ttft_ms", "tpot_ms", "output_tokens_per_s", "e2e_ms")
OLD = "Argonne LLM-Inference-Bench"  # vLLM V0 and TensorRT-LLM 0.x
COMPILING = ("sglang", "B200", "DeepSeek-R1", "fp4")  # without a version
FAMILY = "model family unknown"  # when the rows were collected
OF_RANKS = "data-parallel attention"
BITS = {"fp16": 16, "bf16": 16, "fp8": 8, "fp4": 4, "mxfp4": 4, "int4": 4}  # of weights, by the word of a row
CHUNK = 16_384  # tokens; a first wave of prompts above it is cut
GENERATED = "NVIDIA AIC own runs"  # those with a day are of deployments that AIConfigurator generated
# Checkpoints whose card the corpus holds, and rows name another's: (config, precision) of the row.
CHECKPOINTS = {("MiniMaxAI--MiniMax-M2.5", "fp4"): "nvidia--MiniMax-M2.5-NVFP4"}
# And cards of another precision than was run, which the corpus holds no card of: as the makers' own checkpoints are.
# NVIDIA's keep attention and head in 16 bits, and of Qwen3.5 (nvidia/Qwen3.5-397B-A17B-NVFP4) scans and shared experts,
# too; Qwen's FP8 has scales for blocks and keeps what its hybrids' FP8 checkpoints list (Qwen3-Next).
QWEN, GLM, LAYERS = "Qwen--Qwen3.5-397B-A17B", "zai-org--GLM-5-FP8", "model.language_model.layers"
KEPT = ("linear_attn.conv1d", "linear_attn.in_proj_a", "linear_attn.in_proj_b", "mlp.gate", "mlp.shared_expert_gate")
FOUR_BIT = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16}
BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}
SCANNED = ["lm_head", "model.visual*", "*.linear_attn*", "*.self_attn*", "*.mlp.shared_expert*"]
OTHERS: dict[tuple[str, str], dict[str, Any]] = {
    (GLM, "fp4"): {**FOUR_BIT, "exclude_modules": ["lm_head", "model.layers.*.self_attn*"]},
    (QWEN, "fp4"): {**FOUR_BIT, "exclude_modules": SCANNED},
    (QWEN, "fp8"): {
        **BLOCKS,
        "modules_to_not_convert": ["lm_head", "model.visual"]
        + [f"{LAYERS}.{layer}.{name}" for layer in range(60) for name in KEPT],
    },
}
# What launches of such rows say that a case cannot: --mamba-ssm-dtype bfloat16 (InferenceX
# benchmarks/single_node/qwen3.5_fp8_b200.sh, qwen3.5_fp8_b200_mtp.sh, qwen3.5_fp8_h200.sh of March 2026).
TEXTS: dict[tuple[str, str], dict[str, Any]] = {(QWEN, "fp8"): {"mamba_ssm_dtype": "bfloat16"}}
# Rows that name what their launch set in a file that it did not read (`published/recipes.json`: FP8 on H100).
UNREAD = {"engine": "vllm", "version": "", "gpu": "H100", "model": "Llama-3.1-70B"}
# NIM's tables are measured as its guide says: GenAI-Perf, windows of 30 s until three in a row agree, so that the first
# wave of prompts is in none of them.
WINDOWED = "NVIDIA NIM docs"
DRAFTED = {"speculative": "mtp"}
CARDS = Path(__file__).resolve().parents[1] / ".cache" / "cards"


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that no constant may be fitted on and scored with at once."""

    source: str
    engine: str
    gpu: str
    model: str
    precision: str


@dataclass(frozen=True, slots=True)
class Row:
    """A published run: its group, its case, its measured means, what it `needs` that the case cannot say, and the
    newest release of its engine on the day it was run, and that day, where it is given.
    """

    id: str
    group: Group
    case: dict[str, Any]
    measured: dict[str, float]
    needs: str
    release: str = ""
    day: str = ""

    @property
    def ranks(self) -> int:
        """Data-parallel ranks of its attention, as its degrees are read."""
        tp, ep, dp = (self.case.get(name, 1) for name in ("tp", "ep", "dp"))
        return degrees_of(self.group.engine, tp, ep, dp, None).dp

    @property
    def apart(self) -> str:
        """Why it counts apart though it can be asked; empty where it counts."""
        if self.generated:
            return "workers not given"
        if self.compiles:
            return "compiles in its first requests"
        if "speculative" in self.case:
            return "drafts and does not say so"
        return "beyond the GPUs it names" if of_peak(self) > 1.0 or of_reading(self) > 1.0 else ""

    @property
    def generated(self) -> bool:
        """Whether AIConfigurator generated the deployment, so that nothing tells its number of workers."""
        return self.group.source.startswith(GENERATED) and bool(self.day)

    @property
    def answerable(self) -> bool:
        """Whether a case says all: the row needs nothing, or only a family that can be read by now, with a card of the
        precision that was run, or ranks that its degrees do not mean.
        """
        if self.needs == OF_RANKS:
            return self.ranks == 1 < int(self.case.get("dp", 1))
        family = self.needs.startswith(FAMILY) and precision(self.case["model"]) in self.group.precision
        return not self.needs or family

    @property
    def made(self) -> bool:
        """Whether its card was made here, after other checkpoints of its maker: what ran may differ in its kernels."""
        return Path(self.case["model"]).is_relative_to(CARDS)

    @property
    def compiles(self) -> bool:
        """Whether it is a run whose first prompts are cut and wait for a kernel to be compiled."""
        group, case = self.group, self.case
        those = (group.engine, group.gpu, group.model, group.precision) == COMPILING and not case.get("version")
        return those and case.get("concurrency", 0) * case["isl"] > CHUNK


def _architecture(row: Row) -> str:
    """A model by its sizes: fine-tunes and newer checkpoints of one are the same model."""
    model = load(row.case["model"])
    return f"{model.model_type}, {len(model.layers)} layers of {model.hidden}"


# What may be left out of a fit as a whole, and what of it a row belongs to.
PARTS: dict[str, Callable[[Row], str]] = {
    "group": lambda row: str(row.group),
    "model": _architecture,
    "gpu": lambda row: row.group.gpu,
    "version": lambda row: ".".join(numbered(row.case.get("version")).split(".")[:2]) or "not named",  # no patch
}


@cache
def precision(model: str) -> str:
    """The operand type of a model's experts or maps, as rows write it; empty where the model cannot be read."""
    try:
        found = Deployment(load(model), ALONE).facts(find("B200")).dtype
    except PipewaveError:
        return ""
    return {"nvfp4": "fp4", "mxfp4": "fp4", "fp8_block": "fp8"}.get(found, found)


def corpus() -> Path:
    """The corpus: PIPEWAVE_DATA, or `shared/data` beside the repository."""
    return Path(os.environ.get("PIPEWAVE_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))


def read(folder: Path, *, dated: bool = False) -> list[Row]:
    """Every row without `doubt` whose lengths are known; `dated`: with the version of its day where it names none."""
    rows = _rows(folder / "serving")
    return [replace(row, case={"version": row.release} | row.case) if dated and row.release else row for row in rows]


def _rows(folder: Path) -> Iterator[Row]:
    with (folder / "rows.csv").open(encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["mode"] != "sharegpt"]
    drafted = drafting(lines)
    for line in lines:
        if not line["doubt"]:
            yield _row(folder, line, DRAFTED if series(line) in drafted else {})


def _row(folder: Path, line: dict[str, str], more: dict[str, Any]) -> Row:
    group = Group(*(line[name] for name in Group.__slots__))
    measured = {name: float(line[name]) for name in METRICS if line[name]}
    found = DAY.search(line["note"])
    day = found.group() if found else ""
    out = [version for version, came_out in releases(line["engine"]).items() if came_out <= day]
    release = out[-1] if out else ""
    return Row(line["id"], group, _case(folder, line) | more, measured, line["needs"], release, day)


def _case(folder: Path, line: dict[str, str]) -> dict[str, Any]:
    name = CHECKPOINTS.get((line["config"], line["precision"]), line["config"])
    config = folder / "configs" / name
    config = _other(config, line["precision"]) if (config.name, line["precision"]) in OTHERS else config
    case: dict[str, Any] = {"id": line["id"], "model": str(config) if config.is_dir() else name}
    case |= {name: line[name] for name in WORDS if line[name]}
    case |= {name: int(float(line[name])) for name in COUNTS if line[name]}
    if all(line[name] == value for name, value in UNREAD.items()):
        case.pop("kv_dtype", None)
    if line["source"] == WINDOWED:
        case["steady"] = True
    apart = {"disaggregated": True} if "disaggregated" in line["needs"] else {}
    return case | apart | {name: float(line[name]) for name in NUMBERS if line[name]}


@cache
def _other(config: Path, precision: str) -> Path:
    """A card like another, its weights in another precision."""
    card, section = json.loads((config / "config.json").read_text("utf-8")), OTHERS[config.name, precision]
    made, modelopt = CARDS / f"{config.name}-{precision}", "quant_algo" in section
    text = card.get("text_config", {}) | TEXTS.get((config.name, precision), {})
    files = {
        "config.json": card
        | ({"text_config": text} if text else {})
        | {"quantization_config": None if modelopt else section}
    }
    files |= {"hf_quant_config.json": {"quantization": section}} if modelopt else {}
    for name, content in files.items():
        whole.write(made / name, json.dumps(content).encode())  # other processes read them, too
    return made


def of_peak(row: Row) -> float:
    """The products that a closed loop's measured means imply, over the dense peak (of the narrowest type) of the GPUs
    that the row names. Above one the row cannot be of that many GPUs: rates of several replicas, or of other models.
    """
    case, measured = row.case, row.measured
    if row.needs or case["mode"] != "serve" or "concurrency" not in case or not {"ttft_ms", "tpot_ms"} <= set(measured):
        return 0.0
    gpu = find(case["gpu"])
    peak = max(gpu.peak_flops(dtype) for dtype in ("bf16", "fp8", "nvfp4") if gpu.supports(dtype))
    each_s = 1e-3 * (measured["ttft_ms"] + (case["osl"] - 1) * measured["tpot_ms"])
    flops = 2.0 * active_parameters(load(case["model"])) * (case["isl"] + case["osl"]) * case["concurrency"] / each_s
    return float(flops / (peak * case.get("tp", 1) * case.get("pp", 1)))


def of_reading(row: Row) -> float:
    """The time in which the GPUs of a row read the weights of a token once, at the rate of their memory's
    specification, over that of a token as measured. Above one the run made fewer tokens than it states (a stop token
    ends it), for every step reads them, whatever the batch.
    """
    case, measured, bits = row.case, row.measured, BITS.get(row.group.precision)
    static = measured.get("e2e_ms", 0.0) / case["osl"] if case["mode"] == "estimate" else 0.0
    token_ms = measured.get("tpot_ms", static)
    if row.needs or bits is None or not token_ms:
        return 0.0
    gpus = case.get("tp", 1) * case.get("pp", 1) * case.get("dp", 1)
    read_s = active_parameters(load(case["model"])) * bits / 8 / (1e9 * find(case["gpu"]).dram_gbps * gpus)
    return float(1e3 * read_s / token_ms)
