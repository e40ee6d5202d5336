"""A card for every recorded space, for people: `python -m bench.any_kernel.cards --write`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipewave.files.whole import write as replace
from pipewave.tune.own import spaces

FOLDER = Path("data/recordings/any_kernel")
HEAD = """# Spaces of kernels that others wrote

All configurations of a kernel at each launch, in T4 (docs/tune.md, "Spaces and selectors"), recorded by
`python -m bench.any_kernel --out DIR`. Times are of one launch after a flush of the L2. `NAME.first_use.json`: what the
decorator did with two seconds on that card. Cards below: `python -m bench.any_kernel.cards --write`.
"""


def cards(folder: Path = FOLDER) -> str:
    """All cards, as one page."""
    parts = [HEAD]
    for each in sorted(path for path in folder.iterdir() if path.is_dir()):
        for path in spaces.found(each):
            space = spaces.read(path)
            note = [f"* note: {space.meta['note']}"] if "note" in space.meta else []
            lines = [f"* {line}" for line in spaces.card(space).splitlines()]
            parts.append("\n".join([f"## {each.name}/{path.name.removesuffix(spaces.SUFFIX)}", "", *lines, *note, ""]))
    return "\n".join(parts)


def main(argv: Sequence[str] | None = None) -> None:
    """Print, or write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    if parser.parse_args(argv).write:
        replace(FOLDER / "README.md", cards().encode())
    else:
        print(cards())


if __name__ == "__main__":
    main()
