"""``python -m bench.native``: webgrad on this machine's own GPU, outside a page (``device="native"``).

    python -m bench.native [--json] [--workloads=W1,W2,W3,W4,W5,W6] [--target=software|hardware]
                           [--rounds=N] [--stretch=SECONDS]

Prints, for each training workload, steps per second with each loss awaited and with steps running ahead
(median, min–max), seconds from nothing to the first loss by stage, dispatches, pipelines and buffer bytes;
and for W5 the GFLOP/s of webgrad's products beside those of plain hand-written WGSL on the same device.
``--target`` writes the kernels for a class of adapters that the machine's need not be. The package ``wgpu``
finds the adapter; WGPUPY_WGPU_ADAPTER_NAME names another. Exit status: 0; 1 without an adapter or when a
result is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import webgrad as wg
from bench import machine, report, yardstick
from bench.workloads import PRODUCTS, WORKLOADS, batches, initial_params, operands
from webgrad import nn
from webgrad.compile import build_training, create_runtime
from webgrad.compiler.program import Program
from webgrad.runtime.native import NativeExecutor, NativeSession
from webgrad.runtime.native_device import request_device
from webgrad.runtime.reference import NumpyExecutor

NAMES = ("W1", "W2", "W3", "W4", "W5", "W6")
#: how far a first loss may lie from float64's, and an element of a product from its exact value
LOSS_TOLERANCE, PRODUCT_TOLERANCE = 1e-3, 1e-3
#: products in a row are at most so many
MOST_PRODUCTS = 4096


class WrongResult(RuntimeError):
    """A figure of a program that computes something else would be worth nothing."""


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line's."""

    def names(given: str) -> list[str]:
        chosen = given.split(",")
        if unknown := [name for name in chosen if name not in NAMES]:
            raise argparse.ArgumentTypeError(f"unknown {', '.join(unknown)}; there are: {', '.join(NAMES)}")
        return [name for name in NAMES if name in chosen]

    parser = argparse.ArgumentParser(prog="bench.native", description="webgrad on this machine's own GPU.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--workloads", type=names, default=list(NAMES), help="W5 is the products")
    parser.add_argument("--target", choices=("software", "hardware"), help="default: as the adapter is")
    parser.add_argument("--rounds", type=int, default=5, help="stretches that each is timed (default 5)")
    parser.add_argument("--stretch", type=float, default=1.0, help="seconds of one (default 1)")
    return parser.parse_args(arguments)


# --- training ----------------------------------------------------------------------------------------


async def training(name: str, executor: NativeExecutor, chosen: argparse.Namespace) -> dict[str, Any]:
    """Speed, stages and counts of a workload. Raises `WrongResult` if its first loss is not float64's."""
    w = WORKLOADS[name]
    given, params = itertools.cycle(batches(name)), initial_params(name)
    first = next(given)
    clock = [time.perf_counter()]
    parts = build_training(w.model, w.loss, w.inputs, w.optimizer, 0, executor.target)
    clock.append(time.perf_counter())
    train = await create_runtime(parts, executor)
    train.upload_params(params)
    clock.append(time.perf_counter())
    loss = await train.step(first)
    clock.append(time.perf_counter())
    exact = await _exact_loss(name, first)
    if not abs(loss - exact) <= LOSS_TOLERANCE * max(1, abs(exact)):
        raise WrongResult(f"{name}: the first loss is {loss}, in float64 it is {exact}")

    async def stretch(reads: bool) -> float:
        steps, start = 0, time.perf_counter()
        while steps == 0 or time.perf_counter() - start < chosen.stretch:
            await train.step(next(given), read_loss=reads)
            steps += 1
        if not reads:
            await train.step(next(given))  # what is ahead must end
            steps += 1
        return steps / (time.perf_counter() - start)

    awaited, ahead = [], []
    for _ in range(chosen.rounds):
        awaited.append(await stretch(True))
        ahead.append(await stretch(False))
    stats = train.stats()
    train.destroy()
    stages = dict(zip(("compile", "pipelines", "first step"), np.diff(clock).round(4).tolist(), strict=True))
    return {
        "steps_per_second": report.summary(awaited),
        "steps_per_second_ahead": report.summary(ahead),
        "first_loss": loss,
        "stages_s": stages,
        "dispatches": len(parts.ir.program.kernels),
        "modules": stats.modules,
        "pipelines": stats.pipelines,
        "buffers": stats.buffers,
        "bytes": stats.bytes,
    }


