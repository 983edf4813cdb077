"""A group of nodes → a `ScheduledKernel`: everything as expressions of the kernel's variables.

`Lowering.value(node, coords)` is the heart: what ``node`` is at symbolic coordinates. A stored node is
a load; movement changes the coordinates; elementwise ops apply; a gather's coordinate is itself a
value. Members of the group meet each other at the kernel's own coordinates, in registers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from webgrad.compiler.indexing import Expr, Indexer
from webgrad.compiler.kernels import Contraction, Kind, Reduction, Rows, ScheduledKernel, Side, Store
from webgrad.errors import CompileError
from webgrad.ir import NUMPY_DTYPES, Node, numel
from webgrad.ops import elementwise as ew

Coords = tuple[Expr, ...]


class Lowering:
    """Expressions of one kernel."""

    def __init__(self, ix: Indexer, stored: set[Node]) -> None:
        self.ix = ix
        self.stored = stored
        #: member -> (its value, the flat index at which it has that value)
        self.registers: dict[Node, tuple[Expr, Expr]] = {}
        self._memo: dict[tuple[int, tuple[int, ...]], Expr] = {}

    def value(self, node: Node, coords: Coords) -> Expr:
        """``node`` at ``coords``."""
        ix = self.ix
        if node in self.registers:
            value, index = self.registers[node]
            if ix.ravel(coords, node.shape) is index:
                return value
        key = (node.id, tuple(c.uid for c in coords))
        found = self._memo.get(key)
        if found is None:
            if node in self.stored or node.op.family == "pack":
                found = ix.load(node, ix.ravel(coords, node.shape), node.dtype)
            else:
                found = self.computed(node, coords)
            self._memo[key] = found
        return found

    def define(self, node: Node, value: Expr, index: Expr) -> None:
        """Let ``node`` be ``value`` at ``index`` from here on."""
        self.registers[node] = (value, index)
        self._memo.clear()

    def computed(self, node: Node, coords: Coords) -> Expr:
        """``node`` evaluated here, not loaded."""
        ix, family = self.ix, node.op.family
        if family == "leaf":
            return self.leaf(node, coords)
        if family == "elementwise":
            return ix.apply(node.op, node.attrs, [self.value(x, coords) for x in node.inputs], node.dtype)
        if family == "movement":
            (x,) = node.inputs
            inner, mask = node.op.index_map(node, coords, ix)  # type: ignore[attr-defined]
            fill = node.attrs.get("value", 0)
            return self.masked(mask, lambda: self.value(x, inner), x.dtype, fill)
        if family == "concat":
            return self.concat(node, coords)
        if family == "index":
            x, ids = node.inputs
            at = coords[: ids.ndim]
            axis = 0 if node.op.name == "gather" else x.ndim - 1
            index = ix.dyn(self.value(ids, at), x.shape[axis])
            return self.value(x, node.op.index_map(node, coords, index))  # type: ignore[attr-defined]
        if family == "random":
            seed, step = (self.value(x, ()) for x in node.inputs)
            return ix.apply(node.op, node.attrs, (seed, step, ix.ravel(coords, node.shape)), node.dtype)
        raise AssertionError(f"{node.op.name} cannot be evaluated inside a kernel")

    def leaf(self, node: Node, coords: Coords) -> Expr:
        """A leaf: a literal, a coordinate, a per-call number or a load."""
        ix, name = self.ix, node.op.name
        if name == "iota":
            return coords[node.attrs["axis"]]
        if name == "scalar":
            return ix.scalar(node.attrs["name"], node.dtype)
        if name == "const" and node.attrs["value"].ndim == 0:
            return ix.number(node.attrs["value"], node.dtype)
        return ix.load(node, ix.ravel(coords, node.shape), node.dtype)

    def masked(self, mask: Expr | None, inside: Any, dtype: str, fill: Any) -> Expr:
        """``inside()`` where the mask holds, else ``fill``."""
        if mask is None:
            return inside()
        outside = self.ix.number(np.array(fill, dtype=NUMPY_DTYPES[dtype]), dtype)
        if mask is self.ix.false:
            return outside
        return self.ix.apply(ew.where, {}, (mask, inside(), outside), dtype)

    def concat(self, node: Node, coords: Coords) -> Expr:
        """A chain of choices along the axis."""
        ix, axis = self.ix, node.attrs["axis"]
        starts, start = [], 0
        for x in node.inputs:
            starts.append(start)
            start += x.shape[axis]
        result: Expr | None = None
        for x, first in reversed(list(zip(node.inputs, starts, strict=True))):
            if not x.shape[axis]:
                continue
            at = ix.add(coords[axis], ix.const(-first))
            inner = (*coords[:axis], at, *coords[axis + 1 :])
            if result is None:
                result = self.value(x, inner)
                continue
            past = ix.ge0(ix.add(at, ix.const(-x.shape[axis])))
            here = self.value(x, inner)
            if past is None:
                continue
            result = here if past is ix.false else ix.apply(ew.where, {}, (past, result, here), node.dtype)
        assert result is not None
        return result

    def reduced(self, node: Node, row: Coords, along: Expr) -> Expr:
        """Term ``along`` of the reduction ``node`` at output coordinates ``row``."""
        ix, (x,) = self.ix, node.inputs
        if node.op.name == "fold":
            at = ix.unravel(along, x.shape[-2:])
            inner, mask = node.op.source(node, row, at, ix)  # type: ignore[attr-defined]
            return self.masked(mask, lambda: self.value(x, inner), x.dtype, 0)
        return self.value(x, full_coords(ix, node, row, along))


def full_coords(ix: Indexer, node: Node, row: Coords, along: Expr) -> Coords:
    """A reduction's input coordinates, from its output's and the flat index over the reduced axes."""
    (x,), axes = node.inputs, node.attrs["axes"]
    inner = iter(ix.unravel(along, [x.shape[a] for a in axes]))
    outer = iter(row)
    return tuple(next(inner) if a in axes else next(outer) for a in range(x.ndim))


def row_length(node: Node) -> int:
    """How many terms each result of a reduction has."""
    (x,) = node.inputs
    return numel(x.shape[-2:]) if node.op.name == "fold" else numel([x.shape[a] for a in node.attrs["axes"]])


def lower_map(members: Sequence[Node], stored: set[Node], written: set[Node]) -> ScheduledKernel:
    """Elementwise members over one flat space."""
    low = Lowering(Indexer(), stored)
    index = low.ix.var("i", members[0].size)
    stores = _elementwise(low, members, index, written)
    return _checked(_kernel("map", low, members, index, stores, None, stored), members)


def lower_contract(
    heavy: Node,
    members: Sequence[Node],
    sums: Mapping[Node, Side],
    stored: set[Node],
    written: set[Node],
) -> ScheduledKernel:
    """A contraction, its epilogue, and the sums of its operands over k.

    The epilogue is written in terms of b, m and n, which needs fewest divisions. Where a reshape fits no
    axis, those terms do not come back together, and the epilogue uses the flat index instead.
    """
    kernel = _contract(heavy, members, sums, stored, written, flat=False)
    if not any(node in kernel.loads for node in members):
        return kernel
    return _checked(_contract(heavy, members, sums, stored, written, flat=True), members)


def _contract(
    heavy: Node,
    members: Sequence[Node],
    sums: Mapping[Node, Side],
    stored: set[Node],
    written: set[Node],
    flat: bool,
) -> ScheduledKernel:
    low = Lowering(Indexer(), stored)
    ix = low.ix
    form = heavy.op.form(heavy)  # type: ignore[attr-defined]
    b, m, n = (ix.var(v, s) for v, s in zip("bmn", (form.batch, form.m, form.n), strict=True))
    loops = tuple((f"k{axis}", size) for axis, size in enumerate(form.k))
    k = ix.ravel([ix.var(name, size) for name, size in loops], form.k)
    sides = []
    for operand, access, along in ((form.left, form.left_at, m), (form.right, form.right_at, n)):
        x = heavy.inputs[operand]
        at, mask = access(ix, b, along, k)
        sides.append(low.masked(mask, lambda x=x, at=at: low.value(x, at), x.dtype, 0))
    body = Contraction(sides[0], sides[1], form.batch, form.m, form.n, loops)
    place = ix.ravel(form.out_at(ix, b, m, n), heavy.shape)
    index = ix.var("i", heavy.size) if flat else place
    total = ix.register("total0", heavy.dtype)
    low.define(heavy, total, index)
    stores = [Store(heavy, index, total)] if heavy in written else []
    stores += _elementwise(low, [x for x in members if x is not heavy and x not in sums], index, written)
    for node, side in sums.items():
        stores.append(
            Store(node, m if side == "left" else n, ix.register(f"sum_{side}", node.dtype), side=side)
        )
    return _kernel("contract", low, members, place, stores, body, stored)


def _elementwise(low: Lowering, members: Sequence[Node], index: Expr, written: set[Node]) -> list[Store]:
    stores = []
    for node in members:
        value = low.computed(node, low.ix.unravel(index, node.shape))
        low.define(node, value, index)
        if node in written:
            stores.append(Store(node, index, value))
    return stores


def lower_rows(
    members: Sequence[Node], domain: Domain, stored: set[Node], written: set[Node], in_place: set[Node]
) -> ScheduledKernel:
    """Reductions over the rows of a domain, and what is computed per row or per element from them.

    Values ``in_place`` overwrite a leaf element by element: they are stored in the last loop, because earlier
    ones may read the leaf.
    """
    low = Lowering(domain.ix, stored)
    reductions: list[Reduction] = []
    stores: list[Store] = []
    stage_of: dict[str, int] = {}  # register -> the first loop that may use it
    for node in members:
        if node.op.family == "reduce":
            row = domain.ix.unravel(domain.row, node.shape)
            term = low.reduced(node, row, domain.along)
            stage = _stage(term, stage_of)
            register = f"total{len(reductions)}"
            reductions.append(Reduction(node.op, term, node.inputs[0].dtype, register, stage))
            stage_of[register] = stage + 1
            value, index, inner = domain.ix.register(register, node.dtype), domain.row, False
        else:
            inner = node.size == domain.size
            index = domain.full if inner else domain.row
            value = low.computed(node, domain.ix.unravel(index, node.shape))
        low.define(node, value, index)
        if node in written:
            stores.append(Store(node, index, value, _stage(value, stage_of) if inner else None))
    last = max([*(r.stage for r in reductions), *(s.stage or 0 for s in stores)])
    stores = [replace(s, stage=last) if s.stage is not None and s.node in in_place else s for s in stores]
    body = Rows(domain.rows, domain.length, tuple(reductions))
    return _checked(_kernel("row", low, members, domain.row, stores, body, stored), members)


def _stage(e: Expr, stage_of: dict[str, int]) -> int:
    """The first loop in which every register that ``e`` uses is known."""
    return max((stage_of[v] for v in e.free if v in stage_of), default=0)


class Domain:
    """Rows and their elements: ``full`` is the flat index of element ``along`` of row ``row``."""

    def __init__(self, ix: Indexer, node: Node) -> None:
        self.ix = ix
        self.length = row_length(node)
        self.rows = node.size
        self.size = self.rows * self.length
        self.row, self.along = ix.var("i", self.rows), ix.var("r", self.length)
        if node.op.name == "fold":  # its elements overlap: nothing else has this domain
            self.full = ix.add(ix.mul(self.row, self.length), self.along)
        else:
            (x,) = node.inputs
            row = ix.unravel(self.row, node.shape)
            self.full = ix.ravel(full_coords(ix, node, row, self.along), x.shape)

    def same(self, other: Domain) -> bool:
        """Whether both have the same rows of the same elements (built by one indexer)."""
        return (self.rows, self.length) == (other.rows, other.length) and self.full is other.full


def _kernel(
    kind: Kind,
    low: Lowering,
    members: Sequence[Node],
    index: Expr,
    stores: list[Store],
    body: Any,
    stored: set[Node],
) -> ScheduledKernel:
    kernel = ScheduledKernel(
        kind, low.ix, members[0].shape, index, stores, body, list(_nodes(members, stored))
    )
    kernel.collect()
    return kernel


def _checked(kernel: ScheduledKernel, members: Sequence[Node]) -> ScheduledKernel:
    """The kernel, unless it loads what it computes itself."""
    if any(node in kernel.loads for node in members):
        raise CompileError(f"internal error: a kernel loads what it computes itself\n{kernel}")
    return kernel


def _nodes(members: Sequence[Node], stored: set[Node]) -> dict[Node, None]:
    """The computing nodes a kernel covers: its members and what they inline."""
    found: dict[Node, None] = {}
    stack = list(reversed(members))
    while stack:
        node = stack.pop()
        if node in found or node.op.family in ("leaf", "pack"):
            continue
        found[node] = None
        stack.extend(x for x in reversed(node.inputs) if x not in stored)
    return dict.fromkeys(sorted(found, key=lambda n: n.id))
