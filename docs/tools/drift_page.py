"""Twelve deployments from release to release, for `docs/studies/drift.md`: `python -m docs.tools.drift_page`.

Everything but the engine's version stays as it is: what moves is what the versions' own defaults and code change.
Beside them stand published runs of one deployment under two versions, where the corpus has such.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import matplotlib as mpl

import pipewave as pw
from pipewave.published.answers import answer
from pipewave.published.cases import from_dict
from pipewave.software.engine_rules import releases as read_releases
from studies.published_rows import Row, corpus, read

mpl.use("svg")
from matplotlib import pyplot as plt

DOCS = Path(__file__).resolve().parents[1]
PAGE, PICTURE = DOCS / "studies" / "drift.md", DOCS / "img" / "drift.svg"
LOAD: dict[str, Any] = {
    "input_len": 4096,
    "output_len": 512,
    "concurrency": 32,
    "requests": 160,
    "max_num_batched_tokens": 8192,
}
MOVED = 0.005  # share by which an answer has to move for a version to be listed
METRICS = ("ttft_ms", "tpot_ms")
Pair = tuple[Sequence[Row], Sequence[Row]]  # of an older and a newer version
ALIKE = ("engine", "gpu", "model", "tp", "pp", "ep", "dp", "kv_dtype", "isl", "osl", "concurrency", "spread")

TEXT = """# What upgrades gave

Twelve deployments under every release of their engine in the last year, answered on {day:%Y-%m-%d} by
`python -m docs.tools.drift_page`: prompts of {input_len:,} tokens, answers of {output_len}, {concurrency} requests in
flight, {max_num_batched_tokens:,} tokens a step. Model, GPUs and load stay; what moves is what the releases' own
defaults and code change: asynchronous scheduling, captured graphs, the choice of kernels. Rows of kernels exist for a
few versions only, and nothing here knows of a kernel that became faster in between. SGLang before 0.5.8 mixes chunks,
as AIConfigurator launches it; where a launch does not, it answers as 0.5.8 does. Releases are listed that change an
answer by over {moved:.1f} %.

![Tokens a second over those of the first version](../img/drift.svg)

{table}

## Beside published runs

Runs that were published for one deployment, load by load, under two releases: what the newer one changed, as measured
and as answered. Upgrades gave more than is known here: kernels of one measured version answer for both.

{published}
"""


def releases(engine: str) -> Mapping[str, str]:
    """Releases of the last year whose source was read, with their days, oldest first."""
    return {version: str(day) for version, day in read_releases(engine)["versions"].items()}


@dataclass(frozen=True, slots=True)
class Deployment:
    """A model on GPUs under an engine."""

    model: str
    gpu: str
    engine: str
    tp: int = 1

    @property
    def label(self) -> str:
        """A row's name."""
        return f"{self.model}, {self.tp} × {self.gpu}"


DEPLOYMENTS = (
    Deployment("Llama-3.1-8B", "H100", "vllm"),
    Deployment("Llama-3.1-70B", "H200", "vllm", 4),
    Deployment("Qwen3-30B-A3B", "L40S", "vllm", 2),
    Deployment("Qwen3-235B-A22B-FP8", "H200", "vllm", 8),
    Deployment("MiniMax-M2.5", "B200", "vllm", 2),
    Deployment("gpt-oss-120b", "B200", "vllm"),
    Deployment("DeepSeek-V3", "H200", "vllm", 8),
    Deployment("Llama-3.1-8B", "H100", "sglang"),
    Deployment("Qwen3-32B", "H200", "sglang"),
    Deployment("Qwen3-30B-A3B", "B200", "sglang"),
    Deployment("DeepSeek-V3", "H200", "sglang", 8),
    Deployment("Qwen3.5-397B-A17B", "B200", "sglang", 8),
)


def series(deployment: Deployment) -> dict[str, Mapping[str, float]]:
    """Its answers by version, oldest first."""
    found: dict[str, Mapping[str, float]] = {}
    for version in releases(deployment.engine):
        engine = f"{deployment.engine}:{version}"
        run = pw.serve(deployment.model, deployment.gpu, engine=engine, tp=deployment.tp, **LOAD)
        found[version] = {name: float(run[name]) for name in ("ttft_ms", "tpot_ms", "output_tokens_per_s")}
    return found


