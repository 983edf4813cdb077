"""The graph: dtypes and nodes. Data only; every other stage reads or extends it.

    Node(id, op, inputs, attrs, shape, dtype, sites)
    Graph(nodes, outputs, captures, metrics, params, inputs, states, scalars, updates, ...)

Nodes are appended in topological order and never changed. ``Graph.updates`` is the only way a program
writes: every read of a leaf sees its value from before the step, updates commit at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from webgrad.errors import DtypeError
from webgrad.sites import Site as Site

if TYPE_CHECKING:
    from webgrad.ops.base import Op

Shape = tuple[int, ...]

#: dtype name -> the NumPy dtype of its *values*; `bool` is stored as u32 on the GPU.
NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "i32": np.dtype(np.int32),
    "u32": np.dtype(np.uint32),
    "bool": np.dtype(np.bool_),
}
#: dtype name -> the NumPy dtype of its *stored bytes*; every element takes four.
STORED_DTYPES: dict[str, np.dtype[Any]] = {**NUMPY_DTYPES, "bool": np.dtype(np.uint32)}
ITEM_BYTES = 4

_BY_KIND = {"f": "f32", "i": "i32", "u": "u32", "b": "bool"}


def as_dtype(dtype: Any) -> str:
    """Normalise ``"f32" | "i32" | "u32" | "bool"`` or anything NumPy reads as a dtype.

    Raises `DtypeError` for kinds webgrad has no storage for (complex, strings, objects).
    """
    if isinstance(dtype, str) and dtype in NUMPY_DTYPES:
        return dtype
    try:
        kind = "?" if isinstance(dtype, str) and dtype == "f16" else np.dtype(dtype).kind
    except TypeError:
        kind = "?"
    if kind not in _BY_KIND:
        raise DtypeError(f"unknown dtype {dtype!r}: use one of {', '.join(NUMPY_DTYPES)} or a NumPy dtype")
    return _BY_KIND[kind]


def promote(a: str, b: str) -> str:
    """The common dtype of two tensors: bool < u32 < i32 < f32 (u32 with i32 is i32)."""
    order = ("bool", "u32", "i32", "f32")
    return order[max(order.index(a), order.index(b))]


def promote_scalar(dtype: str, value: bool | int | float) -> str:
    """The dtype of a tensor combined with a *weak* Python scalar: only the kind can be lifted."""
    if isinstance(value, bool | np.bool_):
        return dtype
    if isinstance(value, int | np.integer):
        return "i32" if dtype == "bool" else dtype
    return "f32"


def numel(shape: Sequence[int]) -> int:
    """Number of elements; 1 for rank 0."""
    total = 1
    for size in shape:
        total *= size
    return total


def strides_of(shape: Sequence[int]) -> Shape:
    """Row-major strides, in elements."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)


class Node:
    """One operation applied to earlier nodes. Immutable; compared and hashed by identity."""

    __slots__ = ("attrs", "dtype", "id", "inputs", "op", "shape", "sites")

    id: int
    op: Op
    inputs: tuple[Node, ...]
    attrs: Mapping[str, Any]
    shape: Shape
    dtype: str
    sites: tuple[Site, ...]

    def __init__(
        self,
        id: int,
        op: Op,
        inputs: tuple[Node, ...],
        attrs: Mapping[str, Any],
        shape: Shape,
        dtype: str,
        sites: tuple[Site, ...] = (),
    ) -> None:
        self.id, self.op, self.inputs, self.attrs = id, op, inputs, attrs
        self.shape, self.dtype, self.sites = shape, dtype, sites

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return numel(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes when stored."""
        return self.size * ITEM_BYTES

    def describe(self) -> str:
        """One line for listings: ``%3 = mul(%1, %2) f32[4, 8]``."""
        attrs = ", ".join(f"{k}={_short(v)}" for k, v in self.attrs.items())
        args = ", ".join(f"%{n.id}" for n in self.inputs)
        inside = ", ".join(part for part in (args, attrs) if part)
        return f"%{self.id} = {self.op.name}({inside}) {self.dtype}{list(self.shape)}"


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"array{list(value.shape)}"
    return repr(value)


@dataclass(frozen=True)
class ArenaRange:
    """Where a parameter lives: element ``offset`` into the arena named ``arena``."""

    arena: str
    offset: int
    shape: Shape
    dtype: str


@dataclass(frozen=True)
class Layout:
    """The parameter layout: arenas (name -> elements) and each parameter's range in them."""

    arenas: Mapping[str, int]
    ranges: Mapping[str, ArenaRange]


@dataclass
class Graph:
    """A traced program. ``params``, ``inputs``, ``states`` and ``scalars`` map names to leaves."""

    nodes: list[Node] = field(default_factory=list)
    outputs: tuple[Node, ...] = ()
    captures: dict[str, Node] = field(default_factory=dict)
    metrics: dict[str, Node] = field(default_factory=dict)
    params: dict[str, Node] = field(default_factory=dict)
    inputs: dict[str, Node] = field(default_factory=dict)
    states: dict[str, Node] = field(default_factory=dict)
    scalars: dict[str, Node] = field(default_factory=dict)
    updates: list[tuple[Node, Node]] = field(default_factory=list)
    layout: Layout | None = None
    #: nodes whose stored bits must be loaded wherever they are used (values compared for equality)
    pinned: set[Node] = field(default_factory=set)
    #: input name -> (least, greatest) id the host must check
    id_bounds: dict[str, tuple[int, int]] = field(default_factory=dict)

    def roots(self) -> list[Node]:
        """Every node the outside can see, in a fixed order, without repetition."""
        roots: dict[int, Node] = {}
        for node in [*self.outputs, *self.captures.values(), *self.metrics.values()]:
            roots.setdefault(id(node), node)
        for _, value in self.updates:
            roots.setdefault(id(value), value)
        return list(roots.values())

    def __str__(self) -> str:
        marks: dict[int, list[str]] = {}
        for index, node in enumerate(self.outputs):
            marks.setdefault(node.id, []).append(f"output {index}")
        for kind, table in (("capture", self.captures), ("metric", self.metrics)):
            for name, node in table.items():
                marks.setdefault(node.id, []).append(f"{kind} {name!r}")
        for leaf, value in self.updates:
            marks.setdefault(value.id, []).append(f"updates %{leaf.id}")
        lines = []
        for node in self.nodes:
            note = f"   <- {', '.join(marks[node.id])}" if node.id in marks else ""
            site = f"   # {node.sites[0]}" if node.sites else ""
            lines.append(node.describe() + note + site)
        return "\n".join(lines)
