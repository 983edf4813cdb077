"""Proves of a compiled program that every kernel reads what it should, and that WebGPU allows each dispatch.

`check_program` follows what each byte of each buffer holds, from kernel to kernel:

    at first   the values from outside: inputs, arenas, constants; owned buffers hold nothing
    a load     must find, in all of its bytes, the value that it names: the very node's result, or, for a
               leaf, what was there before the step
    a store    covers the whole of its node. It may overwrite what the same kernel loads only where each
               thread loads the element that it stores, and not in a later loop
    at last    outputs, captures and metrics are there, and every leaf holds its update

and compares each kernel's bindings with those places and with WebGPU's rules: a buffer is either read, or all
its bindings are read_write and disjoint; offsets are multiples of 256, sizes of 16; limits hold. It runs with
``WEBGRAD_DEBUG`` ≥ 1 and on every program of the tests. What it finds is a fault of the compiler's, so it
raises `CompileError` naming the kernel, the buffer and both values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from webgrad import debug
from webgrad.compiler.indexing import Expr
from webgrad.compiler.kernels import Contraction, Rows, ScheduledKernel, Store
from webgrad.compiler.plan import Plan
from webgrad.compiler.program import Binding, KernelSpec, Program
from webgrad.compiler.simplify import storage
from webgrad.compiler.target import Target
from webgrad.errors import CompileError
from webgrad.ir import ITEM_BYTES, STORED_DTYPES, Node, numel
from webgrad.layout import ALIGN

#: a store after every loop of a row kernel
AFTER = 1 << 30


def wanted() -> bool:
    """Whether programs are to be checked as they are compiled."""
    return debug.level() > 0


def check_program(plan: Plan, program: Program) -> None:
    """All of the checks; see the module's text. Raises `CompileError`."""
    check_leaves(plan)
    for number in range(len(program.kernels)):
        check_dispatch(program, number, plan.target)
        check_bound(plan, program, number)
    for numbers in program.entries.values():
        check_values(plan, program, numbers)


# --- what buffers hold ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Span:
    """Bytes [start, end) of a buffer, and the node whose result they hold (None: what was there at first)."""

    start: int
    end: int
    owner: Node | None


class Contents:
    """What each byte of each buffer holds."""

    def __init__(self) -> None:
        self._written: dict[int, list[Span]] = {}

    def within(self, buffer: int, start: int, end: int) -> list[Span]:
        """The spans of a range, in order and without gaps."""
        found, at = [], start
        for span in sorted(self._written.get(buffer, []), key=lambda s: s.start):
            if span.start < end and start < span.end:
                if at < span.start:
                    found.append(Span(at, span.start, None))
                at = min(span.end, end)
                found.append(Span(max(span.start, start), at, span.owner))
        return [*found, Span(at, end, None)] if at < end else found

    def write(self, buffer: int, start: int, end: int, owner: Node) -> None:
        """Let a range hold a node's result."""
        kept = []
        for s in self._written.get(buffer, []):
            kept += [
                Span(a, b, s.owner)
                for a, b in ((s.start, min(s.end, start)), (max(s.start, end), s.end))
                if a < b
            ]
        self._written[buffer] = [*kept, Span(start, end, owner)]


class _Kernel:
    """One dispatch, for messages."""

    def __init__(self, plan: Plan, program: Program, number: int) -> None:
        self.plan, self.number = plan, number
        self.spec: KernelSpec = program.kernels[number]
        self.kernel: ScheduledKernel = plan.schedule.kernels[number]

    def fail(self, text: str) -> CompileError:
        """The error that this kernel is wrong."""
        return CompileError(f"internal error: kernel {self.number} ({self.spec.name}) {text}\n{self.kernel}")


def _bytes_of(plan: Plan, node: Node) -> tuple[int, int, int]:
    """Buffer, first byte and end of a node's values."""
    buffer, start = plan.where(node)
    return buffer, start, start + node.nbytes


def _show(plan: Plan | Program, buffer: int, start: int, end: int) -> str:
    spec = plan.buffers[buffer]
    return f"b{buffer}[{start}:{end}] ({' '.join(filter(None, (spec.kind, spec.key)))})"


def _show_binding(plan: Plan | Program, b: Binding) -> str:
    return f"{b.access} {_show(plan, b.buffer, b.offset, b.offset + b.size)}"


def _held(span: Span) -> str:
    owner = span.owner
    return "what was there before the step" if owner is None else f"%{owner.id} ({owner.op.name})"


