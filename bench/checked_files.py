"""What comparing packaged files with the manifest costs a process: `python -m bench.checked_files`.

Every packaged file that a cold process reads for an estimate of a model is hashed and compared a second time, by the
clock of its CPU time: files, bytes, ms.
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

from pipewave.files import packaged


def measured() -> dict[str, float]:
    """Files read, their bytes, and ms of CPU to hash and compare them."""
    read, real = list[tuple[str, bytes]](), packaged.hashed

    def kept(path: Path) -> tuple[bytes, str]:
        raw, found = real(path)
        if (name := packaged.name_of(path)) is not None:
            read.append((name, raw))
        return raw, found

    packaged.hashed = kept
    import pipewave as pw

    pw.estimate("Llama-3.1-8B", "H200", batch=8, input_len=512, output_len=64)
    start = time.process_time()
    for name, raw in read:
        assert packaged.known()[name] == hashlib.sha256(raw).hexdigest()
    return {
        "files": len(read), "bytes": sum(len(raw) for _, raw in read), "ms": 1e3 * (time.process_time() - start)
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(measured()))
