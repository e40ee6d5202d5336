"""Kernels of the committed vLLM traces beside their prediction, kernel by kernel, through `pipewave trace`.

    python -m studies.e2e_kernels [--json FILE] [--markdown FILE]

Ten traces of an H200: dense and MoE, eager with recorded shapes and CUDA graphs whose shapes come from the model. A
row is a family in a trace: its share of GPU time, the time-weighted error of its kernels and whether they cancel.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lab.vllm_engine.points import TRACED_CONTEXT, TRACED_PROMPT
from pipewave.kernels.profiler import Given
from pipewave.models import load
from pipewave.models.kernels import Deployment
from pipewave.models.shard import Parallel
from pipewave.traces import Entry, Report, Workload, explain_trace
from studies.e2e_steps import FOLDER

TRACES = FOLDER / "traces"
SHARES = ("recognized_share", "shaped_share", "close_share")


@dataclass(frozen=True, slots=True)
class Family:
    """Kernels of one family in a trace. `error`: |predicted − measured| over measured, weighted by time, in percent;
    `bias`: of their sums; `close`: share of their time predicted within 10 %.
    """

    trace: str
    family: str
    calls: int
    share_percent: float
    measured_us: float
    predicted_us: float
    error_percent: float
    bias_percent: float
    close_percent: float


def names(folder: Path = TRACES) -> list[str]:
    """The recorded steps, such as `Llama-3.1-8B-tp1-graph-decode`."""
    return sorted(path.name.removeprefix("trace-").removesuffix(".json.gz") for path in folder.glob("trace-*.json.gz"))


def workload_of(name: str) -> Workload:
    """Model, ranks and lengths of a recorded step."""
    model, _, rest = name.rpartition("-tp")
    length = TRACED_PROMPT if "prefill" in name else TRACED_CONTEXT + 1
    return Workload(Deployment(load(model), Parallel(int(rest[0])), page_size=16), Given(kv_lens=(length,)))


def explained(name: str, folder: Path = TRACES) -> Report:
    """The report of a recorded step."""
    return explain_trace(folder / f"trace-{name}.json.gz", workload=workload_of(name))


def families(name: str, report: Report) -> list[Family]:
    """Families of a trace, the longest first."""
    found: dict[str, list[Entry]] = {}
    for entry in report.entries:
        found.setdefault(family_of(entry), []).append(entry)
    rows = [_family(name, family, entries, report.gpu_us) for family, entries in found.items()]
    return sorted(rows, key=lambda row: -row.measured_us)


def family_of(entry: Entry) -> str:
    """A family, streaming kernels by what they do."""
    return str(entry.call.get("op", "")) if entry.family == "elementwise" else entry.family


def _family(trace: str, family: str, entries: Sequence[Entry], gpu_us: float) -> Family:
    real = sum(one.total_measured_us for one in entries)
    ours = sum(one.latency_us * one.count for one in entries)
    wrong = sum(abs(one.error) * one.total_measured_us for one in entries)
    close = sum(one.total_measured_us for one in entries if abs(one.error) <= 0.1)
    scale = 100 / max(real, 1e-9)
    return Family(trace, family, sum(one.count for one in entries), 100 * real / gpu_us, real, ours, scale * wrong,
                  scale * (ours - real), scale * close)  # fmt: skip


def markdown(reports: dict[str, Report], rows: Sequence[Family]) -> str:
    """Two tables: a line a trace, and a line a family over all traces."""
    lines = ["| trace | GPU ms | recognised | with shapes | within 10 % |", "|---|---|---|---|---|"]
    lines += [
        f"| {name} | {r.gpu_us / 1e3:.1f} | {r.recognized_share:.1%} | {r.shaped_share:.1%} | {r.close_share:.1%} |"
        for name, r in reports.items()
    ]
    lines += [
        "",
        "| family | traces | share of GPU time % | error % | bias % | within 10 % |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.family} | {count} | {row.share_percent:.1f} | {row.error_percent:.1f} | {row.bias_percent:+.1f} "
        f"| {row.close_percent:.0f} % |"
        for row, count in overall(rows)
        if row.share_percent >= 0.1
    ]
    return "\n".join(lines) + "\n"


def overall(rows: Iterable[Family]) -> list[tuple[Family, int]]:
    """Each family as the mean over the traces that run it (share: over all traces), and how many those are."""
    rows = list(rows)
    traces = len({row.trace for row in rows})
    found: dict[str, list[Family]] = {}
    for row in rows:
        found.setdefault(row.family, []).append(row)
    return sorted(
        ((_mean(group, traces), len(group)) for group in found.values()), key=lambda one: -one[0].share_percent
    )


def _mean(group: Sequence[Family], traces: int) -> Family:
    def mean(name: str) -> float:
        return float(sum(getattr(one, name) for one in group)) / len(group)

    share = sum(one.share_percent for one in group) / traces
    return Family("all", group[0].family, sum(one.calls for one in group), share, mean("measured_us"),
                  mean("predicted_us"), mean("error_percent"), mean("bias_percent"), mean("close_percent"))  # fmt: skip


def main() -> None:
    """Print the tables; write them with `--json` and `--markdown`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write every family of every trace here")
    parser.add_argument("--markdown", type=Path, help="write the tables here")
    given = parser.parse_args()
    reports = {name: explained(name) for name in names()}
    rows = [row for name, report in reports.items() for row in families(name, report)]
    text = markdown(reports, rows)
    sys.stdout.write(text)
    if given.markdown:
        given.markdown.write_text(text)
    if given.json:
        shares = {name: {part: round(getattr(r, part), 4) for part in SHARES} for name, r in reports.items()}
        table = [{k: round(v, 2) if isinstance(v, float) else v for k, v in asdict(row).items()} for row in rows]
        given.json.write_text(json.dumps({"traces": shares, "families": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
