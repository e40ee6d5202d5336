"""Our kernels against float64 at random and at awkward shapes, in the interpreter: sizes no tile divides, grouped
heads, causal prefixes, ragged paged caches, experts nobody chose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from lab.own_kernels.kernels import decode, gemm, grouped, prefill  # noqa: E402  # noqa: E402

# The interpreter multiplies bf16 as raw integers; fp16 takes the same path through the kernels.
DTYPE = torch.float16
CLOSE = 5e-3  # relative, in the 2-norm: fp16 results, and fp16 probabilities in attention


def tensor(rng: np.random.Generator, *size: int) -> Any:
    return torch.from_numpy(rng.standard_normal(size)).to(DTYPE)


def assert_close(found: Any, wanted: Any) -> None:
    assert torch.isfinite(found).all()
    assert float((found.double() - wanted).norm() / wanted.norm()) < CLOSE


def tile(rng: np.random.Generator, *names: str) -> dict[str, int]:
    """Small blocks: the interpreter takes its time by the block."""
    return {name: int(rng.choice((16, 32))) for name in names} | {"GROUP_M": int(rng.choice((1, 3, 8)))}


@pytest.mark.parametrize("seed", range(6))
def test_gemm(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m, n, k = (1, 17, 5) if seed == 0 else (int(v) for v in rng.integers(1, 100, 3))
    a, w, out = tensor(rng, m, k), tensor(rng, n, k), torch.full((m, n), float("nan"), dtype=DTYPE)
    gemm.run(a, w, out, tile(rng, "BLOCK_M", "BLOCK_N", "BLOCK_K"), scale=0.5)
    assert_close(out, 0.5 * a.double() @ w.double().T)


@pytest.mark.parametrize("seed", range(6))
def test_grouped_gemm_with_experts_nobody_chose(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    tokens, experts, top_k = int(rng.integers(1, 24)), int(rng.integers(2, 9)), int(rng.integers(1, 3))
    n, k = (int(v) for v in rng.integers(1, 70, 2))
    used = experts if seed % 2 else top_k  # even seeds leave every other expert empty
    chosen = torch.from_numpy(np.stack([rng.permutation(used)[:top_k] for _ in range(tokens)]))
    config = tile(rng, "BLOCK_M", "BLOCK_N", "BLOCK_K")
    routing = grouped.align(chosen, experts, config["BLOCK_M"])
    weights = torch.from_numpy(rng.uniform(0, 1, tokens * top_k)).float()
    w = tensor(rng, experts, n, k)
    for weigh, rows in ((False, tensor(rng, tokens, k)), (True, tensor(rng, tokens * top_k, k))):
        out = torch.full((tokens * top_k, n), float("nan"), dtype=DTYPE)
        grouped.run(rows, w, out, weights, routing, 1 if weigh else top_k, weigh, config)
        each = rows if weigh else rows.repeat_interleave(top_k, 0)
        wanted = torch.einsum("pk,pnk->pn", each.double(), w.double()[chosen.reshape(-1)])
        assert_close(out, wanted * weights.double()[:, None] if weigh else wanted)


def attention(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """q [b, s, h, d], k and v [b, t, g, d], in float64; queries are the last s of t positions."""
    group = q.shape[2] // k.shape[2]
    q, k, v = q.double(), k.double().repeat_interleave(group, 2), v.double().repeat_interleave(group, 2)
    score = torch.einsum("bshd,bthd->bhst", q, k) * q.shape[-1] ** -0.5
    if causal:
        hidden = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).triu(k.shape[1] - q.shape[1] + 1)
        score = score.masked_fill(hidden, float("-inf"))
    return torch.einsum("bhst,bthd->bshd", score.softmax(-1), v)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("q_len", "kv_len", "heads", "kv_heads", "dim"),
    [
        (1, 1, 2, 1, 64),
        (1, 70, 4, 4, 64),
        (33, 33, 6, 2, 64),
        (20, 77, 3, 1, 128),
        (64, 64, 2, 2, 128),
        (48, 61, 4, 1, 64),
    ],
)
def test_prefill(q_len: int, kv_len: int, heads: int, kv_heads: int, dim: int, causal: bool) -> None:
    rng = np.random.default_rng(q_len + kv_len)
    q, out = tensor(rng, 2, q_len, heads, dim), torch.full((2, q_len, heads, dim), float("nan"), dtype=DTYPE)
    k, v = tensor(rng, 2, kv_len, kv_heads, dim), tensor(rng, 2, kv_len, kv_heads, dim)
    for heads_first in (0, 1):
        config = {"BLOCK_M": 16, "BLOCK_N": int(rng.choice((16, 32))), "HEADS_FIRST": heads_first}
        prefill.run(q, k, v, out, causal, config)
        assert_close(out, attention(q, k, v, causal))


@pytest.mark.parametrize(
    ("lens", "heads", "kv_heads", "dim", "splits"),
    [((1, 1), 2, 1, 64, 1), ((5, 64, 17), 8, 2, 64, 1), ((1, 90, 33), 4, 4, 64, 4), ((50, 3), 6, 1, 128, 8),
     ((16, 32, 48, 80), 7, 1, 64, 2), ((97,), 16, 1, 128, 16)],
)  # fmt: skip
def test_ragged_paged_decode(lens: tuple[int, ...], heads: int, kv_heads: int, dim: int, splits: int) -> None:
    rng = np.random.default_rng(sum(lens))
    page, batch = 16, len(lens)
    width = -(-max(lens) // page)
    pages = batch * width + 3
    cache = tensor(rng, pages, page, kv_heads, dim), tensor(rng, pages, page, kv_heads, dim)
    tables = torch.from_numpy(rng.permutation(pages)[: batch * width].reshape(batch, width)).int()
    q, out = tensor(rng, batch, heads, dim), torch.full((batch, heads, dim), float("nan"), dtype=DTYPE)
    config = {"BLOCK_N": int(rng.choice((16, 32))), "SPLITS": splits}
    decode.run(q, cache, out, tables, torch.tensor(lens, dtype=torch.int32), config)
    for i, length in enumerate(lens):
        k, v = (some[tables[i].long()].reshape(1, -1, kv_heads, dim)[:, :length] for some in cache)
        assert_close(out[i : i + 1], attention(q[i : i + 1, None], k, v, causal=False)[:, 0])
