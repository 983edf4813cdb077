"""The schedule's data: what each kernel computes, before any buffer or text is chosen.

    map       stores = f(i)                                       i over the space
    row       for each row i: total0 = ⊕_r body0(i, r); total1 = ⊕_r body1(i, r, total0); …
              stores = f(i, totals) per row, or f(i, r, totals) per element
    contract  total0 = Σ_k left(b, m, k) · right(b, n, k); stores = f(b, m, n, total0)

All bodies are `Expr` DAGs over the kernel's variables; loads name graph nodes, the plan gives them bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from webgrad.compiler.indexing import Expr, Indexer, show
from webgrad.compiler.target import Target
from webgrad.ir import Graph, Node, Site, numel

Kind = Literal["map", "row", "contract"]
Side = Literal["left", "right"]


@dataclass(frozen=True)
class Store:
    """``buffer(node)[index] = value``. In a row kernel ``stage`` is the loop over the row in which an element
    is stored, and None for what is stored once a row. In a contraction ``side`` marks the sum of an operand
    over k (a bias gradient beside its weight gradient), stored once per row or column of the result.
    """

    node: Node
    index: Expr
    value: Expr
    stage: int | None = None
    side: Side | None = None


@dataclass(frozen=True)
class Reduction:
    """``register = ⊕_r body`` in loop ``stage`` over the row (it may use the registers of earlier ones)."""

    op: Any
    body: Expr
    dtype: str
    register: str
    stage: int


@dataclass(frozen=True)
class Rows:
    """A row kernel's reductions; each row has ``length`` terms."""

    rows: int
    length: int
    reductions: tuple[Reduction, ...]

    @property
    def stages(self) -> int:
        """Number of loops that reduce."""
        return 1 + max(r.stage for r in self.reductions)


@dataclass(frozen=True)
class Registers:
    """Rows and columns of a thread's block."""

    rows: int
    cols: int

    def __str__(self) -> str:
        return f"registers, {self.rows}x{self.cols} a thread"


@dataclass(frozen=True)
class Quads:
    """Shared lines of a block, own lines of a thread, steps of k in a turn of the loop, the shared side."""

    shared: int
    own: int
    unroll: int
    side: Side

    def __str__(self) -> str:
        return f"quads, {self.shared} shared on the {self.side} by {self.own} a thread, {self.unroll} steps"


