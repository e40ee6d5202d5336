"""Refresh what the pages show: `python -m docs.tools [PAGE...]` runs every block and writes its output in place."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from docs.tools.session import ROOT, Entry, run_page

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))


def main(names: list[str]) -> int:
    """Refresh the pages named, or all; 1 when something on them fails."""
    failed = 0
    for page in [Path(name).resolve() for name in names] or PAGES:
        with tempfile.TemporaryDirectory() as folder:
            entries = run_page(page, Path(folder))
        for entry in entries:
            if entry.failed:
                failed += 1
                print(f"{page.relative_to(ROOT)}: {entry.typed} failed:", *entry.printed, sep="\n  ", file=sys.stderr)
        if write(page, entries):
            print(f"refreshed {page.relative_to(ROOT)}")
    return 1 if failed else 0


def write(page: Path, entries: list[Entry]) -> bool:
    """Put the outputs where the page shows some; True when the page changed."""
    before = page.read_text(encoding="utf-8")
    lines = before.splitlines()
    for entry in reversed(entries):
        if entry.shown and not entry.failed:
            lines[entry.first : entry.last] = [f"{entry.block.indent}{line}".rstrip() for line in entry.refreshed()]
    after = "\n".join(lines) + "\n"
    page.write_text(after, encoding="utf-8")
    return after != before


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
