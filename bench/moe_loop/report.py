"""Join the loop's times with predicted ceilings: `python -m bench.moe_loop.report LOOP.jsonl [--write]`. No GPU.

A layer is flagged where vLLM, with the configuration it picks itself (its file where it ships one, else its default),
takes longer than the ceiling that `pipewave` predicts without having seen the measurement. Everything is reported for
flagged and unflagged layers alike. `--write` makes `bench/results/moe_loop.json`, `docs/generated/moe_loop.md` and the
plot.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import pipewave as pw
from pipewave.demand import Array

ROOT = Path(__file__).resolve().parents[2]
RESULT, PAGE = ROOT / "bench/results/moe_loop.json", ROOT / "docs/generated/moe_loop.md"
FIGURE = ROOT / "docs/img/moe-loop.svg"
OCTAVES = ((1, 8), (8, 64), (64, 512), (512, 4096), (4096, 1 << 20))
ALIGN = ("align", "sort", "count", "place", "memset", "fill", "elementwise")
PRODUCTS = ("fused_moe_kernel", "up", "down", "few_up", "few_down")


@dataclass(frozen=True, slots=True)
class Layer:
    """One measured layer, µs. `served`: vLLM as it runs; `default`: with its default; `tuned`: with our tuner's choice;
    `ours`: our kernels; the products alone of the last and of `default`; `error` of ours, relative."""

    model: str
    tp: int
    m: int
    e: int
    top_k: int
    hidden: int
    inter: int
    skew: int
    ceiling: float
    predicted: float
    default: float
    served: float
    tuned: float
    ours: float
    default_products: tuple[float, float]
    our_products: tuple[float, float]
    has_file: bool
    few: bool
    error: float

    @property
    def flagged(self) -> bool:
        """Whether vLLM's own configuration lies above the ceiling."""
        return self.served > self.ceiling


