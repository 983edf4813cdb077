"""Graph → smaller graph with the same meaning: dead code, common subexpressions, constants, algebra.

The graph is rebuilt node by node; each new node passes the local rules below, then the table of
expressions already seen. The result holds plain nodes (no operators), in topological order.

Float rules keep IEEE results: never x·0, x−x, x/x, x==x or x+(+0).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from webgrad.compiler.strategy import reduction_parts, split_parts
from webgrad.compiler.target import Target
from webgrad.ir import NUMPY_DTYPES, Graph, Node, Site, numel
from webgrad.ops import contract as ct
from webgrad.ops import elementwise as ew
from webgrad.ops import leaves
from webgrad.ops import movement as mv
from webgrad.ops import reduce as rd
from webgrad.ops.base import Op, building
from webgrad.stages import Steps, finish


class Rewriter:
    """A builder whose ``emit`` applies rules and reuses equal nodes."""

    def __init__(self, target: Target, id_bounds: Mapping[str, tuple[int, int]]) -> None:
        self.nodes: list[Node] = []
        self.target, self.id_bounds = target, id_bounds
        self.sites: tuple[Site, ...] = ()
        self._seen: dict[Any, Node] = {}

    def emit(self, op: Op, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Any:
        """The simplified ``op(inputs)``."""
        for rule in _RULES.get(op.name, ()):
            found = rule(self, op, inputs, attrs)
            if found is not None:
                return found
        if op.family == "elementwise" and op is not ew.copy:
            found = _fold(op, inputs, attrs)
            if found is not None:
                return found
        key = (op.name, tuple(n.id for n in inputs), tuple(sorted((k, _key(v)) for k, v in attrs.items())))
        node = self._seen.get(key)
        if node is None:
            shape, dtype = op.infer(inputs, attrs)
            node = Node(len(self.nodes), op, inputs, attrs, shape, dtype, self.sites)
            self._seen[key] = node
            self.nodes.append(node)
        return node

    def pin(self, node: Node) -> None:
        """Rules here never compare a maximum."""


#: nodes between two yields
_AT_ONCE = 100


def _key(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return (value.tobytes(), value.shape, value.dtype.str)
    if isinstance(value, float):
        return np.float64(value).tobytes()
    return value if not isinstance(value, list) else tuple(value)


def simplify(graph: Graph, target: Target) -> Graph:
    """Rebuild ``graph`` from its roots. Names, captures, metrics and updates are kept."""
    return finish(simplify_steps(graph, target))


def simplify_steps(graph: Graph, target: Target) -> Steps[Graph]:
    """`simplify`, some nodes at a time."""
    live = _live(graph)
    nodes = [node for node in graph.nodes if node.id in live]
    rewriter = Rewriter(target, graph.id_bounds)
    new: dict[int, Node] = {}
    for start in range(0, len(nodes), _AT_ONCE):
        yield start / len(nodes)
        with building(rewriter):
            for node in nodes[start : start + _AT_ONCE]:
                rewriter.sites = node.sites
                new[node.id] = rewriter.emit(node.op, tuple(new[x.id] for x in node.inputs), node.attrs)
    with building(rewriter):
        table = {id(n): _snapshot(new[n.id]) for n in graph.roots()}
    updates = [(new[leaf.id], table[id(value)]) for leaf, value in graph.updates]

    def kept(names: dict[str, Node]) -> dict[str, Node]:
        return {name: new[n.id] for name, n in names.items() if n.id in new}

    result = replace(
        graph,
        nodes=rewriter.nodes,
        outputs=tuple(table[id(n)] for n in graph.outputs),
        captures={name: table[id(n)] for name, n in graph.captures.items()},
        metrics={name: table[id(n)] for name, n in graph.metrics.items()},
        params=kept(graph.params),
        inputs=kept(graph.inputs),
        states=kept(graph.states),
        scalars=kept(graph.scalars),
        updates=updates,
        pinned={new[n.id] for n in graph.pinned if n.id in new},
    )
    return _prune(result)


def storage(node: Node) -> Node:
    """The node whose bytes hold ``node``: a reshape shares its input's."""
    while node.op.name == "reshape":
        node = node.inputs[0]
    return node


