"""Shell commands that give the numbers of an answer."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipewave.web.forms import ask_command

if TYPE_CHECKING:
    from pipewave.web.planning import PlanAsk
    from pipewave.web.serving import ServeAsk
    from pipewave.web.traces import TraceAsk


def estimate_command(ask: ServeAsk) -> str:
    """`pipewave estimate ...`; with changed GPU numbers or a model of one's own, `pipewave ask`."""
    if ask.what_if or not isinstance(ask.model, str):
        return ask_command("serve", ask)
    return _line(["pipewave", "estimate", "--json"], ask.given())


def plan_command(ask: PlanAsk) -> str:
    """`pipewave plan ...`, or `pipewave ask` for a model of one's own."""
    if not isinstance(ask.model, str):
        return ask_command("plan", ask)
    named = {"input_len": "isl", "output_len": "osl", "ttft_ms": "ttft", "tpot_ms": "tpot", "engines": "engine",
             "kv_cache_dtypes": "kv_cache_dtype"}  # fmt: skip
    given = {named.get(name, name): value for name, value in ask.given().items()}
    prices = [f"--price={gpu}={usd:g}" for gpu, usd in given.pop("prices", {}).items()]
    return _line(["pipewave", "plan", "--json", *prices], given)


def trace_command(ask: TraceAsk, file: str) -> str:
    """`pipewave trace FILE ...`."""
    given = {name: value for name, value in ask.given().items() if name not in ("name", "report")}
    return _line(["pipewave", "trace", file, "--format", "json"], given)


def _line(words: Sequence[str], options: Mapping[str, Any]) -> str:
    flags = [word for name, value in options.items() if value is not None for word in (_flag(name), _text(value))]
    return shlex.join([*words, *flags])


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