async def _exact_loss(name: str, batch: dict[str, Any]) -> float:
    w = WORKLOADS[name]
    reference = NumpyExecutor("graph", float64=True)
    train = await wg.compile_module(w.model, w.loss, inputs=w.inputs, optimizer=None, device=reference)
    train.upload_params(initial_params(name))
    return float(await train.step(batch))


# --- products ----------------------------------------------------------------------------------------


class Pair(nn.Module):
    """The operands of a product, as parameters so that they are uploaded once."""

    def __init__(self, left: Any, right: Any) -> None:
        self.left = self.param(left.shape, init=lambda size, shape: left)
        self.right = self.param(right.shape, init=lambda size, shape: right)


@dataclass(frozen=True)
class Repeated:
    """A product on the device: its entry ``one`` runs it once, ``many`` runs it ``count`` times in a row."""

    session: NativeSession
    upload: NDArray[np.uint8]
    count: int

    async def run(self, entry: str) -> NDArray[np.float32]:
        """The last product's result."""
        raw = await self.session.run(entry, self.upload, ("output:0",))
        return raw["output:0"].view(np.float32)

    async def seconds_each(self) -> float:
        """Of one product: many less one, so that submission and reading cancel."""
        times = []
        for entry in ("one", "many"):
            start = time.perf_counter()
            await self.run(entry)
            times.append(time.perf_counter() - start)
        return (times[1] - times[0]) / (self.count - 1)


async def product(name: str, executor: NativeExecutor, chosen: argparse.Namespace) -> dict[str, Any]:
    """GFLOP/s of webgrad and of each block of the yardstick. Raises `WrongResult`."""
    p = PRODUCTS[name]
    left, right = operands(p)
    exact = np.matmul(left.astype(np.float64), right.astype(np.float64))
    ours = await wg.compile_forward(
        lambda: Pair(left, right), lambda model: model.left @ model.right, inputs={}, device=executor
    )
    arenas = {key: handle for key, (handle, _) in ours.params.owner.arenas.items()}
    plain = {block: yardstick.program(p, size, left, right) for block, size in yardstick.BLOCKS.items()}
    runs: dict[str, Repeated] = {}
    for system, program in {"webgrad": ours.ir.program, **plain}.items():

        async def repeated(count: int, program: Program = program) -> Repeated:
            order = program.entries["run"]
            many = replace(program, entries={"one": order, "many": order * count})
            session = await executor.load(many, ours.ir.plan, arenas)
            return Repeated(session, np.zeros(program.upload_bytes, np.uint8), count)

        runs[system] = await _long_enough(repeated, exact, chosen.stretch)
    found: dict[str, list[float]] = {system: [] for system in runs}
    for _ in range(chosen.rounds):
        for system, each in runs.items():
            if (seconds := await each.seconds_each()) > 0:  # else other work drowned it
                found[system].append(p.flops / seconds / 1e9)
    for each in runs.values():
        each.session.destroy()
    ours.destroy()
    return {system: report.summary(values) for system, values in found.items() if values}


