"""What `pipewave gpus [NAME]` shows, as rows: one a GPU, or one a field with its source."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pipewave.gpus.registry import all_gpus, find
from pipewave.gpus.spec import GPU, VALUE_FIELDS

SUMMARY_FIELDS = (
    "name", "architecture", "compute_capability", "sms", "boost_clock_mhz", "fp16_tflops", "bf16_tflops",
    "fp8_tflops", "fp4_tflops", "dram_gb", "dram_gbps", "l2_mb", "link", "link_gbps", "tdp_w",
)  # fmt: skip

_UNITS = {
    "tflops": "TFLOP/s",
    "tops": "TOP/s",
    "mhz": "MHz",
    "gbps": "GB/s",
    "gb": "GB",
    "gib": "GiB",
    "mb": "MB",
    "w": "W",
}


def summary_rows(gpus: Iterable[GPU] | None = None) -> list[dict[str, Any]]:
    """Return one row per GPU (all shipped ones by default), keyed by SUMMARY_FIELDS; None = cannot run."""
    return [{field: getattr(gpu, field) for field in SUMMARY_FIELDS} for gpu in (all_gpus() if gpus is None else gpus)]


def field_rows(gpu: str | GPU) -> list[dict[str, Any]]:
    """Return one row per field of a GPU: field, value, unit, and kind, note and date of its source.

    Raises:
        UnknownGPU, BadFile, BadInput: as `find`.
    """
    spec = find(gpu)
    return [_field_row(spec, field) for field in VALUE_FIELDS]


def unit_of(field: str) -> str:
    """Return the unit that a field's name ends in, '' for counts and words; 'kb_per_sm' reads KB/SM."""
    if "_per_" in field:
        head, *rest = field.split("_per_")
        size = {"kb": "KB", "bytes": "B"}.get(head.rsplit("_", 1)[-1], "")
        return "/".join([size, *(word.upper() if word == "sm" else word for word in rest)])
    return _UNITS.get(field.rsplit("_", 1)[-1], "")


def _field_row(gpu: GPU, field: str) -> dict[str, Any]:
    source = gpu.sources.get(field)
    return {
        "field": field,
        "value": getattr(gpu, field),
        "unit": unit_of(field),
        "kind": source.kind if source else "unverified",
        "note": source.note if source else "",
        "date": source.date if source else "",
    }
