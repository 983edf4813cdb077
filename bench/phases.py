"""The phases of the benchmark; each returns plain data for the report.

warm    All systems live in one page and take turns, in an order that rotates and reverses between the rounds.
        Each step uploads its batch and awaits its loss; a stretch lasts about ``stretch`` milliseconds.
cold    A fresh browser and profile for each (system, workload): the time from nothing to the first loss, the
        live GPU bytes and the GPU calls of a step.
matmul  (1 + k products) − (1 product), so that what they have in common cancels. Square products form a
        chain, whose last result is read; the others stand side by side and all are read.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench import session, static
from bench.report import summary
from bench.session import PageError, PageHung, Session
from bench.workloads import PRODUCTS
from bench.yardstick import BLOCKS

TOLERANCE = 1e-3  # how far first losses may lie apart
SECOND_TOLERANCE = 1e-2  # and second ones, which come after an update, whose small terms round differently
PRODUCT_TOLERANCE = 1e-3  # error of a product's element
SLOW_PRODUCT = 2000.0  # ms; a system this slow gets one round


@dataclass
class Run:
    """What all phases share: the settings, how to open a session, and the problems found."""

    open_session: Callable[[], Session]
    say: Callable[[str], None]
    systems: Sequence[str]
    workloads: Sequence[str]
    rounds: int
    stretch: float
    cold_repetitions: int
    problems: list[str] = field(default_factory=list)

    def problem(self, text: str) -> None:
        """Note what went wrong, and go on."""
        self.problems.append(text)
        self.say(f"PROBLEM {text}")


def turns(systems: Sequence[str], number: int) -> list[str]:
    """The order of a round: rotated by one each time, and reversed every other time."""
    start = number % len(systems)
    order = [*systems[start:], *systems[:start]]
    return order[::-1] if number % 2 else order


def disagreement(losses: dict[str, list[float]]) -> str | None:
    """What is wrong with a workload's first two losses by system, or None."""
    checks = [("first", 0, TOLERANCE), ("second", 1, SECOND_TOLERANCE)]
    for which, at, tolerance in checks:
        found = {system: values[at] for system, values in losses.items()}
        finite = all(math.isfinite(loss) for loss in found.values())
        if not finite or max(found.values()) - min(found.values()) > tolerance:
            return f"{which} losses differ: " + ", ".join(f"{s} {loss:.6f}" for s, loss in found.items())
    return None


async def each(
    run: Run, what: str, names: Sequence[str], work: Callable[[str], Awaitable[Any]]
) -> dict[str, Any]:
    """The result of ``work`` for each name; a failure is a problem and leaves its name out."""
    found = {}
    for name in names:
        try:
            found[name] = await work(name)
        except PageHung:
            raise
        except PageError as error:
            run.problem(f"{what} {name}: {error}")
    return found


# --- warm --------------------------------------------------------------------------------------------


async def warm(run: Run) -> dict[str, Any]:
    """Steps per second of each workload and system."""
    found: dict[str, Any] = {}
    async with run.open_session() as page:
        opened = await each(run, "start", run.systems, page.open)
        for name in run.workloads:
            try:
                found[name] = await _warm_workload(run, page, name, list(opened))
            except PageHung as error:
                run.problem(f"warm {name}: {error}; the rest of this phase is left out")
                break
    return found


async def _warm_workload(run: Run, page: Session, name: str, systems: list[str]) -> dict[str, Any]:
    await page.call("giveTask", name, session.task(name))

    async def create(system: str) -> list[float]:
        first = await page.call("create", system, name)
        more = await page.call("steps", system, name, 20, 1000)
        return [first["loss"], *more["losses"]]

    losses = await each(run, f"warm {name}", systems, create)
    found: dict[str, Any] = {"losses": {s: v[:3] for s, v in losses.items()}, "systems": {}}
    if losses and (wrong := disagreement(losses)):
        run.problem(f"warm {name}: {wrong}; not timed")
    else:
        times: dict[str, list[dict[str, Any]]] = {system: [] for system in losses}
        for number in range(run.rounds):
            for system in turns(list(losses), number) if losses else []:
                times[system].append(await page.call("steps", system, name, 100_000, run.stretch))
        for system, stretches in times.items():
            found["systems"][system] = _speed(stretches)
        run.say(
            f"warm {name}  "
            + "  ".join(f"{s} {r['steps_per_second']['median']:.3g}/s" for s, r in found["systems"].items())
        )
    for system in losses:
        await page.call("destroy", system, name)
    return found


def _speed(stretches: list[dict[str, Any]]) -> dict[str, Any]:
    steps = sum(len(s["losses"]) for s in stretches)
    calls = ("dispatches", "submits", "maps", "writes")
    return {
        "steps_per_second": summary([1000 / s["ms"] for s in stretches]),
        "steps": steps,
        **{call: sum(s["gpu"][call] for s in stretches) / steps for call in calls},
    }


