"""A GPU of one's own: what the library makes of a spec file, so that a page can show it before anything is asked."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pipewave.gpus import GPU
from pipewave.web.forms import Form, GpuFile, query_command


class GpuQuery(Form):
    """A spec file."""

    gpu: GpuFile


def gpu_answer(query: GpuQuery) -> dict[str, Any]:
    """Every number of the GPU and where it comes from. Raises BadFile, BadInput or a subclass naming the field."""
    gpu = query.gpu.read()
    return numbers(gpu) | {
        "sources": {name: {"kind": source.kind, "note": source.note} for name, source in gpu.sources.items()},
        "command": query_command("gpu", query),
    }


def numbers(gpu: GPU) -> dict[str, Any]:
    """All fields of a GPU but for its sources."""
    return {field.name: getattr(gpu, field.name) for field in fields(GPU) if field.name not in ("origin", "sources")}
