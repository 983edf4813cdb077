"""Compiling on the page's main thread: it breathes, tells how far it is, and can be cancelled."""

from __future__ import annotations

import time

import pytest

from demo.serve import ROOT
from webgrad import stages

#: ms without a breath that a slow machine may take; the aim is 100
LONGEST = 250
STAGES = [name for name in stages.STAGES if name not in ("recall", "tune")]
SOURCE = (ROOT / "bench/workloads.py").read_text()

WATCH = """
globalThis.longTasks = [];
const take = (list) => longTasks.push(...list.getEntries().map((entry) => entry.duration));
globalThis.watching = new PerformanceObserver(take);
watching.observe({ type: "longtask" });
"""


def compile_workload(source, name, **options):
    """Compile a workload of the benchmark."""
    import sys
    import types

    module = sys.modules.get("workloads")
    if module is None:
        module = sys.modules["workloads"] = types.ModuleType("workloads")
        exec(compile(source, "workloads.py", "exec"), vars(module))
    w = module.WORKLOADS[name]
    return wg.compile_module(
        w.model, w.loss, inputs=w.inputs, optimizer=w.optimizer, device="webgpu", **options
    )


@pytest.mark.parametrize("name", ["W6", "W4"])
def test_the_page_is_never_blocked_for_long(page_py, name):
    async def watched(source, name, watch):
        import asyncio

        js.eval(watch)
        await asyncio.sleep(0.2)
        js.longTasks.length = 0
        program = await compile_workload(source, name)
        await asyncio.sleep(0.2)
        js.watching.disconnect()
        return js.longTasks.to_py(), program.timings

    tasks, timings = page_py(watched, SOURCE, name, WATCH, uses=[compile_workload])
    print(name, tasks, {k: round(1000 * v) for k, v in timings.items()})
    assert sum(timings.values()) > 0.3, "long enough to be felt"
    assert max(tasks, default=0) < LONGEST


def test_progress_comes_in_order_and_reaches_boot(page_py):
    async def compiled(source):
        told, published = [], []
        emit = wg.web._emit
        wg.web._emit = lambda name, value: published.append((name, value.to_py()))

        def progress(progress):
            told.append((progress.stage, progress.fraction))
            wg.web.show_progress(progress)

        try:
            await compile_workload(source, "W2", on_progress=progress)
        finally:
            wg.web._emit = emit
        return told, published

    told, published = page_py(compiled, SOURCE, uses=[compile_workload])
    assert list(dict.fromkeys(stage for stage, _ in told)) == [*STAGES, "ready"]
    fractions = [fraction for _, fraction in told]
    assert fractions == sorted(fractions) and fractions[-1] == 1
    assert [value["fraction"] for _, value in published] == fractions
    assert {(name, value["stage"]) for name, value in published} == {("progress", "compile")}


@pytest.mark.parametrize("stage", ["trace", "schedule", "emit", "pipelines"])
def test_a_cancelled_compilation_leaves_nothing_on_the_gpu(page_py, gpu_counts, proxy_counts, stage):
    async def cancelled(source, stage):
        import asyncio

        def progress(progress):
            if progress.stage == stage:
                # by a timer, as a button would: in the midst of the stage
                asyncio.get_running_loop().call_later(0, task.cancel)

        task = asyncio.ensure_future(compile_workload(source, "W3", on_progress=progress))
        try:
            await task
            ended = "compiled"
        except asyncio.CancelledError:
            ended = "cancelled"
        await asyncio.sleep(0.1)
        return ended

    async def works(source):
        program = await compile_workload(source, "W1")
        program.destroy()
        return len(program.ir.kernels)

    page_py(works, SOURCE, uses=[compile_workload])
    gpu = gpu_counts()

    def left():
        """Buffers that stay once the browser has made the pipelines that it had begun."""
        end = time.monotonic() + 20
        while (buffers := (gpu_counts() - gpu)["live_buffers"]) and time.monotonic() < end:
            time.sleep(0.1)
        return buffers

    assert page_py(cancelled, SOURCE, stage, uses=[compile_workload], timeout=60) == "cancelled"
    assert left() == 0
    proxies = proxy_counts()  # the loop of asyncio keeps one of its last cancelled timer
    page_py(cancelled, SOURCE, stage, uses=[compile_workload], timeout=60)
    assert left() == 0
    assert all(more <= 0 for more in (proxy_counts() - proxies).values())
    assert page_py(works, SOURCE, uses=[compile_workload]) > 5


def test_two_compilations_interleave(page_py):
    async def both(source):
        import asyncio
        import itertools

        order = []
        programs = await asyncio.gather(
            *[
                compile_workload(source, name, on_progress=lambda p, name=name: order.append(name))
                for name in ("W3", "W4")
            ]
        )
        turns = sum(a != b for a, b in itertools.pairwise(order))
        return turns, [len(p.ir.kernels) for p in programs]

    turns, kernels = page_py(both, SOURCE, uses=[compile_workload], timeout=60)
    assert turns > 5 and min(kernels) > 10


def test_a_second_visit_recalls_the_program(page_py):
    async def visit(source):
        import os
        import sys

        from webgrad import cache

        del os.environ["WEBGRAD_CACHE"]
        cache.LATER = 0.05
        program = await compile_workload(source, "W2")
        loss = await program.step(sys.modules["workloads"].batches("W2")[0])
        await cache.settled()
        return list(program.timings), loss, program.ir.program.modules

    first = page_py(visit, SOURCE, uses=[compile_workload])
    page_py.reload()
    second = page_py(visit, SOURCE, uses=[compile_workload])
    assert "schedule" in first[0] and "recall" in first[0]
    assert second[0] == ["trace", "gradient", "optimizer", "recall", "pipelines"]
    assert second[1:] == first[1:]


def test_a_damaged_entry_in_the_page_is_no_error(page_py):
    async def visits(source):
        import os

        from webgrad import cache, storage

        del os.environ["WEBGRAD_CACHE"]
        cache.LATER = 0.05
        get, found = storage.get, []

        async def damaged(namespace, key):
            raw = await get(namespace, key)
            found.append(raw is not None)
            return None if raw is None else raw[:-3]

        await storage.clear("programs")
        for reader in (get, damaged, get):
            storage.get = reader
            try:
                program = await compile_workload(source, "W1")
                await cache.settled()
            finally:
                storage.get = get
            found.append("schedule" in program.timings)
        return found

    assert page_py(visits, SOURCE, uses=[compile_workload]) == [True, True, True, False]
