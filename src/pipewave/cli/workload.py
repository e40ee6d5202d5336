"""`pipewave workload`: requests of a table as a workload that other tools can replay."""

from __future__ import annotations

import math
import sys
from typing import Annotated

from pipewave.cli.command import Option
from pipewave.cli.options import Ep, Model, Pp, Tp
from pipewave.cli.streams import put
from pipewave.files.json_text import dumps


def workload_command(
    model: Model,
    requests: Annotated[str, Option("--requests", help="CSV or JSON-lines table of prompt and output tokens.")],
    out: Annotated[str, Option("--out", help="Where the workload goes; - is standard output.")] = "-",
    tp: Tp = 1,
    pp: Pp = 1,
    ep: Ep = 1,
    limit: Annotated[int | None, Option(min=1, help="Only the first so many requests.")] = None,
) -> None:
    """A replayable workload from a model and a table of requests, which all start together.

    When they arrive is no part of a workload: `pipewave serve --trace` takes that into account.
    """
    from pipewave.simulate.arrival_files import read_trace
    from pipewave.simulate.replay import workload

    traffic = read_trace(requests, requests=limit, rate=math.inf)
    sys.stderr.write(f"note: {traffic.notes[0]}; `pipewave serve --trace` takes them into account\n")
    put(dumps(workload(model, traffic, tp=tp, pp=pp, ep=ep)) + "\n", out, requests)
