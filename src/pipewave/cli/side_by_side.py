"""One call on several GPUs, side by side: a table, the share of each pipe, and what the answers rest on."""

from __future__ import annotations

from typing import Any

from pipewave.calls.base import Call
from pipewave.calls.fields import defaults
from pipewave.cli.streams import check_format, give, say, show
from pipewave.errors import BadInput, UnsupportedDtype
from pipewave.gpus import GPU, find, names
from pipewave.prediction.api import Explanation, explain


def compare(call: Call, gpus: str, protocol: str, form: str, *, verbose: bool = False) -> int:
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
    listed = [_listed(gpu, answer) for gpu, answer in found]
    if form == "table":
        give({"call": f"{call.kernel} {_shape(call)} [{protocol}]", "predictions": listed}, False, verbose=verbose)
    else:
        show([row for row in listed if form == "json" or "error" not in row], form, schema="predictions")
        for why in refused if form == "csv" else ():
            say(f"not possible: {why.message}")
    return 1 if refused else 0


def _answer(call: Call, gpu: GPU, protocol: str) -> Explanation | UnsupportedDtype:
    """The answer, or why this GPU has none."""
    try:
        return explain(call, gpu, protocol=protocol)
    except UnsupportedDtype as why:
        return why


def _listed(gpu: GPU, found: Explanation | UnsupportedDtype) -> dict[str, Any]:
    return {"gpu": gpu.name, "error": found.to_dict()} if isinstance(found, UnsupportedDtype) else found.to_dict()


def _shape(call: Call) -> str:
    values = call.to_dict()
    return " ".join(f"{k}={_short(v)}" for k, v in values.items() if k != "kernel" and v != defaults(type(call)).get(k))


def _short(value: Any) -> str:
    if not isinstance(value, (list, tuple)):
        return str(value)
    return f"[{value[0]}, {value[1]}, ... {len(value)}]" if len(value) > 4 else str(list(value))