async def _long_enough(repeated: Callable[[int], Awaitable[Repeated]], exact: Any, budget: float) -> Repeated:
    """As many products in a row as take about ``budget`` seconds. The first result is checked."""
    count = 2
    while True:
        made = await repeated(count)
        error = np.abs((await made.run("one")).reshape(exact.shape) - exact).max()
        if not error <= PRODUCT_TOLERANCE:
            made.session.destroy()
            raise WrongResult(f"a product is wrong by {error:g}")
        each = await made.seconds_each()
        if count >= MOST_PRODUCTS or each * count >= budget / 2:
            return made
        made.session.destroy()
        grow = budget / each / count if each > 0 else 8.0
        count = min(MOST_PRODUCTS, round(count * min(max(grow, 2.0), 16.0)))


# --- the report --------------------------------------------------------------------------------------


def tables(results: dict[str, Any]) -> list[report.Table]:
    """The results for people."""
    made = []
    if found := results["workloads"]:
        rows = []
        for name, r in found.items():
            stages = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in r["stages_s"].items())
            speeds = [report.ranged(r[key]) for key in ("steps_per_second", "steps_per_second_ahead")]
            counts = [f"{r['dispatches']}", f"{r['pipelines']}", f"{r['bytes'] / 1024:,.0f}"]
            rows.append([f"{name} {WORKLOADS[name].title}", *speeds, *counts, stages])
        columns = ["steps/s, losses awaited", "running ahead", "dispatches", "pipelines", "KiB", "s by stage"]
        made.append(report.Table("Training: median (min–max)", ["workload", *columns], rows))
    return made + report.tables({"systems": ["webgrad"], "matmul": results["products"]})


def headline(environment: dict[str, Any]) -> str:
    """What ran where, in one line."""
    e = environment
    adapter = f"{e['adapter']['device']} through {e['adapter']['backend']}"
    busy = "" if e["busy"] is None else f"; machine busy before: {e['busy']:.0%}"
    return (
        f"webgrad {e['revision']}, native; {adapter}, kernels for {e['target']}; "
        f"{e['processor']}, {e['cores']} cores; {e['rounds']} rounds; "
        f"device request {e['device_s']:.2f} s{busy}"
    )


async def measure(chosen: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """Everything that was chosen. Raises `NoAdapterError`; a wrong result becomes a problem."""
    busy = machine.busy_share()
    start = time.perf_counter()
    executor = NativeExecutor(request_device())
    opened = time.perf_counter() - start
    kind = chosen.target or executor.target.adapter_class
    quads = executor.target.quads and kind == "software"
    executor.target = replace(executor.target, adapter_class=kind, quads=quads)
    environment = {
        "revision": machine.revision(),
        "adapter": {key: executor.adapter[key] for key in ("vendor", "device", "description", "backend")},
        "target": kind,
        "processor": machine.processor(),
        "cores": os.cpu_count(),
        "rounds": chosen.rounds,
        "device_s": round(opened, 4),
        "busy": busy,
    }
    problems: list[str] = []
    if busy is not None and busy > machine.BUSY:
        say(f"warning: the machine is {busy:.0%} busy; the figures will be off")

    async def each(
        names: list[str], work: Callable[[str, NativeExecutor, argparse.Namespace], Awaitable[Any]]
    ) -> dict[str, Any]:
        found = {}
        for name in names:
            say(name)
            try:
                found[name] = await work(name, executor, chosen)
            except WrongResult as error:
                problems.append(str(error))
        return found

    trained = await each([name for name in chosen.workloads if name != "W5"], training)
    products = await each(list(PRODUCTS) if "W5" in chosen.workloads else [], product)
    executor.close()
    return {"environment": environment, "workloads": trained, "products": products, "problems": problems}


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    chosen = options(arguments)
    try:
        results = asyncio.run(measure(chosen, lambda text: print(f"bench.native: {text}", file=sys.stderr)))
    except wg.NoAdapterError as error:
        print(f"bench.native: {error}", file=sys.stderr)
        return 1
    if chosen.json:
        print(json.dumps(results, indent=1))
    else:
        parts = [headline(results["environment"]), *map(report.text_of, tables(results))]
        print("\n\n".join([*parts, *(f"PROBLEM: {problem}" for problem in results["problems"])]))
    return 1 if results["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
