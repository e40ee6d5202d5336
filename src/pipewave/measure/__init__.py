"""Time kernel calls on a real GPU under a named protocol. torch and triton are imported in this package only.

`pipewave measure --plan quick --store rows.jsonl` measures; `rows("rows.jsonl")` reads what it found.
"""

from __future__ import annotations

from pipewave.measure.plan import Job
from pipewave.measure.row_files import environments, rows

__all__ = ["Job", "environments", "rows"]
