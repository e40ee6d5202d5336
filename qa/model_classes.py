"""Parameters of every text model class of an installed transformers, built without memory, against what is read.

    pip install transformers torch && python -m qa.model_classes [--json FILE]

Each class is built from the defaults of its config class; its tensors are counted and the same config is read by
pipewave. A refusal is counted apart: it names the field that no part explains.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipewave.errors import PipewaveError
from pipewave.models import load
from pipewave.models.shard import parameters

CLOSE = 0.005


@dataclass(frozen=True, slots=True)
class Row:
    """One model type: tensors of its class, what was read, or why it was refused."""

    model_type: str
    counted: int
    read: int | None = None
    refused: str = ""

    @property
    def close(self) -> bool:
        """Whether the totals agree."""
        return self.read is not None and abs(self.read / self.counted - 1) <= CLOSE


def built() -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Model types whose default class can be built: its tensors' elements and its config."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    warnings.filterwarnings("ignore")
    import torch
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

    for model_type, named in CLASSES.items():
        name = named if isinstance(named, str) else named[0]
        try:
            config = transformers.CONFIG_MAPPING[model_type]()
            with torch.device("meta"):
                model = getattr(transformers, name)(config)
        except Exception:  # noqa: BLE001  a class whose own defaults do not build says nothing of ours
            continue
        distinct = {id(each): each.numel() for each in model.parameters()}
        yield model_type, sum(distinct.values()), {**config.to_dict(), "architectures": [name]}


def compare(model_type: str, counted: int, config: dict[str, Any]) -> Row:
    """What is read of a config beside what its class holds."""
    try:
        return Row(model_type, counted, parameters(load(json.loads(json.dumps(config, default=str)))))
    except PipewaveError as problem:
        return Row(model_type, counted, refused=str(problem))


def main() -> None:
    """Print the counts and every class that is refused or differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    options = parser.parse_args()
    rows = [compare(*each) for each in built()]
    refused = [row for row in rows if row.read is None]
    apart = [row for row in rows if row.read is not None and not row.close]
    close = sum(row.close for row in rows)
    print(f"{len(rows)} classes: {close} within {CLOSE:.1%}, {len(apart)} apart, {len(refused)} refused")
    for row in apart:
        print(f"  {row.model_type:28} {(row.read or 0) / row.counted - 1:+.1%}")
    for row in refused:
        print(f"  {row.model_type:28} {row.refused:.100}")
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