def steps(answers: Mapping[str, Mapping[str, float]]) -> Iterator[tuple[str, Mapping[str, float]]]:
    """The first version, and each whose answers differ from those of the version before."""
    last: Mapping[str, float] | None = None
    for version, now in answers.items():
        if last is None or any(abs(now[name] / last[name] - 1) > MOVED for name in now):
            yield version, now
        last = now


def table(found: Mapping[Deployment, Mapping[str, Mapping[str, float]]]) -> str:
    """A line for each version that changes a deployment's answers."""
    lines = ["| deployment | version | released | TTFT, ms | TPOT, ms | tokens/s | since the first |", "|" + "---|" * 7]
    for deployment, answers in found.items():
        first, days = next(iter(answers.values())), releases(deployment.engine)
        for version, now in steps(answers):
            gain = now["output_tokens_per_s"] / first["output_tokens_per_s"]
            name = deployment.label if now is first else ""
            lines.append(
                f"| {name} | {deployment.engine} {version} | {days[version]} | {now['ttft_ms']:.0f} | "
                f"{now['tpot_ms']:.2f} | {now['output_tokens_per_s']:,.0f} | {gain:.2f} × |"
            )
    return "\n".join(lines)


def draw(found: Mapping[Deployment, Mapping[str, Mapping[str, float]]]) -> None:
    """Tokens a second over those of the first version, by day of release, one panel an engine."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
    for panel, engine in zip(axes, ("vllm", "sglang"), strict=True):
        days = [date.fromisoformat(day) for day in releases(engine).values()]
        for deployment, answers in found.items():
            if deployment.engine == engine:
                rates = [one["output_tokens_per_s"] for one in answers.values()]
                panel.step(days, [rate / rates[0] for rate in rates], where="post", label=deployment.label)
        panel.set_title({"vllm": "vLLM", "sglang": "SGLang"}[engine])
        panel.tick_params(axis="x", rotation=30)
        panel.legend(fontsize=7, frameon=False)
        panel.grid(alpha=0.3)
    axes[0].set_ylabel("output tokens/s over the first version's")
    figure.savefig(PICTURE, metadata={"Date": None})


def published(rows: Sequence[Row]) -> str:
    """Deployments that were published under two versions: what the newer one changed, measured and predicted."""
    alike: dict[tuple[Any, ...], dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        version = row.case.get("version", "")
        if row.answerable and not row.apart and version in releases(row.group.engine):
            alike[tuple(row.case.get(name) for name in ALIKE)][version].append(row)
    lines = ["| published deployment | versions | loads | TTFT measured | predicted | TPOT measured | predicted |",
             "|" + "---|" * 7]  # fmt: skip
    pairs: dict[tuple[str, ...], list[Pair]] = defaultdict(list)
    for by_version in alike.values():
        versions = [version for version in releases_of(by_version) if version in by_version]
        for before, after in pairwise(versions):
            pair = by_version[before], by_version[after]
            group = pair[0][0].group
            pairs[group.model, group.precision, group.gpu, group.engine, before, after].append(pair)
    for (model, precision, gpu, engine, before, after), found in pairs.items():
        cells = []
        for metric in METRICS:
            cells += [f"{100 * (geometric_mean(change(one, metric) for one in found) - 1):+.0f} %" for change in BOTH]
        lines.append(
            f"| {model} {precision}, {gpu} | {engine} {before} → {after} | {len(found)} | {' | '.join(cells)} |"
        )
    return "\n".join(lines)


def releases_of(by_version: Mapping[str, Sequence[Row]]) -> list[str]:
    """Versions of the engine of such rows, oldest first."""
    return list(releases(next(iter(by_version.values()))[0].group.engine))


def _measured(pair: Pair, metric: str) -> float:
    before, after = (geometric_mean(row.measured[metric] for row in rows) for rows in pair)
    return after / before


def _predicted(pair: Pair, metric: str) -> float:
    before, after = (float(answer(from_dict(rows[0].case))[metric]) for rows in pair)
    return after / before


BOTH = (_measured, _predicted)


def main() -> int:
    """Write the page and its figure."""
    found = {}
    for deployment in DEPLOYMENTS:
        print(deployment.label, deployment.engine, file=sys.stderr)
        found[deployment] = series(deployment)
    draw(found)
    text = TEXT.format(
        day=date.today(), moved=100 * MOVED, table=table(found), published=published(read(corpus())), **LOAD
    )
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
