"""Run the paper's experiments: `python -m paper.training --data DIR [--out DIR] [--results FILE] [--only NAME ...]`."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch

from paper.training.experiments import EXPERIMENTS

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("PIPEWAVE_DATA", ROOT.parent / "shared" / "data"))


def main() -> None:
    """Run the named experiments one after the other; each writes its result as soon as it has one."""
    options = _options()
    torch.set_num_threads(1)  # figures must not depend on the machine's cores
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.only or EXPERIMENTS:
        result = EXPERIMENTS[name](options.data, options.out)
        _keep(options.results, name, result)
        print(name, json.dumps(result.get("scores", result))[:400], flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m paper.training", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA, help="folder that holds pipeweave/")
    parser.add_argument("--out", type=Path, default=ROOT / "paper/weights", help="where weights go")
    parser.add_argument("--results", type=Path, default=ROOT / "paper/training/results.json")
    parser.add_argument("--only", nargs="*", choices=list(EXPERIMENTS), metavar="NAME")
    return parser.parse_args()


def _keep(path: Path, name: str, result: dict[str, object]) -> None:
    """Replace one experiment's result, leaving the others as they are."""
    results = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    results[name] = result
    ordered = {known: results[known] for known in EXPERIMENTS if known in results}
    path.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
