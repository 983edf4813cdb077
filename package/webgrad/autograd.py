"""Reverse-mode differentiation: one walk back over the graph, appending primitives to it.

Each op's rule is its `vjp`, written with ops, so gradients are ordinary tensors and can be
differentiated again. Un-broadcasting is the gradient of the `broadcast` op and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webgrad.errors import DtypeError, ShapeError
from webgrad.ir import Graph, Node
from webgrad.ops.elementwise import add, zero_like
from webgrad.ops.leaves import constant
from webgrad.ops.movement import broadcast
from webgrad.tensor import Tensor
from webgrad.trace import Tracer, current_tracer, trace_into


def append_grad(graph: Graph, loss: Node | None = None) -> dict[str, Tensor]:
    """Append the gradient of ``loss`` (default: the graph's only output) for every parameter.

    Returns ``{name: gradient}`` in the parameters' order; a parameter with no path to the loss gets
    zeros. Raises `ShapeError` unless the loss is a rank-0 f32.
    """
    loss = loss if loss is not None else graph.outputs[0]
    check_loss(loss)
    names = list(graph.params)

    def build() -> dict[str, Tensor]:
        grads = backward(current_tracer("webgrad.append_grad"), loss, None, [graph.params[n] for n in names])
        return dict(zip(names, grads, strict=True))

    return trace_into(graph, build)


def check_loss(loss: Node) -> None:
    """Raise `ShapeError` unless ``loss`` is a rank-0 f32 scalar."""
    if loss.shape != () or loss.dtype != "f32":
        raise ShapeError(
            f"the loss must be a rank-0 f32 scalar, found {loss.dtype} of shape {loss.shape}: "
            "reduce it with webgrad.mean or webgrad.sum",
            site=loss.sites[0] if loss.sites else None,
        )


def grad(y: Tensor, xs: Tensor | Sequence[Tensor], cotangent: Tensor | None = None) -> Any:
    """Gradient of ``y`` with respect to ``xs`` inside a forward, as ordinary tensors.

    One x gives one tensor, a sequence gives a list; an unreachable x gives zeros. A non-scalar ``y`` needs
    ``cotangent`` of its shape. Captures inside the rules do nothing.
    """
    tracer = current_tracer("webgrad.grad")
    single = isinstance(xs, Tensor)
    targets = [xs] if isinstance(xs, Tensor) else list(xs)
    for tensor in (y, *targets, *([] if cotangent is None else [cotangent])):
        tracer.check(tensor, "webgrad.grad")
        if tensor.dtype != "f32":
            raise DtypeError(f"webgrad.grad: {tensor!r} has dtype {tensor.dtype}; only f32 has gradients")
    if cotangent is None and y.shape != ():
        raise ShapeError(
            f"webgrad.grad of a tensor of shape {y.shape} needs cotangent= of that shape; or reduce it first"
        )
    if cotangent is not None and cotangent.shape != y.shape:
        raise ShapeError(f"webgrad.grad: the cotangent has shape {cotangent.shape}, y has {y.shape}")
    grads = backward(tracer, y, cotangent, targets)
    return grads[0] if single else grads


def backward(tracer: Tracer, y: Node, cotangent: Any, targets: Sequence[Node]) -> list[Tensor]:
    """Cotangents of ``targets``, walking back from ``y`` over the nodes that depend on a target."""
    wanted = set(targets)
    reaches = _between(y, wanted)
    with tracer.at(y.sites, forward=False):
        if cotangent is None:
            cotangent = broadcast(constant(1, y.dtype), shape=y.shape)
    cotangents: dict[Node, Any] = {y: cotangent}
    for node in sorted(reaches, key=lambda n: n.id, reverse=True):
        dy = cotangents.get(node)
        if dy is None or not node.inputs:
            continue
        if not any(x in reaches for x in node.inputs):
            continue
        with tracer.at(node.sites, forward=False):
            for x, dx in zip(node.inputs, node.op.vjp(node, dy), strict=True):
                if dx is None or x not in reaches or x.dtype != "f32":
                    continue
                cotangents[x] = add(cotangents[x], dx) if x in cotangents else dx
    with tracer.at(y.sites, forward=False):
        return [cotangents[x] if x in cotangents else zero_like(x) for x in targets]


def _between(y: Node, targets: set[Node]) -> set[Node]:
    """Nodes on a path from a target to ``y`` (both included)."""
    ancestors: set[Node] = set()
    stack = [y]
    while stack:
        node = stack.pop()
        if node not in ancestors:
            ancestors.add(node)
            stack.extend(node.inputs)
    reaches: set[Node] = set()
    for node in sorted(ancestors, key=lambda n: n.id):
        if node in targets or any(x in reaches for x in node.inputs):
            reaches.add(node)
    return reaches
