"""Kernels of other projects, cut out of their wheels as they stand: `python -m lab.any_kernel.wheels`.

A wheel is downloaded without what it depends on; the functions named here are cut from one of its files, with
`triton.jit` and `triton.heuristics` on them and no other decorator, and written to `.cache/any_kernel/` as modules that
import Triton alone. Nothing of these projects is committed.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipewave.errors import BadFile

CACHE = Path(".cache/any_kernel")
HEADER = """import triton
import triton.language as tl
from triton.language.extra.libdevice import rsqrt, tanh

{constants}

"""


@dataclass(frozen=True)
class Cut:
    """What to cut: `functions` and module-level `constants` of one `file` of a wheel."""

    requirement: str
    file: str
    functions: tuple[str, ...]
    constants: tuple[str, ...] = ()
    stand_ins: str = ""  # functions of the language that the project renames
    helpers: tuple[str, str] = ("", "")  # another file of the wheel, and a function of it that these call
    bare: bool = False  # functions that the project compiles without a decorator


def _constants(**members: tuple[str, ...]) -> str:
    """Members of enumerations as the constants that kernels read, numbered from zero."""
    return "".join(f"{name}_{each} = tl.constexpr({number})\n"
                   for name, those in members.items() for number, each in enumerate(those))  # fmt: skip


CUTS = {
    "liger_rms_norm": Cut("liger-kernel==0.8.5", "liger_kernel/ops/rms_norm.py", ("_rms_norm_forward_kernel",),
                          ("_CASTING_MODE_NONE", "_CASTING_MODE_LLAMA", "_CASTING_MODE_GEMMA")),
    "liger_swiglu": Cut("liger-kernel==0.8.5", "liger_kernel/ops/swiglu.py", ("silu", "_swiglu_forward_kernel")),
    "liger_cross_entropy": Cut("liger-kernel==0.8.5", "liger_kernel/ops/cross_entropy.py",
                               ("liger_cross_entropy_kernel",), ("LOG2_E",)),
    "fla_chunk_o": Cut("fla-core==0.6.0", "fla/ops/common/chunk_o.py", ("chunk_fwd_kernel_o",), (),
                       "exp = tl.exp\nexp2 = tl.math.exp2\n", ("fla/ops/utils/op.py", "unflatten_program_id")),
    "fla_l2norm": Cut("fla-core==0.6.0", "fla/modules/norm/l2norm.py", ("l2norm_fwd_kernel",)),
    "sglang_prefill": Cut("sglang==0.5.14", "sglang/srt/layers/attention/triton_ops/prefill_attention.py",
                          ("_fwd_kernel",)),
    "torchao_int8_mm": Cut("torchao==0.18.0", "torchao/kernel/intmm_triton.py",
                           ("matmul_kernel_with_block_pointers",)),
    "unsloth_swiglu": Cut("unsloth==2026.10.9", "unsloth/kernels/swiglu.py", ("_fg_kernel",)),
    "flag_gems_mm": Cut("flag-gems==5.0.2", "flag_gems/ops/mm.py", ("prev_multiple_of", "mm_kernel_general"), (),
                        "tle = tl\n"),
    "vllm_fused_moe": Cut("vllm==0.22.1", "vllm/model_executor/layers/fused_moe/fused_moe.py",
                          ("write_zeros_to_output", "fused_moe_kernel")),
    "vllm_block_fp8": Cut("vllm==0.22.1", "vllm/model_executor/layers/quantization/utils/fp8_utils.py",
                          ("_w8a8_triton_block_scaled_mm",)),
    "sage_attention": Cut("sageattention==1.0.6", "sageattention/attn_qk_int8_per_block.py",
                          ("_attn_fwd_inner", "_attn_fwd")),
    "sglang_decode": Cut("sglang==0.5.14", "sglang/srt/layers/attention/triton_ops/decode_attention.py",
                         ("_fwd_grouped_kernel_stage1",)),
    "sglang_mamba_scan": Cut("sglang==0.5.14", "sglang/srt/layers/attention/mamba/ops/ssd_chunk_scan.py",
                             ("_chunk_scan_fwd_kernel",)),
    "cut_cross_entropy": Cut("cut-cross-entropy==25.1.1", "cut_cross_entropy/cce_lse_forward.py",
                             ("_cce_lse_forward_kernel",), (),
                             "from triton.language.extra import libdevice as tl_libdevice\n",
                             ("cut_cross_entropy/tl_utils.py", "tl_logaddexp"), bare=True),
    "fla_delta_state": Cut("fla-core==0.6.0", "fla/ops/common/chunk_delta_h.py",
                           ("chunk_gated_delta_rule_fwd_kernel_h_blockdim64",), (), "exp2 = tl.math.exp2\n"),
    "conch_w4a16": Cut("conch-triton-kernels==1.3", "conch/kernels/quantization/gemm.py", ("_gemm_kernel",), (),
                       _constants(_WEIGHT_GROUP_MODE=("NONE", "SHIFT", "SYMMETRIC_NO_SHIFT", "SYMMETRIC_WITH_SHIFT",
                                                      "ASYMMETRIC"),
                                  _LOAD_ORDER=("VERY_EARLY", "EARLY", "MID", "LATE"),
                                  _CHANNEL_SCALE_MODE=("NONE", "WEIGHT_ONLY", "ACTIVATION_ONLY",
                                                       "WEIGHT_AND_ACTIVATION"))),
    "mlstm": Cut("mlstm-kernels==2.0.6", "mlstm_kernels/triton/chunkwise/xl_chunk/fw_kernel_parallel.py",
                 ("mlstm_chunkwise__parallel_fw_Hintra_kernel",)),
}  # fmt: skip


def text_of(cut: Cut, file: str, wheels: Path, unpacked: Path | None = None) -> str:
    """A file to cut from: of an unpacked wheel, or of one that is downloaded."""
    if unpacked is not None and (unpacked / file).is_file():
        return (unpacked / file).read_text()
    name = cut.requirement.partition("==")[0].replace("-", "_")
    found = sorted(wheels.glob(f"{name}-*.whl"))
    if not found:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "-d",
                   str(wheels), cut.requirement]  # fmt: skip
        subprocess.run(command, check=True)
        found = sorted(wheels.glob(f"{name}-*.whl"))
    with zipfile.ZipFile(found[-1]) as wheel:
        return wheel.read(file).decode()


def module_text(cut: Cut, text: str) -> str:
    """The functions as a module of their own. BadFile where the file has none of them."""
    tree = ast.parse(text)
    constants = [ast.get_source_segment(text, node) or "" for node in tree.body
                 if isinstance(node, ast.Assign | ast.AnnAssign) and _names(node) & set(cut.constants)]  # fmt: skip
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    missing = [name for name in cut.functions if name not in functions]
    if missing:
        raise BadFile(f"{cut.requirement}: {cut.file} has no {missing[0]}", field="wheel")
    helpers = [name for name in _called(functions, cut.functions) if name not in cut.functions]
    bare = "@triton.jit\n" if cut.bare else ""
    bodies = [bare * (name in cut.functions) + _cut(text, functions[name]) for name in (*helpers, *cut.functions)]
    return HEADER.format(constants="\n".join([cut.stand_ins, *constants])) + "\n\n\n".join(bodies) + "\n"


def _names(node: ast.Assign | ast.AnnAssign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _called(functions: dict[str, ast.FunctionDef], wanted: Sequence[str]) -> list[str]:
    """Functions of the same file that the wanted ones call."""
    names = {node.func.id for name in wanted for node in ast.walk(functions[name])
             if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}  # fmt: skip
    return sorted(names & functions.keys())


def _cut(text: str, node: ast.FunctionDef) -> str:
    kept = [ast.get_source_segment(text, each) or "" for each in node.decorator_list
            if (ast.unparse(each).startswith(("triton.jit", "triton.heuristics")))]  # fmt: skip
    body = ast.get_source_segment(text, node) or ""
    return "\n".join([*(f"@{each}" for each in kept), body])


def load(name: str, cache: Path = CACHE) -> Any:
    """A module that was cut. BadFile where it was not."""
    path = cache / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"any_kernel_{name}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise BadFile(f"{path} is not there: `python -m lab.any_kernel.wheels`", field="cache")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main(argv: Sequence[str] | None = None) -> None:
    """Cut everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=CACHE)
    parser.add_argument("--unpacked", type=Path, help="folder of an unpacked wheel, instead of downloading it")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    for name, cut in CUTS.items():
        text = module_text(cut, text_of(cut, cut.file, options.out, options.unpacked))
        if cut.helpers[0]:
            helper = replace(cut, file=cut.helpers[0], functions=(cut.helpers[1],), constants=(), bare=False)
            before = module_text(helper, text_of(cut, helper.file, options.out, options.unpacked))
            text = before + "\n\n" + text
        (options.out / f"{name}.py").write_text(text)
        print(f"{name}: {', '.join(cut.functions)} of {cut.requirement}")


if __name__ == "__main__":
    main()
