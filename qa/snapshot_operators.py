"""Seeded cases of newer operators for `python -m qa.snapshot`, in a file of their own: older records still serve."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from pipewave.gpus import names

STACKS = (None, None, "vllm-0.24.0", "sglang-0.5.14", "trtllm-1.3.0rc20", "trtllm-1.3.0rc23")
KINDS = ("mla", "dsa", "msa", "csa", "hca")
PARTS = ("module", "module", "module", "attention", "indexer", "topk")
CHOOSING = ("dsa", "msa", "csa")
EXCHANGES = ("deepep_ht", "deepep_ll", "nvlink_one_sided", "nvlink_two_sided")
DTYPES = ("bf16", "bf16", "fp8_block", "nvfp4")
REQUESTS, LENGTHS = (1, 1, 4, 32, 256), (1, 7, 128, 1024, 4096)


def _news(pick: random.Random) -> tuple[str, list[int]]:
    """Phase, and new tokens of each request."""
    phase, count = pick.choice(("context", "generation")), pick.choice(REQUESTS)
    return phase, [1 if phase == "generation" else pick.choice(LENGTHS) for _ in range(count)]


def attention_module(pick: random.Random) -> dict[str, Any]:
    """A layer, or one of its kernels."""
    phase, news = _news(pick)
    kind, part = pick.choice(KINDS), pick.choice(PARTS)
    part = part if kind in CHOOSING else "module"
    cached = pick.choice((0, 100, 3000, 60_000))
    more = {"kv_dtype": "fp8"} if pick.random() < 0.3 else {}
    heads = pick.choice((8, 16, 64, 128))
    lens = {"q_lens": news, "kv_lens": [new + cached for new in news]}
    return lens | {"kind": kind, "part": part, "heads": heads, "phase": phase, "dtype": pick.choice(DTYPES)} | more


def delta_net(pick: random.Random) -> dict[str, Any]:
    """A gated delta net or delta attention."""
    phase, news = _news(pick)
    heads = pick.choice((4, 16, 32))
    return {"q_lens": news, "k_heads": heads, "v_heads": 2 * heads, "phase": phase, "kind": pick.choice(("gdn", "kda"))}


def causal_conv1d(pick: random.Random) -> dict[str, Any]:
    """The convolution before it."""
    phase, news = _news(pick)
    return {"q_lens": news, "channels": pick.choice((1024, 4096, 8192)), "width": 4, "phase": phase}


def mamba2(pick: random.Random) -> dict[str, Any]:
    """A selective scan."""
    phase, news = _news(pick)
    return {"q_lens": news, "heads": pick.choice((16, 64, 128)), "phase": phase}


def hyper_connection(pick: random.Random) -> dict[str, Any]:
    """Residual streams."""
    return {
        "tokens": pick.choice((1, 64, 4096)),
        "hidden": pick.choice((4096, 7168)),
        "part": pick.choice(("pre", "post")),
    }


def moe_all_to_all(pick: random.Random) -> dict[str, Any]:
    """Tokens to their experts."""
    case = {
        "tokens": pick.choice((1, 64, 4096)),
        "hidden": 7168,
        "topk": 8,
        "experts": 256,
        "ep": pick.choice((4, 8, 32)),
    }
    return case | {"backend": pick.choice(EXCHANGES), "direction": pick.choice(("dispatch", "combine"))}


def mega_moe(pick: random.Random) -> dict[str, Any]:
    """Experts and exchange in one kernel."""
    shape = {"experts": 256, "topk": 6, "hidden": 4096, "inter": 2048, "ep": pick.choice((4, 8))}
    return {"tokens": pick.choice((1, 64, 4096)), "dtype": "mxfp4"} | shape


def batched_gemm(pick: random.Random) -> dict[str, Any]:
    """An absorbed product of latent attention."""
    n, k = pick.choice(((512, 128), (128, 512)))
    return {"batch": pick.choice((8, 16, 128)), "m": pick.choice((1, 64, 4096)), "n": n, "k": k}


FAMILIES = {
    "attention_module": attention_module, "delta_net": delta_net, "causal_conv1d": causal_conv1d, "mamba2": mamba2,
    "hyper_connection": hyper_connection, "moe_all_to_all": moe_all_to_all, "mega_moe": mega_moe,
    "batched_gemm": batched_gemm,
}  # fmt: skip
WEIGHTS = (10, 3, 2, 1, 1, 1, 1, 1)


def cases(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Seeded cases on every GPU; what a GPU or stack cannot run is asked for too, since errors are answers."""
    pick, gpus = random.Random(seed), sorted(names())
    for i in range(count):
        family = pick.choices(list(FAMILIES), WEIGHTS)[0]
        case = FAMILIES[family](pick) | {"kernel": family, "gpu": gpus[i % len(gpus)], "id": f"operator {i}"}
        stack = pick.choice(STACKS)
        yield case | ({"stack": stack} if stack else {})
