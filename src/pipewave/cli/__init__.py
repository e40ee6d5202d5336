"""The command line: `pipewave COMMAND`. A command's module is imported when it runs, so help stays quick."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from functools import cache
from io import TextIOWrapper
from pathlib import Path

from pipewave.cli.command import Group
from pipewave.errors import PipewaveError
from pipewave.files import packaged

# Matrices here are small: more threads hardly help, and where a quota holds fewer cores than the host shows they wait
# for one another (read once, when numpy is imported; a value of the user's stays).
os.environ.setdefault("OPENBLAS_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))

COLLECTED_AFTER = 50_000  # new objects: looking for cycles among modules that load takes a fifteenth of a short command

ABOUT = "How long a kernel, a model or a fleet takes on a GPU, what it could reach, and how to get there."
# Where each command is, and the first sentence of what it says of itself.
COMMANDS = Path(__file__).with_name("commands.json")


@cache
def build() -> Group:
    """The application: every command by its name."""
    listed: dict[str, tuple[str, str]] = packaged.document(COMMANDS)
    return Group(ABOUT, {name: (f"pipewave.cli.{home}", said) for name, (home, said) in listed.items()})


def run(words: Sequence[str]) -> int:
    """Run a command line; its exit status. Raises what the command raises."""
    if words and words[0] == "--version":
        from pipewave.version import VERSION

        print(f"pipewave {VERSION}")
        return 0
    return build().run(words)


def main() -> None:
    """Run the command line; an error of ours is one line on stderr and exit status 2."""
    if sys.stdout is None:
        raise SystemExit("error: standard output is closed" if sys.stderr else 2)
    gc.set_threshold(COLLECTED_AFTER)
    if isinstance(sys.stdout, TextIOWrapper):  # µ and bars where a file or a terminal knows other letters
        sys.stdout.reconfigure(errors="replace")
    try:
        raise SystemExit(run(sys.argv[1:]))
    except PipewaveError as error:
        where = f" [{error.field}]" if error.field else ""
        sys.stderr.write(f"error{where}: {error.message}\n")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:  # the reader of a pipe left; nothing is wrong
        sys.stderr.close()
        raise SystemExit(1) from None
    except OSError as error:  # a full disk behind standard output, say
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(2) from None
