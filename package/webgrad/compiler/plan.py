"""Schedule → Plan: where every stored value lives.

    upload      one buffer: the scalars, then each input at a 256-byte boundary; one write a call
    external    arenas of parameters, gradients and optimizer state, found by key in a `ParamStore`
    constant    array literals
    owned       everything else; two values share a buffer when their lifetimes do not touch

A value's lifetime runs from the kernel that writes it to the last that reads it, both included, so a
kernel never reads and writes one recycled buffer. What is read back lives to the end of the step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from webgrad.compiler.kernels import Schedule
from webgrad.compiler.program import BufferSpec, Range
from webgrad.compiler.schedule import schedule
from webgrad.compiler.simplify import storage
from webgrad.compiler.summary import Summary, lifespans, summarise
from webgrad.compiler.target import DEFAULT, Target
from webgrad.errors import InputError, OutOfMemoryError
from webgrad.ir import ITEM_BYTES, STORED_DTYPES, Graph, Layout, Node
from webgrad.layout import ALIGN, make_layout, round_up


@dataclass
class Plan:
    """Buffers and places. ``place`` maps a stored node or leaf to (buffer, byte offset)."""

    schedule: Schedule
    target: Target
    layout: Layout
    buffers: list[BufferSpec] = field(default_factory=list)
    place: dict[Node, tuple[int, int]] = field(default_factory=dict)
    blobs: list[bytes] = field(default_factory=list)
    upload: int = 0
    inputs: dict[str, Range] = field(default_factory=dict)
    scalars: dict[str, Range] = field(default_factory=dict)
    ranges: dict[str, Range] = field(default_factory=dict)
    params: dict[str, Range] = field(default_factory=dict)

    @property
    def captures(self) -> dict[str, tuple[int, int, tuple[int, ...], str]]:
        """``{name: (buffer, offset, shape, dtype)}`` in the order of capture."""
        found = ((n[len("capture:") :], r) for n, r in self.ranges.items() if n.startswith("capture:"))
        return {name: (r.buffer, r.offset, r.shape, r.dtype) for name, r in found}

    def summary(self) -> Summary:
        """Peak bytes by kind, and the lifetime of every value in every buffer; it prints as a table."""
        return summarise(self)

    def where(self, node: Node) -> tuple[int, int]:
        """(buffer, byte offset) of a node or of what it shares bytes with."""
        return self.place[storage(node)]

    def span(self, node: Node) -> tuple[int, int, int]:
        """Buffer, offset and size of the binding that shows a node."""
        base = storage(node)
        return (*self.where(base), max(round_up(base.nbytes, 16), 16))

    def range_of(self, node: Node) -> Range:
        """The node's bytes as a named range."""
        buffer, offset = self.where(node)
        return Range(buffer, offset, node.nbytes, node.shape, node.dtype)

    def __str__(self) -> str:
        lines = [f"Plan: {self.summary().line}"]
        for number, buffer in enumerate(self.buffers):
            held = [f"%{n.id}@{o}" for n, (b, o) in self.place.items() if b == number]
            lines.append(f"  b{number} {buffer.kind} {buffer.bytes:,} {buffer.key} {' '.join(held[:12])}")
        return "\n".join(lines)


def plan_buffers(source: Graph | Schedule, layout: Layout | None = None, target: Target = DEFAULT) -> Plan:
    """Give every stored value its bytes. A `Graph` is scheduled first.

    ``layout`` places the parameters (default: the graph's own, or one made for it). Raises
    `OutOfMemoryError`, naming the tensor, for a value the adapter cannot hold.
    """
    sched = schedule(source, target) if isinstance(source, Graph) else source
    graph = sched.graph
    own = layout or graph.layout or make_layout(graph.params, sched.target.max_binding_bytes)
    plan = Plan(sched, sched.target, own)
    _upload(plan, graph)
    _externals(plan, graph)
    _constants(plan, graph)
    _values(plan)
    tables = (("output", enumerate(graph.outputs)), ("capture", graph.captures.items()))
    for kind, table in (*tables, ("metric", graph.metrics.items())):
        for name, node in table:
            plan.ranges[f"{kind}:{name}"] = plan.range_of(node)
    return plan


def _add(plan: Plan, buffer: BufferSpec) -> int:
    plan.buffers.append(buffer)
    return len(plan.buffers) - 1


def _upload(plan: Plan, graph: Graph) -> None:
    offset = 0
    for name, node in graph.scalars.items():
        plan.scalars[name] = Range(0, offset, ITEM_BYTES, (), node.dtype)
        offset += ITEM_BYTES
    for name, node in graph.inputs.items():
        offset = round_up(offset, ALIGN)
        check_size(plan, node, f"input {name!r}")
        plan.inputs[name] = Range(0, offset, node.nbytes, node.shape, node.dtype, graph.id_bounds.get(name))
        plan.place[node] = (0, offset)
        offset += round_up(max(node.nbytes, 16), 16)
    plan.upload = _add(plan, BufferSpec(max(round_up(offset, 16), 16), "owned", "upload", "once"))


