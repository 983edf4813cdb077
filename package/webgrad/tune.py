"""The tuner: times a few strategies of each product on the adapter at hand, and remembers the winners.

    tuned(ir, executor)    the same stages, with the strategies that were fastest here

A candidate is a program of one kernel on buffers of its own, which are freed at once: parameters, gradients
and states are never touched, and all buffers hold zeros. It runs as any program does, many times in one
submission, and is timed by the device's own clock where there is one. What counts is the time of a thousand
steps and of making the pipeline, which is dear on software adapters; a candidate must be clearly faster than
the strategy that `compiler.strategy` chose to replace it.

Winners are kept per adapter and version of webgrad in `storage`, by the text of the kernel as it would be
without tuning, which holds everything that matters: sizes, index maps, the epilogue. A known kernel is not
timed again. When the time for one product is used up, its further candidates are not tried.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from webgrad import storage
from webgrad.compiled import IR
from webgrad.compiler.kernels import Contraction, ScheduledKernel, Strategy
from webgrad.compiler.plan import Plan
from webgrad.compiler.program import Binding, BufferSpec, KernelSpec, Program, Range
from webgrad.compiler.strategy import candidates
from webgrad.errors import CompileError, OutOfMemoryError
from webgrad.layout import round_up
from webgrad.runtime.executor import Clocked, Executor, Session
from webgrad.wgsl.emit import Kernel, emit_kernel, emit_kernels
from webgrad.wgsl.link import ENABLED, make_program

NAMESPACE = "tuning"
#: seconds for one product, after which no further candidate is tried
BUDGET = {"hardware": 0.4, "software": 1.5}
#: steps over which the making of a pipeline is spread
STEPS = 1000
#: what a candidate must win, against noise
CLEARLY = 0.95
#: seconds of GPU work in one timing, its calls at most, and how often it is repeated
ENOUGH, MOST_CALLS, ROUNDS = 0.01, 256, 3
#: bytes of buffers in which a candidate may run, and winners kept per adapter
MOST_BYTES, MOST_KEPT = 256 << 20, 4096


async def tuned(ir: IR, executor: Executor) -> IR:
    """``ir`` with the fastest strategies for this adapter. The NumPy executor has no kernels that could be
    timed: there ``ir`` stays as it is.
    """
    products = [k for k in ir.schedule.kernels if isinstance(k.body, Contraction)]
    if executor.name == "numpy" or not products:
        return ir
    key = adapter_key(executor)
    known = await _recall(key)
    fresh: dict[str, str] = {}
    for number, (kernel, text) in enumerate(zip(ir.schedule.kernels, ir.kernels, strict=True)):
        if not isinstance(kernel.body, Contraction):
            continue
        name = hashlib.sha256(text.wgsl.encode()).hexdigest()[:32]
        options = candidates(kernel.ix, kernel.body, ir.plan.target)
        winner = next((s for s in options if str(s) == (fresh.get(name) or known.get(name))), None)
        if winner is None:
            winner = await fastest(ir.plan, number, options, executor)
            fresh[name] = str(winner)
        kernel.body = replace(kernel.body, strategy=winner)
    if fresh:
        await _remember(key, fresh)
    kernels = emit_kernels(ir.plan)
    (entry,) = ir.program.entries
    return replace(ir, kernels=kernels, program=make_program(ir.plan, kernels, entry))


# --- what is remembered -----------------------------------------------------------------------------


def adapter_key(executor: Executor) -> str:
    """What the winners depend on, besides the kernel."""
    from webgrad import __version__  # the package, which imports this module, is whole by now

    names = [str(executor.adapter.get(k, "")) for k in ("vendor", "architecture", "device", "description")]
    return json.dumps([__version__, executor.name, executor.target.adapter_class, *names])


async def _recall(key: str) -> Mapping[str, str]:
    """Kernel → strategy, as printed. What cannot be read counts as unknown."""
    raw = await storage.get(NAMESPACE, key)
    try:
        found = json.loads(raw) if raw else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


async def _remember(key: str, fresh: Mapping[str, str]) -> None:
    """Add to what is kept by now: another tab may have tuned meanwhile."""
    kept = {**await _recall(key), **fresh}
    await storage.put(NAMESPACE, key, json.dumps(dict(list(kept.items())[-MOST_KEPT:])).encode())


# --- timing -----------------------------------------------------------------------------------------


async def fastest(plan: Plan, number: int, options: list[Strategy], executor: Executor) -> Strategy:
    """The best strategy for a kernel: the first of ``options`` unless another is clearly faster."""
    scheduled = plan.schedule.kernels[number]
    end = time.perf_counter() + BUDGET[plan.target.adapter_class]
    best, winner = float("inf"), options[0]
    for option in options:
        if time.perf_counter() > end:
            break
        try:
            seconds = await _price(plan, number, scheduled, option, executor, best)
        except (CompileError, OutOfMemoryError):
            if option is options[0]:
                return option  # loading the program will tell
            continue
        if seconds < best * (CLEARLY if option is not options[0] else 1):
            best, winner = seconds, option
    return winner


async def _price(
    plan: Plan,
    number: int,
    scheduled: ScheduledKernel,
    option: Strategy,
    executor: Executor,
    best: float,
) -> float:
    """Seconds to make the pipeline and run it `STEPS` times; roughly where that is far beyond ``best``."""
    assert isinstance(scheduled.body, Contraction)
    body = replace(scheduled.body, strategy=option)
    kernel = emit_kernel(plan, number, replace(scheduled, body=body), {}, {})
    program = alone(kernel)
    if sum(b.bytes for b in program.buffers) > MOST_BYTES:
        raise OutOfMemoryError(f"{kernel.name} is too large to be timed")
    start = time.perf_counter()
    session = await executor.load(program, plan, {})
    try:
        upload = np.zeros(program.upload_bytes, np.uint8)
        await _seconds(session, upload, 1, False)  # drivers finish compiling at the first use
        made = time.perf_counter() - start
        once = await _once(session, upload, (1.5 * best - made) / STEPS)
    finally:
        session.destroy()
    return made + STEPS * once


async def _once(session: Session, upload: Any, enough: float) -> float:
    """Seconds of one call among many; roughly if it takes more than ``enough``."""
    device_clock, calls = isinstance(session, Clocked) and session.has_clock, 1
    while True:
        idle = 0.0 if device_clock else await _seconds(session, upload, 0, False)
        once = max(await _seconds(session, upload, calls, device_clock) - idle, 0.0) / calls
        if once * calls >= ENOUGH / 2:
            break
        if calls < MOST_CALLS:
            wanted = max(4 * calls, int(ENOUGH / once) if once else 0)
            calls = min(MOST_CALLS, 1 << (wanted.bit_length() - 1))
        elif device_clock and once == 0:  # it stands still
            device_clock, calls = False, 1
        else:
            break
    for _ in range(ROUNDS - 1 if once < enough else 0):
        once = min(once, max(await _seconds(session, upload, calls, device_clock) - idle, 0.0) / calls)
    return once


async def _seconds(session: Session, upload: Any, calls: int, device_clock: bool) -> float:
    """How long so many calls in one submission take: by the device's clock, or until their end is known."""
    entry = f"{calls} times"
    if device_clock and isinstance(session, Clocked):
        return await session.timed(entry, upload)
    start = time.perf_counter()
    await session.run(entry, upload, ("end",))
    return time.perf_counter() - start


