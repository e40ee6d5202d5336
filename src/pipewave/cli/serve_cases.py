"""`pipewave serve --cases`: a file of deployments answered over all cores, with a bar where somebody watches."""

from __future__ import annotations

import os
from contextlib import ExitStack

from pipewave.cli.bars import bar
from pipewave.cli.streams import ended, open_stream


def answer_file(cases: str, out: str, executor: str | None) -> int:
    """Answer a file of cases; 0 = all answered, 1 = some in error. Raises BadFile and BadInput."""
    from pipewave.planning import executors
    from pipewave.published.stream import answer_stream

    where = executor or (f"processes://{cores}" if (cores := os.cpu_count() or 1) > 1 else None)
    with ExitStack() as stack:
        source, sink = open_stream(stack, cases, "r"), open_stream(stack, out, "w")
        pool = stack.enter_context(executors.executor(where))
        tell = stack.enter_context(bar("deployments"))
        counts = answer_stream(source, sink, executor=pool, progress=tell)
    return ended(counts.failed)