def _snapshot(node: Node) -> Node:
    """What the outside reads must not be a leaf's own bytes: the step may overwrite them."""
    return ew.copy(node) if storage(node).op.family == "leaf" else node


def _live(graph: Graph) -> set[int]:
    stack = [*graph.roots(), *(leaf for leaf, _ in graph.updates)]
    stack += [*graph.params.values(), *graph.inputs.values(), *graph.states.values(), *graph.scalars.values()]
    live: set[int] = set()
    while stack:
        node = stack.pop()
        if node.id not in live:
            live.add(node.id)
            stack.extend(node.inputs)
    return live


def _prune(graph: Graph) -> Graph:
    """Drop what the rules left unused and renumber."""
    live = _live(graph)
    graph.nodes = [n for n in graph.nodes if n.id in live]
    for number, node in enumerate(graph.nodes):
        node.id = number
    graph.pinned = {n for n in graph.pinned if n.id < len(graph.nodes) and graph.nodes[n.id] is n}
    return graph


# --- rules ------------------------------------------------------------------------------------------

Rule = Callable[[Rewriter, Op, tuple[Any, ...], Mapping[str, Any]], Any]
_RULES: dict[str, list[Rule]] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rewrite for ops by name; it returns the replacement or None."""

    def register(function: Rule) -> Rule:
        for name in names:
            _RULES.setdefault(name, []).append(function)
        return function

    return register


def uniform_value(node: Node) -> Any:
    """The number a node holds at every element, or None."""
    while node.op.name in ("broadcast", "reshape", "permute", "stop_gradient"):
        node = node.inputs[0]
    if node.op.name == "const" and node.attrs["value"].ndim == 0:
        return node.attrs["value"]
    return None


def _fold(op: Op, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Any:
    values = [uniform_value(x) for x in inputs]
    if any(v is None for v in values) or not inputs:
        return None
    shape, dtype = op.infer(inputs, attrs)
    value = np.asarray(op.numpy(attrs, *[np.asarray(v) for v in values])).reshape(())
    folded = leaves.const(value=value.astype(NUMPY_DTYPES[dtype]))
    return mv.broadcast(folded, shape=shape) if shape else folded


@rule("stop_gradient")
def _identity(rw: Rewriter, op: Op, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Any:
    return inputs[0]


@rule("reshape", "broadcast", "slice", "pad")
def _same_shape(rw: Rewriter, op: Op, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Any:
    (x,) = inputs
    return x if op.infer(inputs, attrs)[0] == x.shape else None


@rule("reshape")
def _reshape_of_reshape(rw: Rewriter, op: Op, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Any:
    (x,) = inputs
    return mv.reshape(x.inputs[0], shape=attrs["shape"]) if x.op.name == "reshape" else None


@rule("broadcast", "reshape", "permute")
def _uniform_stays_uniform(rw: Rewriter, op: Op, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Any:
    (x,) = inputs
    if x.op.name == "broadcast" and uniform_value(x) is not None:
        base = x
        while base.op.name != "const":
            base = base.inputs[0]
        shape = op.infer(inputs, attrs)[0]
        return mv.broadcast(base, shape=shape) if shape else base
    return None


@rule("permute")
def _permute_of_permute(rw: Rewriter, op: Op, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Any:
    (x,), axes = inputs, attrs["axes"]
    if axes == tuple(range(len(axes))):
        return x
    if x.op.name == "permute":
        return mv.permute(x.inputs[0], axes=tuple(x.attrs["axes"][a] for a in axes))
    return None


@rule("cast")
def _cast_to_same(rw: Rewriter, op: Op, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Any:
    return inputs[0] if inputs[0].dtype == attrs["dtype"] else None


@rule("maximum", "minimum")
def _clamp_of_a_checked_id(rw: Rewriter, op: Op, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Any:
    """Ids that the host has checked need no clamp."""
    x, limit = inputs[0], uniform_value(inputs[1])
    bounds = rw.id_bounds.get(_source_of_ids(x))
    if limit is None or bounds is None or x.dtype != "i32":
        return None
    inside = limit <= bounds[0] if op.name == "maximum" else limit >= bounds[1]
    return x if inside else None


def _source_of_ids(node: Node) -> str:
    """The input whose values ``node`` holds, moved about."""
    while node.op.family == "movement" and node.op.name != "pad":
        node = node.inputs[0]
    return node.attrs["name"] if node.op.name == "input" else ""


@rule("multiply", "divide")
def _times_one(rw: Rewriter, op: Op, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Any:
    a, b = inputs
    if _is_one(b):
        return a
    return b if op.name == "multiply" and _is_one(a) else None


def _is_one(node: Node) -> bool:
    value = uniform_value(node)
    return value is not None and bool(value == 1)


@rule("integer_pow")
def _power_of_one(rw: Rewriter, op: Op, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Any:
    return inputs[0] if attrs["exponent"] == 1 else None


@rule("negative", "logical_not")
def _twice(rw: Rewriter, op: Op, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Any:
    return inputs[0].inputs[0] if inputs[0].op is op else None


@rule("add")
def _add_negative(rw: Rewriter, op: Op, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Any:
    a, b = inputs
    return ew.sub(a, b.inputs[0]) if b.op.name == "negative" else None


@rule("pack")
def _own_parts(rw: Rewriter, op: Op, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Any:
    """A packed part must be a computed node used by this pack alone: strip reshapes, copy the rest."""
    parts, seen = [], set()
    for part in inputs:
        while part.op.name == "reshape":
            part = part.inputs[0]
        if part.op.family in ("leaf", "movement") or part.id in seen:
            part = ew.copy(part)
            while part.id in seen:
                part = ew.copy(part)
        seen.add(part.id)
        parts.append(part)
    return mv.pack(*parts, **attrs) if tuple(parts) != inputs else None


@rule("scatter_add")
def _scatter_as_masked_sum(rw: Rewriter, op: Op, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Any:
    """``out[v] = Σ_i (ids[i] = v) · updates[i]``: every row sums its own, in row order, no atomics."""
    ids, updates = inputs
    size, rest = attrs["size"], updates.shape[ids.ndim :]
    count = numel(ids.shape)
    inside = ew.minimum_(ew.maximum_(ew.cast_to(ids, "i32"), 0), size - 1)
    shape = (size, count, *rest)
    flat = mv.reshape(inside, shape=(1, count, *[1] * len(rest)))
    mine = ew.eq(mv.broadcast(flat, shape=shape), leaves.iota(shape=shape, axis=0))
    rows = mv.broadcast(mv.reshape(updates, shape=(1, count, *rest)), shape=shape)
    zero = ew.zero_like(rows)
    return rd.reduce_sum(ew.where(mine, rows, zero), axes=(1,))


@rule("fold")
def _windows_side_by_side(rw: Rewriter, op: Op, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Any:
    """Windows that do not overlap (a pool whose stride is its kernel) fold back by movement alone."""
    (x,), (sh, sw), size = inputs, attrs["stride"], attrs["size"]
    *lead, oh, ow, kh, kw = x.shape
    if attrs["dilation"] != (1, 1) or kh > sh or kw > sw:
        return None
    n = len(lead)
    x = _padded(x, (sh - kh, sw - kw))
    x = mv.permute(x, axes=(*range(n), n, n + 2, n + 1, n + 3))
    x = mv.reshape(x, shape=(*lead, oh * sh, ow * sw))
    kept = (*lead, min(size[0], oh * sh), min(size[1], ow * sw))
    x = mv.slice_(x, starts=(0,) * (n + 2), sizes=kept, steps=(1,) * (n + 2))
    return _padded(x, (size[0] - kept[-2], size[1] - kept[-1]))


def _padded(x: Any, more: tuple[int, int]) -> Any:
    """Zeros after the last two axes."""
    none = (0,) * x.ndim
    return mv.pad(x, low=none, high=(*none[2:], *more), interior=none, value=0)


@rule("sum", "max", "min", "prod")
def _in_stages(rw: Rewriter, op: Op, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Any:
    """Few or very long rows: reduce parts of each, then the parts' results (which may be split in turn)."""
    (x,), axes = inputs, attrs["axes"]
    length = numel([x.shape[a] for a in axes])
    rows = x.size // length if length else 0
    wanted = reduction_parts(rows, length, rw.target) if rows else 1
    if wanted < 2:
        return None
    parts = _divisor(length, wanted)
    terms = -(-length // (parts if parts > 1 else wanted))
    parts = -(-length // terms)
    keep = [a for a in range(x.ndim) if a not in axes]
    flat = mv.reshape(mv.permute(x, axes=(*keep, *axes)), shape=(rows, length))
    if parts * terms > length:
        flat = mv.pad(
            flat, low=(0, 0), high=(0, parts * terms - length), interior=(0, 0), value=_NEUTRAL[op.name](x)
        )
    flat = mv.reshape(flat, shape=(rows, parts, terms))
    total = op(op(flat, axes=(2,)), axes=(1,))
    return mv.reshape(total, shape=op.infer(inputs, attrs)[0])


def _limit(x: Any, sign: int) -> Any:
    """The largest (or smallest) number of x's dtype."""
    if x.dtype == "f32":
        return np.float32(sign * np.inf)
    info = np.iinfo(NUMPY_DTYPES[x.dtype])
    return info.max if sign > 0 else info.min


#: what changes no result of a reduction
_NEUTRAL: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: 0,
    "prod": lambda x: 1,
    "max": lambda x: _limit(x, -1),
    "min": lambda x: _limit(x, 1),
}


def _divisor(n: int, near: int) -> int:
    """The divisor of n closest to ``near`` (1 if all others are far: below near/4 or above 4·near)."""
    options = [d for d in range(max(1, near // 4), min(n, 4 * near) + 1) if n % d == 0]
    return min(options, key=lambda d: abs(d - near), default=1)


@rule("matmul", "conv_weight_grad")
def _split_k(rw: Rewriter, op: Op, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Any:
    """Tall-skinny products (weight gradients) as a batch of shorter ones, then a sum."""
    node = Node(0, op, inputs, attrs, *op.infer(inputs, attrs))
    form = op.form(node)  # type: ignore[attr-defined]
    wanted = split_parts(form.batch, form.m, form.n, numel(form.k), rw.target)
    if wanted < 2:
        return None
    a, b = inputs
    if op.name == "matmul":
        parts = _divisor(numel(form.k), wanted)
        if parts == 1:
            return None
        lead, (rows, k), cols = a.shape[:-2], a.shape[-2:], b.shape[-1]
        n = len(lead)
        left = mv.reshape(a, shape=(*lead, rows, parts, k // parts))
        right = mv.reshape(b, shape=(*lead, parts, k // parts, cols))
        left = mv.permute(left, axes=(n + 1, *range(n), n, n + 2))
        right = mv.permute(right, axes=(n, *range(n), n + 1, n + 2))
        return rd.reduce_sum(ct.matmul_(left, right), axes=(0,))
    images = a.shape[0]
    parts = _divisor(images, min(wanted, images))
    if parts == 1:
        return None

    def regroup(x: Any) -> Any:
        split = mv.reshape(x, shape=(parts, images // parts, *x.shape[1:]))
        turned = mv.permute(split, axes=(1, 0, 2, 3, 4))
        return mv.reshape(turned, shape=(images // parts, parts * x.shape[1], *x.shape[2:]))

    parts_grad = op(regroup(a), regroup(b), **{**attrs, "groups": attrs["groups"] * parts})
    shape = op.infer(inputs, attrs)[0]
    return rd.reduce_sum(mv.reshape(parts_grad, shape=(parts, *shape)), axes=(0,))
