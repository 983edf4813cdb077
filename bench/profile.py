"""Where a training step's time goes on the page's adapter: ``python -m bench.profile W3 [--top=N]``.

Every kernel of the step is dispatched many times in a row in one pass of its own, so the times do not overlap
and leave out submission and readback. Inputs are the workload's first batch. Where the adapter is software,
times are processor time of the browser's GPU process over the number of cores: other work of the machine does
not disturb them.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from bench import bundle, machine, session
from bench.session import Session
from bench.static import kernel_flops, measure
from bench.workloads import WORKLOADS
from demo.serve import DevServer


async def profile(name: str, repeat: int) -> dict[str, Any]:
    """``{"step": ms, "empty": ms, "kernels": [ms]}`` of one workload."""
    bundle.ensure_bundles()
    wheel = bundle.copy_wheel()
    with DevServer() as server:
        async with Session(server.url, wheel) as page:
            if page.adapter["architecture"] == "swiftshader":
                await page.expose("gpuMilliseconds", machine.GpuClock().milliseconds)
            await page.open("webgrad")
            await page.call("giveTask", name, session.task(name))
            made = await page.call("create", "webgrad", name)
            result: dict[str, Any] = await page.call("profile", "webgrad", name, repeat)
            return {**result, "stages": made["stages"]}


def table(name: str, times: dict[str, Any], top: int) -> str:
    """Kernels from the dearest to the cheapest."""
    _, ir = measure(name, "software")
    kernels = ir.schedule.kernels
    total = sum(times["kernels"])
    lines = [
        f"{name}: step {times['step']:.2f} ms (a step without kernels {times['empty']:.2f} ms), "
        f"{len(kernels)} kernels take {total:.2f} ms",
        "create to first loss: " + ", ".join(f"{stage} {ms:.0f} ms" for stage, ms in times["stages"].items()),
    ]
    order = sorted(range(len(kernels)), key=lambda i: -times["kernels"][i])
    for i in order[:top]:
        ms, kernel = times["kernels"][i], kernels[i]
        rate = kernel_flops(kernel) / ms / 1e6 if ms > 0 else 0.0
        what = str(kernel).splitlines()[0]
        lines.append(f"{ms:8.3f} ms {ms / total:6.1%} {rate:6.2f} GFLOP/s  {i:3} {what}")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="bench.profile", description=__doc__)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--repeat", type=int, default=20, help="dispatches of each kernel (default 20)")
    parser.add_argument("--top", type=int, default=40, help="kernels to show (default 40)")
    options = parser.parse_args()
    times = asyncio.run(profile(options.workload, options.repeat))
    print(table(options.workload, times, options.top))


if __name__ == "__main__":
    main()