def check_values(plan: Plan, program: Program, numbers: Iterable[int]) -> None:
    """Follow an entry's kernels: each load finds its value, and so do the outside and every update."""
    contents = Contents()
    for number in numbers:
        k = _Kernel(plan, program, number)
        for node in k.kernel.loads:
            wrong = _wrong(plan, contents, node)
            if wrong is not None:
                where, span = wrong
                raise k.fail(f"loads %{node.id} ({node.op.name}), but {where} holds {_held(span)}")
        _check_stores(k)
        for store in k.kernel.stores:
            contents.write(*_bytes_of(plan, store.node), store.node)
    _check_end(plan, program, contents)


def _wrong(plan: Plan, contents: Contents, node: Node) -> tuple[str, Span] | None:
    """Bytes of ``node`` that do not hold it, if any, and where they are."""
    base = storage(node)
    buffer, start, end = _bytes_of(plan, base)
    parts: list[tuple[int, int, Node | None]] = []
    if base.op.family == "pack":  # its parts, and zeros between them
        for part, offset in zip(base.inputs, base.attrs["offsets"], strict=True):
            first = start + offset * ITEM_BYTES
            parts.append((first, first + part.nbytes, part))
    elif base.op.family != "leaf":
        parts.append((start, end, base))
    at = start
    for first, last, owner in [*sorted(parts, key=lambda part: part[:2]), (end, end, None)]:
        for span in contents.within(buffer, at, first):
            if span.owner is not None:
                return _show(plan, buffer, span.start, span.end), span
        for span in contents.within(buffer, first, last):
            if span.owner is not owner:
                return _show(plan, buffer, span.start, span.end), span
        at = last
    return None


def _check_end(plan: Plan, program: Program, contents: Contents) -> None:
    """What is read back is there, and every leaf holds its update."""
    graph = plan.schedule.graph
    tables = (
        ("output", {str(i): n for i, n in enumerate(graph.outputs)}),
        ("capture", graph.captures),
        ("metric", graph.metrics),
    )
    for kind, table in tables:
        for name, node in table.items():
            r, place = program.ranges[f"{kind}:{name}"], _bytes_of(plan, node)
            if (r.buffer, r.offset, r.offset + r.bytes) != place:
                raise CompileError(
                    f"internal error: {kind} {name!r} is read from "
                    f"{_show(plan, r.buffer, r.offset, r.offset + r.bytes)}, but lies at "
                    f"{_show(plan, *place)}"
                )
            wrong = _wrong(plan, contents, node) if node.size else None
            if wrong is not None:
                where, span = wrong
                raise CompileError(
                    f"internal error: {kind} {name!r} (%{node.id}) is not there at the end: {where} holds "
                    f"{_held(span)}"
                )
    for leaf, value in graph.updates:
        base = storage(value)
        allowed = {base, *(base.inputs if base.op.family == "pack" else ())}
        buffer, start, end = _bytes_of(plan, leaf)
        spans = contents.within(buffer, start, end) if leaf.size else []
        found = {s.owner for s in spans if s.owner is not None}
        copied = {o for o in found if o.op.name == "copy" and storage(o.inputs[0]) is base}
        if leaf.size and (not found <= allowed | copied or not found):
            held = ", ".join(sorted({_held(s) for s in spans}))
            raise CompileError(
                f"internal error: {leaf.attrs['name']!r} is not updated with %{base.id} ({base.op.name}): "
                f"{_show(plan, buffer, start, end)} holds {held} at the end"
            )


# --- inside a kernel --------------------------------------------------------------------------------


def _check_stores(k: _Kernel) -> None:
    """Stores cover their nodes, do not overlap, and overwrite only what their own thread loaded before."""
    loads = list(_loads(k.kernel))
    for number, store in enumerate(k.kernel.stores):
        node, count = store.node, _elements(k.kernel, store)
        if not node.size:
            continue
        buffer, start, end = _bytes_of(k.plan, node)
        where = _show(k.plan, buffer, start, end)
        if count != node.size:
            raise k.fail(f"stores {count} of the {node.size} elements of %{node.id} in {where}")
        if (store.index.lo, store.index.hi) != (0, node.size - 1) and not store.index.loose:
            raise k.fail(f"stores %{node.id} at indices {store.index.lo} to {store.index.hi} of {where}")
        for other in k.kernel.stores[:number]:
            there, a, b = _bytes_of(k.plan, other.node)
            if there == buffer and a < end and start < b:
                raise k.fail(f"stores both %{other.node.id} and %{node.id} in {where}")
        own = store.side is None and not (isinstance(k.kernel.body, Rows) and store.stage is None)
        for load, time in loads:
            there, a, b = _bytes_of(k.plan, load.attr)
            apart = there != buffer or a >= end or start >= b
            same = own and a == start and load.args[0] is store.index
            if not apart and not (same and time <= _time(store)):
                raise k.fail(
                    f"may load %{load.attr.id} from {where} after another thread or loop has stored "
                    f"%{node.id} there"
                )


