"""Long prompts of DeepSeek models: the FLOPs that energy is counted from beside hand arithmetic, and what steps take.

    python -m studies.mla_prefill [--gpu H100] [--json FILE]

One prompt in one step. The hand count multiplies out the published sizes of a layer, in this file and nowhere else:
expanded heads of 128 + 64 for scores and 128 for values, each query with every key up to itself. `under load`: what the
power limit adds to the kernels.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pipewave.calls.families import FusedMoe, Gemm, Mla
from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.kernels import Batch, Deployment
from pipewave.models.shard import Parallel
from pipewave.prediction.api import answer_one, as_case
from pipewave.step import Runner, find_engine

LENGTHS = (16_384, 32_768, 131_072)
SCORE, VALUE = 128 + 64, 128  # multiply-adds of a query-key pair and head


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a model card prints; matrices of a layer in weights, cut by `tp` unless said otherwise."""

    tp: int
    layers: int
    dense_layers: int
    heads: int
    whole: int  # weights of attention that every rank holds: from hidden to the ranks
    cut: int  # weights of attention that ranks share: up to heads, keys and values, out
    dense: int  # weights of a dense feed-forward block
    expert: int  # weights of an expert
    experts: int
    topk: int
    shared: int  # weights of the shared experts
    hidden: int
    vocab: int


SIZES = {
    "DeepSeek-V3": Sizes(
        tp=8, layers=61, dense_layers=3, heads=128, whole=7168 * (1536 + 576),
        cut=1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168, dense=3 * 7168 * 18432, expert=3 * 7168 * 2048,
        experts=256, topk=8, shared=3 * 7168 * 2048, hidden=7168, vocab=129_280,
    ),
    "DeepSeek-V2-Lite": Sizes(
        tp=1, layers=27, dense_layers=1, heads=16, whole=2048 * 576,
        cut=2048 * 16 * 192 + 512 * 16 * 256 + 16 * 128 * 2048, dense=3 * 2048 * 10944, expert=3 * 2048 * 1408,
        experts=64, topk=6, shared=3 * 2048 * 2816, hidden=2048, vocab=102_400,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """A prompt on one rank: TFLOP counted and by hand, ms of the step, of its kernels, and of the power limit."""

    model: str
    tp: int
    tokens: int
    attention_tflop: float
    attention_by_hand: float
    all_tflop: float
    all_by_hand: float
    step_ms: float
    kernels_ms: float
    power_throttling_ms: float


def by_hand(size: Sizes, tokens: int) -> tuple[float, float]:
    """FLOPs of attention, and of everything on the tensor cores, on one rank."""
    pairs = tokens * (tokens + 1) / 2
    attention = 2.0 * pairs * size.heads * (SCORE + VALUE) * size.layers / size.tp
    sparse = size.layers - size.dense_layers
    feed = size.dense_layers * size.dense + sparse * (size.topk * size.expert + size.shared)
    each = size.layers * (size.whole + size.cut / size.tp) + feed / size.tp + sparse * size.hidden * size.experts
    head = 2.0 * size.hidden * size.vocab / size.tp
    return attention, attention + 2.0 * tokens * each + head


def counted(runner: Runner, tokens: int) -> tuple[float, float]:
    """The same as the families' analyses count them, which the energy of a step is made of."""
    attention = everything = 0.0
    for use in runner.deployment.kernels(Batch((tokens,), (tokens,))):
        if isinstance(use.call, Gemm | Mla | FusedMoe):
            found = answer_one(as_case(use.call, runner.engine.stack, None), runner.gpu, "serving")
            flops = use.count * float(found.analysis.done.flops[0])
            everything += flops
            attention += flops * isinstance(use.call, Mla)
    return attention, everything


def row(model: str, gpu: str, tokens: int) -> Row:
    """One model and length."""
    size = SIZES[model]
    runner = Runner.of(Deployment(load(model), Parallel(size.tp)), find(gpu), find_engine("vllm"))
    steps = runner.steps([Batch((tokens,), (tokens,))])
    (attention, all_), (attention_hand, all_hand) = counted(runner, tokens), by_hand(size, tokens)
    tera = [round(flops * 1e-12, 3) for flops in (attention, attention_hand, all_, all_hand)]
    times = [float(us[0]) for us in (steps.total_us, steps.load.kernel_us, steps.gaps["power_throttling"])]
    return Row(model, size.tp, tokens, *tera, *(round(us * 1e-3, 1) for us in times))


def main() -> None:
    """Print the table; write it with `--json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="H100")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = [row(model, given.gpu, tokens) for model in SIZES for tokens in LENGTHS]
    names = list(Row.__slots__)
    print("| " + " | ".join(name.replace("_", " ") for name in names) + " |\n" + "|---" * len(names) + "|")
    for one in rows:
        print("| " + " | ".join(str(value) for value in asdict(one).values()) + " |")
    if given.json:
        given.json.write_text(json.dumps([asdict(one) for one in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