def _externals(plan: Plan, graph: Graph) -> None:
    arenas: dict[str, int] = {}

    def arena(name: str, elements: int) -> int:
        if name not in arenas:
            size = max(round_up(elements * ITEM_BYTES, 16), 16)
            arenas[name] = _add(plan, BufferSpec(size, "external", name))
        return arenas[name]

    for name, node in graph.params.items():
        if name not in plan.layout.ranges:
            raise InputError(f"the layout has no place for parameter {name!r}")
        where = plan.layout.ranges[name]
        if (where.shape, where.dtype) != (node.shape, node.dtype):
            raise InputError(
                f"parameter {name!r} is {node.dtype}{list(node.shape)} here and "
                f"{where.dtype}{list(where.shape)} in the layout"
            )
        buffer = arena(where.arena, plan.layout.arenas[where.arena])
        plan.place[node] = (buffer, where.offset * ITEM_BYTES)
        plan.params[name] = plan.range_of(node)
    for name, node in graph.states.items():
        plan.place[node] = (arena(name, node.size), 0)


def _constants(plan: Plan, graph: Graph) -> None:
    blob = bytearray()
    nodes = [n for n in graph.nodes if n.op.name == "const" and n.attrs["value"].ndim]
    if not nodes:
        return
    buffer = len(plan.buffers)
    for node in nodes:
        blob.extend(bytes(-len(blob) % ALIGN))
        plan.place[node] = (buffer, len(blob))
        blob.extend(np.ascontiguousarray(node.attrs["value"], dtype=STORED_DTYPES[node.dtype]).tobytes())
    blob.extend(bytes(-len(blob) % 16 or (16 if not blob else 0)))
    plan.blobs.append(bytes(blob))
    _add(plan, BufferSpec(len(blob), "constant", "0"))


def check_size(plan: Plan, node: Node, what: str) -> None:
    """Raise `OutOfMemoryError` for a tensor the adapter cannot bind, or i32 cannot index."""
    if node.nbytes > plan.target.max_binding_bytes or node.size >= 2**31:
        site = f" (at {node.sites[0]})" if node.sites else ""
        raise OutOfMemoryError(
            f"{what} {node.dtype}{list(node.shape)} takes {node.nbytes:,} bytes; the adapter binds at most "
            f"{plan.target.max_binding_bytes:,}{site}: use a smaller batch or split it"
        )


def _values(plan: Plan) -> None:
    """Place computed values, recycling owned buffers by lifetime."""
    sched = plan.schedule
    last = {node: until for node, (_, until) in lifespans(sched).items()}
    hosts = [n for n in sched.graph.nodes if n.op.family == "pack" and n not in sched.placed]
    for node in hosts:  # a pack nobody commits: zero between its parts
        size = max(round_up(node.nbytes, 16), 16)
        plan.place[node] = (_add(plan, BufferSpec(size, "owned", "", "once")), 0)
    free: list[int] = []
    sizes: dict[int, int] = {}
    busy: list[tuple[int, int]] = []
    for number, kernel in enumerate(sched.kernels):
        for until, buffer in [b for b in busy if b[0] < number]:
            busy.remove((until, buffer))
            free.append(buffer)
        for store in kernel.stores:
            node = store.node
            check_size(plan, node, f"the result of {node.op.name}")
            if node in sched.placed or node in plan.place:
                continue
            buffer = _take(plan, free, sizes, max(round_up(node.nbytes, 16), 16))
            plan.place[node] = (buffer, 0)
            busy.append((last[node], buffer))
    for buffer, size in sizes.items():
        plan.buffers[buffer] = BufferSpec(size, "owned")
    for node in sched.graph.nodes:  # values of size 0 have no kernel, but they have a place
        if node.size == 0 and node.op.family != "leaf":
            plan.place.setdefault(node, (plan.upload, 0))
    for node in sched.placed:
        plan.place[node] = _resolve(plan, node)


def _resolve(plan: Plan, node: Node) -> tuple[int, int]:
    if node in plan.place:
        return plan.place[node]
    host, offset = plan.schedule.placed[node]
    buffer, base = _resolve(plan, host)
    return buffer, base + offset * ITEM_BYTES


def _take(plan: Plan, free: list[int], sizes: dict[int, int], need: int) -> int:
    """The smallest free buffer that fits, else the largest one grown, else a new one."""
    fitting = [b for b in free if sizes[b] >= need]
    if fitting:
        buffer = min(fitting, key=lambda b: sizes[b])
    elif free:
        buffer = max(free, key=lambda b: sizes[b])
        sizes[buffer] = need
    else:
        buffer = _add(plan, BufferSpec(need, "owned"))
        sizes[buffer] = need
        return buffer
    free.remove(buffer)
    return buffer
