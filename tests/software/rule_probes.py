"""Calls that rules of software may answer differently, and what they are answered."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import product
from typing import Any

from pipewave import kernels
from pipewave.calls.families import from_dict
from pipewave.errors import PipewaveError
from pipewave.gpus import GPU, find
from pipewave.nets.weights_metadata import changes
from pipewave.physics.arith import SCALAR
from pipewave.prediction.api import predict
from pipewave.prediction.kernel_latency import write_back_s
from pipewave.software.rules import table
from pipewave.software.stacks import nearest

STACKS = (None, "vllm-0.14.0", "vllm-0.22.1", "vllm-0.24.0", "sglang-0.5.6", "sglang-0.5.9", "sglang-0.5.12", "sglang-0.5.14",
          "trtllm-1.2.0", "trtllm-1.3.0rc20")  # fmt: skip
GPUS = (
    "H200",
    "H100 SXM",
    "A100 SXM",
    "L40S",
    "B200",
    "B300",
    "RTX PRO 6000 Server",
    "A40",
    "A100 PCIe",
    "GB200",
    "H20",
)
PROTOCOLS = ("cold", "serving", "graph", "profiler_warm")
IMPLS = {
    "attention": (None, "triton", "vllm_triton_attn", "vllm_flash_attn", "vllm_flashinfer", "vllm_flashinfer_trtllm", "fa4",
                  "cudnn", "flashinfer", "trtllm_mha", "flash_attention", "fa3", "sdpa_flash", "vllm_fa2", "flashinfer_trtllm"),
    "fused_moe": (None, "vllm_fused_moe", "sglang_fused_moe_triton", "sglang_marlin_moe", "vllm_marlin",
                  "flashinfer_cutlass", "vllm_mxfp4_moe", "flashinfer_trtllm_moe", "x_triton_oaitriton", "some:mxfp8",
                  "some_w4afp8", "moe_torch_flow_triton_fp8_block", "moe_torch_flow_cutlass"),
    "gemm": (None, "torch_scaled_mm"),
}  # fmt: skip
TYPES = {
    "gemm": ("bf16", "fp16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int8", "int4"),
    "fused_moe": ("bf16", "fp8", "fp8_block", "mxfp4", "int4"), "attention": ("bf16", "fp8"), "mla": ("bf16", "fp8"),
}  # fmt: skip
PRODUCT = {"kernel": "gemm", "m": 64, "n": 4096, "k": 4096, "quantize": True, "stack": "vllm-0.14.0"}
DECODE = {"kernel": "attention", "q_lens": [1] * 64, "kv_lens": [512] * 64, "heads": 32, "kv_heads": 8, "head_dim": 128}
PROMPT = DECODE | {"q_lens": [512] * 64}
MLA = {"kernel": "mla", "phase": "context", "q_lens": [2048], "kv_lens": [16384], "heads": 16}
EXPERTS = {"kernel": "fused_moe", "tokens": 16, "experts": 384, "topk": 8, "hidden": 7168, "inter": 2048, "ep": 8}
SKEWED = EXPERTS | {"routing": "power_law_1.2"}
# Rows of one version that few random calls meet: GPU, protocol, case.
VERSIONS: dict[str, list[tuple[str, str, dict[str, Any]]]] = {
    "gemm": [
        *(("H200", "graph", PRODUCT | {"dtype": dtype}) for dtype in ("fp8", "fp8_block")),
        *((gpu, "graph", PRODUCT | {"dtype": "fp8_block", "stack": stack})
          for gpu, stack in (("H200", "sglang-0.5.10"), ("B200", "sglang-0.5.9"), ("B200", "trtllm-1.3.0rc10"))),
        ("RTX PRO 6000 Server", "graph", PRODUCT | {"dtype": "fp8", "stack": "vllm-0.19.0"}),
        ("H200", "cold", {"kernel": "gemm", "m": 4096, "n": 4096, "k": 4112, "dtype": "fp8", "stack": "torch-2.11"}),
    ],
    "fused_moe": [
        ("H200", "graph", SKEWED | {"stack": "vllm-0.14.0", "impl": "vllm_fused_moe"}),
        ("H200", "graph", SKEWED | {"stack": "sglang-0.5.9", "impl": "sglang_fused_moe_triton"}),
        ("H200", "graph", SKEWED | {"stack": "trtllm-1.3.0rc10", "impl": "moe_torch_flow_cutlass"}),
        ("H200", "graph", SKEWED | {"stack": "trtllm-1.2.0rc5", "impl": "moe_torch_flow"}),
        ("H200", "graph", EXPERTS | {"tokens": 16384, "ep": 32, "routing": "balanced", "stack": "sglang-0.5.9"}),
        ("H200", "graph", EXPERTS | {"stack": "sglang-0.5.9", "dtype": "fp8", "impl": "sglang_fused_moe_triton"}),
        ("H200", "graph", EXPERTS | {"experts": 512, "topk": 22, "stack": "trtllm-1.3.0rc20", "impl": "moe_torch_flow"}),
        *((gpu, "graph", EXPERTS | {"tokens": 4096, "dtype": dtype, "stack": "vllm-0.24.0", "impl": "flashinfer_cutlass"})
          for gpu in ("H100", "B200", "RTX PRO 6000 Server") for dtype in ("bf16", "nvfp4") if (gpu, dtype) != ("H100", "nvfp4")),
        ("L40S", "graph", EXPERTS | {"dtype": "mxfp4", "stack": "sglang-0.5.14", "impl": "sglang_fused_moe_triton"}),
        ("B200", "graph", EXPERTS | {"dtype": "mxfp4", "stack": "trtllm-1.3.0rc20", "impl": "moe_torch_flow:mxfp8"}),
        ("B200", "graph", EXPERTS | {"tokens": 16384, "dtype": "fp8_block", "stack": "trtllm-1.3.0rc20", "impl": "deepgemm"}),
    ],
    "attention": [
        ("H200", "graph", DECODE | {"stack": "sglang-0.5.6", "impl": "flash_attention"}),
        ("H200", "graph", PROMPT | {"stack": "sglang-0.5.6", "impl": "flash_attention"}),
        ("H200", "graph", DECODE | {"stack": "vllm-0.19.0", "impl": "vllm_flash_attn"}),
        ("B200", "graph", PROMPT | {"stack": "sglang-0.5.13", "kv_dtype": "fp8"}),
        ("H200", "graph", DECODE | {"stack": "vllm-0.22.3"}),
        ("H200", "cold", PROMPT | {"stack": "vllm-0.22.1", "impl": "fa3", "page_size": 128}),
        ("L40S", "graph", PROMPT | {"stack": "vllm-0.22.0", "page_size": 128}),
        ("H200", "graph", DECODE | {"stack": "sglang-0.5.9", "impl": "flash_attention"}),
        ("H200", "graph", DECODE | {"stack": "sglang-0.5.14", "impl": "fa3", "kv_dtype": "fp8"}),
        ("B200", "graph", DECODE | {"stack": "sglang-0.5.14", "impl": "trtllm_mha", "kv_dtype": "fp8"}),
        ("B200", "graph", PROMPT | {"stack": "sglang-0.5.14", "impl": "trtllm_mha", "kv_dtype": "fp8"}),
        *(("L40S", "graph", DECODE | {"stack": stack, "impl": impl, "kv_heads": 16})
          for stack, impl in (("sglang-0.5.14", "flashinfer"), ("vllm-0.24.0", "vllm_flashinfer"))),
        *(("L40S", "graph", PROMPT | {"stack": stack, "impl": impl, "q_lens": [2048] * 4, "kv_lens": [8192] * 4,
                                      "window": 512})
          for stack, impl in (("sglang-0.5.14", "flashinfer"), ("vllm-0.24.0", "vllm_flashinfer"))),
        ("B200", "graph", EXPERTS | {"stack": "sglang-0.5.13"}),
        *(("B200", "graph", DECODE | {"stack": stack, "impl": impl, "heads": 64, "kv_heads": 1})
          for stack, impl in (("trtllm-1.3.0rc20", "torch_flow"), ("sglang-0.5.14", "trtllm_mha"))),
        ("B200", "graph", DECODE | {"stack": "trtllm-1.2.0rc5", "impl": "torch_flow", "heads": 32, "kv_heads": 1}),
        *(("L40S", "graph", case | {"stack": "vllm-0.22.0", "impl": "vllm_flash_attn"}) for case in (DECODE, PROMPT)),
        *(("A100", protocol, DECODE | {"stack": stack})
          for protocol, stack in (("cold", "sglang-0.5.10"), ("graph", "sglang-0.5.14"))),
        ("A40", "graph", DECODE | {"stack": "sglang-0.5.10.post1"}),
        *(("H200", "graph", DECODE | {"stack": "sglang-0.5.14", "impl": impl, "kv_lens": [32768] * 64, "window": 8192})
          for impl in ("flash_attention", "triton")),
        *((gpu, "graph", case | {"stack": "trtllm-1.3.0rc20", "impl": "torch_flow", "dtype": "fp8"})
          for gpu in ("L40S", "H200") for case in (DECODE, PROMPT)),
    ],
    "mla": [
        ("B200", "graph", MLA | {"stack": stack, "impl": impl})
        for stack, impl in (("sglang-0.5.14", "triton"), ("sglang-0.5.14", "trtllm_mla"), ("vllm-0.24.0", None))
    ],
}  # fmt: skip
_SUM = {"kernel": "all_reduce", "bytes": 1 << 20, "world": 8, "impl": "custom"}
VERSIONS["collective"] = [
    ("H200", "graph", _SUM | {"bytes": 1 << 16, "stack": "sglang-0.5.9"}),
    ("H200", "cold", _SUM | {"bytes": 16 << 20, "world": 4, "stack": "vllm-0.22.1"}),
    ("L40S", "graph", _SUM | {"world": 2, "stack": "trtllm-1.0.0"}),
    ("A100", "graph", _SUM | {"bytes": 1 << 21, "stack": "trtllm-1.0.0"}),
    *((gpu, "graph", _SUM | {"stack": stack}) for gpu in ("H100", "B200")
      for stack in ("vllm-0.24.0", "sglang-0.5.14", "trtllm-1.3.0rc20")),
    ("A100", "graph", _SUM | {"bytes": 8 << 20, "stack": "sglang-0.5.10"}),
    ("H100", "graph", _SUM | {"bytes": 1 << 17, "stack": "sglang-0.5.14"}),
    ("B300", "graph", _SUM | {"bytes": 3 << 20, "world": 2, "stack": "vllm-0.24.0"}),
    *(("H100", "graph", _SUM | {"bytes": 64 << 20, "stack": f"vllm-0.{minor}.0"}) for minor in (19, 24)),
    *((gpu, "graph", _SUM | {"bytes": size << 20, "world": 2, "impl": "nccl", "stack": "nccl-2.29.2"})
      for gpu in ("A100", "H100", "B200") for size in (1, 2, 3, 4)),
]  # fmt: skip
_PROMPTS = {"kernel": "attention_module", "q_lens": [1024] * 4, "kv_lens": [1024] * 4, "phase": "context"}
_STEP = {"q_lens": [1] * 4, "phase": "generation"}
_VLLM, _SGLANG = {"stack": "vllm-0.24.0"}, {"stack": "sglang-0.5.14"}
_FLASHMLA = _PROMPTS | _VLLM | {"kind": "dsa", "impl": "FLASHMLA_SPARSE", "heads": 64}
VERSIONS["attention_module"] = [
    ("RTX PRO 6000 Server", "graph", _PROMPTS | _STEP | {"kind": "mla", "heads": 16, "kv_lens": [65536] * 4,
                                                         "stack": "trtllm-1.3.0rc20"}),
    ("H100", "graph", _FLASHMLA | {"kv_dtype": "fp8"}),
    ("H100", "graph", _FLASHMLA | {"kv_dtype": "fp8", "heads": 16}),
    ("H100", "graph", _FLASHMLA | {"kv_dtype": "bf16"}),
    ("B200", "graph", _FLASHMLA | {"kv_dtype": "bf16"}),
    ("H100", "graph", _PROMPTS | _SGLANG | {"kind": "dsa", "heads": 16, "kv_lens": [8192] * 4, "kv_dtype": "fp8",
                                            "impl": "sglang_dsa_indexer_flashmla_kv"}),
    *((gpu, "graph", _PROMPTS | _SGLANG | {"kind": "dsa", "part": "attention", "heads": 64, "impl": "flash_mla_sparse_fwd"}
       | phase) for gpu in ("H100", "B200") for phase in ({}, _STEP)),
    *(("H100", "graph", _PROMPTS | _SGLANG | {"kind": "dsa", "part": part, "kv_lens": [65536] * 4, "q_lens": [4] * 4,
                                              "heads": 64, "impl": impl} | phase)
      for part, impl, phase in (("module", "sglang_dsa_indexer_flashmla_kv", {}),
                                ("indexer", "deep_gemm.fp8_paged_mqa_logits", {}),
                                ("indexer", "deep_gemm.fp8_mqa_logits", _STEP))),
    *((gpu, "graph", _PROMPTS | {"kind": "msa", "heads": 16, "stack": stack, "impl": impl, "kv_dtype": cache} | phase)
      for gpu, stack, impl in (
          ("B200", "vllm-0.24.0", "MiniMaxM3SparseMSAImpl"), ("B200", "trtllm-1.3.0rc23", "msa_fmha_sm100"),
          ("H100", "vllm-0.24.0", "MiniMaxM3SparseTritonImpl"),
          ("H100", "sglang-0.5.16", "sglang_minimax_prefill_triton_sparse"))
      for cache in ("bf16", "fp8") for phase in ({}, _STEP)),
]  # fmt: skip
_SCAN = {"kernel": "delta_net", "q_lens": [4096], "k_heads": 16, "v_heads": 16, "kind": "kda"}
VERSIONS["delta_net"] = [("H100", "graph", _SCAN | {"impl": impl}) for impl in ("chunk_kda", "flashkda_fwd")]
FAMILY = {"default": "attention", "gemm": "gemm", "sm": "gemm", "attention": "attention", "moe": "fused_moe", "step": "steps",
          "module": "attention_module", "mla": "mla", "delta": "delta_net", "conv": "causal_conv1d",
          "norm": "rmsnorm"}  # fmt: skip
_CONV = {"kernel": "causal_conv1d", "q_lens": [100] * 16, "channels": 4096, "width": 4, "impl": "causal_conv1d_fn"}
VERSIONS["causal_conv1d"] = [
    (gpu, "graph", _CONV | {"stack": stack})
    for gpu, stack in (("A100", "sglang-0.5.10"), ("H100", "trtllm-1.3.0rc20"), ("H100", "vllm-0.24.0"))
]
VERSIONS["rmsnorm"] = [
    ("A100", "profiler_warm", case | {"stack": "sarathi-2024.11"})
    for case in (
        {"kernel": "rmsnorm", "rows": 4096, "dim": 8192},
        {"kernel": "silu_and_mul", "rows": 4096, "dim": 8192},
    )
]
BRIDGED = ("A40", "A100 PCIe")
COLLECTIVES = ("all_reduce", "send_recv", "all_gather")


def probes(family: str, count: int = 300) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(GPU, protocol, case), seeded."""
    if family == "layers":
        yield from _layers()
        return
    yield from VERSIONS.get(family, ())
    pick = random.Random(family)
    for _ in range(2 * count if family == "fused_moe" else count):
        gpu, protocol, stack = pick.choice(GPUS), pick.choice(PROTOCOLS), pick.choice(STACKS)
        case = SIZES[family](pick) | ({"stack": stack} if stack else {})
        impl = pick.choice(IMPLS.get(case["kernel"], (None,)))
        yield (
            gpu,
            protocol,
            case | ({"impl": impl} if impl else {}) | {"dtype": pick.choice(TYPES.get(case["kernel"], ("bf16",)))},
        )


