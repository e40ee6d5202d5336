"""Published runs on AMD's GPUs against predictions: `python -m studies.published_amd [--write]`.

AITER's rows are of the fastest kernel of each shape (`train.amd`); a framework runs others. How much slower its
products and experts are is one ratio (`best_kernel_ratio` of an engine's rules), tried over a grid; a group's is that
with the least error on all other groups, each group alike. `--write` writes the results and the table of docs/amd.md.

Clocks of the small kernels that come with block-scaled products, experts and latent attention, and that AITER's rows
leave out (`extra_kernel_clk`), are tried on the groups that have them, none left out.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from pipewave.files import packaged
from pipewave.models.load import FOLDER
from pipewave.published import unstated
from pipewave.published.answers import answer
from pipewave.published.cases import from_dict
from pipewave.simulate import server
from pipewave.simulate.estimate import _served
from pipewave.software import engine, engine_rules
from pipewave.step.predict import _runner

ROOT = Path(__file__).resolve().parents[1]
ROWS = ROOT / "data" / "published" / "amd.yaml"
RESULTS = Path(__file__).parent / "results" / "published_amd.json"
PAGE = ROOT / "docs" / "generated" / "amd_served.md"
RATIOS = (1.0, 1.1, 1.2, 1.3)
BESIDE_CLK = (0, 6_000, 12_000, 18_000, 24_000, 30_000)
FIGURES = {"estimate": "e2e_ms", "offline": "output_tokens_per_s", "serve": "tpot_ms"}
COLUMNS = ("rows", "ratio", "error", "bias", "inside", "shipped", "without")
SCALES = {"estimate": 1e3, "offline": 1.0, "serve": 1.0}


@dataclass(frozen=True, slots=True)
class Run:
    """A published figure: its group and why that is not counted (empty where it is), the case that asks for it, its
    name in an answer, what was measured.
    """

    group: str
    apart: str
    case: Mapping[str, Any]
    figure: str
    measured: float

    def predicted(self) -> Mapping[str, Any]:
        """The answer to the case. Raises what a case that cannot be answered raises."""
        return answer(from_dict(self.case))


def read(folder: Path) -> list[Run]:
    """Every published figure; configurations that add to a built-in model's are written into `folder`."""
    return [
        _run(group, {"model": _model(group, folder), **group["case"], **run["case"]}, row)
        for group in yaml.safe_load(ROWS.read_text("utf-8"))
        for run in group["runs"]
        for row in run["rows"]
    ]


def _run(group: Mapping[str, Any], case: dict[str, Any], row: Sequence[float]) -> Run:
    flight, prompt, output, measured = row
    mode = case["mode"]
    case |= {"concurrency": flight, "isl": prompt, "osl": output}
    case |= {"requests": flight, "max_num_seqs": flight} if mode == "offline" else {}
    return Run(group["group"], group.get("apart", ""), case, FIGURES[mode], measured * SCALES[mode])


def _model(group: Mapping[str, Any], folder: Path) -> str:
    name = group["model"]
    if "config" not in group:
        return str(name)
    path = folder / group["group"].replace("/", " ") / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(packaged.document(FOLDER / f"{name}.json") | group["config"]), encoding="utf-8")
    return str(path)


@dataclass(frozen=True, slots=True)
class Score:
    """What a prediction of a run was worth."""

    group: str
    apart: str
    error: float
    inside: bool


@contextmanager
def ruled(**fields: float) -> Iterator[None]:
    """Engines' rules with other fields on AMD's GPUs."""
    added = {"when": {"vendor": "amd"}, "set": fields, "source": "tried here"}
    lists = [engine_rules.read(name)["rules"] for name in ("vllm", "sglang")]
    for listed in lists:
        listed.insert(0, added)
    _forget()
    try:
        yield
    finally:
        for listed in lists:
            listed.remove(added)
        _forget()


def _forget() -> None:
    """What rests on engines' rules is worked out anew."""
    for kept in (engine_rules._cases, engine.resolve, server.worked_out, _served, unstated._filled, _runner):
        kept.cache_clear()


