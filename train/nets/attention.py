"""Rows and features of the nets `attention_prefill` and `attention_decode`.

Most rows are uniform batches and travel as (batch, q_len, kv_len); our own ragged ones carry their lists.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import corpus
from pipewave.gpus import find
from pipewave.kernels import family_of
from pipewave.kernels.attention.family import DECODE, PREFILL
from pipewave.measure.row_files import rows as measured
from pipewave.software.stacks import framework, version
from train.net import Net, as_variant
from train.rows import Rows

FAMILY = family_of("attention")

# Rows whose kv length is not that of each request (latency does not grow with batch x kv_len).
UNUSABLE = ("llmservingsim-0",)

# Our own rows are few beside the public ones, and the ones that `cold` and `serving` answers rest on.
OWN_WEIGHT = 4.0
EACH = 1_500  # rows of a version on a GPU, of each phase and types
# Compute capabilities without rows run the kernels of a related one.
RELATED = {"86": "89", "75": "80", "70": "80", "103": "100"}

FINER = 2  # parts of a key after stack and capability, from which on it says more than the type

Floats = NDArray[np.float64]


def rows(net: str, data_dir: Path | str | None = None) -> pd.DataFrame:
    """Rows of every version, and our own ragged batches; one query a request is decode.

    `counted` marks those that held-out tables score: of the newest version of each framework, at most 20,000 a GPU,
    protocol and type, and all of our own.
    """
    every = corpus.load("attention", data_dir)
    every = every[~every["stack"].isin(UNUSABLE)]
    frame = corpus.of_every_version(every, every[~corpus.is_own(every)], max_rows=EACH)
    frame = frame.rename(columns={"counted": "newest"})
    even = frame.assign(lens=None, page_size=0)  # as if of small pages, as all are
    frame = pd.concat([even, _ragged_rows()], ignore_index=True)
    decode = (frame["q_len"] == 1) & (frame["causal"].astype(bool) | (frame["kv_len"] > 1))
    frame = frame[decode if net == DECODE else ~decode].reset_index(drop=True)
    kernel = frame.loc[frame["newest"].astype(bool), ["gpu", "protocol", "dtype", "source"]].astype(str)
    scored = corpus.capped(kernel.reset_index(names="row"))["row"]
    return frame.assign(counted=frame.index.isin(scored) | corpus.is_own(frame))


def weight(frame: pd.DataFrame, balanced: Floats) -> Floats:
    """Training weights: those of `train.net.balanced`, our own rows counting more."""
    return balanced * np.where(corpus.is_own(frame), OWN_WEIGHT, 1.0)


def usual(rows: Rows) -> NDArray[np.bool_]:
    """Rows that default implementations are taken from: encoders run kernels of their own."""
    return np.asarray(rows.columns["phase"].text() != "encoder")


def card(net: str, known: dict[str, Any]) -> dict[str, Any]:
    """What the card says beyond its rows: the implementation of a stack on a capability it was not measured on.

    That is what the framework's newest measured version runs there; a stack measured on one GPU alone says nothing
    about another architecture.
    """
    rows_say: dict[str, str] = known["default_impl"] | (_by_call(net) if net in NETS else {})
    impls = _on_related(rows_say) | rows_say
    stacks = sorted({stack for names in known["stacks"].values() for stack in names})
    filled = dict(impls)
    for key in sorted(filter(_capability, impls), key=lambda key: version(key.split("|")[0]), reverse=True):
        source, capability, *dtype = key.split("|")
        for stack in (other for other in stacks if framework(other) == framework(source)):
            if len(dtype) < FINER or f"{stack}|{capability}" not in impls:  # a stack's own rows say all that it runs
                filled.setdefault("|".join((stack, capability, *dtype)), impls[key])
    return {"default_impl": {key: impl for key, impl in filled.items() if filled.get(_coarser(key)) != impl}}


def _on_related(impls: dict[str, str]) -> dict[str, str]:
    """What each stack runs on parts without rows: what its own rows on the related part say."""
    keys = [(key, *key.split("|", 2)) for key in impls if _capability(key)]
    return {
        "|".join((stack, place, *dtype)): impls[key]
        for key, stack, capability, *dtype in keys
        for place in (place for place, related in RELATED.items() if related == capability)
    }


def _by_call(net: str) -> dict[str, str]:
    """What each stack runs by capability, type and `FAMILY.selected_by`; encoders' kernels for unmasked prompts."""
    frame = rows(net)
    capability = frame["gpu"].map(lambda name: find(str(name)).compute_capability)
    frame = frame.assign(causal=frame["causal"].astype(bool), capability=capability)
    decoders = frame[frame["phase"] != "encoder"]
    found: dict[str, str] = {}
    for many in range(1, len(FAMILY.selected_by) + 1):
        names = ["stack", "capability", "dtype", *FAMILY.selected_by[:many]]
        part = frame if net == PREFILL and many == len(FAMILY.selected_by) else decoders
        for key, impls in part.groupby(names, observed=True)["impl"]:
            found["|".join(map(str, key))] = str(impls.mode().iloc[0])
    return found


def _coarser(key: str) -> str:
    """The key that answers where this one is missing; empty of keys that other look-ups need."""
    parts = key.split("|")
    return "|".join(parts[:-1]) if len(parts) > FINER + 1 else ""


def _capability(key: str) -> bool:
    return "|" in key and key.split("|")[1].isdigit()


def _ragged_rows() -> pd.DataFrame:
    """Our own rows whose requests differ; `q_len` and `kv_len` are the longest, `lens` holds both lists."""
    files = list(corpus.own_files("attention"))
    found = [_ragged_row(row) | {"gpu": gpu, "source": source} for source, gpu, file in files for row in measured(file)]
    return pd.DataFrame([row for row in found if "batch" in row])


def _ragged_row(row: dict[str, Any]) -> dict[str, Any]:
    """A row as columns; none of a batch of equal requests."""
    case = row["case"]
    q_lens, kv_lens = case["q_lens"], case["kv_lens"]
    if len(set(q_lens)) == 1 and len(set(kv_lens)) == 1:
        return {}
    window, dtype = case.get("window") or 0, case.get("dtype", "bf16")
    group = f"{case['heads']},{case['kv_heads']},{case['head_dim']},{window}"
    return {
        **{name: case[name] for name in ("heads", "kv_heads", "head_dim")},
        **{name: row[name] for name in ("stack", "impl", "protocol", "latency_us")},
        "batch": len(q_lens),
        "q_len": max(q_lens),
        "kv_len": max(kv_lens),
        "lens": (q_lens, kv_lens),
        "window": window,
        "page_size": case.get("page_size") or 0,
        "dtype": dtype,
        "kv_dtype": case.get("kv_dtype") or dtype,
        "causal": case.get("causal", True),
        "sinks": False,
        "phase": "decode" if max(q_lens) == 1 else "prefill",
        "framework": framework(row["stack"]),
        "group": group,
        "noise": np.nan,
        "newest": True,
    }


TABLES = ("context_attention", "generation_attention", "encoder_attention")
NETS = dict.fromkeys(
    (PREFILL, DECODE), Net(rows, FAMILY, TABLES, weight, card, usual, plans="attention", prepared=as_variant)
)
