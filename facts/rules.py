"""Facts of all releases as rules of a deployment: `src/pipewave/software/releases.json`.

A rule holds from the first release that says so until the next one that says otherwise, and names the line that it was
read from. What a release leaves open (`?`) is taken from the one before. Before the first release read, its facts hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from facts.sources import number
from pipewave.gpus import find
from pipewave.software.engine_parts import DeploymentFacts
from pipewave.software.engine_rules import fields

Row = tuple[dict[str, Any], dict[str, Any]]  # conditions, and what is set
Rows = list[Row]

A100 = ["A100", "A100 SXM 40GB", "A100 PCIe 40GB", "A100 PCIe 80GB"]
CARDS: Mapping[str, dict[str, Any]] = {
    "103": {"gpu": ["B300", "GB300"]},
    "100": {"mma": "tcgen05"},
    "90": {"mma": "wgmma"},
}  # by compute capability; 10.7 is of no GPU that is known here


def by_memory(field: str) -> Callable[[Any], Rows]:
    """Rows of ranges of GPU memory, of each number of ranks where these differ."""

    def rows(ranges: Sequence[Mapping[str, Any]]) -> Rows:
        ranks = sorted({each["tp"] for each in ranges if "tp" in each}) or [0]
        of = {rank: [_range(each, field) for each in ranges if each.get("tp", 0) == rank] for rank in ranks}
        groups = [list(some) for _, some in groupby(ranks, key=lambda rank: repr(of[rank]))]
        bounds = [{"tp_below": after[0]} for _, after in pairwise(groups)] + [{}]
        return [
            (bound | when, value) for some, bound in zip(groups, bounds, strict=True) for when, value in of[some[0]]
        ]

    return rows


def _range(each: Mapping[str, Any], field: str) -> Row:
    when = {"gpu": A100} if each.get("a100") else {}
    return when | ({"gib_below": each["gib_below"]} if "gib_below" in each else {}), {field: each["value"]}


def graphs(capability: str) -> Callable[[Any], Rows]:
    """Captured batch sizes: the largest of Blackwell, and those of all others."""

    def rows(table: Mapping[str, Mapping[str, Any]]) -> Rows:
        found, others = table[capability], table["90"]
        if capability == "90":
            return [({}, {"graph_limit": found["largest"], "graph_stride": found["strides"]})]
        return [(CARDS[capability], {"graph_limit": found["largest"]})] if found != others else []

    return rows


def fused(capability: str) -> Callable[[Any], Rows]:
    """Largest hidden states all-reduced by the kernel that norms them, from as many ranks on."""

    def rows(table: Mapping[str, Mapping[str, float]]) -> Rows:
        found = sorted(((int(ranks), mib) for ranks, mib in table.get(capability, {}).items()), reverse=True)
        return [(CARDS[capability] | {"tp_from": ranks, "pp": 1}, {"fused_norm_mib": mib}) for ranks, mib in found]

    return rows


def plain(**fields: Any) -> Callable[[Any], Rows]:
    """One row whatever the deployment; `None` stands for the fact's value."""
    return lambda value: [({}, {name: value if given is None else given for name, given in fields.items()})]


def with_ranks(field: str) -> Callable[[Any], Rows]:
    """The same where attention runs on several data-parallel ranks."""
    return lambda value: [({"dp_from": 2}, {field: value})]


RULES: Mapping[str, Sequence[tuple[str, Callable[[Any], Rows]]]] = {
    "vllm": (
        ("max_batched_tokens", by_memory("max_batched_tokens")),
        ("max_requests", by_memory("max_requests")),
        ("memory_share", plain(memory_share=None)),
        ("async_scheduling", plain(overlaps=None)),
        ("decode_graphs", graphs("100")),
        ("decode_graphs", graphs("90")),
        *(("fused_all_reduce_mib", fused(capability)) for capability in CARDS),
        ("shared_expert_tokens", plain(shared_experts="overlapped", shared_tokens=None)),
        ("two_batch_prompt", with_ranks("two_batch_prompt")),
        ("two_batch_decode", with_ranks("two_batch_decode")),
    ),
    "sglang": (
        ("max_batched_tokens", by_memory("max_batched_tokens")),
        ("largest_graph", by_memory("graph_limit")),
        ("max_prefill_tokens", plain(max_prefill_tokens=None)),
        ("no_overlap", lambda value: [({}, {"overlaps": not value})]),
        ("mixes_phases", plain(mixes_phases=None)),
    ),
}  # facts and what is made of them, in the order in which rules are tried
# From when on a fact counts that releases hold earlier: its pass is on by default since (config/vllm.py, O2).
SINCE = {("vllm", "fused_all_reduce_mib"): "0.17.0"}
ALWAYS = ("shared_expert_tokens", "fused_all_reduce_mib")  # facts without which a release does nothing of the kind


