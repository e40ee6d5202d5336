"""Check every configuration's result on the GPU against float64 before it is timed. Needs torch."""

from __future__ import annotations

from typing import Any

import torch
import triton

from lab.own_kernels import build
from lab.own_kernels.operands import Operands, moe_nk
from lab.own_kernels.shapes import Shape
from pipewave.tune.shipped_kernels import family, is_up

TOLERANCE = 0.02  # relative, in the 2-norm; bf16 operands and probabilities leave a few 1e-3
SHAPES: dict[str, Shape] = {  # odd on purpose: no tile divides them
    "gemm": {"m": 203, "n": 336, "k": 464},
    "moe": {"m": 45, "e": 8, "top_k": 2, "hidden": 336, "inter": 208, "skew": 50, "seed": 7},
    "prefill": {"batch": 2, "q_len": 155, "kv_len": 219, "heads": 8, "kv_heads": 2},
    "decode": {"batch": 3, "kv_len": 333, "spread": 50, "heads": 8, "kv_heads": 2, "seed": 7},
}


def check_shape(kernel: str) -> Shape:
    """Return the shape the check runs at."""
    shape = dict(SHAPES[family(kernel)])
    fixed = build.fixed(kernel)
    if "HEAD_DIM" in fixed:
        shape["head_dim"] = int(fixed["HEAD_DIM"])
    if "CAUSAL" in fixed:
        shape["causal"] = int(fixed["CAUSAL"])
    return shape


def errors(operands: Operands, configs: list[tuple[int, ...]]) -> list[float]:
    """Relative error of each configuration at the check shape; inf where anything was left unwritten or failed."""
    operands.prepare(check_shape(operands.kernel))
    wanted = reference(operands)
    out = operands.buffers["c"][: wanted.numel()]
    found = []
    for config in configs:
        out.fill_(float("nan"))
        try:
            for launch in operands.calls(config):
                launch()
        except (RuntimeError, triton.runtime.errors.OutOfResources):  # the driver refused it
            found.append(float("inf"))
            continue
        error = (out.double() - wanted.reshape(-1)).norm() / wanted.norm()
        found.append(float(error) if bool(torch.isfinite(error)) else float("inf"))
    return found


def reference(operands: Operands) -> Any:
    """Compute the result in float64 from the operands' buffers."""
    return {"gemm": _gemm, "moe": _moe, "prefill": _prefill, "decode": _decode}[family(operands.kernel)](operands)


def _view(operands: Operands, name: str, *size: int) -> Any:
    count = 1
    for extent in size:
        count *= extent
    return operands.buffers[name][:count].reshape(size).double()


def _gemm(o: Operands) -> Any:
    m, n, k = (o.shape[name] for name in ("m", "n", "k"))
    return _view(o, "a", m, k) @ _view(o, "w", n, k).T


def _moe(o: Operands) -> Any:
    n, k = moe_nk(o.kernel, o.shape)
    pairs = o.chosen.numel()
    up = is_up(o.kernel)
    share = o.shape["top_k"] if up else 1
    rows = _view(o, "a", pairs // share, k).repeat_interleave(share, 0)
    weights = _view(o, "w", o.shape["e"], n, k)[o.chosen.reshape(-1)]
    out = torch.einsum("pk,pnk->pn", rows, weights)
    return out if up else out * o.weights.double()[:, None]


def _attend(q: Any, k: Any, v: Any, hidden: Any | None) -> Any:
    """q [b, s, h, d], k and v [b, t, g, d]; `hidden` [s, t] marks what a query must not see."""
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    score = torch.einsum("bshd,bthd->bhst", q, k) * q.shape[-1] ** -0.5
    if hidden is not None:
        score = score.masked_fill(hidden, float("-inf"))
    return torch.einsum("bhst,bthd->bshd", score.softmax(-1), v)


def _prefill(o: Operands) -> Any:
    s = o.shape
    b, m, n, h, g, d = (s[name] for name in ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim"))
    hidden = torch.ones(m, n, dtype=torch.bool, device=o.device).triu(n - m + 1) if s["causal"] else None
    return _attend(_view(o, "a", b, m, h, d), _view(o, "w", b, n, g, d), _view(o, "v", b, n, g, d), hidden)


def _decode(o: Operands) -> Any:
    s = o.shape
    h, g, d = (s[name] for name in ("heads", "kv_heads", "head_dim"))
    pages = o.buffers["w"].numel() // (build.PAGE * g * d)
    caches = [o.buffers[name][: pages * build.PAGE * g * d].reshape(pages, build.PAGE, g, d) for name in ("w", "v")]
    q = _view(o, "a", s["batch"], 1, h, d)
    rows = []
    for seq, length in enumerate(o.lens.tolist()):
        k, v = (cache[o.tables[seq].long()].reshape(1, -1, g, d)[:, :length].double() for cache in caches)
        rows.append(_attend(q[seq : seq + 1], k, v, None))
    return torch.cat(rows)
