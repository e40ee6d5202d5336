"""Measured rows of kernels that stream memory: implementations, plans, near duplicates, corpus tables."""

from __future__ import annotations

from collections.abc import Callable

from pipewave.kernels.faces import Case, Plan, Rows, Runner, table_case


def _rows(name: str, stream: int, bytes_of: Callable[[Case], float], group: tuple[str, ...], **public: object) -> Rows:
    return Rows(
        runners={"vllm": Runner("pipewave.measure.impls.vllm_layers", name, "vllm")},
        plans=(Plan("pipewave.measure.plans.layers", name, varied=True),),
        stream=stream,
        work=lambda case: (0.0, float(bytes_of(case))),
        group=group,
        **public,  # type: ignore[arg-type]
    )


NORM = {
    "rmsnorm": _rows(
        "rmsnorm",
        4,
        lambda case: case["rows"] * case["dim"] * (8 if case.get("fused_add") else 4),
        ("dim",),
        table="rmsnorm",
        case=table_case("rmsnorm", "rows", "dim", flags=("fused_add",)),
    )
}
ACTIVATION = {
    "silu_and_mul": _rows(
        "silu_and_mul",
        6,
        lambda case: case["rows"] * case["dim"] * 6,
        ("dim",),
        table="silu_and_mul",
        case=table_case("silu_and_mul", "rows", "dim"),
    )
}
# Two operations have names of their own among measured rows.
ELEMENTWISE = {
    "rope": _rows(
        "rope",
        5,
        lambda case: case["rows"] * (case["heads"] + case["kv_heads"]) * case["head_dim"] * 4,
        ("heads", "kv_heads", "head_dim"),
    ),
    "kv_write": _rows(
        "kv_write",
        3,
        lambda case: case["rows"] * 2 * case["kv_heads"] * case["head_dim"] * 4,
        ("kv_heads", "head_dim"),
    ),
}
