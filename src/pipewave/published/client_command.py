"""A benchmark client's own command line (`vllm bench serve …`, `sglang.bench_serving …`) as traffic and limits.

The same words mean different lengths: `--random-range-ratio R` is L × (1 ± R) for `vllm bench serve`, and R × L to L
for SGLang's client and for `benchmark_serving.py`, the fork that InferenceX runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pipewave.calls.fields import Rule
from pipewave.errors import BadInput
from pipewave.files import packaged
from pipewave.published.server_command import Words, named, number, options, passed_over, split
from pipewave.simulate.report import Limit, limits_of
from pipewave.simulate.traffic import LONGEST, Traffic, datasets, drawn_from, synthetic

OPTIONS = Path(__file__).with_name("client_options.yaml")
MADE = ("random", "random-ids", "synthetic")


class Client(NamedTuple):
    """A client and what it does without further words: meaning of the ratio, prompts, tokens of each and of its answer.

    `ratio`: lengths are drawn where no ratio is given, too: from one token up.
    """

    program: str
    meaning: str  # lengths around the given ones, or below
    prompts: int
    input_len: int
    output_len: int
    ratio: float | None = None


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """What a client asks: requests, limits that count as good, and what was left out."""

    traffic: Traffic
    limits: tuple[Limit, ...]
    notes: tuple[str, ...] = ()


def read(command: str) -> ClientLoad:
    """The traffic of a command line, as pasted. Raises BadInput."""
    words, table = split(command, "client"), packaged.shared(OPTIONS)
    clients = [Client(**one) for one in table["clients"]]
    text = " ".join(word.rpartition("/")[2].removesuffix(".py") for word in words)
    client = next((one for one in clients if one.program in text), None)
    if client is None:
        known = ", ".join(one.program for one in clients)
        raise BadInput(f"client: no benchmark in {command[:80]!r}; known: {known}", field="client")
    goals, words = _goodput(words)
    begun = next(i for i, word in enumerate(words, 1) if word.removesuffix(".py").endswith(client.program.split()[-1]))
    taken = options(words[begun:], named(table["fields"]))
    passed = passed_over("it", "client", taken, table, ("--goodput", *table["not_modelled"]))
    notes, alike = list[str](), table["shared_prefixes"]
    if (chosen := taken.said.get("dataset", MADE[0])) not in (*MADE, *alike, *datasets()):
        notes.append(f"dataset {chosen}: its lengths are not known here; those of the options are taken")
    return ClientLoad(_traffic(client, taken, alike.get(chosen, {})), limits_of(**goals), (*notes, *passed))


def below(nominal: float, ratio: float) -> tuple[float, float]:
    """(mean, spread) of lengths uniform from ratio × nominal to nominal."""
    if not 0 <= ratio <= 1:
        raise BadInput(f"random_range_ratio = {ratio}: must be from 0 to 1", field="random_range_ratio")
    return min(nominal, 1e9) * (1 + ratio) / 2, (1 - ratio) / (1 + ratio)  # what is longer is refused as too long


def _traffic(client: Client, taken: Words, alike: Mapping[str, int]) -> Traffic:
    """`alike`: lengths and groups of prompts that begin alike, where no option says them."""
    said = {**alike} | {name: _number(name, word) for name, word in taken.said.items() if name != "dataset"}
    groups = _count("groups", said.get("groups", 1))
    each = "each" in alike and groups * _count("each", said["each"])
    count = int(each or said.get("requests", client.prompts))
    sizes = (said.get("input", client.input_len), said.get("output", client.output_len))
    ratio, spread = (None, 0.0) if alike else (said.get("ratio", client.ratio), said.get("ratio", 0.0))
    if client.meaning == "below" and ratio is not None:
        (mean, spread), (answer, _) = (below(size, ratio) for size in sizes)
        sizes = (mean, answer)
    rate, flight = said.get("rate", math.inf), said.get("concurrency")
    pace: dict[str, Any] = {"concurrency": int(flight) if flight else None, "rate": rate if rate < math.inf else None}
    seed, chosen = int(said.get("seed", 0)), taken.said.get("dataset", "random")
    if chosen in datasets():
        answers = int(said["answer"]) if "answer" in said else None
        return drawn_from(chosen, count, seed=seed, output_len=answers, **pace)
    traffic = synthetic(
        count, input_len=max(round(sizes[0]), 1), output_len=max(round(sizes[1]), 1),
        burstiness=said.get("burstiness", 1.0), spread=min(spread, 0.999), seed=seed, **pace,
    )  # fmt: skip
    shared = int(Rule("int", low=0, high=LONGEST).check("random_prefix_len", int(said.get("prefix", 0))))
    return traffic.with_prefix_tokens(shared, groups) if shared else traffic


def _count(name: str, value: float) -> int:
    return int(Rule("int", low=1, high=1 << 20).check(name, int(value)))


def _goodput(words: list[str]) -> tuple[dict[str, float], list[str]]:
    """Limits of `--goodput ttft:500 tpot:30`, and the other words."""
    if "--goodput" not in words:
        return {}, words
    at = words.index("--goodput")
    pairs = [word for word in words[at + 1 : at + 4] if ":" in word]
    limits = {}
    for pair in pairs:
        name, _, value = pair.partition(":")
        if name not in ("ttft", "tpot", "e2el"):
            raise BadInput(f"goodput = {pair!r}: must name ttft, tpot or e2el", field="goodput")
        limits[{"e2el": "e2e"}.get(name, name) + "_ms"] = _number("goodput", value)
    return limits, words[:at] + words[at + 1 + len(pairs) :]


def _number(name: str, word: str) -> float:
    """A finite number; the rate alone may be `inf`."""
    value = number(word, f"client: {name}", "client")
    if math.isfinite(value) or (name == "rate" and value > 0):
        return value
    raise BadInput(f"client: {name} = {word!r}: must be a finite number", field="client")