def _elements(kernel: ScheduledKernel, store: Store) -> int:
    """How many elements the kernel stores."""
    body = kernel.body
    if isinstance(body, Contraction):
        return {None: body.batch * body.m * body.n, "left": body.m, "right": body.n}[store.side]
    if isinstance(body, Rows):
        return body.rows if store.stage is None else body.rows * body.length
    return numel(kernel.space)


Time = tuple[int, int]


def _time(store: Store) -> Time:
    """When a row kernel stores, as (loop, 1): all values of a loop's stores are computed before the first."""
    return (AFTER if store.stage is None else store.stage, 1)


def _loads(kernel: ScheduledKernel) -> Iterator[tuple[Expr, Time]]:
    """Every load with the last time at which it may happen; a product's operands are loaded all the while."""
    body = kernel.body
    roots: list[tuple[Expr, Time]] = [(e, _time(s)) for s in kernel.stores for e in (s.index, s.value)]
    if isinstance(body, Rows):
        roots += [(r.body, (r.stage, 0)) for r in body.reductions]
    elif isinstance(body, Contraction):
        roots += [(body.left, (AFTER, 2)), (body.right, (AFTER, 2))]
    seen: set[tuple[int, Time]] = set()
    stack = list(roots)
    while stack:
        e, time = stack.pop()
        if (e.uid, time) in seen:
            continue
        seen.add((e.uid, time))
        stack.extend((a, time) for a in e.args)
        if e.kind == "load" and e.attr.size:
            yield e, time


# --- leaves -----------------------------------------------------------------------------------------


def check_leaves(plan: Plan) -> None:
    """Values from outside lie apart from each other, inside their buffers; constants have their bytes."""
    graph = plan.schedule.graph
    taken: dict[int, list[tuple[int, int, str]]] = {}
    words = [(plan.upload, r.offset, r.offset + r.bytes, name) for name, r in plan.scalars.items()]
    constants = [n for n in graph.nodes if n.op.name == "const" and n.attrs["value"].ndim]
    named = [*graph.inputs.items(), *graph.params.items(), *((f"constant %{n.id}", n) for n in constants)]
    for buffer, start, end, name in [*words, *((*_bytes_of(plan, n), name) for name, n in named)]:
        text = _show(plan, buffer, start, end)
        if end > plan.buffers[buffer].bytes:
            raise CompileError(
                f"internal error: {name!r} lies at {text}, outside {plan.buffers[buffer].bytes} bytes"
            )
        for a, b, other in taken.setdefault(buffer, []):
            if a < end and start < b:
                raise CompileError(f"internal error: {name!r} and {other!r} overlap at {text}")
        taken[buffer].append((start, end, name))
    for node in constants:
        buffer, start, end = _bytes_of(plan, node)
        blob = plan.blobs[int(plan.buffers[buffer].key)]
        value = np.ascontiguousarray(node.attrs["value"], dtype=STORED_DTYPES[node.dtype])
        if blob[start:end] != value.tobytes():
            raise CompileError(
                f"internal error: {_show(plan, buffer, start, end)} is not constant %{node.id}"
            )


# --- WebGPU's rules ---------------------------------------------------------------------------------


def check_bound(plan: Plan, program: Program, number: int) -> None:
    """A kernel's bindings are the places of what it loads and stores, no others."""
    k = _Kernel(plan, program, number)
    storages = [b for b in k.spec.bindings if b.access != "uniform"]
    bound = {(b.buffer, b.offset, b.size) for b in storages}
    stored = {plan.span(s.node) for s in k.kernel.stores if s.node.size}
    loaded = {plan.span(n) for n in k.kernel.loads if n.size}
    empty = {plan.span(n) for n in k.kernel.loads if not n.size}  # bound for a loop that never runs
    for b in storages:
        if (b.buffer, b.offset, b.size) not in stored | loaded | empty:
            raise k.fail(f"binds {_show_binding(plan, b)}, where nothing that it loads or stores lies")
    for span in sorted((stored | loaded) - bound):
        buffer, offset, size = span
        raise k.fail(f"does not bind {_show(plan, buffer, offset, offset + size)}, which it loads or stores")
    for b in storages:
        if (b.buffer, b.offset, b.size) in stored and b.access != "read_write":
            raise k.fail(f"stores into {_show_binding(plan, b)}, which is bound to be read")
    uniforms = [b for b in k.spec.bindings if b.access == "uniform"]
    for name in k.kernel.scalars:
        r = plan.scalars[name]
        if not any(b.buffer == r.buffer and b.offset == 0 and r.offset + r.bytes <= b.size for b in uniforms):
            raise k.fail(f"reads the number {name!r} at byte {r.offset}, which no uniform binding holds")


