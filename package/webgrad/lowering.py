"""A traced graph → `IR`: by the compiler's stages, or from what an earlier visit remembered.

traced = Traced(graph, grads, loss, layout, target, entry, parts)
ir = finish(lowering(traced))             simplify → schedule → plan → emit → program
ir = await lowered(traced, ...)           the same, on an executor: looked up first, tuned, remembered
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from webgrad import storage
from webgrad.cache import place_of, recall, remember
from webgrad.compiled import IR
from webgrad.compiler.plan import Plan, plan_buffers
from webgrad.compiler.program import Program
from webgrad.compiler.schedule import schedule, schedule_steps
from webgrad.compiler.simplify import simplify_steps
from webgrad.compiler.target import Target
from webgrad.ir import Graph, Layout, Node
from webgrad.runtime.executor import Executor
from webgrad.stages import Conductor, Work, once, stage
from webgrad.tensor import Tensor
from webgrad.tune import adapter_key, tuned
from webgrad.wgsl.emit import Kernel, emit_steps
from webgrad.wgsl.link import make_program

Parts = TypeVar("Parts")


@dataclass(frozen=True)
class Traced(Generic[Parts]):
    """A finished graph and all that its program follows from; ``parts(ir)`` is what it becomes part of."""

    graph: Graph
    grads: dict[str, Tensor]
    loss: Node | None
    layout: Layout
    target: Target
    entry: str
    parts: Callable[[IR], Parts]


def lowering(traced: Traced[Any], written: Callable[[Kernel], None] | None = None) -> Work[IR]:
    """Run the compiler's stages; ``written`` is told of each new kernel."""
    small = yield from stage("simplify", simplify_steps(traced.graph, traced.target))
    sched = yield from stage("schedule", schedule_steps(small, traced.target))
    plan = yield from stage("plan", once(plan_buffers, sched, traced.layout))
    kernels = yield from stage("emit", emit_steps(plan, written))
    program = yield from stage("program", once(make_program, plan, kernels, traced.entry))
    return IR(traced.graph, traced.grads, traced.loss, lambda: plan, kernels, program)


async def lowered(
    traced: Traced[Any], executor: Executor, conductor: Conductor, tune: bool, cache: bool
) -> tuple[IR, Callable[[], Any]]:
    """The stages' results for an executor, and what keeps them for the next visit: to be awaited once the
    program is known to load.
    """
    place = None
    if cache and storage.enabled() and not executor.needs_plan:
        context = (traced.target, traced.entry, adapter_key(executor) if tune else "")
        with conductor.during("recall"):
            place = place_of(traced.graph, traced.layout, context)
        program = await conductor.wait("recall", lambda: recall(place)) if place else None
        if program is not None:
            return recalled(traced, program), _nothing
    ir = await conductor.run(lowering(traced, None if tune else executor.prepare))
    if tune:
        ir = await conductor.wait("tune", lambda: tuned(ir, executor))
    return ir, (lambda: remember(place, ir.program)) if place else _nothing


async def _nothing() -> None:
    """There is nothing to remember."""


def recalled(traced: Traced[Any], program: Program) -> IR:
    """The stages' results around a remembered program. Schedule and plan are made when they are asked for;
    they do not know what tuning chose.
    """

    def planning() -> Plan:
        return plan_buffers(schedule(traced.graph, traced.target), traced.layout)

    kernels = [
        Kernel(k.name, program.modules[k.module], k.bindings, k.workgroups, k.nodes, k.sites)
        for k in program.kernels
    ]
    return IR(traced.graph, traced.grads, traced.loss, planning, kernels, program)