def read(path: Path) -> list[dict[str, Any]]:
    """Rows that were measured."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row for row in rows if "failed" not in row]


def layers(rows: Sequence[dict[str, Any]], gpu: str = "H200") -> list[Layer]:
    """Predict the ceiling of every layer and join."""
    found = pw.predict([call(row) for row in rows], gpu)
    return [_layer(row, float(found.ceiling_us[i]), float(found.latency_us[i])) for i, row in enumerate(rows)]


def call(row: Mapping[str, Any]) -> Any:
    """The call a layer is, with the routing that was drawn."""
    s = row["shape"]
    return pw.fused_moe(tokens=s["m"], experts=s["e"], topk=s["top_k"], hidden=s["hidden"], inter=s["inter"],
                        routing=tuple(row["counts"]))  # fmt: skip


def _layer(row: Mapping[str, Any], ceiling: float, predicted: float) -> Layer:
    ways, shape = row["ways"], {name: value for name, value in row["shape"].items() if name != "seed"}
    mine = "ours_few" if row["few"] and "ours_few" in ways else "ours_sorted"
    served = "vllm_file" if "vllm_file" in ways else "vllm_default"
    default, ours = ways["vllm_default"], ways[mine]
    return Layer(**shape, ceiling=ceiling, predicted=predicted, default=default["us"], served=ways[served]["us"],
                 tuned=ways["vllm_tuned"]["us"], ours=ours["us"], default_products=products(default),
                 our_products=products(ours), has_file="vllm_file" in ways, few=mine == "ours_few",
                 error=row["errors"][mine])  # fmt: skip


def products(way: Mapping[str, Any]) -> tuple[float, float]:
    """µs of the two matrix products."""
    first, second = [us for name, us in way["kernels"] if name in PRODUCTS]
    return first, second


def ranks(values: Array) -> Array:
    """Ranks of distinct values."""
    return np.argsort(np.argsort(values, kind="stable"), kind="stable").astype(float)


def column(of: Sequence[Layer], take: Callable[[Layer], float]) -> Array:
    """A number of each layer."""
    return np.array([take(layer) for layer in of], float)


def speedups(ratio: Array) -> dict[str, float]:
    """Geomean, median, extremes, and how many lose over 2 %."""
    return {"geomean": float(np.exp(np.log(ratio).mean())), "median": float(np.median(ratio)),
            "max": float(ratio.max()), "min": float(ratio.min()), "slower": float((ratio < 0.98).mean())}  # fmt: skip


def group(of: Sequence[Layer]) -> dict[str, Any]:
    """Figures of some layers: gaps to the ceiling before and after, and speed-ups."""
    if not of:
        return {"layers": 0}
    default, served, tuned, ours, ceiling = (
        column(of, lambda layer, name=name: getattr(layer, name))  # type: ignore[misc]  # binds the name
        for name in ("default", "served", "tuned", "ours", "ceiling")
    )
    return {
        "layers": len(of),
        "mean_gap": {"served": float((served / ceiling).mean() - 1), "default": float((default / ceiling).mean() - 1),
                     "tuned": float((tuned / ceiling).mean() - 1), "ours": float((ours / ceiling).mean() - 1)},
        "under_ceiling": {"tuned": float((tuned <= ceiling).mean()), "ours": float((ours <= ceiling).mean())},
        "tuned_over_default": speedups(default / tuned), "tuned_over_served": speedups(served / tuned),
        "ours_over_default": speedups(default / ours), "ours_over_served": speedups(served / ours),
        "products_over_default": speedups(column(of, lambda layer: sum(layer.default_products))
                                          / column(of, lambda layer: sum(layer.our_products))),
    }  # fmt: skip


def separation(of: Sequence[Layer]) -> dict[str, dict[str, float]]:
    """Correlation of the flag, and of the gap, with the log of what was gained over vLLM as served."""
    gap = np.log(column(of, lambda layer: layer.served / layer.ceiling))
    flag, found = (gap > 0).astype(float), {}
    for name in ("tuned", "ours"):
        gain = np.log(column(of, lambda layer, name=name: layer.served / getattr(layer, name)))  # type: ignore[misc]
        found[name] = {"flag": _pearson(flag, gain), "gap": _pearson(gap, gain),
                       "gap_rank": _pearson(ranks(gap), ranks(gain))}  # fmt: skip
    return found


def _pearson(a: Array, b: Array) -> float:
    return float(np.corrcoef(a, b)[0, 1]) if a.std() > 0 and b.std() > 0 else float("nan")


def summary(of: Sequence[Layer]) -> dict[str, Any]:
    """Everything the page says."""
    by_size = {f"{low}-{high - 1}" if high < 1 << 20 else f"{low}-": group([x for x in of if low <= x.m < high])
               for low, high in OCTAVES}  # fmt: skip
    fileless = [layer for layer in of if not layer.has_file]
    return {"layers": len(of), "flagged": group([x for x in of if x.flagged]), "all": group(of),
            "unflagged": group([x for x in of if not x.flagged]), "correlation": separation(of), "tokens": by_size,
            "without_a_file": group(fileless), "few_path": group([x for x in of if x.few]),
            "skewed": group([x for x in of if x.skew]), "worst_error": max(layer.error for layer in of)}  # fmt: skip


def markdown(found: Mapping[str, Any]) -> str:
    """The tables of the page."""
    head = ["| layers | number | vLLM over ceiling | tuned | ours | tuned × | ours × | median | best | slower by 2 % |",
            "|---|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    rows = [("flagged", found["flagged"]), ("not flagged", found["unflagged"]), ("all", found["all"]),
            ("no file in vLLM", found["without_a_file"]), ("skewed routing", found["skewed"]),
            *((f"{name} tokens", part) for name, part in found["tokens"].items())]  # fmt: skip
    return "\n".join([*head, *(_line(name, part) for name, part in rows if part["layers"])]) + "\n"


def _line(name: str, part: Mapping[str, Any]) -> str:
    gap, ours = part["mean_gap"], part["ours_over_default"]
    cells = [name, part["layers"], *(f"{gap[way]:+.1%}" for way in ("served", "tuned", "ours")),
             f"{part['tuned_over_default']['geomean']:.2f}", f"{ours['geomean']:.2f}", f"{ours['median']:.2f}",
             f"{ours['max']:.2f}", f"{ours['slower']:.1%}"]  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


def plot(of: Sequence[Layer], path: Path) -> None:
    """Gain against gap, coloured by tokens; needs the `plot` extra."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6))
    gap, m = column(of, lambda layer: layer.served / layer.ceiling), column(of, lambda layer: layer.m)
    dots = left.scatter(gap, column(of, lambda layer: layer.served / layer.ours), c=np.log2(m), s=9, cmap="viridis")
    left.axvline(1, color="#888888", linewidth=0.8)
    left.axhline(1, color="#888888", linewidth=0.8)
    left.set(xlabel="vLLM as served / ceiling", ylabel="vLLM as served / ours", xscale="log", yscale="log")
    figure.colorbar(dots, ax=left, label="log₂ tokens")
    for name, color in (("tuned", "#0072b2"), ("ours", "#d55e00")):
        ratio = column(of, lambda layer, name=name: layer.default / getattr(layer, name))  # type: ignore[misc]
        label = "our choice, vLLM's kernel" if name == "tuned" else name
        right.scatter(m, ratio, s=7, alpha=0.7, color=color, label=label)
    right.axhline(1, color="#888888", linewidth=0.8)
    right.set(xscale="log", xlabel="tokens", ylabel="speed-up over vLLM's default")
    right.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def rounded(value: Any) -> Any:
    """Numbers as far as they mean something."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {name: rounded(part) for name, part in value.items()}
    return [rounded(part) for part in value] if isinstance(value, Iterable) and not isinstance(value, str) else value


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; see the module's description."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("loop", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(argv)
    of = layers(read(options.loop))
    found = summary(of)
    if options.write:
        lines = ",\n".join(json.dumps(rounded(asdict(layer) | {"flagged": layer.flagged})) for layer in of)
        text = json.dumps(rounded(found), indent=1)
        RESULT.write_text(f'{{"summary": {text},\n"layers": [\n{lines}\n]}}\n')
        PAGE.write_text(markdown(found))
        plot(of, FIGURE)
    sys.stdout.write(markdown(found) + json.dumps(rounded(found["correlation"]), indent=1) + "\n")


if __name__ == "__main__":
    main()
