"""The page as a user has it: `pipewave web` in a process of its own, and the Chromium to open it with."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from docs.tools.session import ROOT

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def browser_path() -> str | None:
    """Where a Chromium is: PIPEWAVE_BROWSER, or the first on PATH; None without one."""
    given = os.environ.get("PIPEWAVE_BROWSER")
    return given or next((found for name in BROWSERS if (found := shutil.which(name))), None)


def flags() -> list[str]:
    """What Chromium must be started with: it refuses to sandbox for root."""
    return ["--no-sandbox"] if os.geteuid() == 0 else []


@contextmanager
def served() -> Iterator[str]:
    """Address of `pipewave web` in a process of its own. RuntimeError when it ends without saying one."""
    command = [sys.executable, "-m", "pipewave", "web", "--port", "0", "--no-open"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    try:
        found = next((match for line in process.stdout or () if (match := re.search(r"http://\S+", line))), None)
        if not found:
            raise RuntimeError("the server ended without saying its address")
        yield found[0].rstrip("/")
    finally:
        process.terminate()
        process.communicate(timeout=20)
