"""Rows and features of the nets `mla_context` and `mla_generation`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

import corpus
from pipewave.kernels import family_of
from pipewave.kernels.attention.family import CONTEXT, GENERATION
from pipewave.software.stacks import framework, version
from train.net import Net, grouped
from train.nets import attention

MLA = family_of("mla")

# Timed without a CUDA graph: 110 to 500 µs of host time whatever the size.
EAGER = ("vllm-0.14.0",)
EACH = 1_500  # rows of a version on a GPU, of each phase and types


def card(net: str, known: dict[str, Any]) -> dict[str, Any]:
    """What attention's card says, and who answers for vLLM, of which no rows are: who works on prompts as it does,
    with expanded K and V (SGLang's kernels do not, and take three times as long).
    """
    said = attention.card(net, known)
    expands = {
        protocol: max((name for name in names if framework(name) == "trtllm"), key=version, default="")
        for protocol, names in known["stacks"].items()
    }
    usual = {protocol: name for protocol, name in expands.items() if name and net == CONTEXT}
    return said | {"default_stack": known["default_stack"] | usual}


def rows(net: str, data_dir: Path | str | None = None) -> pd.DataFrame:
    """Rows of every version that ran in a graph; `counted` are those of the newest of each framework."""
    every = corpus.load("mla", data_dir)
    frame = corpus.of_every_version(every, every, max_rows=EACH)
    return usable(frame[frame["phase"] == net.removeprefix("mla_")]).reset_index(drop=True)


def usable(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows that ran in a graph, in the groups that are held out together."""
    frame = frame[~frame["stack"].isin(EAGER)]
    return frame.assign(group=grouped(frame, "heads", "batch"))  # eight head counts are too few


TABLES = ("context_mla", "generation_mla")
NETS = dict.fromkeys((CONTEXT, GENERATION), Net(rows, MLA, TABLES, card=card, plans="mla"))
