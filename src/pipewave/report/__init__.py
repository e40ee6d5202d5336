"""One self-contained file about a plan, an estimate, a kernel or a trace, fit to send to a colleague.

    text = report(answer, "html")        # answer: what `--json` printed

An answer becomes a `Document` of facts, charts and tables (one file a kind of answer); `html` and `markdown` write it.
"""

from __future__ import annotations

from pipewave.report.write import FORMS, report

__all__ = ["FORMS", "report"]
