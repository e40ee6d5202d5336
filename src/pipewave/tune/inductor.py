"""`max-autotune` of torch.compile with few candidates: those of its matrix-product templates that our law ranks first.

    torch._inductor.virtualized.V.set_choices_handler(pipewave.tune.inductor.fewer(keep=4))

Inductor compiles and times every candidate of its Triton templates. Our table of the GPU ranks them first, by the
member of its space that is most like each; only the first few are compiled. Library calls are kept, so that what is
cut can never be the only way. Needs torch 2.9 or later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipewave.tune import load_table

KEEP = 4
UNLIKE = 0.05  # log µs that an octave between a candidate and the member it is ranked by counts for
OPERAND_BYTES = 2
SMEM_PER_BLOCK = 232_448  # bytes, compute capability 9.0 (227 KiB)
NAMES = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages")


def ranked(candidates: Sequence[Mapping[str, Any]], m: int, n: int, k: int, table: Any) -> list[int]:
    """Numbers of candidates (`BLOCK_M`, …, `num_stages`) of 16-bit operands, the fastest by our law first; ties in the
    order given. Those that an SM cannot hold come last: they would cost a compilation and answer nothing.
    """
    shape = {name: np.array([[value]]) for name, value in (("m", m), ("n", n), ("k", k))}
    log_us = np.log(table.us(shape)[0])
    members = np.stack([np.log2(np.maximum(table.config[name], 0.5)) for name in NAMES], axis=1)
    score: list[float] = []
    for one in candidates:
        m_rows, n_cols, depth, _, stages = (int(one[name]) for name in NAMES)
        # Operands of fewer than 64 rows keep one stage in registers.
        staged = stages - (m_rows < 64 and stages > 1)
        if staged * (m_rows + n_cols) * depth * OPERAND_BYTES > SMEM_PER_BLOCK:
            score.append(np.inf)
            continue
        away = np.abs(members - [np.log2(max(float(one[name]), 0.5)) for name in NAMES]).sum(axis=1)
        like = np.flatnonzero(away == away.min())
        score.append(float(log_us[like].min() + UNLIKE * away.min()))
    return [int(i) for i in np.argsort(score, kind="stable")]


def cut(choices: Sequence[Any], m: int, n: int, k: int, table: Any, keep: int = KEEP) -> list[Any]:
    """Inductor's choices without the Triton candidates that are not ranked among the first; their order is kept."""
    tiled = [(i, kwargs) for i, choice in enumerate(choices) if (kwargs := _tile(choice)) is not None]
    order = ranked([kwargs for _, kwargs in tiled], m, n, k, table)
    kept = {tiled[number][0] for number in order[:keep]} | set(range(len(choices))) - {i for i, _ in tiled}
    return [choice for i, choice in enumerate(choices) if i in kept]


def _tile(choice: Any) -> dict[str, Any] | None:
    """Parameters of a Triton candidate, None for a library call."""
    kwargs = {**choice.params.to_kwargs(), **choice.extra_kwargs}
    return kwargs if all(name in kwargs for name in NAMES) else None


def fewer(keep: int = KEEP, table: Any = None, gpu: str | None = None) -> Any:
    """A choices handler for `torch._inductor.virtualized.V.set_choices_handler`, or a class for its configuration.

    Args:
        keep: Triton candidates of each product that are compiled and timed.
        table: a table of `gemm`; default: that of `gpu`, or of the GPU in use, carried over where it has none.
    """
    from torch._inductor.choices import InductorChoices

    used = table if table is not None else load_table("gemm", gpu=gpu, transfer=True)

    class Fewer(InductorChoices):  # type: ignore[misc]  # torch carries no types here
        """Inductor's own choices, cut to the few that our law ranks first."""

        def _finalize_template_configs(self, template_choices: Any, kernel_inputs: Any, *args: Any, **more: Any) -> Any:
            found = super()._finalize_template_configs(template_choices, kernel_inputs, *args, **more)
            sizes = getattr(kernel_inputs, "mnk_hinted", None)
            if sizes is None:
                return found
            m, n, k = (int(size) for size in sizes())
            return cut(found, m, n, k, used, keep)

        def uuid(self) -> str:
            """Names what is chosen by, so that compiled graphs are not shared with other choices."""
            return f"pipewave-{keep}-{used.gpu}-{used.of.source_sha256}"

    return Fewer()
