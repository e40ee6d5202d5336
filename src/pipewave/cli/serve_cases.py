"""`pipewave serve --cases`: a file of deployments answered over all cores, with a bar where somebody watches."""

from __future__ import annotations

import os
from functools import partial

from pipewave.cli.bars import bar
from pipewave.cli.streams import answer_cases
from pipewave.version import VERSION


def answer_file(cases: str, out: str, executor: str | None, *, resume: bool = False) -> int:
    """Answer a file of cases; 0 = all answered, 1 = some in error. Raises BadFile and BadInput."""
    from pipewave.planning import executors
    from pipewave.published.stream import answer_stream

    where = executor or (f"processes://{cores}" if (cores := os.cpu_count() or 1) > 1 else None)
    with executors.executor(where) as pool, bar("deployments") as tell:
        work = partial(answer_stream, executor=pool, progress=tell)
        return answer_cases(cases, out, work, resume=resume, asked=["serve", VERSION])
