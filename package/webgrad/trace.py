"""Tracing: run a Python function once on symbolic tensors and keep the graph it builds.

`trace(fn)` starts a graph, `trace_into(graph, fn)` appends to a finished one (gradients, optimizers).
The trace in progress is the one piece of global state in webgrad.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from webgrad.errors import InputError, ShapeError, TraceError, WebgradError
from webgrad.ir import Graph, Node, as_dtype
from webgrad.ops import leaves
from webgrad.ops.base import Op, building
from webgrad.sites import Site, call_site
from webgrad.tensor import Tensor

T = TypeVar("T")


class Tracer:
    """Appends nodes to one graph. ``forward`` tells whether the user's own code is running."""

    def __init__(self, graph: Graph, forward: bool, training: bool = True) -> None:
        self.graph, self.forward, self.training = graph, forward, training
        self.sites: tuple[Site, ...] | None = None
        self.streams = sum(node.op.name == "random_bits" for node in graph.nodes)

    def emit(self, op: Op, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Tensor:
        """Append ``op(inputs)``; errors name the line the node would come from."""
        sites = self.sites or (call_site(),)
        for value in inputs:
            self.check(value, f"webgrad.{op.name}")
        try:
            shape, dtype = op.infer(inputs, attrs)
        except WebgradError as error:
            error.site = sites[0]
            raise
        node = Tensor(len(self.graph.nodes), op, inputs, attrs, shape, dtype, sites)
        self.graph.nodes.append(node)
        return node

    def check(self, value: Any, what: str) -> None:
        """Raise `TraceError` unless ``value`` is a tensor of this trace."""
        if not isinstance(value, Tensor):
            raise TraceError(f"{what} takes a tensor, found {type(value).__name__}")
        if not (value.id < len(self.graph.nodes) and self.graph.nodes[value.id] is value):
            made = f", made at {value.sites[0]}" if value.sites else ""
            raise TraceError(
                f"{what}: {value!r} belongs to another trace{made}: a tensor cannot leave the function that "
                "made it"
            )

    def pin(self, node: Node) -> None:
        """See `Graph.pinned`."""
        self.graph.pinned.add(node)

    def next_stream(self) -> int:
        """The ordinal of the next random node."""
        self.streams += 1
        return self.streams - 1

    @contextmanager
    def at(self, sites: tuple[Site, ...], forward: bool) -> Iterator[None]:
        """Attribute new nodes to ``sites`` (a gradient to its forward line); captures off unless forward."""
        before = self.sites, self.forward
        self.sites, self.forward = sites, forward
        try:
            yield
        finally:
            self.sites, self.forward = before


_current: Tracer | None = None


def current_tracer(what: str) -> Tracer:
    """The trace in progress, or `TraceError`."""
    if _current is None:
        raise TraceError(
            f"{what} was called outside a trace: use it in the function given to webgrad.compile_module, "
            "webgrad.compile_forward or webgrad.trace"
        )
    return _current


def tracing() -> bool:
    """Whether a trace is in progress."""
    return _current is not None


@contextmanager
def _installed(tracer: Tracer, what: str) -> Iterator[Tracer]:
    global _current
    if _current is not None:
        raise TraceError(f"{what} inside a trace: finish the outer trace first")
    _current = tracer
    try:
        with building(tracer):
            yield tracer
    finally:
        _current = None


def trace(fn: Callable[[], Tensor | Sequence[Tensor]], training: bool = True) -> Graph:
    """Run ``fn`` once and return the graph it built; its outputs are the tensors ``fn`` returned.

    Raises `TraceError` inside another trace or when ``fn`` returns something else. If ``fn`` raises, the
    tracer's state is restored.
    """
    graph = Graph()
    with _installed(Tracer(graph, True, training), "webgrad.trace") as tracer:
        result = fn()
        outputs = (result,) if isinstance(result, Tensor) else result
        if not isinstance(outputs, Sequence) or not all(isinstance(t, Tensor) for t in outputs):
            raise TraceError(
                f"the traced function must return a tensor or a sequence of tensors, not {result!r}"
            )
        for tensor in outputs:
            tracer.check(tensor, "an output")
        graph.outputs = tuple(outputs)
    return graph


def trace_into(graph: Graph, fn: Callable[[], T]) -> T:
    """Re-enter a finished ``graph`` to append nodes and return what ``fn`` returns.

    Outputs do not change and captures are off. Raises `TraceError` inside a trace.
    """
    with _installed(Tracer(graph, forward=False), "webgrad.trace_into"):
        return fn()


def _declare(
    table: dict[str, Node], others: tuple[dict[str, Node], ...], name: str, op: Op, **attrs: Any
) -> Tensor:
    if any(name in names for names in (table, *others)):
        raise InputError(f"the name {name!r} is declared twice: give every input and parameter its own name")
    tensor = op(name=name, **attrs)
    table[name] = tensor
    return tensor


def _size(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    sizes = tuple(int(n) for n in shape)
    if any(n < 0 for n in sizes):
        raise ShapeError(f"{name!r}: sizes cannot be negative, found {sizes}")
    return sizes


def param_input(name: str, shape: Sequence[int], dtype: Any = "f32") -> Tensor:
    """Declare a trainable parameter leaf; shares its name space with `tensor_input`."""
    graph = current_tracer("webgrad.param_input").graph
    shape, dtype = _size(name, shape), as_dtype(dtype)
    return _declare(graph.params, (graph.inputs,), name, leaves.param, shape=shape, dtype=dtype)


def tensor_input(name: str, shape: Sequence[int], dtype: Any = "f32") -> Tensor:
    """Declare an input leaf, given at each call."""
    graph = current_tracer("webgrad.tensor_input").graph
    shape, dtype = _size(name, shape), as_dtype(dtype)
    return _declare(graph.inputs, (graph.params,), name, leaves.input_, shape=shape, dtype=dtype)


def state_input(name: str, shape: Sequence[int], dtype: Any = "f32") -> Tensor:
    """Declare a state leaf, which lives between calls; it has a name space of its own."""
    graph = current_tracer("webgrad.state_input").graph
    shape, dtype = _size(name, shape), as_dtype(dtype)
    return _declare(graph.states, (), name, leaves.state, shape=shape, dtype=dtype)


def scalar_input(name: str, dtype: Any = "f32") -> Tensor:
    """The rank-0 leaf of a per-call number (a hyperparameter); declared at its first use."""
    graph = current_tracer("webgrad.scalar_input").graph
    if name not in graph.scalars:
        graph.scalars[name] = leaves.scalar(name=name, shape=(), dtype=as_dtype(dtype))
    return graph.scalars[name]  # type: ignore[return-value]


def mark_ids(ids: Node, low: int, high: int, what: str) -> None:
    """Demand that the integers ``ids`` is made of, through movement and casts alone, lie in [low, high].

    A literal is checked now; an input at every call, on the host (`Graph.id_bounds`): all of its elements, so
    an input that holds ids holds nothing else. What the graph computes itself is clamped on the device.
    """
    bounds = current_tracer(what).graph.id_bounds
    seen, stack = {ids}, [ids]
    while stack:
        node = stack.pop()
        if node.op.name == "input":
            name = node.attrs["name"]
            least, greatest = bounds.get(name, (low, high))
            bounds[name] = max(least, low), min(greatest, high)
        elif node.op.name == "const":
            values = node.attrs["value"]
            wrong = values[(values < low) | (values > high)]
            if wrong.size:
                raise InputError(f"{what}: ids must be in {low} to {high}, found {wrong[0]}")
        elif node.op.name == "cast" or node.op.family in ("movement", "concat"):
            stack += [x for x in node.inputs if x not in seen]
            seen.update(node.inputs)


def capture(name: str, tensor: Tensor) -> Tensor:
    """Register ``tensor`` under ``name`` for reading back, and return the very same tensor.

    A capture is the value at that point of the forward. Outside the trace of the user's forward this does
    nothing. Raises `TraceError` for a name used twice and for a tensor of another trace.
    """
    if _current is None or not _current.forward:
        return tensor
    captures = _current.graph.captures
    if name in captures:
        raise TraceError(
            f"the capture name {name!r} is used twice: make it unique, for example "
            f'capture(f"{name}.{{i}}", t) in a loop'
        )
    _current.check(tensor, f"webgrad.capture({name!r}, …)")
    captures[name] = tensor
    return tensor


def metric(name: str, tensor: Tensor) -> Tensor:
    """Register a scalar to be read together with the loss, and return it.

    Raises `ShapeError` unless rank 0 (or one element), `TraceError` for a name used twice.
    """
    if _current is None or not _current.forward:
        return tensor
    _current.check(tensor, f"webgrad.metric({name!r}, …)")
    if tensor.size != 1:
        raise ShapeError(
            f"the metric {name!r} must be a scalar, found shape {tensor.shape}: "
            "reduce it with webgrad.mean, or use webgrad.capture for arrays"
        )
    if name in _current.graph.metrics:
        raise TraceError(f"the metric name {name!r} is used twice: make it unique")
    _current.graph.metrics[name] = tensor
    return tensor