def _gemm(pick: random.Random) -> dict[str, Any]:
    k = pick.choice((4096, 4096 + 8, 4096 + 16, 4096 + 32, 8192 + 64, 2048))
    return {"kernel": "gemm", "m": pick.choice((1, 64, 1000, 4096)), "n": pick.choice((4096, 14336)), "k": k,
            "quantize": pick.random() < 0.4}  # fmt: skip


def _attention(pick: random.Random) -> dict[str, Any]:
    requests, length = pick.choice((1, 8, 64)), pick.choice((16, 128, 2048, 16384))
    lens = {"kv_lens": [length] * requests, "q_lens": [pick.choice((1, length))] * requests}
    if pick.random() < 0.2:
        phase = "generation" if set(lens["q_lens"]) == {1} else "context"
        return {"kernel": "mla", **lens, "heads": 16, "phase": phase}
    shape = {"heads": 32, "kv_heads": 8, "head_dim": pick.choice((64, 128, 192)), "causal": pick.random() < 0.7}
    return {"kernel": "attention", **lens, **shape, "kv_dtype": pick.choice((None, "fp8"))}


def _moe(pick: random.Random) -> dict[str, Any]:
    layers = [(*case.when["layer"], 0) for case in table()["moe_model"] if "layer" in case.when]
    usual = [(2048, 768, 8, 128, 0), (7168, 2048, 8, 256, 0), (2048, 704, 6, 64, 0), (4096, 14336, 2, 8, 0)]
    hidden, inter, topk, experts, _ = pick.choice(layers if pick.random() < 0.3 else usual)
    return {"kernel": "fused_moe", "tokens": pick.choice((1, 16, 128, 400, 4096)), "hidden": hidden, "inter": inter,
            "topk": topk, "experts": experts, "ep": pick.choice((1, 4)), "gated": pick.random() < 0.7}  # fmt: skip