def score(runs: Sequence[Run]) -> list[Score]:
    """Error (above 0: predicted too slow) and whether the interval holds the figure, of every run."""
    found = []
    for run in runs:
        answer_ = run.predicted()
        quotient = answer_[run.figure] / run.measured
        error = quotient - 1.0 if run.figure.endswith("_ms") else 1.0 / quotient - 1.0
        low, high = (answer_[run.figure + side] for side in ("_low", "_high"))
        found.append(Score(run.group, run.apart, error, low <= run.measured <= high))
    return found


def by_group(scores: Sequence[Score]) -> dict[str, dict[str, Any]]:
    """Rows, mean error, bias and share inside the interval, in percent, of every group."""
    found: dict[str, dict[str, Any]] = {}
    for group in dict.fromkeys(one.group for one in scores):
        own = [one for one in scores if one.group == group]
        error = np.array([one.error for one in own])
        found[group] = {
            "apart": own[0].apart, "rows": len(own), "error": 100.0 * float(np.abs(error).mean()),
            "bias": 100.0 * float(error.mean()), "inside": 100.0 * float(np.mean([one.inside for one in own])),
        }  # fmt: skip
    return found


def fitted(tables: Mapping[float, Mapping[str, Mapping[str, Any]]]) -> tuple[float, dict[str, float]]:
    """The ratio with the least mean error over all groups that count, and over all but each."""
    counted = [name for name, one in tables[1.0].items() if not one["apart"]]

    def best(names: Sequence[str]) -> float:
        return min(tables, key=lambda value: np.mean([tables[value][name]["error"] for name in names]))

    return best(counted), {name: best([other for other in counted if other != name]) for name in tables[1.0]}


def main(argv: Sequence[str] | None = None) -> None:
    """Score under every ratio, choose, print, and write with `--write`."""
    parser = argparse.ArgumentParser(prog="python -m studies.published_amd", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the results and the table of docs/amd.md")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        runs, tables = read(Path(folder)), {}
        for value in RATIOS:
            with ruled(best_kernel_ratio=value):
                tables[value] = by_group(score(runs))
        print(_beside([run for run in runs if run.group.startswith("DeepSeek") and not run.apart]))
    shipped, left_out = fitted(tables)
    lines = [_line(name, tables, shipped, left_out[name]) for name in tables[1.0]]
    page = _page(lines)
    print(f"{page}\nratio of all counted groups: {shipped}")
    if options.write:
        RESULTS.write_text(json.dumps({"ratio": shipped, "groups": lines}, indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(page, encoding="utf-8")


def _beside(runs: Sequence[Run]) -> str:
    """Mean error of runs by the clocks of a small kernel."""
    parts = []
    for clocks in BESIDE_CLK:
        with ruled(extra_kernel_clk=clocks):
            parts.append(f"{clocks} {100 * float(np.mean([abs(one.error) for one in score(runs)])):.1f}")
    return "DeepSeek, error % by clocks of a small kernel that no row holds: " + ", ".join(parts)


def _line(name: str, tables: Mapping[float, Any], shipped: float, left_out: float) -> dict[str, Any]:
    own, best, without = (tables[value][name] for value in (left_out, shipped, 1.0))
    return {
        "group": name, "apart": own["apart"], "rows": own["rows"], "ratio": left_out,
        "error": round(own["error"], 1), "bias": round(own["bias"], 1), "inside": round(own["inside"]),
        "shipped": round(best["error"], 1), "without": round(without["error"], 1),
    }  # fmt: skip


def _page(lines: Sequence[Mapping[str, Any]]) -> str:
    head = (
        "runs",
        "rows",
        "ratio of the other groups",
        "error %",
        "bias %",
        "inside 90 %",
        "as shipped %",
        "without a ratio %",
    )
    rows = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    for line in lines:
        name = line["group"] + (f" ({line['apart']}, not counted)" if line["apart"] else "")
        rows.append(f"| {name} | " + " | ".join(str(line[key]) for key in COLUMNS) + " |")
    counted = [line for line in lines if not line["apart"]]
    mean = {key: round(float(np.mean([line[key] for line in counted])), 1) for key in ("error", "shipped", "without")}
    rows.append(f"| mean of groups | | | {mean['error']} | | | {mean['shipped']} | {mean['without']} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    main()
