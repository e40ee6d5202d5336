"""Our own Triton kernels, with the configuration that the GPU's tuning table chooses, else the default one."""

from __future__ import annotations

from collections.abc import Mapping

from pipewave.errors import BadFile
from pipewave.measure.impls import Pools, Prepared, Skip
from pipewave.measure.plan import Case

HEAD_DIMS = (64, 128)  # that the attention kernel is written for


def matmul(case: Case, pools: Pools) -> Prepared:
    """`kernels.triton.gemm`; bf16 and fp16 operands."""
    from lab.own_kernels.kernels import gemm

    m, n, k, dtype = case["m"], case["n"], case["k"], case.get("dtype", "bf16")
    if dtype not in ("bf16", "fp16"):
        raise Skip("our GEMM is measured in bf16 and fp16")
    x, w, out = (
        pools.take(region, dtype, *shape)
        for region, shape in (("activation", (m, k)), ("weight", (n, k)), ("scratch", (m, n)))
    )
    config, source = configuration("gemm", {"m": m, "n": n, "k": k}, pools.device)
    return Prepared(lambda: gemm.run(x, w, out, config), {"config": config, "config_source": source})


def attention(case: Case, pools: Pools) -> Prepared:
    """`kernels.triton.prefill`: whole prompts of equal length."""
    from lab.own_kernels.kernels import prefill

    q_lens, kv_lens, width, dtype = case["q_lens"], case["kv_lens"], case["head_dim"], case.get("dtype", "bf16")
    if len(set(q_lens)) > 1 or list(q_lens) != list(kv_lens) or width not in HEAD_DIMS:
        raise Skip("our prefill kernel takes whole prompts of equal length, head_dim 64 or 128")
    batch, length, causal = len(q_lens), q_lens[0], bool(case.get("causal", True))
    q, out = (pools.take(region, dtype, batch, length, case["heads"], width) for region in ("activation", "scratch"))
    k, v = (pools.take("weight", dtype, batch, length, case["kv_heads"], width) for _ in range(2))
    shape = {"batch": batch, "heads": case["heads"], "kv_heads": case["kv_heads"], "q_len": length, "kv_len": length}
    config, source = configuration(f"prefill_{'causal' if causal else 'full'}_{width}", shape, pools.device)
    return Prepared(lambda: prefill.run(q, k, v, out, causal, config), {"config": config, "config_source": source})


def configuration(kernel: str, shape: Mapping[str, int], device: str) -> tuple[dict[str, int], str]:
    """The configuration of a shape and where it comes from, `table` or `default`."""
    import torch

    from pipewave.tune import load_table
    from pipewave.tune.shipped_kernels import default
    from pipewave.tune.tables import description

    card = str(torch.cuda.get_device_name()) if device == "cuda" else "none"
    try:
        return dict(load_table(kernel, gpu=card).select(**shape)), "table"
    except BadFile:  # no table for this GPU, or one of another kernel source
        names = description(kernel).configs[0]
        return dict(zip(names, default(kernel, shape), strict=True)), "default"
