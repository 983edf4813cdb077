"""The machine under the benchmark: what it is, and whether it is free."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUSY = 0.15  # from this share of the processors on, other work disturbs the figures


def busy_share(seconds: float = 2.0) -> float | None:
    """The share of all processors that is in use now, or None where the system does not tell."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return min(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)) if hasattr(os, "getloadavg") else None

    def sample() -> tuple[int, int]:
        times = [int(word) for word in stat.read_text().split("\n", 1)[0].split()[1:9]]
        return sum(times), times[3] + times[4]  # all, idle

    all_before, idle_before = sample()
    time.sleep(seconds)
    all_after, idle_after = sample()
    return 1 - (idle_after - idle_before) / max(1, all_after - all_before)


def processor() -> str:
    """Its model, where the system tells."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def revision() -> str:
    """The commit that is checked out, with a ``+`` when files differ from it."""
    try:
        commit = _git("rev-parse", "--short", "HEAD")
        return commit + ("+" if _git("status", "--porcelain", "--", "package", "web", "bench") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


class GpuClock:
    """Processor time, a core's share, of the GPU processes of browsers that this process started (Linux)."""

    def milliseconds(self) -> float:
        """The time so far."""
        spent = 0
        for process in Path("/proc").glob("[0-9]*"):
            try:
                gpu = b"--type=gpu-process" in (process / "cmdline").read_bytes()
                if gpu and self._ours(int(process.name)):
                    for thread in process.glob("task/*/schedstat"):
                        spent += int(thread.read_text().split()[0])
            except OSError:
                continue
        return spent / 1e6 / (os.cpu_count() or 1)

    def _ours(self, process: int) -> bool:
        while process > 1:
            if process == os.getpid():
                return True
            process = int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])
        return False
