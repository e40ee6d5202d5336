"""The manifest of packaged files: `python -m pipewave.files.manifest [--write]` checks it, or makes it anew.

Without `--write` it prints every file that differs and ends with status 1.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from pipewave.errors import BadFile
from pipewave.files import packaged
from pipewave.files.whole import write as replace


def files(*, code: bool = False) -> Iterator[Path]:
    """Every file of the package that is not code, or is."""
    for path in sorted(packaged.ROOT.rglob("*")):
        made = path.suffix == ".pyc" or any(part.startswith(".") for part in path.parts[-3:])
        if path.is_file() and not made and (path.suffix == ".py") is code and path != packaged.MANIFEST:
            yield path


def today(*, code: bool = False) -> dict[str, str]:
    """Checksums of these files as they lie there, by name."""
    return {
        path.relative_to(packaged.ROOT).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files(code=code)
    }


def differing(said: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Names whose checksums differ, and those of one side only."""
    return sorted(name for name in {*said, *found} if said.get(name) != found.get(name))


def write() -> None:
    """Put today's checksums into the manifest, whole or not at all."""
    replace(packaged.MANIFEST, "".join(f"{digest}  {name}\n" for name, digest in today().items()).encode())
    packaged.known.cache_clear()


def main() -> int:
    """Check or write; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="take the files as they are")
    if parser.parse_args().write:
        write()
    try:
        wrong = differing(packaged.known(), today())
    except BadFile as damage:
        sys.stdout.write(f"{damage.message}\n")
        return 1
    sys.stdout.write("".join(f"{name} differs from the manifest; {packaged.REMEDY}\n" for name in wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
