"""`pipewave gpus`: the GPUs that are known, and one GPU with the source of every field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pipewave.cli.command import Argument, Option

AMD_FROM = 900
HEADING = "dense TFLOP/s by type; DRAM in GB and GB/s, L2 in MB, link in GB/s one way"


def gpus(
    name: Annotated[str | None, Argument(help="GPU name, alias or spec file.")] = None,
    format: Annotated[str, Option(help="table, json or csv.")] = "table",
) -> None:
    """List the GPUs, or show one with the source of every field (`pipewave gpus H200`)."""
    from pipewave.cli.streams import check_format, show
    from pipewave.gpus.show import field_rows, summary_rows

    form = check_format(format)
    if name:
        show(field_rows(name), form, title=_title(name), schema="fields")
    elif form == "table":
        show([_short(row) for row in summary_rows()], form, title=HEADING)
    else:
        show(summary_rows(), form, schema="gpus")


def _title(name: str) -> str:
    from pipewave.gpus import find

    gpu = find(name)
    return f"{gpu.name} (also {', '.join(gpu.aliases[:4])})" if gpu.aliases else gpu.name


def _short(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields by which people tell GPUs apart, under headings that fit a terminal."""
    return {
        "GPU": row["name"],
        "cc": _capability(row["compute_capability"]),
        "SMs": row["sms"],
        "16-bit": _whole(row["bf16_tflops"] or row["fp16_tflops"]),
        "fp8": _whole(row["fp8_tflops"]),
        "fp4": _whole(row["fp4_tflops"]),
        "DRAM": row["dram_gb"],
        "GB/s": row["dram_gbps"],
        "L2": row["l2_mb"],
        "link": row["link_gbps"],
        "W": row["tdp_w"],
    }


def _capability(number: int) -> str:
    """`9.0` of NVIDIA's 90; AMD's gfx numbers have three digits that are no tenths."""
    return f"gfx{number}" if number > AMD_FROM else f"{number / 10:.1f}"


def _whole(tflops: float | None) -> int | None:
    return None if tflops is None else round(tflops)
