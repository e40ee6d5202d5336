"""Exports of Nsight Systems made from a trace of torch.profiler, in the tables that NVIDIA's schema reference names.

Names of ranges are those that `torch.autograd.profiler.emit_nvtx(record_shapes=True)` writes. So a run that one tool
recorded can be read as if both had.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_GPU (vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, busLocation TEXT, smCount INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
    globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, launchType INTEGER,
    cacheConfig INTEGER, registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, gridY INTEGER NOT NULL,
    gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL,
    staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL, graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, srcKind INTEGER, dstKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    value INTEGER NOT NULL, bytes INTEGER NOT NULL, memKind INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
    category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER);
"""
COPY_KINDS = {"HtoD": 1, "DtoH": 2, "DtoD": 8}
GPU_TRACE = (
    "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),"
    "Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name"
)
EXECUTED = (
    "API Start (ns),API Dur (ns),Queue Start (ns),Queue Dur (ns),Kernel Start (ns),Kernel Dur (ns),Total Dur (ns),PID,"
    "TID,DevId,API Function,GridXYZ,BlockXYZ,Kernel Name"
)


def events(path: Path) -> tuple[str, list[dict[str, Any]]]:
    """(GPU, complete events) of a Chrome trace."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    found = [e for e in document["traceEvents"] if e.get("ph") == "X" and isinstance(e.get("cat"), str)]
    return document["deviceProperties"][0]["name"], found


def ns(us: float) -> int:
    return round(1000 * us)


def sqlite(path: Path, out: Path) -> Path:
    """The trace as `nsys export --type sqlite` would write it."""
    gpu, found = events(path)
    base = sqlite3.connect(out)
    base.executescript(SCHEMA)
    strings: dict[str, int] = {}

    def number(text: str) -> int:
        return strings.setdefault(text, len(strings) + 1)

    base.execute("INSERT INTO TARGET_INFO_GPU (vmId, id, name) VALUES (0, 0, ?)", (gpu,))
    for event in found:
        _insert(base, event, number)
    base.executemany("INSERT INTO StringIds VALUES (?, ?)", [(n, text) for text, n in strings.items()])
    base.commit()
    base.close()
    return out


def _insert(base: sqlite3.Connection, event: dict[str, Any], number: Any) -> None:
    start, end, args = ns(event["ts"]), ns(event["ts"] + event["dur"]), event.get("args", {})
    always = (start, end, 0, 1, args.get("stream", 7), args.get("correlation"))
    if event["cat"] == "kernel":
        name = number(event["name"])
        base.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,?,?,?,?,1,?,?,NULL,NULL,NULL,32,?,?,?,?,?,?,0,0,NULL)",
            (*always, name, name, *args["grid"], *args["block"]),
        )
    elif event["cat"] == "gpu_memcpy":
        kind = next(n for words, n in COPY_KINDS.items() if words in event["name"])
        base.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?,?,?,?,?,?,1,?,?,0,0)", (*always, args["bytes"], kind)
        )
    elif event["cat"] == "gpu_memset":
        base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (?,?,?,?,?,?,1,0,?,0)", (*always, args["bytes"]))
    elif event["cat"] in ("cuda_runtime", "cuda_driver"):
        row = (start, end, event["tid"], args.get("correlation"), number(event["name"] + "_v7000"))
        base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,0,?,?,?,0,NULL)", row)
    elif event["cat"] in ("cpu_op", "user_annotation", "python_function"):
        text = (start, end, event["tid"], number(said(event)))
        base.execute("INSERT INTO NVTX_EVENTS VALUES (?,?,59,NULL,NULL,NULL,NULL,?,NULL,?,0)", text)


def said(event: dict[str, Any]) -> str:
    """The name of an operator's range with the sizes of its arguments."""
    sizes = event.get("args", {}).get("Input Dims")
    if event["cat"] != "cpu_op" or sizes is None:
        return str(event["name"])
    return f"{event['name']}, seq = 5, op_id = 12, sizes = {json.dumps(sizes)}, input_op_ids = [(11,0)]"


def tables(path: Path, *, launches: bool = True) -> str:
    """The trace as `nsys stats --report cuda_gpu_trace,cuda_kern_exec_trace --format csv` prints it."""
    gpu, found = events(path)
    text = io.StringIO()
    text.write("Processing [trace.sqlite] with [cuda_gpu_trace.py]...\n\n" + GPU_TRACE + "\n")
    csv.writer(text, lineterminator="\n").writerows(_work(found, gpu))
    if launches:
        text.write("\nProcessing [trace.sqlite] with [cuda_kern_exec_trace.py]...\n\n" + EXECUTED + "\n")
        csv.writer(text, lineterminator="\n").writerows(_executed(found))
    return text.getvalue()


def _work(found: list[dict[str, Any]], gpu: str) -> Iterator[list[Any]]:
    for e in found:
        args, nothing = e.get("args", {}), [""] * 6
        start, duration = ns(e["ts"]), ns(e["ts"] + e["dur"]) - ns(e["ts"])
        tail = ["", "", "", f"{gpu} (0)", 1, "", args.get("stream", 7)]
        if e["cat"] == "kernel":
            yield [start, duration, args["correlation"], *args["grid"], *args["block"], 32, 0, 0, "", *tail, e["name"]]
        elif e["cat"] in ("gpu_memcpy", "gpu_memset"):
            way = "memcpy Device-to-Host" if e["cat"] == "gpu_memcpy" else "memset"
            size = f"{args['bytes'] / 1e6:.6f}"
            yield [start, duration, args["correlation"], *nothing, "", "", "", size, *tail, f"[CUDA {way}]"]


def _executed(found: list[dict[str, Any]]) -> Iterator[list[Any]]:
    calls = {e["args"]["correlation"]: e for e in found if e["cat"] in ("cuda_runtime", "cuda_driver") and "args" in e
             and "correlation" in e["args"]}  # fmt: skip
    for e in found:
        if e["cat"] == "kernel":
            call, args = calls[e["args"]["correlation"]], e["args"]
            called, returned = ns(call["ts"]), ns(call["ts"] + call["dur"])
            start, duration = ns(e["ts"]), ns(e["ts"] + e["dur"]) - ns(e["ts"])
            grid, block = (" ".join(map(str, args[name])) for name in ("grid", "block"))
            yield [called, returned - called, returned, start - returned, start, duration, 0, 1, call["tid"], 0,
                   call["name"], grid, block, e["name"]]  # fmt: skip


def ncu_wide(kernels: int) -> str:
    """So many kernels as `ncu --csv --page raw` prints them."""
    head = '"ID","Kernel Name","Block Size","Grid Size","device__attribute_display_name","gpu__time_duration.sum"\n'
    rows = (
        f'"{i}","void gemm<float, {i}>(int)","(128, 1, 1)","({i + 1}, 1, 1)","NVIDIA H200","1,{i:03}.25"\n'
        for i in range(kernels)
    )
    return head + '"","","","","","ns"\n' + "".join(rows)


def ncu_long(kernels: int) -> str:
    """So many kernels as `ncu --csv` prints them, three metrics each."""
    head = '"ID","Kernel Name","Block Size","Grid Size","Section Name","Metric Name","Metric Unit","Metric Value"\n'
    metrics = (("Duration", "ns", "1,234"), ("SM Frequency", "Ghz", "1.7"), ("Memory Throughput", "%", "55.1"))
    rows = (
        f'"{i}","void gemm(int)","(128, 1, 1)","(4, 1, 1)","GPU Speed Of Light","{name}","{unit}","{value}"\n'
        for i in range(kernels)
        for name, unit, value in metrics
    )
    return head + "".join(rows)
