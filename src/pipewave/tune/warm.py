"""A shipped table on a GPU that nobody measured: its laws scaled by the physics of both GPUs.

Which configurations come into question in a cell is kept; which of them is chosen is decided by the scaled laws, on the
new GPU's number of SMs. Times are expected to be off by more, so that margins over the default are twice as wide.
"""

from __future__ import annotations

from dataclasses import replace

from pipewave.gpus import find
from pipewave.tune.own.peaks import peaks_of
from pipewave.tune.own.transfer import ratios
from pipewave.tune.table import Table

WIDER = 2.0  # the error, and the margin, of what was not measured on the GPU


def carried_over(table: Table, gpu: str) -> Table:
    """A table for another GPU. UnknownGpu where the GPU has no specification: there is nothing to scale by."""
    spec = find(gpu)
    source, target = peaks_of(str(table.meta["env"]["gpu"])), peaks_of(spec.name)
    fitted, margins = table.fitted, table.fitted.margins
    made = replace(fitted, sms=target.sms, law=fitted.law * ratios(source, target), sigma=fitted.sigma * WIDER,
                   margins=(margins[0] * WIDER, margins[1] * WIDER))  # fmt: skip
    env = {**table.meta["env"], "carried_over_to": spec.name}
    return replace(table, fitted=made, meta={**table.meta, "env": env})
