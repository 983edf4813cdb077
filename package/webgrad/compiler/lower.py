"""A group of nodes → a `ScheduledKernel`: everything as expressions of the kernel's variables.

`Lowering.value(node, coords)` is the heart: what ``node`` is at symbolic coordinates. A stored node is
a load; movement changes the coordinates; elementwise ops apply; a gather's coordinate is itself a
value. Members of the group meet each other at the kernel's own coordinates, in registers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from webgrad.compiler.indexing import Expr, Indexer
from webgrad.compiler.kernels import Contraction, Kind, Reduction, ScheduledKernel, Store
from webgrad.errors import CompileError
from webgrad.ir import NUMPY_DTYPES, Node, numel
from webgrad.ops import elementwise as ew

Coords = tuple[Expr, ...]


class Lowering:
    """Expressions of one kernel."""

    def __init__(self, stored: set[Node]) -> None:
        self.ix = Indexer()
        self.stored = stored
        self.registers: dict[Node, Expr] = {}
        self.index: Expr | None = None
        self._memo: dict[tuple[int, tuple[int, ...]], Expr] = {}

    def value(self, node: Node, coords: Coords) -> Expr:
        """``node`` at ``coords``."""
        key = (node.id, tuple(c.uid for c in coords))
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = self._value(node, coords)
        return found

    def _value(self, node: Node, coords: Coords) -> Expr:
        ix = self.ix
        if node in self.registers and ix.ravel(coords, node.shape) is self.index:
            return self.registers[node]
        if node in self.stored or node.op.family == "pack":
            return ix.load(node, ix.ravel(coords, node.shape), node.dtype)
        return self.computed(node, coords)

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


def lower(heavy: Node | None, members: list[Node], stored: set[Node], written: set[Node]) -> ScheduledKernel:
    """The kernel that computes ``members`` (in order) over the space of the first, and stores those of
    them that are ``written``. Nodes in ``stored`` that are no members are loaded.
    """
    low = Lowering(stored)
    ix, space = low.ix, members[0].shape
    kind: Kind = "map"
    body: Reduction | Contraction | None = None
    if heavy is not None and heavy.op.family == "contract":
        kind = "contract"
        form = heavy.op.form(heavy)  # type: ignore[attr-defined]
        b, m, n, k = (ix.var(v, s) for v, s in zip("bmnk", (form.batch, form.m, form.n, form.k), strict=True))
        sides = []
        for operand, access, along in ((form.left, form.left_at, m), (form.right, form.right_at, n)):
            x = heavy.inputs[operand]
            at, mask = access(ix, b, along, k)
            sides.append(low.masked(mask, lambda x=x, at=at: low.value(x, at), x.dtype, 0))
        body = Contraction(sides[0], sides[1], form.batch, form.m, form.n, form.k)
        coords: Coords = form.out_at(ix, b, m, n)
    else:
        coords = ix.unravel(ix.var("i", numel(space)), space)
        if heavy is not None:
            kind = "reduce"
            body = _reduction(low, heavy, coords)
    low.index = ix.ravel(coords, space)
    if heavy is not None:
        low.registers[heavy] = ix.register("total", heavy.dtype)
    stores = []
    low._memo.clear()
    for node in members:
        at = coords if node.shape == space else ix.unravel(low.index, node.shape)
        value = low.registers[node] if node is heavy else low.computed(node, at)
        low.registers[node] = value
        if node in written:
            stores.append(Store(node, low.index, value))
    kernel = ScheduledKernel(kind, ix, space, low.index, stores, body, list(_nodes(members, stored)))
    kernel.collect()
    if any(node in low.registers for node in kernel.loads):
        raise CompileError(f"internal error: a kernel loads what it computes itself\n{kernel}")
    return kernel


def _reduction(low: Lowering, node: Node, coords: Coords) -> Reduction:
    ix, (x,) = low.ix, node.inputs
    if node.op.name == "fold":
        window = x.shape[-2:]
        at = ix.unravel(ix.var("r", numel(window)), window)
        inner, mask = node.op.source(node, coords, at, ix)  # type: ignore[attr-defined]
        body = low.masked(mask, lambda: low.value(x, inner), x.dtype, 0)
        return Reduction(node.op, body, numel(window), x.dtype)
    axes = node.attrs["axes"]
    sizes = [x.shape[a] for a in axes]
    along = iter(ix.unravel(ix.var("r", numel(sizes)), sizes))
    out = iter(coords)
    full = tuple(next(along) if a in axes else next(out) for a in range(x.ndim))
    return Reduction(node.op, low.value(x, full), numel(sizes), x.dtype)


def _nodes(members: list[Node], stored: set[Node]) -> dict[Node, None]:
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
