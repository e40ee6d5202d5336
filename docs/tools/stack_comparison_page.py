"""The comparison of stacks as a page: tables in Markdown and two figures. Results: `studies.stack_comparison`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TEMPLATE = Path(__file__).parent / "pages" / "stack-comparison.md"
NAMES = {"gemm": "GEMM", "attention": "Attention", "fused_moe": "Fused MoE", "collectives": "Collectives"}
FRAMEWORKS = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
COLORS = {"vllm": "#0072b2", "sglang": "#d55e00", "trtllm": "#009e73", "": "#999999"}
Row = Mapping[str, Any]


def fill(results: Mapping[str, Any]) -> str:
    """The template with its tables."""
    tables = {family: _family_table(_of(results["stacks"], family)) for family in NAMES}
    return TEMPLATE.read_text(encoding="utf-8").format(
        rows=f"{results['rows']:,}", calibration=_calibration(results["stacks"]), **tables,
        implementations=_implementations(results["implementations"]), worst=_worst(results["worst_served"]),
    )  # fmt: skip


def _of(stacks: Sequence[Row], family: str) -> list[Row]:
    return [one for one in stacks if one["family"] == family]


def _line(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _head(*names: str) -> list[str]:
    return [_line(*names), "|" + "---|" * len(names)]


def _family_table(stacks: Sequence[Row]) -> str:
    """A GPU a line, a framework a column: share of time above the ceiling."""
    frameworks = [name for name in FRAMEWORKS if any(one["framework"] == name for one in stacks)]
    others = any(one["framework"] not in FRAMEWORKS for one in stacks)
    lines = _head("GPU", *(FRAMEWORKS[name] for name in frameworks), *(["others"] if others else []))
    for gpu in sorted({one["gpu"] for one in stacks}):
        mine = [one for one in stacks if one["gpu"] == gpu]
        named = {one["framework"]: _share(one) for one in mine}
        rest = ", ".join(f"{one['framework']} {_share(one)}" for one in mine if one["framework"] not in FRAMEWORKS)
        lines.append(_line(gpu, *(named.get(name, "–") for name in frameworks), *([rest or "–"] if others else [])))
    return "\n".join(lines)


def _share(one: Row) -> str:
    return f"{100 * one['above']:.1f} %"


def _calibration(stacks: Sequence[Row]) -> str:
    """Share of rows slower than the ceiling, by GPU and family, all stacks together."""
    lines = _head("GPU", *NAMES.values())
    for gpu in sorted({one["gpu"] for one in stacks}):
        cells = []
        for family in NAMES:
            mine = [one for one in _of(stacks, family) if one["gpu"] == gpu]
            count = sum(one["rows"] for one in mine)
            slower = sum(one["rows"] * one["slower_share"] for one in mine)
            cells.append(f"{100 * slower / count:.0f} % of {count:,}" if count else "–")
        lines.append(_line(gpu, *cells))
    return "\n".join(lines)


def _implementations(standings: Sequence[Row], count: int = 15) -> str:
    lines = _head("implementation", "stack", "GPU", "family", "rows", "slower", "median", "90 %")
    for one in [one for one in standings if one["rows"] >= 100][:count]:
        ratios = (f"{one[name]:.2f} ×" for name in ("median_ratio", "p90_ratio"))
        slower = f"{100 * one['slower_share']:.0f} %"
        lines.append(_line(f"`{one['impl']}`", one["stack"], one["gpu"], one["family"], one["rows"], slower, *ratios))
    return "\n".join(lines)


def _worst(served: Sequence[Row]) -> str:
    lines = _head("GPU", "implementation", "stack", "type", "shape", "rows", "median", "such as")
    for one in served:
        shape = " ".join(f"{name}={value}" for name, value in one["shape"].items())
        example = one["example"]
        such = f"{example['tokens']}: {example['measured_us']:.4g} µs, ceiling {example['ceiling_us']:.4g}"
        lines.append(_line(one["gpu"], f"`{one['impl']}`", one["stack"], one["dtype"], f"{one['family']} {shape}",
                           one["rows"], f"{one['ratio']:.2f} ×", such))  # fmt: skip
    return "\n".join(lines)


def draw(results: Mapping[str, Any], folder: Path) -> None:
    """Median and 90th percentile of measured over ceiling, a panel a family."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    plt.rcParams |= {"svg.hashsalt": "pipewave", "svg.fonttype": "none", "font.size": 9}
    folder.mkdir(parents=True, exist_ok=True)
    for family, title in NAMES.items():
        stacks = _of(results["stacks"], family)
        gpus = sorted({one["gpu"] for one in stacks}, reverse=True)
        figure, axes = plt.subplots(figsize=(7, 0.9 + 0.33 * len(gpus)))
        for one in stacks:
            _mark(axes, one, gpus.index(one["gpu"]))
        axes.axvline(1, color="#888888", linewidth=0.8)
        axes.set_yticks(range(len(gpus)), gpus)
        axes.set_xlabel(f"{title}: measured / ceiling, median (dot) to 90th percentile")
        axes.spines[["top", "right"]].set_visible(False)
        _legend(axes)
        figure.tight_layout()
        figure.savefig(folder / f"{family}.svg", metadata={"Date": None})
        plt.close(figure)


def _mark(axes: Any, one: Row, line: int) -> None:
    names = list(FRAMEWORKS)
    place = names.index(one["framework"]) if one["framework"] in names else len(names)
    at, color = line + 0.24 - 0.16 * place, COLORS.get(one["framework"], COLORS[""])
    label = FRAMEWORKS.get(one["framework"], "others")
    axes.plot([one["median_ratio"], one["p90_ratio"]], [at, at], color=color, linewidth=1.6, alpha=0.6)
    axes.plot([one["median_ratio"]], [at], "o", color=color, markersize=4, label=label)


def _legend(axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    axes.legend(once.values(), once.keys(), frameon=False, fontsize=8, loc="lower right")
