"""Every config beside the measured data: read, estimated and served under each engine, on the first split that fits.

    python -m qa.models [ENGINE...] [--configs FOLDER]

Prints a line a model that does not answer, with why, and how many do; 1 where any does not.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipewave.errors import CannotShard, DoesNotFit, PipewaveError, UnsupportedDtype
from pipewave.models import ModelSpec, load
from pipewave.simulate import estimate
from pipewave.simulate.pools import Pools
from pipewave.simulate.setup import Setup
from pipewave.simulate.traffic import synthetic

ENGINES = ("vllm", "sglang", "trtllm")
# (GPU, tensor ranks, pipeline stages), the cheapest first.
SPLITS = (("H200", 1, 1), ("H200", 8, 1), ("B200", 8, 1), ("B200", 8, 2), ("B200", 8, 4))
REFUSED = (DoesNotFit, CannotShard, UnsupportedDtype)


def answers(model: ModelSpec, engine: str) -> str | None:
    """None where `estimate` and `serve` answer on some split; else why not."""
    reason = ""
    for gpu, tp, pp in SPLITS:
        try:
            estimate(model, gpu, tp=tp, pp=pp, engine=engine, batch=4, input_len=2000, output_len=64)
            engines = Pools.of(model, gpu, Setup(tp, pp, engine=engine), 1200)
            engines.record(synthetic(16, input_len=1000, output_len=50, concurrency=4))
        except REFUSED as problem:
            reason = str(problem)
        except PipewaveError as problem:
            return str(problem)
        else:
            return None
    return reason


def failures(folders: Sequence[Path], engine: str) -> Iterator[str]:
    """One line a model that does not load or does not answer."""
    for folder in folders:
        try:
            reason = answers(load(folder), engine)
        except PipewaveError as problem:
            reason = str(problem)
        if reason is not None:
            yield f"{folder.name}: {reason}"


def main(words: Sequence[str] | None = None) -> int:
    """Score the engines named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engines", nargs="*", default=ENGINES)
    parser.add_argument("--configs", type=Path, default=Path(os.environ.get("PIPEWAVE_DATA", "shared/data")) / "models")
    options = parser.parse_args(words)
    folders = sorted(path.parent for path in options.configs.glob("*/config.json"))
    failed = 0
    for engine in options.engines:
        found = list(failures(folders, engine))
        print(f"{engine}: {len(folders) - len(found)} of {len(folders)}", *found, sep="\n  ", flush=True)
        failed += len(found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