def _layers() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Layers that newest versions give to kernels of their own."""
    layers = [case.when["layer"] for case in table()["moe_model"] if "layer" in case.when] + [(2048, 768, 8, 128)]
    stacks = ("sglang-0.5.14", "sglang-0.5.17", "vllm-0.24.0", "vllm-0.25.0")
    for (hidden, inter, topk, experts), stack, dtype in product(layers, stacks, TYPES["fused_moe"]):
        sizes = {"tokens": 64, "hidden": hidden, "inter": inter, "topk": topk, "experts": experts}
        yield "B200", "graph", {"kernel": "fused_moe", **sizes, "stack": stack, "dtype": dtype}


def _collective(pick: random.Random) -> dict[str, Any]:
    world = pick.choice((2, 4, 8, 16))
    return {"kernel": pick.choice(COLLECTIVES), "bytes": pick.choice((512, 1 << 20, 1 << 26)), "world": world,
            "nodes": max(1, world // 8)}  # fmt: skip


def _module(pick: random.Random) -> dict[str, Any]:
    phase, length = pick.choice(("context", "generation")), pick.choice((128, 1024, 4096))
    lens = {"kv_lens": [length] * 4, "q_lens": [1 if phase == "generation" else length] * 4}
    kind = pick.choice(("dsa", "csa", "mla"))
    return {"kernel": "attention_module", **lens, "heads": 16, "kind": kind, "phase": phase, "kv_dtype": "fp8"}


def _delta(pick: random.Random) -> dict[str, Any]:
    lens = [pick.choice((128, 1024, 4096))] * pick.choice((1, 4))
    return {"kernel": "delta_net", "q_lens": lens, "k_heads": 16, "v_heads": pick.choice((16, 32))}


def _conv(pick: random.Random) -> dict[str, Any]:
    lens = [pick.choice((1, 128, 4096))] * pick.choice((1, 64))
    return {"kernel": "causal_conv1d", "q_lens": lens, "channels": pick.choice((1024, 6144)), "width": 4}


def _norm(pick: random.Random) -> dict[str, Any]:
    return {
        "kernel": "rmsnorm",
        "rows": pick.choice((16, 4096)),
        "dim": pick.choice((4096, 4104)),
        "fused_add": pick.random() < 0.5,
    }


SIZES = {
    "rmsnorm": _norm,
    "causal_conv1d": _conv,
    "delta_net": _delta, "gemm": _gemm, "attention": _attention, "fused_moe": _moe, "collective": _collective, "attention_module": _module,
    "mla": _attention, "steps": lambda pick: pick.choice((_gemm, _attention, _moe))(pick),
}  # fmt: skip


@cache
def gpu_of(name: str) -> GPU:
    """A GPU, or one of those that a bridge joins in pairs."""
    return find(name).what_if(link="nvlink", link_gbps=56.0) if name in BRIDGED else find(name)


@cache
def answerable(family: str) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Probes that are answered, by GPU and protocol."""
    out: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for gpu, protocol, case in probes(family):
        if family == "steps":
            protocol = "serving"
        try:
            predict([from_dict(case)], gpu_of(gpu), protocol=protocol)
        except PipewaveError:
            continue
        out.setdefault((gpu, protocol), []).append(case)
    return out