@dataclass(frozen=True)
class Tiles:
    """A tile of ``m`` by ``n`` results, ``k`` terms at a time, by threads of ``rows`` by ``cols`` each. With
    ``slices`` > 1 that many groups of threads share the terms of one tile, and their sums are added.
    """

    m: int
    n: int
    k: int
    rows: int
    cols: int
    slices: int = 1

    @property
    def group(self) -> int:
        """Threads that cover the tile once."""
        return (self.m // self.rows) * (self.n // self.cols)

    @property
    def threads(self) -> int:
        """Threads of a workgroup."""
        return self.group * self.slices

    @property
    def bytes(self) -> int:
        """Workgroup memory: both tiles, a vec4 of padding a step, and the sums that slices exchange (those of
        the operands included).
        """
        staged = 16 * self.k * (self.m // 4 + self.n // 4 + 2)
        sums = self.rows * self.cols // 4 + self.rows // 4 + self.cols // 4
        return staged + (16 * self.group * sums if self.slices > 1 else 0)

    def fits(self, target: Target) -> bool:
        """Whether the target has the workgroup memory and threads."""
        return self.bytes <= target.max_workgroup_bytes and self.threads <= target.max_workgroup_size

    def blocks(self, c: Contraction) -> int:
        """Workgroups of a product."""
        return c.batch * -(-c.m // self.m) * -(-c.n // self.n)

    def __str__(self) -> str:
        shared = f", k in {self.slices} slices" if self.slices > 1 else ""
        return f"tiles {self.m}x{self.n}x{self.k}, {self.rows}x{self.cols} a thread{shared}"


#: how a product is computed; `strategy` chooses
Strategy = Registers | Quads | Tiles


@dataclass(frozen=True)
class Contraction:
    """Operands and sizes of a blocked product, and the strategy that computes it. The sum over k is a nest of
    ``loops`` (variable, size), so that a convolution's taps and pixels need no division.
    """

    left: Expr
    right: Expr
    batch: int
    m: int
    n: int
    loops: tuple[tuple[str, int], ...]
    strategy: Strategy | None = None

    @property
    def k(self) -> int:
        """Terms of each sum."""
        return numel([size for _, size in self.loops])


@dataclass
class ScheduledKernel:
    """One dispatch. ``index`` is the flat output index in terms of the kernel's variables."""

    kind: Kind
    ix: Indexer
    space: tuple[int, ...]
    index: Expr
    stores: list[Store]
    body: Rows | Contraction | None
    nodes: list[Node]
    loads: list[Node] = field(default_factory=list)
    scalars: list[str] = field(default_factory=list)

    @property
    def sites(self) -> tuple[Site, ...]:
        """The user lines this kernel came from."""
        seen: dict[Site, None] = {}
        for node in self.nodes:
            seen.update(dict.fromkeys(node.sites))
        return tuple(seen)

    def roots(self) -> list[Expr]:
        """Every expression the kernel evaluates."""
        inner: list[Expr] = []
        if isinstance(self.body, Rows):
            inner = [r.body for r in self.body.reductions]
        elif isinstance(self.body, Contraction):
            inner = [self.body.left, self.body.right]
        return inner + [e for s in self.stores for e in (s.index, s.value)]

    def collect(self) -> None:
        """Fill ``loads`` and ``scalars`` from the expressions."""
        loads: dict[int, Node] = {}
        scalars: dict[str, None] = {}
        seen: set[int] = set()
        stack = list(reversed(self.roots()))
        while stack:
            e = stack.pop()
            if e.uid in seen:
                continue
            seen.add(e.uid)
            if e.kind == "load":
                loads.setdefault(e.attr.id, e.attr)
            elif e.kind == "scalar":
                scalars.setdefault(e.attr)
            stack.extend(reversed(e.args))
        self.loads, self.scalars = list(loads.values()), list(scalars)

    def __str__(self) -> str:
        reads = ", ".join(f"%{n.id}{list(n.shape)}" for n in self.loads)
        writes = ", ".join(f"%{s.node.id}{list(s.node.shape)}" for s in self.stores)
        size = ""
        if isinstance(self.body, Rows):
            size = f" {self.body.rows} x {self.body.length}, {len(self.body.reductions)} reductions"
        if isinstance(self.body, Contraction):
            c = self.body
            size = f" {c.batch}x[{c.m}x{c.k} · {c.k}x{c.n}] by {c.strategy},"
        ops = "+".join(n.op.name for n in self.nodes)
        lines = [f"{self.kind}{size} {list(self.space)}  {ops}", f"    reads {reads}", f"    writes {writes}"]
        lines += [f"    {show(s.value)}" for s in self.stores] if len(self.nodes) < 4 else []
        if self.sites:
            lines.append("    from " + "; ".join(str(s) for s in self.sites[:4]))
        return "\n".join(lines)


@dataclass
class Schedule:
    """Kernels in dispatch order, over the simplified ``graph``.

    ``storage`` maps a node to the node whose bytes it shares (a reshape to its base, a packed part to
    itself); ``placed`` a stored node to (host node, element offset) when it lives inside another's
    buffer: gradients in their arena, an updated value in its leaf.
    """

    graph: Graph
    target: Target
    kernels: list[ScheduledKernel]
    placed: dict[Node, tuple[Node, int]]

    def __str__(self) -> str:
        head = f"Schedule: {len(self.kernels)} kernels"
        return "\n".join([head, *(f"{i:3} {k}" for i, k in enumerate(self.kernels))])
