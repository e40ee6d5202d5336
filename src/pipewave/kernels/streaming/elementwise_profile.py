"""How profiles show element-wise work: names of kernels, and operators whose arguments are read and written."""

from __future__ import annotations

from math import prod

from pipewave.calls.base import Call
from pipewave.calls.streaming import Elementwise
from pipewave.kernels.faces import KernelName, OperatorReader, Profile
from pipewave.kernels.launched import Given, Launched, Op, Shaped, Step
from pipewave.kernels.streaming.argmax import INDEX_BYTES
from pipewave.kernels.streaming.argmax import OP as ARGMAX
from pipewave.kernels.streaming.sampling_profile import WHOLE, by_name, exponential, softmax, whole

BINARY = ("add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_", "maximum")
UNARY = (
    "pow", "rsqrt", "sqrt", "neg", "abs", "exp", "log", "cos", "sin", "tanh", "sigmoid", "silu", "gelu", "relu",
    "clamp",
)  # fmt: skip
NAMES = (
    # Fusions of torch.compile carry the operators they fuse, or nothing.
    KernelName(20, r"^triton_\w*embedding\w*rms_norm|^triton_\w*embedding", "embedding_norm", "triton"),
    KernelName(23, r"^triton_red_|^triton_per_", "fused_reduction", "triton"),
    KernelName(23, r"^triton_poi_", "fused", "triton"),
    KernelName(
        71,
        r"topkGating|topk_softmax|moeSoftmax|moeTopK|grouped_topk|topk_sigmoid|biased_topk",
        "topk",
    ),
    KernelName(71, r"moe_fused_gate|fused_topk|^_topk_forward", "topk"),
    KernelName(91, r"rotary_embedding|ApplyRotary|[Rr]ope(?!rt)|apply_rotary", "rope", "vllm"),
    KernelName(
        91,
        r"reshape_and_cache|concat_and_cache|AppendPagedKVCache|store_kv|set_kv_buffer|set_mla_kv",
        "kv_write",
        "vllm",
    ),
    KernelName(
        91,
        r"scaled_fp8_quant|per_token_group_quant|per_token_quant|quantize_(kernel|with)|cvt_fp16_to_fp4|scaled_quant",
        "quantize",
    ),
    KernelName(
        91,
        r"argmax|ArgMax|[Ss]ampling|TopPRenorm|TopKMask|top_k_top_p|_topk_topp|softmax|SoftMax|multinomial|gumbel"
        r"|_temperature_kernel|_min_p_kernel|mbtopk|sbtopk",
        "sample",
    ),
    KernelName(
        91,
        r"^_(apply_write|prepare_|combine_sampled|gather_block|compute_slot|post_update|get_num_sampled)|slot_mapping|_assert_async",
        "bookkeeping",
    ),
    KernelName(
        91,
        r"req_to_token|flashinfer_kv_indices|^compute_position|^alloc_(extend|decode)|get_last_loc",
        "bookkeeping",
    ),
    KernelName(91, r"vectorized_gather_kernel|indexSelect|embedding|gather", "gather"),
    KernelName(91, r"index_elementwise|index_kernel", "index"),
    KernelName(111, r"^Memcpy|^memcpy\d*_|direct_copy|CatArray|copy_kernel", "copy"),
    KernelName(111, r"^Memset|FillFunctor|fill_kernel", "fill"),
    KernelName(111, r"reduce_kernel<.*sum_functor|reduce_kernel<.*Sum", "sum"),
    KernelName(
        111,
        r"elementwise_kernel|reduce_kernel|scan_kernel|arange|distribution_|CompareEq|_cumsum|[Ss]ort|cub::|multi_tensor",
        "pointwise",
    ),
)


