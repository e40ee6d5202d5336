"""Options that several commands take: each declared once, with every spelling that engines and clients have for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, TypeAlias

from pipewave.cli.command import Option
from pipewave.errors import BadInput

Text: TypeAlias = str | None
Number: TypeAlias = float | None

# Spellings of options that one command takes as a number and another as a list to try.
TP = ("--tp", "--tp-size", "--tensor-parallel-size", "-tp")
PP = ("--pp", "--pp-size", "--pipeline-parallel-size", "-pp")
DP = ("--dp", "--dp-size", "--data-parallel-size", "-dp")
STEP_TOKENS = ("--max-num-batched-tokens", "--chunked-prefill-size")
SEQUENCES = ("--max-num-seqs", "--max-running-requests")

Quantize = Annotated[Text, Option("--quantize", help="Other weights: fp8 (while loading), awq, a repository.")]
Model = Annotated[str, Option("--model", "-m", help="config.json, a directory with one, or a built-in name.")]
ModelName = Annotated[Text, Option("--model", "-m", help="As of `estimate`.")]
GpuName = Annotated[Text, Option("--gpu", help="GPU name or spec file.")]
Gpu = Annotated[str, Option("--gpu", help="GPU name or spec file.")]
Tp = Annotated[int, Option(*TP, help="Tensor parallel GPUs.")]
Pp = Annotated[int, Option(*PP, help="Pipeline stages.")]
Ep = Annotated[int, Option("--ep", "--ep-size", help="Expert parallel degree inside the tensor group.")]
Dp = Annotated[int, Option(*DP, help="Ranks of attention data parallelism.")]
StepTokens = Annotated[int | None, Option(*STEP_TOKENS, help="Token budget of a step.")]
ISL, OSL = ("--isl", "--input-len", "--random-input-len"), ("--osl", "--output-len", "--random-output-len")
Isl = Annotated[int, Option(*ISL, help="Prompt tokens of a request.")]
Osl = Annotated[int, Option(*OSL, help="Generated tokens of a request; 0: an embedding, a score.")]
Images = Annotated[int, Option(help="Images of each prompt, of the size that its tower is made for; tokens on top.")]
EngineName = Annotated[str, Option("--engine", help="vllm, sglang, trtllm; with a version: sglang:0.5.9.")]
KvDtype = Annotated[Text, Option("--kv-cache-dtype", help="fp8 or the model's own type.")]
Backend = Annotated[Text, Option("--moe-backend", "--moe-runner-backend", help="What runs the experts.")]
Speculation = Annotated[
    Text, Option("--speculative", help="Such as method=mtp,tokens=3,acceptance=0.8; or eagle3, ngram, draft.")
]
HostWords = Annotated[Text, Option("--host", help="Whose cores run the engine: cores=16,speed=0.8; else as measured.")]
PowerLimit = Annotated[Number, Option("--power-limit", help="Power limit of each board, W, as nvidia-smi -pl sets it.")]
OWNED_HELP = "Bought GPUs: H200=32000,years=4,usd_per_kwh=0.08,pue=1.2,utilisation=0.8; usd=: any GPU."
OwnedWords = Annotated[Text, Option("--owned", help=OWNED_HELP)]
Grid = Annotated[Number, Option("--grid", help="Grams of CO2 that the grid emits for a kWh.")]
QLens = Annotated[str, Option("--q-lens", help="New tokens of each request; 1*64,2048 repeats.")]
KvLens = Annotated[str, Option("--kv-lens", help="Cache lengths, new tokens included.")]
Ignore = Annotated[tuple[str, ...], Option("--ignore-field", help="Config field known to change nothing; repeatable.")]
ToldRuns = Annotated[
    tuple[str, ...], Option("--told", help="Measured runs that correct the answer: a result file or a name of `tell`.")
]
VERBOSE = Option("--verbose", "-v", help="Every note and detail below the answer.")
Verbose = Annotated[bool, VERBOSE]
FORMAT = Option(help="table, json or csv.", choices=("table", "json", "csv"))
Format = Annotated[str, FORMAT]
AsJson = Annotated[bool, Option("--json", help="One JSON object instead of a table.")]


def refuse_given(why: str, but: Collection[str], *groups: Any) -> None:
    """Raises BadInput where one of these groups' options is given that would change nothing."""
    given = ((one.name, getattr(group, one.name) != one.default) for group in groups for one in fields(group))
    refuse_said(why, {name.replace("_", "-"): said for name, said in given if name not in but})


def refuse_said(why: str, said: Mapping[str, Any]) -> None:
    """Raises BadInput where one of these options, by their names, is given that would change nothing."""
    if name := next((name for name, value in said.items() if value), ""):
        raise BadInput(f"--{name}: {why}", field=name.removeprefix("no-").replace("-", "_"))


@dataclass(frozen=True, slots=True)
class Split:
    """Parallelism."""

    tp: Tp = 1
    pp: Pp = 1
    ep: Ep = 1
    dp: Dp = 1


@dataclass(frozen=True, slots=True)
class Bill:
    """What output tokens cost: USD, energy, carbon; where one of these is given."""

    price: Annotated[Number, Option("--price", help="Rent of a GPU, USD an hour.")] = None
    owned: OwnedWords = None
    grid_g_per_kwh: Grid = None

    def added(self, answer: dict[str, Any], gpu: str) -> dict[str, Any]:
        """An answer of `estimate` or `serve` with its cost. Raises what `cost` raises."""
        if self == Bill():
            return answer
        from pipewave.planning.prices import cost

        if " + " in answer["gpu"]:
            raise BadInput(f"{answer['gpu']}: `plan` says what engines on two kinds of GPU cost", field="price")
        work = {name: answer[name] for name in ("gpus", "power_w", "output_tokens_per_s")}
        how: dict[str, Any] = {"usd_per_hour": self.price, "owned": self.owned, "grid_g_per_kwh": self.grid_g_per_kwh}
        return answer | {"cost": cost(gpu, **work, **how)}