Question = Callable[[], list[float]]


@cache
def questions(family: str) -> list[Question]:
    """What is asked together, of one GPU and protocol each; every one gives its answers anew."""
    if family == "changed":
        return [lambda: [*_chosen()]]
    asked: list[Question] = []
    if family == "steps":
        ours = "vllm_triton_attn"  # that a framework calls it, no shipped row says
        asked = [
            lambda: [write_back_s(0.5, 1e9, kernels.family_of("mla"), find("H200"), SCALAR)],  # no GPU has cold rows
            lambda: [write_back_s(0.5, 1e9, kernels.family_of("attention"), find("H100"), SCALAR, ours)],
            lambda: [write_back_s(0.5, 1e9, kernels.family_of("gemm"), find("MI300X"), SCALAR)],  # probes are NVIDIA's
        ]
    return asked + [partial(_answers, gpu, protocol, cases) for (gpu, protocol), cases in answerable(family).items()]


def _answers(gpu: str, protocol: str, cases: list[dict[str, Any]]) -> list[float]:
    found = predict(list(map(from_dict, cases)), gpu_of(gpu), protocol=protocol)
    return [*found.latency_us.tolist(), *found.low_us.tolist(), *found.ceiling_us.tolist()]


def _chosen() -> Iterator[float]:
    """Which of the versions known answers for one that is not, by what runs other kernels from a version on."""
    known = ("vllm-0.19.0", "vllm-0.24.0", "sglang-0.5.9", "sglang-0.5.14")
    for dtype, net, capability, asked in product(
        TYPES["gemm"],
        ("gemm", "gemm_fp8", "fused_moe"),
        (90, 100, 103, 120),
        ("vllm-0.21.0", "vllm-0.23.0", "sglang-0.5.13"),
    ):
        yield float(known.index(str(nearest(asked, known, changes(asked, dtype, net, capability)))))


def family_of(rule: str) -> str:
    """The probes that a rule may move."""
    own = {"moe_model": "layers", "changed_in": "changed"}
    return own.get(rule) or FAMILY.get(rule.partition("_")[0], "collective")