def _whole_launch(launched: Launched, step: Step | None, given: Given) -> Shaped | None:
    """Copies and fills carry their bytes; operators that are one call carry their sizes, samplers their grids."""
    if (op := launched.op(*WHOLE)) and op.dims:
        call = whole(op, launched)
        return Shaped(op.name, call) if call else None
    if (call := by_name(launched)) is not None:
        return Shaped(call.op, call)
    role, size = launched.role, launched.head.arg("bytes")
    if not isinstance(size, int) or role not in ("copy", "fill"):
        return None
    return Shaped(role, Elementwise(size if role == "copy" else 0, size, op=role))


def _rope(op: Op, launched: Launched) -> Call:
    rows, moved = prod(op.shape(0)), op.bytes(1) + op.bytes(2)
    table = op.shape(4)[-1] if op.shape(4) else 0
    return Elementwise(moved, moved, weight_bytes=2 * rows * table, op="rope")


def _kv_write(op: Op, launched: Launched) -> Call:
    moved, slots = op.bytes(0) + op.bytes(1), op.bytes(4)
    cache = op.width(2) or 2
    return Elementwise(moved + slots, (prod(op.shape(0)) + prod(op.shape(1))) * cache, op="kv_write")


def _topk(op: Op, launched: Launched) -> Call:
    picks = op.shape(0)[-1] if op.shape(0) else 0
    return Elementwise(op.bytes(3), op.bytes(0) + op.bytes(1), op="topk", rounds=picks)


def _argmax(op: Op, launched: Launched) -> Call:
    return Elementwise(op.bytes(0), INDEX_BYTES * prod(op.shape(0)[:-1]), op=ARGMAX)


def _rows_of_table(op: Op, launched: Launched) -> Call:
    """aten::embedding and friends: chosen rows of a table, which come from DRAM."""
    table, index = op.shape(0), max(op.shape(1), op.shape(2), key=prod)
    row = table[-1] * op.width(0) if table else 0
    rows = prod(index) if index else 0
    return Elementwise(8 * rows, rows * row, weight_bytes=rows * row, op="embedding")


def _stream(read: tuple[int, ...], written: int | None, name: str) -> OperatorReader:
    """Arguments that are read, and the one as large as what is written (None: next to nothing is)."""

    def reader(op: Op, launched: Launched) -> Call:
        return Elementwise(sum(op.bytes(i) for i in read), 8 if written is None else op.bytes(written), op=name)

    return reader


def _binary(op: Op, launched: Launched) -> Call:
    sizes = [op.bytes(0), op.bytes(1)]
    return Elementwise(sum(sizes), max(sizes), op="pointwise")


def _quantise(x: int) -> OperatorReader:
    """One byte out for each value in."""

    def reader(op: Op, launched: Launched) -> Call:
        return Elementwise(op.bytes(x), prod(op.shape(x)), op="quantize")

    return reader


PROFILE = Profile(
    NAMES,
    group=_whole_launch,
    whole=tuple(WHOLE),
    anchors=("kv_write",),
    fusible=True,
    generated=True,
    operators={
        "_C::rotary_embedding": _rope,
        "_C_cache_ops::reshape_and_cache_flash": _kv_write,
        "_moe_C::topk_softmax": _topk,
        "_moe_C::topk_sigmoid": _topk,
        "_C::static_scaled_fp8_quant": _quantise(1),
        "_C::dynamic_scaled_fp8_quant": _quantise(1),
        "_C::dynamic_per_token_scaled_fp8_quant": _quantise(1),
        "_C::per_token_group_fp8_quant": _quantise(0),
        "sgl_kernel::sgl_per_token_quant_fp8": _quantise(0),
        "aten::embedding": _rows_of_table,
        "aten::index_select": _rows_of_table,
        "aten::copy_": _stream((1,), 0, "copy"),
        "aten::fill_": _stream((), 0, "fill"),
        "aten::argmax": _argmax,
        "aten::_softmax": softmax,
        "aten::_log_softmax": softmax,
        "aten::exponential_": exponential,
        **dict.fromkeys(("aten::sum", "aten::mean", "aten::amax"), _stream((0,), None, "sum")),
        **{f"aten::{name}": _binary for name in BINARY},
        **{f"aten::{name}": _stream((0,), 0, "pointwise") for name in UNARY},
    },
)
