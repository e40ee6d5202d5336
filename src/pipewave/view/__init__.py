"""One document of each kind of answer, and its writers: a terminal, HTML, Markdown.

    text = report(answer, "html")        # answer: what `--json` printed

An answer becomes a `Document` of facts, charts, tables and notes (one function a kind of answer, in `estimate`,
`traffic`, `plan`, `trace` and `kernel`); `terminal`, `html` and `markdown` write it.
"""

from __future__ import annotations

from pipewave.view.answers import FORMS, document, report

__all__ = ["FORMS", "document", "report"]
