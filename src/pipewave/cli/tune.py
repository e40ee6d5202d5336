"""`pipewave tune`: read and profile kernels, explain choices, and write files for engines."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

from pipewave.cli.command import Argument, Group, Option
from pipewave.cli.measure import need_gpu
from pipewave.cli.options import AsJson, Ep, Model, Tp
from pipewave.cli.streams import print_json, say, show
from pipewave.errors import BadInput

MOST_POINTS = 1_000_000  # of a range: each is a choice of some microseconds

Kernel = Annotated[str, Argument(help="Kernel name, such as gemm, moe_w13 or decode_128.")]
OwnKernel = Annotated[str, Argument(metavar="KERNEL", help="FILE.py:kernel")]
Gpu = Annotated[str, Option("--gpu", help="Whose table.")]
File = Annotated[Path | None, Option("--table", help="A table file instead of the shipped one.")]
Log = Annotated[Path | None, Option("--from-log", help="Launches noted under PIPEWAVE_TUNE_LOG.")]
Arguments = Annotated[list[str], Option("--arg", help="M=4096 or x=bf16[4096,4096]; repeatable.")]


def inspect(
    kernel: Annotated[str, Argument(help="FILE.py:function of any `triton.jit` kernel.")],
    grid: Annotated[str, Option(help="Blocks of a launch: `cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N)`.")],
    args: Arguments = [],  # noqa: B006
    config: Annotated[str, Option(help="BLOCK_M=128,BLOCK_N=64,num_warps=4")] = "",
    as_json: AsJson = False,
) -> None:
    """What a kernel's source says of a launch: loops and their turns, bytes, FLOPs, and what it does not say.

    Example: `pipewave tune inspect matmul.py:matmul --grid "cdiv(M, BM) * cdiv(N, BN)" --arg M=512 --arg N=512
    --arg K=512 --arg a=bf16[512,512] --config BM=64,BN=64,BK=32`. Runs the file, as an import would.
    """
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
    gpu: Annotated[str, Option("--gpu", help="Any GPU of NVIDIA that pipewave knows.")],
    grid: Annotated[str, Option(help="Blocks of a launch: `cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N)`.")] = "",
    args: Arguments = [],  # noqa: B006
    shapes: Annotated[Path | None, Option(help="Several launches instead, as JSON.")] = None,
    top: Annotated[int, Option(min=1, help="Configurations to show.")] = 8,
    as_json: AsJson = False,
) -> None:
    """Which configurations to time first, without a GPU: compiled here, ranked by registers, memory and physics.

    Example: `pipewave tune rank matmul.py:matmul --gpu B200 --grid "cdiv(M, BM) * cdiv(N, BN)" --arg M=512 --arg N=512
    --arg K=512 --arg a=bf16[512,512] …`. Runs the file, as an import would, and compiles each configuration.
    """
    from pipewave.tune import rank as ranking
    from pipewave.tune.source.inspect import arguments, expression_grid
    from pipewave.tune.user_kernels.offline import from_shapes

    if (shapes is None) == (not grid) or (shapes and args):
        raise BadInput("say --grid and --arg of one launch, or --shapes of several", field="grid")
    one_launch = [] if shapes else [(expression_grid(grid), arguments(args))]
    launches = [(one.grid, one.args) for one in from_shapes(shapes)] if shapes else one_launch
    found = ranking.rank(ranking.kernel_of(kernel), launches, gpu)
    mean, most = ranking.loss_of(min(top, len(found))) if top < len(found) else (0.0, 0.0)
    rows = found[:top]
    if as_json:
        print_json({"kernel": kernel, "gpu": gpu, "candidates": rows, "loss_mean": mean, "loss_p90": most})
        return
    show(rows, "table", title=f"{kernel} on {gpu}: what to time first")
    print(f"timing these {len(rows)} loses {mean:.1%} on average, under {most:.1%} at nine of ten recorded launches")


def profile(
    kernel: OwnKernel,
    out: Annotated[Path | None, Option(help="Folder of tables; default: your own.")] = None,
    seconds: Annotated[float, Option(help="Seconds of timing.")] = 120.0,
    shapes: Annotated[Path | None, Option(help="Launches, as JSON.")] = None,
    log: Log = None,
) -> None:
    """Measure launches of a kernel on this GPU, resumable, and make its table (needs torch, triton and a GPU)."""
    from pipewave.tune.user_kernels import offline

    device = _device()
    found = offline.kernel_of(kernel, device, out or True)
    path = offline.measure_all(found, _launches(found, shapes, log), device, offline.on_cuda, seconds)
    print(path or "nothing could be measured")


def explain(
    kernel: Kernel,
    shape: Annotated[list[str], Argument(help="Shape fields, such as m=300,n=4096,k=4096.")],
    gpu: Gpu = "H200",
    file: File = None,
    rows: Annotated[int, Option(help="Candidates to show.")] = 8,
    transfer: Annotated[bool, Option("--transfer", help="Without a table of the GPU: the H200's, by physics.")] = False,
    as_json: AsJson = False,
) -> None:
    """Rank configurations at a shape: predicted µs, waves, what the time is made of, and how sure the choice is."""
    from pipewave.tune import tables
    from pipewave.tune.law.wave import PARTS

    fields = ",".join(shape)
    table = tables.load_table(kernel, gpu=gpu, path=file, env={}, transfer=transfer)
    answer = tables.explain(table, _fields_of(fields), rows)
    if as_json:
        print_json(answer)
        return
    names = tuple(answer["chosen"])
    candidates = [{"configuration": _compact(row, names)["configuration"], "µs": row["us"], "±": row["within_us"],
                   **{f"{part} %": round(100 * row[part]) for part in PARTS}, "": row["is"]}
                  for row in answer["candidates"]]  # fmt: skip
    show(candidates, "table", title=f"{kernel} {fields}: {answer['provenance']}")
    print(f"configuration: {' · '.join(names)}")
    regret, faster = answer["regret_bound"], answer["speed_up"]
    print(f"regret at most {regret:.1%} (two sigma); speed-up over the default {faster:.2f}×")


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
        print(exporting.write(exporting.vllm(up, down, layer, most), out / layer.file("vllm", device)))
    if sglang:
        folder = out / f"triton_{triton.replace('.', '_')}"
        for body, is_down in zip(exporting.sglang(up, down, layer, most), (False, True), strict=True):
            print(exporting.write(body, folder / layer.file("sglang", device, down=is_down)))


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
    from pipewave.models import load
    from pipewave.tune.engine.lookups import file_name, lookups, rules

    wanted = lookups(load(model), tp, name, ep)
    if only_list:
        rows = [{"used by": ", ".join(of.used_by), "file": file_name(of, gpu),
                 "found by": rules()[of.engine][of.kind]["found_by"]} for of in wanted]  # fmt: skip
    else:
        need_gpu("triton")
        from pipewave.tune.engine.gpu import GpuTimer
        from pipewave.tune.engine.profiling import write_all

        with redirect_stdout(sys.stderr):  # engines print there, too
            rows = write_all(wanted, GpuTimer(name), out, most, say)
    if as_json:
        print_json({"files": rows})
        return
    show([{key: value for key, value in row.items() if not isinstance(value, list)} for row in rows], "table")


def reachable(
    kernel: Kernel,
    shape: Annotated[str, Argument(help="Fixed fields and one range: m=1:8192,n=4096,k=4096 (LOW:HIGH[:STEP]).")],
    gpu: Gpu = "H200",
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """List every configuration a range of shapes can reach, to compile ahead."""
    from pipewave.tune import tables

    loaded = tables.load_table(kernel, gpu=gpu, path=file, env={})
    vary, points, fixed = _range_of(shape)
    rows = [{**dict(config), vary: " ".join(f"{a}-{b}" if a < b else str(a) for a, b in intervals)}
            for config, intervals in tables.reachable(loaded, vary, points, **fixed).items()]  # fmt: skip
    if as_json:
        print_json({"configurations": rows})
        return
    names = tuple(dict(loaded.configs[0]))
    show([_compact(row, names) for row in rows], "table", title=f"{len(rows)} configurations: {' · '.join(names)}")


def _fields_of(text: str) -> dict[str, int]:
    """Parse `m=300,n=4096`. Raises BadInput where a part is not name=integer, or an integer below one."""
    try:
        found = {name.strip(): int(value) for name, _, value in (part.partition("=") for part in text.split(","))}
    except ValueError:
        raise BadInput(f"shape {text!r}: write name=integer, separated by commas, such as m=300,n=4096,k=4096",
                       field="shape") from None  # fmt: skip
    for name, value in found.items():
        if value < 1:
            raise BadInput(f"{name} = {value}: must be at least 1", field=name)
    return found


def _range_of(text: str) -> tuple[str, range, dict[str, int]]:
    """Parse fixed fields and one range `name=LOW:HIGH[:STEP]`; HIGH belongs to it. Raises BadInput for no range,
    several, one of no values or too many, and for what is not a number.
    """
    parts = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
    ranges = {name: value for name, value in parts.items() if ":" in value}
    if len(ranges) != 1:
        raise BadInput(f"shape {text!r}: give exactly one field a range, such as m=1:8192", field="shape")
    ((name, value),) = ranges.items()
    fixed = _fields_of(",".join(f"{n}={v}" for n, v in parts.items() if n != name)) if len(parts) > 1 else {}
    try:
        low, high, *step = (int(number) for number in value.split(":"))
        points = range(low, high + 1, *step)
    except (ValueError, TypeError):
        raise BadInput(f"{name} = {value!r}: write LOW:HIGH or LOW:HIGH:STEP", field=name) from None
    if not 0 < len(points) <= MOST_POINTS:
        raise BadInput(f"{name} = {value!r}: holds {len(points):,} values, not 1 to {MOST_POINTS:,}", field=name)
    return name, points, fixed


def _compact(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Put a row's parameters into one column, `128·64·64·4·3·1`, so that the row fits 80 columns."""
    rest = {name: value for name, value in row.items() if name not in names}
    return {"configuration": "·".join(str(row[name]) for name in names), **rest}


def _device() -> Any:
    need_gpu("triton")
    from pipewave.tune.user_kernels import gpu

    return gpu.current()


def _launches(kernel: Any, shapes: Path | None, log: Path | None) -> list[Any]:
    from pipewave.tune.user_kernels import offline

    if (shapes is None) == (log is None):
        raise BadInput("say --shapes FILE or --from-log FILE: which launches to measure", field="shapes")
    return offline.from_shapes(shapes) if shapes else offline.from_log(Path(str(log)), kernel)


GROUP = Group(
    "Choose Triton configurations: explain, inspect, rank, profile, export, …",
    {one.__name__: one for one in (inspect, rank, profile, explain, export, engine, reachable)},
)
