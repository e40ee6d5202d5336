"""The page and its API: the library's own answers over HTTP, on this machine only.

`kernel`, `serving`, `planning` and `traces` each hold one view's question (a pydantic model) and its answer (what the
`--json` command prints, and what a chart needs beside it); `app` puts them behind FastAPI, `guard` in front of it.
Only `app` and `guard` need the `[web]` extra.
"""

from __future__ import annotations