# --- cold --------------------------------------------------------------------------------------------


async def cold(run: Run) -> dict[str, Any]:
    """First losses, live bytes and calls a step of each workload and system."""
    found: dict[str, Any] = {name: {} for name in run.workloads}
    for repetition in range(run.cold_repetitions):
        for name in run.workloads:
            arrays = session.task(name)

            async def measure(system: str, name: str = name, arrays: Any = arrays) -> dict[str, Any]:
                return await _cold_start(run, name, system, arrays)

            for system in turns(run.systems, repetition):
                try:
                    got = await each(run, f"cold {name}", [system], measure)
                except PageHung as error:
                    run.problem(f"cold {name} {system}: {error}")
                    continue
                if got:
                    found[name].setdefault(system, []).append(got[system])
    return {
        name: {system: _first_loss(starts) for system, starts in systems.items()}
        for name, systems in found.items()
    }


async def _cold_start(run: Run, name: str, system: str, arrays: dict[str, Any]) -> dict[str, Any]:
    async with run.open_session() as page:
        await page.open(system)
        await page.call("giveTask", name, arrays)
        start = await page.call("create", system, name)
        after = await page.call("steps", system, name, 4, 15_000)
    stages = ", ".join(f"{stage} {ms:.0f}" for stage, ms in start["stages"].items())
    run.say(f"cold {name}  {system} {start['ms']:.0f} ms ({stages})")
    dispatches = after["gpu"]["dispatches"] / len(after["losses"])
    kept = {key: start[key] for key in ("ms", "stages", "loss")}
    made = {key: start["gpu"][key] for key in ("modules", "pipelines")}
    return {**kept, **made, "dispatches": dispatches, "live_bytes": after["gpu"]["live_bytes"]}


def _first_loss(starts: list[dict[str, Any]]) -> dict[str, Any]:
    stages = {stage: statistics.median(s["stages"][stage] for s in starts) for stage in starts[0]["stages"]}
    last = {key: starts[-1][key] for key in ("loss", "modules", "pipelines", "dispatches", "live_bytes")}
    return {"ms": summary([s["ms"] for s in starts]), "stages": stages, **last}


# --- products ----------------------------------------------------------------------------------------


async def matmul(run: Run) -> dict[str, Any]:
    """GFLOP/s of each product, by each system and by hand-written kernels."""
    found: dict[str, Any] = {}
    async with run.open_session() as page:
        opened = await each(run, "start", [*run.systems, "wgsl"], page.open)
        systems = [name for name in [*run.systems, *BLOCKS] if name.split()[0] in opened]
        for name in PRODUCTS:
            try:
                found[name] = await _product(run, page, name, systems)
            except PageHung as error:
                run.problem(f"matmul {name}: {error}; the rest of this phase is left out")
                break
    return found


async def _product(run: Run, page: Session, name: str, systems: list[str]) -> dict[str, Any]:
    await page.call("giveProduct", name, session.product(name))

    def call(function: str, system: str, count: int) -> Awaitable[Any]:
        return page.call(function, system.split()[0], name, count, BLOCKS.get(system))

    async def create(system: str) -> int:
        """Check one product, time it, and make as many as fill a stretch."""
        first = await call("createProduct", system, 1)
        if not first["error"] <= PRODUCT_TOLERANCE:
            raise PageError(f"the product is wrong by {first['error']:g}")
        one = await call("runProduct", system, 1)
        many = 1 + max(1, min(16, round(run.stretch / 3 / one)))
        await call("createProduct", system, many)
        return many

    counts = await each(run, f"matmul {name}", systems, create)
    speeds: dict[str, list[float]] = {system: [] for system in counts}
    slow: set[str] = set()
    for number in range(run.rounds):
        for system in turns(list(counts), number):
            if system in slow:
                continue
            one = await call("runProduct", system, 1)
            many = await call("runProduct", system, counts[system])
            per_product = (many - one) / (counts[system] - 1)
            if per_product > 0:  # else other work of the machine drowned it
                speeds[system].append(PRODUCTS[name].flops / per_product / 1e6)
            if per_product > SLOW_PRODUCT:
                slow.add(system)
    for system, count in counts.items():
        await call("destroyProduct", system, 1)
        await call("destroyProduct", system, count)
    for system in [system for system, values in speeds.items() if not values]:
        run.problem(f"matmul {name} {system}: no round gave a time; the machine is too busy")
    result = {system: summary(values) for system, values in speeds.items() if values}
    run.say(f"matmul {name}  " + "  ".join(f"{s} {r['median']:.2f}" for s, r in result.items()) + " GFLOP/s")
    return result


# --- static ------------------------------------------------------------------------------------------


def count_statically(run: Run) -> dict[str, Any]:
    """`bench.static`'s counts for both classes of adapters."""
    return {
        target: {name: static.measure(name, target)[0] for name in run.workloads}
        for target in ("software", "hardware")
    }
