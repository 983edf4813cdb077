"""What a primitive is. One class per operation holds its shape rule, gradient, NumPy meaning and WGSL.

To add an operation: write its class in the file of its family, and its row in ``tests/unit/optable.py``.

An op instance is called like a function on tensors; the call goes to the current builder (set by
`webgrad.trace`), which appends a node. Rules are written with ops, so gradients are differentiable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from webgrad.errors import TraceError
from webgrad.ir import Node, Shape

if TYPE_CHECKING:
    from webgrad.tensor import Tensor

Array = NDArray[Any]


class Builder(Protocol):
    """What appends nodes: the current trace."""

    def emit(self, op: Op, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Tensor:
        """Append a node and return it."""

    def pin(self, node: Node) -> None:
        """Demand that the node's stored bits are used wherever it is read."""


_builders: list[Builder] = []


def current_builder(what: str) -> Builder:
    """The trace in progress, or `TraceError` that tells how to start one."""
    if not _builders:
        raise TraceError(
            f"{what} was called outside a trace. Operations describe a program: put them in the function "
            "given to webgrad.compile_module, webgrad.compile_forward or webgrad.trace."
        )
    return _builders[-1]


@contextmanager
def building(builder: Builder) -> Iterator[None]:
    """Make ``builder`` current."""
    _builders.append(builder)
    try:
        yield
    finally:
        _builders.pop()


class Op:
    """A primitive. ``family`` tells the compiler how to treat it:

    ``leaf``, ``elementwise``, ``movement`` (an index map), ``reduce``, ``contract``, ``index``.
    """

    name: ClassVar[str]
    family: ClassVar[str]
    #: relative price of one evaluation; what the scheduler weighs recomputing against storing
    cost: ClassVar[int] = 1
    differentiable: ClassVar[bool] = True

    def __call__(self, *inputs: Any, **attrs: Any) -> Tensor:
        """Append this op to the current trace."""
        return current_builder(f"webgrad.{self.name}").emit(self, inputs, attrs)

    def infer(self, inputs: tuple[Node, ...], attrs: Mapping[str, Any]) -> tuple[Shape, str]:
        """Shape and dtype of the result; raises `ShapeError` or `DtypeError`."""
        raise NotImplementedError(f"{self.name}.infer")

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        """Cotangents of the inputs (None where there is none), given that of the output."""
        raise NotImplementedError(f"{self.name} has no gradient")

    def numpy(self, attrs: Mapping[str, Any], *args: Array) -> Array:
        """The reference meaning. Floats keep the precision of their arguments (f32 or f64)."""
        raise NotImplementedError(f"{self.name}.numpy")

    def __repr__(self) -> str:
        return self.name


def float_like(args: tuple[Array, ...]) -> Any:
    """The float dtype a reference result should have: the widest of the arguments, f32 at least."""
    return np.result_type(np.float32, *[a.dtype for a in args if a.dtype.kind == "f"])