def alone(kernel: Kernel) -> Program:
    """A program of one kernel on buffers of its own, each as long as what the kernel sees of it. Its entries
    run the kernel 0, 1, 2, 4, … times.
    """
    ranges: dict[int, tuple[int, int]] = {}
    for b in kernel.bindings:
        first, last = ranges.get(b.buffer, (b.offset, 0))
        ranges[b.buffer] = min(first, b.offset), max(last, b.offset + b.size)
    number = {buffer: 1 + i for i, buffer in enumerate(ranges)}
    buffers = [BufferSpec(16, "owned", "upload", "once")]
    buffers += [
        BufferSpec(round_up(last - first, 16), "owned", "", "once") for first, last in ranges.values()
    ]
    bindings = tuple(
        Binding(number[b.buffer], b.offset - ranges[b.buffer][0], b.size, b.access) for b in kernel.bindings
    )
    spec = KernelSpec(kernel.name, 0, bindings, kernel.workgroups, kernel.nodes, kernel.sites)
    counts = [0, *(1 << n for n in range(MOST_CALLS.bit_length()))]
    return Program(
        buffers=tuple(buffers),
        modules=(kernel.wgsl,),
        kernels=(spec,),
        entries={f"{n} times": (0,) * n for n in counts},
        upload_buffer=0,
        inputs={},
        scalars={},
        ranges={"end": Range(0, 0, 16, (4,), "f32")},
        features=tuple(sorted(ENABLED.findall(kernel.wgsl))),
    )
