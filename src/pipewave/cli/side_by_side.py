"""One call on several GPUs, side by side: a table, the share of each pipe, and what the answers rest on."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from pipewave.calls.base import Call
from pipewave.calls.fields import defaults
from pipewave.cli.render import bar, check_format, ends, show
from pipewave.cli.streams import print_notes
from pipewave.errors import BadInput, UnsupportedDtype
from pipewave.gpus import GPU, find, names
from pipewave.prediction.api import Explanation, explain
from pipewave.prediction.said import compared
from pipewave.software.known import LEVELS

# What a narrow terminal goes without, in order.
DROPPABLE = ("impl", "stack", "software", "bound", "basis", "ceiling", "floor")


def compare(call: Call, gpus: str, protocol: str, form: str) -> int:
    """Print the answers of all GPUs that can run the call.

    Returns:
        The exit status: 1 where a GPU cannot run it, as of a file with a refused case.

    Raises:
        UnsupportedDtype: none of them can run it.
        UnknownGPU, BadInput: a name, the protocol or the form is none.
    """
    check_format(form)
    words = names() if gpus.strip().lower() == "all" else gpus.split(",")
    asked = [find(word.strip()) for word in words if word.strip()]
    if not asked:
        raise BadInput(f"gpu = {gpus!r}: name one, or several separated by commas", field="gpu")
    found = [(gpu, _answer(call, gpu, protocol)) for gpu in asked]
    refused = [why for _, why in found if isinstance(why, UnsupportedDtype)]
    if len(refused) == len(found):
        raise refused[0]
    if form == "table":
        _tables(call, protocol, [answer for _, answer in found if isinstance(answer, Explanation)])
    else:
        listed = [_listed(gpu, answer) for gpu, answer in found]
        show([row for row in listed if form == "json" or "error" not in row], form, schema="predictions")
    if form != "json":
        sys.stderr.writelines(f"not possible: {why.message}\n" for why in refused)
    return 1 if refused else 0


def _answer(call: Call, gpu: GPU, protocol: str) -> Explanation | UnsupportedDtype:
    """The answer, or why this GPU has none."""
    try:
        return explain(call, gpu, protocol=protocol)
    except UnsupportedDtype as why:
        return why


def _tables(call: Call, protocol: str, answers: Sequence[Explanation]) -> None:
    title = f"{call.kernel} {_shape(call)} [{protocol}]"
    known = all(answer.prediction.software == LEVELS[0] for answer in answers)
    show([_row(answer, known) for answer in answers], "table", title=title, droppable=DROPPABLE)
    show([_pipes(answer) for answer in answers], "table", title="busy share of each pipe")
    print_notes(compared([(answer.gpu.name, answer.prediction.notes) for answer in answers]))


def _listed(gpu: GPU, found: Explanation | UnsupportedDtype) -> dict[str, Any]:
    return {"gpu": gpu.name, "error": found.to_dict()} if isinstance(found, UnsupportedDtype) else found.to_dict()


def _shape(call: Call) -> str:
    values = call.to_dict()
    return " ".join(f"{k}={_short(v)}" for k, v in values.items() if k != "kernel" and v != defaults(type(call)).get(k))


def _short(value: Any) -> str:
    if not isinstance(value, (list, tuple)):
        return str(value)
    return f"[{value[0]}, {value[1]}, ... {len(value)}]" if len(value) > 4 else str(list(value))


def _row(answer: Explanation, known: bool) -> dict[str, Any]:
    """`known`: all software is measured, which goes without saying."""
    p = answer.prediction
    software = {} if known else {"software": p.software}
    return {
        "GPU": answer.gpu.name,
        "latency µs": p.latency_us,
        "90 % interval": ends(p.low_us, p.high_us),
        "floor": p.floor_us,
        "ceiling": p.ceiling_us,
        "bound": p.bound,
        "basis": p.basis,
        **software,
        "stack": p.stack,
        "impl": p.impl,
    }


def _pipes(answer: Explanation) -> dict[str, str]:
    shares = {pipe: share for pipe, share in answer.busy.items() if share > 0}
    return {"GPU": answer.gpu.name} | {pipe: f"{bar(share, 8):8} {share:4.0%}" for pipe, share in shares.items()}
