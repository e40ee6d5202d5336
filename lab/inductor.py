"""`max-autotune` with our cut of its candidates and without: `python -m lab.inductor [--keep 4] [--out FILE]`.

A stack of Llama layers with random weights is compiled anew with each, all caches empty, and timed on the GPU: without,
with, with, without, since a card's clock drifts. The first compilation in a process pays for what all share, so that
one of a small model comes before.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.tune.inductor import fewer

ROUNDS, EACH = 12, 10
HIDDEN, INTER, HEADS, KV, DIM = 4096, 14336, 32, 8, 128  # Llama-3.1-8B


def layers(torch: Any, count: int, hidden: int = HIDDEN, inter: int = INTER) -> Any:
    """A stack of decoder layers without their cache: norm, attention over the prompt, norm, gated MLP."""
    nn, functional = torch.nn, torch.nn.functional

    class Layer(nn.Module):  # type: ignore[misc]  # torch carries no types here
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.o = (
                nn.Linear(hidden, (HEADS + 2 * KV) * DIM, bias=False),
                nn.Linear(HEADS * DIM, hidden, bias=False),
            )
            self.up, self.down = nn.Linear(hidden, 2 * inter, bias=False), nn.Linear(inter, hidden, bias=False)
            self.norms = nn.ModuleList([nn.RMSNorm(hidden), nn.RMSNorm(hidden)])

        def forward(self, x: Any) -> Any:
            batch, length, _ = x.shape
            heads = self.qkv(self.norms[0](x)).view(batch, length, HEADS + 2 * KV, DIM).transpose(1, 2)
            q, k, v = heads.split([HEADS, KV, KV], dim=1)
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + self.o(mixed.transpose(1, 2).reshape(batch, length, HEADS * DIM))
            gate, up = self.up(self.norms[1](x)).chunk(2, dim=-1)
            return x + self.down(functional.silu(gate) * up)

    return nn.Sequential(*(Layer() for _ in range(count))).to("cuda", torch.bfloat16)


def compiled(torch: Any, model: Any, x: Any, keep: int | None) -> tuple[float, float]:
    """Compile with Inductor's own candidates, or with those we keep: seconds, and median ms of a call then."""
    from torch._inductor.choices import InductorChoices
    from torch._inductor.utils import fresh_cache
    from torch._inductor.virtualized import V

    torch.compiler.reset()
    V.set_choices_handler(InductorChoices() if keep is None else fewer(keep))
    with fresh_cache(), torch.no_grad():
        call = torch.compile(model, mode="max-autotune-no-cudagraphs", dynamic=False)
        start = time.monotonic()
        call(x)
        torch.cuda.synchronize()
        return time.monotonic() - start, _ms(torch, lambda: call(x))


def _ms(torch: Any, call: Callable[[], Any]) -> float:
    taken = []
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(EACH):
            call()
        end.record()
        torch.cuda.synchronize()
        taken.append(begin.elapsed_time(end) / EACH)
    return float(np.median(taken[2:]))


def measured(torch: Any, count: int, tokens: int, keep: int) -> dict[str, Any]:
    """Seconds of compilation and ms of a call, with and without the cut."""
    small = torch.randn(1, 64, 512, dtype=torch.bfloat16, device="cuda")
    compiled(torch, layers(torch, 1, 512, 1024), small, None)
    model, x = layers(torch, count), torch.randn(1, tokens, HIDDEN, dtype=torch.bfloat16, device="cuda")
    turns: dict[str, list[tuple[float, float]]] = {"own": [], "cut": []}
    for name, kept in (("own", None), ("cut", keep), ("cut", keep), ("own", None)):
        turns[name].append(compiled(torch, model, x, kept))
        print(name, turns[name][-1], flush=True)
    return {"layers": count, "tokens": tokens, "keep": keep, "gpu": torch.cuda.get_device_name(),
            **{name: {"compile_s": [seconds for seconds, _ in some], "ms": [ms for _, ms in some]}
               for name, some in turns.items()}}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; see the module's description."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--keep", type=int, default=4)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    import torch

    found = measured(torch, options.layers, options.tokens, options.keep)
    print(json.dumps(found))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