def settled(value: Any) -> bool:
    """Whether the source settles a fact wholly."""
    return value is not None and "?" not in str(value) and "None" not in str(value)


def rules(engine: str, documents: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rules of an engine from the documents of its releases, oldest first; of each fact the newest rule first."""
    for name, rows_of in RULES[engine]:
        begun, runs = number(SINCE.get((engine, name), "0")), list[tuple[str, str, Rows]]()
        for each in documents:
            fact = each["facts"].get(name)
            if fact and settled(fact["value"]) and number(each["version"]) >= begun:
                rows = rows_of(fact["value"])
                if not runs or rows != runs[-1][2]:
                    runs.append((each["version"], fact["at"], rows))
        for place, (version, at, rows) in reversed(list(enumerate(runs))):
            since = {"since": version} if place or name in ALWAYS else {}
            for when, value in rows:
                yield {"when": since | when, "set": value, "source": f"{version} {at}"}


FIELDS = ("max_batched_tokens", "max_requests", "memory_share", "overlaps", "mixes_phases", "graph_limit",
          "graph_stride", "fused_norm_mib", "shared_experts", "shared_tokens", "two_batch_prompt", "two_batch_decode",
          "max_prefill_tokens")  # fmt: skip
GPUS = ("A100", "L4", "L40S", "RTX PRO 6000", "H100", "H200", "B200", "B300")
SETTINGS = {f"{gpu.replace(' ', '_')}/{tp}": (gpu, tp) for gpu in GPUS for tp in (1, 2, 4, 8)}
FIRST = {"vllm": "0.11.0", "sglang": "0.5.5"}  # releases of about a year
FILE = Path("src/pipewave/software/releases.json")
ABOUT = "Read from the source of each release by `python -m facts rules`; not written by hand."
HAND_READ = Path(__file__).with_name("hand_read.json")


def resolved(engine: str, version: str, setting: tuple[str, int]) -> dict[str, Any]:
    """Fields of a deployment of dense attention with two data-parallel ranks, as the rules that ship answer."""
    gpu, tp = setting
    card = find(gpu)
    facts = DeploymentFacts(card.name, card.traits.mma, card.dram_gib, tp=tp, dp=2 if engine == "vllm" else 1)
    return fields(engine, version, facts)


def check() -> Iterator[tuple[str, str, int, int]]:
    """Of each version read by hand and each field: deployments that come out the same, and all."""
    for name, expected in json.loads(HAND_READ.read_text("utf-8")).items():
        engine, version = name.split()
        found = {setting: resolved(engine, version, of) for setting, of in SETTINGS.items()}
        for field, values in expected.items():
            wanted = {setting: json.loads(value) for value, some in values.items() for setting in some.split()}
            same = [json.loads(json.dumps(found[setting].get(field))) == value for setting, value in wanted.items()]
            yield name, field, sum(same), len(same)


def releases(documents: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """What is written of each engine: the days of its releases and the rules read from them, a line each."""
    parts = [f'{{\n "about": {json.dumps(ABOUT)}']
    for engine, some in documents.items():
        days = json.dumps({each["version"]: each["day"] for each in some})
        lines = ",\n".join(f"   {json.dumps(row)}" for row in rules(engine, some))
        parts.append(f' "{engine}": {{\n  "versions": {days},\n  "rules": [\n{lines}\n  ]\n }}')
    return ",\n".join(parts) + "\n}\n"
