"""Plan → kernels: WGSL text, bindings and grid of every scheduled kernel.

The templates of the kernel families are in `rows` and `contract`; all share `KernelWriter`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from webgrad.compiler.indexing import Expr
from webgrad.compiler.kernels import Contraction, Rows, ScheduledKernel
from webgrad.compiler.plan import Plan
from webgrad.compiler.program import Access, Binding
from webgrad.errors import CompileError
from webgrad.ir import Node
from webgrad.stages import Steps, finish
from webgrad.wgsl.contract import emit_contract
from webgrad.wgsl.rows import emit_map, emit_rows
from webgrad.wgsl.writer import KernelWriter

FAMILIES = {"map": emit_map, "row": emit_rows, "contract": emit_contract}


@dataclass(frozen=True)
class Kernel:
    """One dispatch, as text."""

    name: str
    wgsl: str
    bindings: tuple[Binding, ...]
    workgroups: tuple[int, int, int]
    nodes: tuple[str, ...]
    sites: tuple[str, ...]

    def __str__(self) -> str:
        return f"// {self.name}: {', '.join(self.nodes)} {self.workgroups}\n{self.wgsl}"


@dataclass(frozen=True)
class Text:
    """What kernels of one signature share. ``slots`` are (place number, access) in binding order."""

    wgsl: str
    workgroups: tuple[int, int, int]
    slots: tuple[tuple[int, Access], ...]
    scalar_bytes: int


def emit_kernels(plan: Plan) -> list[Kernel]:
    """Write every kernel of a plan. Kernels that differ in nothing but the places of their operands (equal
    layers) are written once.
    """
    return finish(emit_steps(plan))


def emit_steps(plan: Plan, written: Callable[[Kernel], None] | None = None) -> Steps[list[Kernel]]:
    """`emit_kernels`, kernel by kernel. ``written`` is told of every new text at once."""
    texts: dict[Any, Text] = {}
    table: dict[Any, int] = {}
    kernels: list[Kernel] = []
    for number, scheduled in enumerate(plan.schedule.kernels):
        yield number / len(plan.schedule.kernels)
        known = len(texts)
        kernels.append(emit_kernel(plan, number, scheduled, texts, table))
        if written is not None and len(texts) > known:
            written(kernels[-1])
    return kernels


def emit_kernel(
    plan: Plan, number: int, scheduled: ScheduledKernel, texts: dict[Any, Text], table: dict[Any, int]
) -> Kernel:
    """Write one kernel, unless ``texts`` holds an equal one; see `sign` for ``table``."""
    signature, places = sign(plan, scheduled, table)
    text = texts.get(signature)
    if text is None:
        text = texts[signature] = _write(plan, scheduled, places)
    bindings = [Binding(*places[place], access) for place, access in text.slots]
    if len(bindings) > plan.target.max_storage_buffers:
        raise CompileError(
            f"internal error: kernel {number} needs {len(bindings)} storage bindings\n{scheduled}"
        )
    if text.scalar_bytes:
        bindings.append(Binding(plan.upload, 0, text.scalar_bytes, "uniform"))
    nodes = tuple(n.op.name for n in scheduled.nodes)
    sites = tuple(str(s) for s in scheduled.sites)
    name = f"{scheduled.kind} {number}"
    return Kernel(name, text.wgsl, tuple(bindings), text.workgroups, nodes, sites)


def _write(plan: Plan, scheduled: ScheduledKernel, places: list[tuple[int, int, int]]) -> Text:
    writer = KernelWriter(plan, scheduled)
    wgsl, workgroups = FAMILIES[scheduled.kind](writer)
    numbers = {place: i for i, place in enumerate(places)}
    slots = zip((numbers[s.where] for s in writer.slots), writer.accesses(), strict=True)
    return Text(wgsl, workgroups, tuple(slots), writer.scalar_bytes() if writer.scalars_used else 0)


def sign(
    plan: Plan, kernel: ScheduledKernel, table: dict[Any, int]
) -> tuple[Any, list[tuple[int, int, int]]]:
    """A key that is equal for kernels with equal text, and the places of their operands in its order.

    Expressions are numbered by structure in ``table``; a load is told by the number of its place, not by its
    node. Places tell apart by size, dtype and which of them share a buffer.
    """
    places: dict[tuple[int, int, int], int] = {}
    buffers: dict[int, int] = {}
    kinds: list[Any] = []
    memo: dict[int, int] = {}

    def place(node: Node) -> int:
        where = plan.span(node)
        if where not in places:
            places[where] = len(places)
            shared = buffers.setdefault(where[0], len(buffers))
            kinds.append((shared, where[1] % 16, where[2]))
        return places[where]

    def number(e: Expr) -> int:
        if e.uid not in memo:
            mark = (place(e.attr), e.attr.size) if e.kind == "load" else e.mark
            key = (e.kind, mark, e.dtype, e.lo, e.hi, tuple(number(a) for a in e.args))
            memo[e.uid] = table.setdefault(key, len(table))
        return memo[e.uid]

    body = kernel.body
    shape: Any = kernel.space
    if isinstance(body, Rows):
        shape = (body.rows, body.length, tuple((r.op.name, r.dtype, r.stage) for r in body.reductions))
    elif isinstance(body, Contraction):
        shape = (body.batch, body.m, body.n, body.loops, body.strategy)
    roots = tuple(number(e) for e in kernel.roots())
    stores = tuple((place(s.node), s.node.dtype, s.stage, s.side) for s in kernel.stores)
    return (kernel.kind, shape, roots, stores, tuple(kinds)), list(places)
