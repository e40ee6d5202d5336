"""The command line: `pipewave COMMAND`. A command's module is imported when it runs, so help stays quick."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from io import TextIOWrapper
from pathlib import Path

from pipewave.cli.command import Group
from pipewave.errors import BadInput, PipewaveError

# Matrices here are small: more threads hardly help, and where a quota holds fewer cores than the host shows they wait
# for one another (read once, when numpy is imported; a value of the user's stays).
os.environ.setdefault("OPENBLAS_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))

# Bash asks a command for the words that fit; zsh does so in bash's manner.
COMPLETE = "complete -o default -C 'pipewave --complete' pipewave"
SHELLS = {
    "bash": (".bashrc", COMPLETE),
    "zsh": (".zshrc", f"autoload -U +X compinit bashcompinit && compinit && bashcompinit && {COMPLETE}"),
}
COLLECTED_AFTER = 50_000  # new objects: looking for cycles among modules that load takes a fifteenth of a short command

ABOUT = "How long a kernel, a model or a fleet takes on a GPU, what it could reach, and how to get there."
# Where each command is, and the first sentence of what it says of itself.
COMMANDS = {
    "predict": ("predict:GROUP", "Latency of a kernel, or of every case in a file."),
    "gpus": ("catalogue:gpus", "List the GPUs, or show one with the source of every field (`pipewave gpus H200`)."),
    "engines": (
        "catalogue:engines",
        "List versions of serving engines with their days and defaults (`pipewave engines vllm`).",
    ),
    "model": (
        "catalogue:model_command",
        "Blocks, parameters, work and memory of a model; without a name, the built-in ones.",
    ),
    "step": ("estimate:step_command", "One engine iteration, kernel by kernel, with its gaps."),
    "estimate": (
        "estimate:estimate_command",
        "Time to first token, time per token, total and memory of a static batch.",
    ),
    "replay": ("estimate:replay_command", "What recorded engine iterations would take on a GPU."),
    "workload": (
        "estimate:workload_command",
        "A replayable workload from a model and a table of requests, which all start together.",
    ),
    "serve": (
        "serve:serve_command",
        "Requests over time: latency percentiles, throughput and goodput of a deployment, or of every line of a file.",
    ),
    "tell": (
        "tell:tell_command",
        "What benchmark results say of a deployment, kept to correct other answers about it.",
    ),
    "check": (
        "tell:check_command",
        "Whether a server is slower than it was: exit status 1 where it is by more than identical runs differ.",
    ),
    "plan": (
        "planning:plan_command",
        "The cheapest way to serve requests within limits: replicas, GPUs and cost, each design as `serve` answers it.",
    ),
    "trace": (
        "trace:trace_command",
        "Measured, predicted and reachable time of every kernel call of a trace, ranked by what can be won back.",
    ),
    "tune": ("tune:GROUP", "Choose Triton configurations: explain, inspect, rank, profile, export, …"),
    "export": ("export:export_command", "Write predictions in the form that other simulators read."),
    "measure": (
        "measure:measure",
        "Time kernels on this machine's GPU; rows are appended as they come, and the next run resumes.",
    ),
    "calibrate": ("calibrate:GROUP", "Correct predictions for your GPU from as few as 30 rows of it."),
    "accuracy": (
        "catalogue:accuracy",
        "Show how far the shipped weights are off on rows of shapes they never saw, without calibration.",
    ),
    "report": ("export:report", "One self-contained file, HTML or Markdown, of a plan, an estimate or a trace."),
    "web": ("web:web", "Plan, serve, kernel and trace views in a browser, served to this machine only; works offline."),
    "query": ("web:query", "One answer of the page as JSON: sweeps of a kernel, and what-if GPUs, without a server."),
    "mcp": ("web:mcp", "Answers of the page as tools of the Model Context Protocol, over standard input and output."),
}


@cache
def build() -> Group:
    """The application: every command by its name."""
    return Group(ABOUT, {name: (f"pipewave.cli.{home}", said) for name, (home, said) in COMMANDS.items()})


def run(words: Sequence[str]) -> int:
    """Run a command line; its exit status. Raises what the command raises."""
    if words and words[0] == "--version":
        from pipewave.version import VERSION

        print(f"pipewave {VERSION}")
        return 0
    if words and words[0] == "--complete":
        print("\n".join(build().completions(os.environ.get("COMP_LINE", ""))))
        return 0
    if words and words[0] in ("--show-completion", "--install-completion"):
        print(completion(os.environ, Path.home(), words))
        return 0
    return build().run(words)


def completion(environment: Mapping[str, str], home: Path, words: Sequence[str]) -> str:
    """The line that teaches the user's shell; with `--install-completion` put into its start file.

    Raises BadInput for a shell other than bash and zsh.
    """
    shell = Path(environment.get("SHELL", "")).name
    if shell not in SHELLS:
        raise BadInput(f"SHELL = {shell!r}: completion is for {' and '.join(SHELLS)}", field="completion")
    start, line = SHELLS[shell]
    if "--install-completion" not in words:
        return line
    file = home / start
    if line not in (file.read_text() if file.exists() else ""):
        with file.open("a") as out:
            out.write(f"\n{line}\n")
    return f"{file}: done; it holds from the next shell on"


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
