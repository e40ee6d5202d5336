"""`pipewave tune`: read and profile kernels, explain choices, and write files for engines."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

from pipewave.cli.command import Argument, Group, Option
from pipewave.cli.options import AsJson, Ep, Model, Tp
from pipewave.cli.streams import print_json, say
from pipewave.errors import BadInput

Kernel = Annotated[str, Argument(help="Kernel name, such as gemm, moe_w13 or decode_128.")]
OwnKernel = Annotated[str, Argument(metavar="KERNEL", help="FILE.py:kernel")]
Gpu = Annotated[str, Option("--gpu", help="Whose table.")]
File = Annotated[Path | None, Option("--table", help="A table file instead of the shipped one.")]


def inspect(
    kernel: Annotated[str, Argument(help="FILE.py:function of any `triton.jit` kernel.")],
    grid: Annotated[str, Option(help="Blocks of a launch: `cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N)`.")],
    args: Annotated[list[str], Option("--arg", help="M=4096 or x=bf16[4096,4096]; repeatable.")] = [],  # noqa: B006
    config: Annotated[str, Option(help="BLOCK_M=128,BLOCK_N=64,num_warps=4")] = "",
    as_json: AsJson = False,
) -> None:
    """What a kernel's source says of a launch: loops and their turns, bytes, FLOPs, and what it does not say.

    Example: `pipewave tune inspect matmul.py:matmul --grid "cdiv(M, BM) * cdiv(N, BN)" --arg M=512 --arg N=512
    --arg K=512 --arg a=bf16[512,512] --config BM=64,BN=64,BK=32`. Runs the file, as an import would.
    """
    from pipewave.cli.streams import show
    from pipewave.tune.source.inspect import arguments, load, understood

    words = [word for word in config.split(",") if word]
    found = understood(load(kernel), grid, arguments(args), arguments(words))
    if as_json:
        print_json(found)
        return
    lists = {name: found.pop(name) for name in ("loops", "unknown")}
    show([{name: value for name, value in found.items() if name != "grid"}], "table", title=kernel)
    for name, rows in lists.items():
        if rows:
            show(rows, "table", title=name)


def rank(
    kernel: OwnKernel,
    gpu: Annotated[str, Option("--gpu", help="Any GPU that pipewave knows.")],
    grid: Annotated[str, Option(help="Blocks of a launch: `cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N)`.")] = "",
    args: Annotated[list[str], Option("--arg", help="M=4096 or x=bf16[4096,4096]; repeatable.")] = [],  # noqa: B006
    shapes: Annotated[Path | None, Option(help="Several launches instead, as JSON.")] = None,
    top: Annotated[int, Option(min=1, help="Configurations to show.")] = 8,
    as_json: AsJson = False,
) -> None:
    """Which configurations to time first, without a GPU: compiled here, ranked by registers, memory and physics.

    Example: `pipewave tune rank matmul.py:matmul --gpu B200 --grid "cdiv(M, BM) * cdiv(N, BN)" --arg M=512 --arg N=512
    --arg K=512 --arg a=bf16[512,512] …`. Runs the file, as an import would, and compiles each configuration.
    """
    from pipewave.cli.streams import show
    from pipewave.cli.tuning import ranked_rows

    rows, note = ranked_rows(kernel, gpu, grid, args, shapes, top)
    if as_json:
        print_json({"kernel": kernel, "gpu": gpu, "candidates": rows, **note})
        return
    show(rows, "table", title=f"{kernel} on {gpu}: what to time first")
    mean, most = note["loss_mean"], note["loss_p90"]
    print(f"timing these {len(rows)} loses {mean:.1%} on average, under {most:.1%} at nine of ten recorded launches")


def profile(
    kernel: OwnKernel,
    out: Annotated[Path | None, Option(help="Folder of tables; default: your own.")] = None,
    seconds: Annotated[float, Option(help="Seconds of timing.")] = 120.0,
    shapes: Annotated[Path | None, Option(help="Launches, as JSON.")] = None,
    log: Annotated[Path | None, Option("--from-log", help="Launches noted under PIPEWAVE_TUNE_LOG.")] = None,
) -> None:
    """Measure launches of a kernel on this GPU, resumable, and make its table (needs torch, triton and a GPU)."""
    from pipewave.cli.tuning import own_profile

    print(own_profile(kernel, shapes, log, out, seconds))


def explain(
    kernel: Kernel,
    shape: Annotated[list[str], Argument(help="Shape fields, such as m=300,n=4096,k=4096.")],
    gpu: Gpu = "H200",
    file: File = None,
    rows: Annotated[int, Option(help="Candidates to show.")] = 8,
    as_json: AsJson = False,
) -> None:
    """Rank configurations at a shape: predicted µs, waves, what the time is made of, and how sure the choice is."""
    from pipewave.cli.streams import show
    from pipewave.cli.tuning import candidate_rows, fields_of
    from pipewave.tune import load_table
    from pipewave.tune.explain import explain as explained

    fields = ",".join(shape)
    answer = explained(load_table(kernel, gpu=gpu, path=file, env={}), fields_of(fields), rows)
    if as_json:
        print_json(answer)
        return
    names = tuple(answer["chosen"])
    show(candidate_rows(answer["candidates"], names), "table", title=f"{kernel} {fields}: {answer['provenance']}")
    print(f"configuration: {' · '.join(names)}")
    print(
        f"regret at most {answer['regret_bound']:.1%} (two sigma); speed-up over the default {answer['speed_up']:.2f}×"
    )


def export(
    experts: Annotated[int, Option("--experts", "-e", help="Experts on one GPU.")],
    inter: Annotated[int, Option("--inter", "-n", help="Intermediate size on one GPU (N of the file name).")],
    top_k: Annotated[int, Option("--top-k", help="Experts a token chooses.")],
    hidden: Annotated[int, Option("--hidden", help="Hidden size.")],
    vllm: Annotated[bool, Option("--vllm", help="Write vLLM's file.")] = False,
    sglang: Annotated[bool, Option("--sglang", help="Write SGLang's two files.")] = False,
    out: Annotated[Path, Option(help="Folder to write to.")] = Path(),
    gpu: Gpu = "H200",
    most: Annotated[int, Option(help="Most tokens of a step.")] = 8192,
) -> None:
    """Write fused-MoE configuration files whose nearest-M look-up is right at every M."""
    from pipewave.tune import export as exporting
    from pipewave.tune import load_table

    if not vllm and not sglang:
        raise BadInput("say --vllm or --sglang", field="vllm")
    up, down = (load_table(name, gpu=gpu, env={}) for name in ("moe_w13", "moe_w2"))
    layer = exporting.Layer(experts, top_k, hidden, inter)
    device, triton = up.meta["env"]["gpu"], up.meta["env"]["triton"]
    if vllm:
        print(exporting.write(exporting.vllm(up, down, layer, most), out / exporting.vllm_name(layer, device)))
    if sglang:
        for body, is_down in zip(exporting.sglang(up, down, layer, most), (False, True), strict=True):
            print(exporting.write(body, out / exporting.sglang_name(layer, device, triton, down=is_down)))


def engine(
    name: Annotated[str, Argument(metavar="ENGINE", help="vllm or sglang.")],
    model: Model,
    tp: Tp = 1,
    ep: Ep = 1,
    out: Annotated[Path, Option(help="Folder to write to.")] = Path("configs"),
    most: Annotated[int, Option(help="Most tokens of a step.")] = 8192,
    only_list: Annotated[bool, Option("--list", help="Only say which files the engine looks up.")] = False,
    gpu: Gpu = "NVIDIA H200",
    as_json: AsJson = False,
) -> None:
    """Write every configuration file that an engine looks up for a model on this GPU, profiled on its own kernels."""
    from pipewave.cli.streams import show
    from pipewave.cli.tuning import engine_rows, need_gpu
    from pipewave.models import load
    from pipewave.tune.engine.lookups import lookups

    wanted = lookups(load(model), tp, name, ep)
    if only_list:
        rows = engine_rows(wanted, gpu)
    else:
        need_gpu()
        from pipewave.tune.engine.deploying import write_all
        from pipewave.tune.engine.gpu import GpuTimer

        with redirect_stdout(sys.stderr):  # engines print there, too
            rows = write_all(wanted, GpuTimer(name), out, most, say)
    if as_json:
        print_json({"files": rows})
        return
    show([{key: value for key, value in row.items() if not isinstance(value, list)} for row in rows], "table")


def check(
    kernel: OwnKernel,
    file: File = None,
    log: Annotated[Path | None, Option("--from-log", help="Launches noted under PIPEWAVE_TUNE_LOG.")] = None,
    as_json: AsJson = False,
) -> None:
    """Time a few launches of a table again on this GPU: valid, rescale or re-profile."""
    from dataclasses import asdict

    from pipewave.cli.tuning import own_check, verdict_text

    verdict = own_check(kernel, file, log)
    print_json(asdict(verdict)) if as_json else print(verdict_text(verdict))


def reachable(
    kernel: Kernel,
    shape: Annotated[str, Argument(help="Fixed fields and one range: m=1:8192,n=4096,k=4096 (LOW:HIGH[:STEP]).")],
    gpu: Gpu = "H200",
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """List every configuration a range of shapes can reach, to compile ahead; and how few would do."""
    from pipewave.cli.streams import show
    from pipewave.cli.tuning import compact, range_of, reach_rows
    from pipewave.tune import load_table

    loaded = load_table(kernel, gpu=gpu, path=file, env={})
    vary, points, fixed = range_of(shape)
    rows, few = reach_rows(loaded, vary, points, fixed)
    if as_json:
        print_json({"configurations": rows, "fewer": few})
        return
    names = tuple(dict(loaded.configs[0]))
    show([compact(row, names) for row in rows], "table", title=f"{len(rows)} configurations: {' · '.join(names)}")
    show(few, "table", title="fewer, with their predicted worst regret over the range")


GROUP = Group(
    "Choose Triton configurations: explain, inspect, rank, profile, export, …",
    {one.__name__: one for one in (inspect, rank, profile, explain, export, engine, check, reachable)},
)
