"""Many people at one page: `python -m qa.chaos.users [--users 200] [--seconds 30]`.

Each user asks something of the page (the document, a list, a kernel over one field or two, a deployment under one batch
or under traffic) and thinks for three to nine seconds before the next question, which nobody asked before. Latencies
are from opening the connection to the last byte received; those of the first nine seconds, in which weights are read,
are left out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from typing import Any

THINKS_S = (3.0, 9.0)
WARM_UP_S = 9.0
SWEEP = {"field": "m", "from": 1, "to": 4096}


def question(pick: random.Random) -> tuple[str, str, dict[str, Any] | None]:
    """(method, path, body) of one question."""
    way = pick.random()
    if way < 0.15:
        return "GET", pick.choice(("/", "/kernel", "/api/gpus", "/api/models", "/api/kernels")), None
    if way < 0.7:
        case = {"n": 64 * pick.randrange(8, 256), "k": 64 * pick.randrange(8, 256)}
        gpus = pick.sample(["H200", "H100", "L40S", "B200"], 2)
        return "POST", "/api/kernel", {"kernel": "gemm", "case": case, "sweep": SWEEP, "gpus": gpus}
    query = {"model": "Llama-3.1-8B", "gpu": pick.choice(("H200", "H100")), "input_len": pick.randrange(64, 2048)}
    if way < 0.73:
        return "POST", "/api/traffic", query | {"output_len": 64, "requests": 100, "rate": pick.uniform(1.0, 20.0)}
    if way < 0.76:
        x, y = ({"field": name, "from": 1, "to": pick.randrange(64, 8192), "points": 24} for name in ("m", "n"))
        return "POST", "/api/grid", {"kernel": "gemm", "case": {"k": 4096}, "gpu": query["gpu"], "x": x, "y": y}
    return "POST", "/api/serve", query | {"output_len": 64, "batch": pick.randrange(1, 64)}


async def ask(port: int, pick: random.Random) -> int:
    """Send a question and read its answer; the status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    method, path, body = question(pick)
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Connection: close\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content)
    await writer.drain()
    answer = await reader.read()
    writer.close()
    return int(answer.split(b" ", 2)[1])


async def user(port: int, number: int, end: float, found: list[tuple[float, float, int]]) -> None:
    """One user until the end: (moment, seconds, status) of each answer."""
    pick = random.Random(number)
    await asyncio.sleep(pick.uniform(0, THINKS_S[1]))
    while (start := time.perf_counter()) < end:
        status = await ask(port, pick)
        found.append((start, time.perf_counter() - start, status))
        await asyncio.sleep(pick.uniform(*THINKS_S))


async def crowd(port: int, users: int, seconds: float) -> dict[str, Any]:
    """Figures of all answers after the warm-up."""
    found: list[tuple[float, float, int]] = []
    begin = time.perf_counter()
    end = begin + WARM_UP_S + seconds
    await asyncio.gather(*(user(port, number, end, found) for number in range(users)))
    kept = sorted(took for start, took, _ in found if start > begin + WARM_UP_S)
    return {
        "users": users,
        "answers": len(kept),
        "refused": sum(status != 200 for *_, status in found),
        "p50_ms": round(1e3 * kept[len(kept) // 2], 1),
        "p99_ms": round(1e3 * kept[int(0.99 * len(kept))], 1),
        "worst_ms": round(1e3 * kept[-1], 1),
    }


def run(users: int, seconds: float) -> dict[str, Any]:
    """Figures of a page that is started for it."""
    command = [sys.executable, "-m", "pipewave", "web", "--port", "0", "--no-open"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            said = next(line for line in server.stderr if "pipewave at" in line)
            port = int(said.split("127.0.0.1:")[1].split("/")[0])
            return asyncio.run(crowd(port, users, seconds))
        finally:
            server.terminate()


def main() -> int:
    """Print the figures; 1 where one answer in a hundred took over half a second, or was no answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    found = run(options.users, options.seconds)
    print(json.dumps(found))
    return 1 if found["refused"] or found["p99_ms"] > 500 else 0


if __name__ == "__main__":
    sys.exit(main())