def check_dispatch(program: Program, number: int, target: Target) -> None:
    """WebGPU's rules for one dispatch: bindings, what the text declares of them, grid and workgroup."""
    kernel = program.kernels[number]

    def fail(text: str) -> CompileError:
        return CompileError(f"internal error: kernel {number} ({kernel.name}) {text}")

    storages = [b for b in kernel.bindings if b.access != "uniform"]
    if len(storages) > target.max_storage_buffers:
        raise fail(f"has {len(storages)} storage bindings; the adapter has {target.max_storage_buffers}")
    written = {b.buffer for b in storages if b.access == "read_write"}
    if not written:
        raise fail("stores nothing")
    for at, b in enumerate(kernel.bindings):
        shown = _show_binding(program, b)
        limit = target.max_uniform_bytes if b.access == "uniform" else target.max_binding_bytes
        if b.offset % ALIGN:
            raise fail(f"binds {shown}: offsets are multiples of {ALIGN}")
        if b.size < 16 or b.size % 16 or b.size > limit:
            raise fail(f"binds {shown}: sizes are multiples of 16, from 16 to {limit:,}")
        if b.offset + b.size > program.buffers[b.buffer].bytes:
            raise fail(f"binds {shown}, beyond the buffer's {program.buffers[b.buffer].bytes:,} bytes")
        if b.buffer in written and b.access != "read_write":
            raise fail(f"binds {shown}, but also writes that buffer: then all its bindings are read_write")
        for other in kernel.bindings[:at] if b.buffer in written else ():
            if (
                other.buffer == b.buffer
                and other.offset < b.offset + b.size
                and b.offset < other.offset + other.size
            ):
                raise fail(f"binds {shown}, which overlaps {_show_binding(program, other)}")
    text = program.modules[kernel.module]
    declared = [(access or kind, size_of(item)) for kind, access, item in _BINDINGS.findall(text)]
    if declared != [(b.access, b.size) for b in kernel.bindings]:
        raise fail(f"declares {declared}, but {[(b.access, b.size) for b in kernel.bindings]} is bound")
    _check_grid(kernel, text, target, fail)


def _check_grid(kernel: KernelSpec, text: str, target: Target, fail: Callable[[str], CompileError]) -> None:
    if not all(0 < n <= target.max_workgroups for n in kernel.workgroups):
        raise fail(
            f"launches {kernel.workgroups} workgroups: from 1 to {target.max_workgroups:,} in a dimension"
        )
    found = _WORKGROUP.search(text)
    threads = numel([int(n) for n in found[1].split(",")]) if found else 0
    if not 0 < threads <= target.max_workgroup_size:
        raise fail(f"has {threads} threads a workgroup; the adapter allows {target.max_workgroup_size}")
    shared = sum(size_of(item) for item in _SHARED.findall(text))
    if shared > target.max_workgroup_bytes:
        raise fail(
            f"needs {shared:,} bytes of workgroup memory; the adapter has {target.max_workgroup_bytes:,}"
        )


_BINDINGS = re.compile(r"@binding\(\d+\) var<(\w+)(?:, (\w+))?> \w+: (.+?);")
_WORKGROUP = re.compile(r"@compute @workgroup_size\(([\d, ]+)\)")
_SHARED = re.compile(r"var<workgroup> \w+: (.+?);")
_ARRAY = re.compile(r"array<(.+), (\d+)>$")


def size_of(kind: str) -> int:
    """Bytes of a WGSL type: numbers, vectors of 2 or 4, and arrays of those."""
    array = _ARRAY.match(kind)
    if array:
        return size_of(array[1]) * int(array[2])
    vector = re.match(r"vec([24])<", kind)
    return ITEM_BYTES * (int(vector[1]) if vector else 1)
