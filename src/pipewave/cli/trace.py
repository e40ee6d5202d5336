"""`pipewave trace`: which kernels of a profile are slower than they need be, and by how much."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from pipewave.cli.command import Argument, Option
from pipewave.cli.options import EngineName, Ep, KvDtype, Number, QLens, Text, Tp, Verbose
from pipewave.cli.streams import put, say, waiting
from pipewave.errors import BadInput
from pipewave.files.json_text import dumps

if TYPE_CHECKING:
    from pipewave.traces import Workload

TOP = 25
ROWS, FORMS = ("call", "operator", "layer"), ("table", "json", "html", "md")


def _share(text: str) -> float:
    """`5%`, `5 %` or `0.05`."""
    try:
        value = float(text.rstrip(" %")) / (100.0 if "%" in text else 1.0)
    except ValueError:
        value = math.nan
    if not 0.0 <= value < math.inf:
        raise BadInput(f"--fail-above {text}: must be a share of at least 0, such as 5%", field="fail_above")
    return value


@dataclass(frozen=True, slots=True)
class Untraced:
    """Options.

    What a trace may not say of its run.
    """

    model: Annotated[Text, Option(help="config.json, directory or built-in name, for CUDA graphs.")] = None
    tp: Tp = 1
    ep: Ep = 1
    q_lens: QLens = ""
    kv_lens: Annotated[str, Option("--kv-lens", help="Cache lengths with them; one number stands for all.")] = ""
    kv_cache_dtype: KvDtype = None
    engine: EngineName = "vllm"

    def workload(self) -> Workload:
        """The model, its split and the lengths of requests. Raises what `load` raises, BadInput and CannotShard."""
        from pipewave.calls.dtypes import cache_type
        from pipewave.calls.fields import integers
        from pipewave.kernels.profiler import Given
        from pipewave.models import load
        from pipewave.traces import Workload

        texts = {"q_lens": self.q_lens, "kv_lens": self.kv_lens}
        given = Given(*(integers(text, name) if text else () for name, text in texts.items()))
        spec, cache = load(self.model) if self.model else None, cache_type(self.kv_cache_dtype)
        return Workload.of(spec, tp=self.tp, ep=self.ep, kv_dtype=cache, given=given, engine=self.engine)


def trace_command(
    file: Annotated[str, Argument(help="torch.profiler's Chrome trace, an nsys SQLite or CSV export, ncu --csv.")],
    other: Annotated[Text, Argument(help="A second trace to compare with.")] = None,
    *,
    fail_above: Annotated[
        Number, Option(parser=_share, help="5%: end with status 1 where B is so much slower.")
    ] = None,
    by: Annotated[str, Option(help="call, operator or layer: what the table's rows are.", choices=ROWS)] = "call",
    gpu: Annotated[Text, Option(help="GPU name or spec file; default: the one the trace names.")] = None,
    untraced: Untraced,
    stack: Annotated[Text, Option(help="Software version, such as vllm-0.22.1.")] = None,
    protocol: Annotated[Text, Option(help="Default: serving; cold for ncu, which flushes caches.")] = None,
    format: Annotated[str, Option(help="table, json, html or md.", choices=FORMS)] = "table",
    out: Annotated[str, Option(help="Where the answer goes; - is standard output.")] = "-",
    top: Annotated[int, Option(min=0, help="Rows of the table; 0 shows all.")] = TOP,
    unpacked_gib: Annotated[int, Option(min=1, help="GiB that a packed file may unpack to.")] = 4,
    verbose: Verbose = False,
) -> int:
    """Measured, predicted and reachable time of every kernel call of a trace, ranked by what can be won back."""
    from pipewave.traces import compare, explain_trace
    from pipewave.traces.reader import Limits
    from pipewave.view import document_of, report, terminal

    if fail_above is not None and other is None:
        raise BadInput("--fail-above: needs a second trace to compare with", field="fail_above")
    workload, limits = untraced.workload(), Limits(unpacked_bytes=unpacked_gib << 30)
    read = partial(explain_trace, gpu=gpu, workload=workload, protocol=protocol, stack=stack, limits=limits)
    with waiting(f"kernels of {file}"):
        found: Any = read(file) if other is None else compare(read(file), read(other))
    answer = found.to_dict()
    if format == "table":
        text = terminal.write(document_of(answer | {"by": by, "top": top}), verbose=verbose)
    else:
        text = dumps(answer) + "\n" if format == "json" else report(answer, format)
    put(text, out, file, other)
    if fail_above is None or found.slower <= fail_above:
        return 0
    say(f"a step of {other} takes {found.slower:.1%} longer than one of {file}: more than {fail_above:.1%}")
    return 1
