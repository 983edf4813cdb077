"""webgrad's side of the benchmark, in the page's Python: bench/peers/webgrad.mjs calls these by name."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from typing import Any

import js

import webgrad as wg
from bench.workloads import WORKLOADS
from webgrad import nn
from webgrad.runtime.devices import open_executor

given: dict[str, tuple[Any, Any]] = {}  # workload → initial parameters and endless batches
programs: dict[str, Any] = {}


async def connect() -> None:
    """Ask for the device."""
    await open_executor("webgpu")


def prepare(name: str, params: Any, batches: Any) -> None:
    """Keep a workload's data as NumPy arrays."""
    given[name] = params, itertools.cycle(batches)


async def create(name: str) -> dict[str, float]:
    """Compile a workload and write its parameters; returns the milliseconds of each stage."""
    w = WORKLOADS[name]
    start = time.perf_counter()
    program = await wg.compile_module(
        w.model, w.loss, inputs=w.inputs, optimizer=w.optimizer, device="webgpu"
    )
    program.upload_params(given[name][0])
    total = 1000 * (time.perf_counter() - start)
    programs[name] = program
    stages = {stage: 1000 * seconds for stage, seconds in program.timings.items()}
    return {**stages, "pauses": total - sum(stages.values())}


async def steps(name: str, count: int, budget: float) -> dict[str, Any]:
    """At least one step, at most ``count``, until ``budget`` ms are over, each awaiting its loss."""
    program, batches = programs[name], given[name][1]
    losses: list[float] = []
    start = time.perf_counter()
    end = start + budget / 1000
    while not losses or (len(losses) < count and time.perf_counter() < end):
        losses.append(await program.step(next(batches)))
    return {"ms": 1000 * (time.perf_counter() - start) / len(losses), "losses": losses}


async def profile(name: str, repeat: int) -> dict[str, Any]:
    """Milliseconds of a step, of one without kernels, and of each kernel, repeated ``repeat`` times."""
    program = programs[name]
    spec = program.ir.program
    kernels = range(len(spec.kernels))
    entries = {"empty": (), **spec.entries, **{f"kernel {i}": (i,) * repeat for i in kernels}}
    store = program.params.owner
    externals = {b.key: store.arenas[b.key][0] for b in spec.buffers if b.kind == "external"}
    executor = await open_executor("webgpu")
    session = await executor.load(replace(spec, entries=entries), program.ir.plan, externals)
    await program.step(next(given[name][1]))  # fills the upload

    async def now() -> float:
        gpu = getattr(js, "gpuMilliseconds", None)
        return float(await gpu()) if gpu else 1000 * time.perf_counter()

    async def time_of(entry: str, rounds: int = 5) -> float:
        times = []
        for _ in range(rounds):
            start = await now()
            await session.run(entry, program._upload, ("output:0",))
            times.append(await now() - start)
        return min(times)

    empty = await time_of("empty", 20)
    step = await time_of("step", 20)
    each = [(await time_of(f"kernel {i}") - empty) / repeat for i in kernels]
    session.destroy()
    return {"empty": empty, "step": step, "kernels": each}


class Products(nn.Module):
    """Operands of products, as parameters so that they are uploaded once."""

    def __init__(self, left: Any, right: Any, pairs: int) -> None:
        self.left = [self.param(left.shape, init=lambda size, shape: left) for _ in range(pairs)]
        self.right = [self.param(right.shape, init=lambda size, shape: right) for _ in range(pairs)]


async def create_product(key: str, chained: bool, left: Any, right: Any, count: int) -> None:
    """Compile ``count`` products, each of the last one's result (``chained``) or side by side."""

    def chain(model: Any) -> Any:
        c = model.left[0]
        for _ in range(count):
            c = c @ model.right[0]
        return (c,)

    def many(model: Any) -> Any:
        return tuple(a @ b for a, b in zip(model.left, model.right, strict=True))

    pairs = 1 if chained else count
    programs[key] = await wg.compile_forward(
        lambda: Products(left, right, pairs), chain if chained else many, inputs={}, device="webgpu"
    )


async def run_product(key: str, wanted: bool) -> Any:
    """Read the results back; hand them to JavaScript only when ``wanted``."""
    results = await programs[key].run({})
    return results if wanted else None


def destroy(key: str) -> None:
    """Free a program."""
    programs.pop(key).destroy()
