"""The NumPy executor, at two levels.

    graph      each node by its op's NumPy meaning: the oracle, in f32 or f64
    schedule   each kernel by its expressions, over byte buffers poisoned with NaN: index maps, offsets,
               recycling and in-place commits are exercised without a GPU

Both meet the same protocol as the GPU executor, so the same program runs on all three.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from webgrad.compiler.indexing import Expr
from webgrad.compiler.kernels import Contraction, Rows, ScheduledKernel
from webgrad.compiler.plan import Plan
from webgrad.compiler.program import Program, Range
from webgrad.compiler.target import Target
from webgrad.errors import InputError
from webgrad.ir import NUMPY_DTYPES, STORED_DTYPES, Node
from webgrad.ops.random import RandomBits
from webgrad.ops.reduce import reduce_sum as _SUM
from webgrad.runtime.executor import Bytes, Stats

if TYPE_CHECKING:
    from webgrad.wgsl.emit import Kernel

POISON = 0xFF  # four of them are a NaN


class Ready:
    """An awaitable that already has its value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __await__(self) -> Generator[Any, None, Any]:
        return self.value
        yield


class NumpyExecutor:
    """Buffers are byte arrays; every call has run when it returns."""

    name = "numpy"
    needs_plan = True

    def __init__(self, level: str = "graph", float64: bool = False, target: Target | None = None) -> None:
        if level not in ("graph", "schedule"):
            raise InputError(f'level must be "graph" or "schedule", found {level!r}')
        self.level, self.float64 = level, float64
        self.target = target or Target()
        self.adapter: Mapping[str, Any] = {"vendor": "numpy", "architecture": level}
        self.heap: dict[int, Bytes] = {}
        self._next = 0
        self._stats = Stats()

    def allocate(self, nbytes: int, label: str) -> int:
        """See `Executor.allocate`."""
        self._next += 1
        self.heap[self._next] = np.zeros(nbytes, np.uint8)
        return self._next

    def free(self, handle: int) -> None:
        """See `Executor.free`."""
        self.heap.pop(handle, None)

    def write(self, handle: int, offset: int, data: NDArray[Any]) -> None:
        """See `Executor.write`."""
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self.heap[handle][offset : offset + raw.size] = raw

    def clear(self, handle: int, offset: int, nbytes: int) -> None:
        """See `Executor.clear`."""
        self.heap[handle][offset : offset + nbytes] = 0

    def read(self, handle: int, offset: int, nbytes: int) -> Awaitable[Bytes]:
        """See `Executor.read`."""
        self._stats.maps += 1
        return Ready(self.heap[handle][offset : offset + nbytes].copy())

    def prepare(self, kernel: Kernel) -> None:
        """Nothing: NumPy builds no kernels."""

    async def load(self, program: Program, plan: Plan | None, externals: Mapping[str, int]) -> NumpySession:
        """See `Executor.load`."""
        assert plan is not None
        return NumpySession(self, program, plan, externals)

    def stats(self) -> Stats:
        """Counts; ``bytes`` are those of the heap."""
        self._stats.buffers = len(self.heap)
        self._stats.bytes = sum(b.size for b in self.heap.values())
        return self._stats

    def close(self) -> None:
        """Free everything."""
        self.heap.clear()


class NumpySession:
    """A program on a `NumpyExecutor`."""

    def __init__(
        self, owner: NumpyExecutor, program: Program, plan: Plan, externals: Mapping[str, int]
    ) -> None:
        self.owner, self.program, self.plan = owner, program, plan
        self.handles: list[int] = []
        self.own: list[int] = []
        for number, spec in enumerate(program.buffers):
            if spec.kind == "external":
                self.handles.append(externals[spec.key])
                continue
            handle = owner.allocate(spec.bytes, spec.key or f"buffer {number}")
            if spec.kind == "constant":
                blob = np.frombuffer(program.blobs[int(spec.key)], np.uint8)
                owner.heap[handle][: blob.size] = blob
            self.handles.append(handle)
            self.own.append(handle)
        self.dispatches = 0
        self.runs = 0

    def run(self, entry: str, upload: Bytes, reads: tuple[str, ...]) -> Awaitable[dict[str, Bytes]]:
        """See `Session.run`."""
        self.owner.heap[self.handles[self.program.upload_buffer]][: upload.size] = upload
        self.dispatches += len(self.program.entries[entry])
        self.runs += 1
        stats = self.owner._stats
        stats.dispatches += len(self.program.entries[entry])
        stats.submissions += 1
        stats.maps += bool(reads)
        with np.errstate(all="ignore"):
            if self.owner.level == "graph":
                return Ready(self._run_graph(reads))
            return Ready(self._run_schedule(entry, reads))

    def bytes_of(self, where: Range | tuple[int, int], nbytes: int) -> Bytes:
        """A view of the heap."""
        buffer, offset = (where.buffer, where.offset) if isinstance(where, Range) else where
        return self.owner.heap[self.handles[buffer]][offset : offset + nbytes]

    def stored(self, node: Node) -> Any:
        """The value a leaf has now."""
        raw = self.bytes_of(self.plan.where(node), node.nbytes).copy()
        value = raw.view(STORED_DTYPES[node.dtype]).reshape(node.shape)
        return value.astype(NUMPY_DTYPES[node.dtype])

    # --- graph level --------------------------------------------------------------------------------

    def _run_graph(self, reads: tuple[str, ...]) -> dict[str, Bytes]:
        graph = self.plan.schedule.graph
        values: dict[Node, Any] = {}
        for node in graph.nodes:
            values[node] = self._evaluate(node, values)
        for leaf, value in graph.updates:
            self._write(self.plan.place[leaf], leaf, values[value])
        tables: dict[str, Node] = {f"output:{i}": n for i, n in enumerate(graph.outputs)}
        tables |= {f"capture:{k}": n for k, n in graph.captures.items()}
        tables |= {f"metric:{k}": n for k, n in graph.metrics.items()}
        return {name: _raw(values[tables[name]], tables[name].dtype) for name in reads}

    def _evaluate(self, node: Node, values: Mapping[Node, Any]) -> Any:
        if node.op.name in ("param", "input", "state"):
            value = self.stored(node)
        elif node.op.name == "scalar":
            where = self.program.scalars[node.attrs["name"]]
            place = (self.program.upload_buffer, where.offset)
            value = self.bytes_of(place, 4).copy().view(STORED_DTYPES[node.dtype])[0]
        else:
            value = node.op.numpy(node.attrs, *[values[x] for x in node.inputs])
        if node.dtype == "f32":
            return np.asarray(value, np.float64 if self.owner.float64 else np.float32)
        return np.asarray(value, NUMPY_DTYPES[node.dtype])

    def _write(self, place: tuple[int, int], node: Node, value: Any) -> None:
        self.bytes_of(place, node.nbytes)[:] = _raw(value, node.dtype)

    # --- schedule level -----------------------------------------------------------------------------

    def _run_schedule(self, entry: str, reads: tuple[str, ...]) -> dict[str, Bytes]:
        for number, spec in enumerate(self.program.buffers):
            if spec.kind == "owned" and spec.zero == "never":
                self.owner.heap[self.handles[number]][:] = POISON
        kernels = self.plan.schedule.kernels
        for number in self.program.entries[entry]:
            KernelRun(self, kernels[number]).run()
        found = {name: self.program.ranges[name] for name in reads}
        return {name: self.bytes_of(r, r.bytes).copy() for name, r in found.items()}

    def stats(self) -> Stats:
        """Counts of this session."""
        total = sum(self.owner.heap[h].size for h in self.own if h in self.owner.heap)
        kernels = len(self.program.kernels)
        return Stats(
            self.dispatches, self.runs, self.runs, kernels, len(self.program.modules), len(self.own), total
        )

    def destroy(self) -> None:
        """See `Session.destroy`."""
        for handle in self.own:
            self.owner.free(handle)
        self.own = []


def _raw(value: Any, dtype: str) -> Bytes:
    return np.ascontiguousarray(value, dtype=STORED_DTYPES[dtype]).reshape(-1).view(np.uint8).copy()


class KernelRun:
    """Evaluates one kernel's expressions over its whole space at once."""

    def __init__(self, session: NumpySession, kernel: ScheduledKernel) -> None:
        self.session, self.kernel = session, kernel
        self.env: dict[str, Any] = {}
        self.memo: dict[int, Any] = {}

    def run(self) -> None:
        """Compute every value, then store."""
        body = self.kernel.body
        if isinstance(body, Contraction):
            self._contract(body)
        elif isinstance(body, Rows):
            self._rows(body)
        else:
            self.env = {"i": np.arange(int(np.prod(self.kernel.space, dtype=np.int64)))}
        results = [(s, self.value(s.index), self.value(s.value)) for s in self.kernel.stores]
        for store, index, value in results:
            place = self.session.plan.where(store.node)
            out = self.session.bytes_of(place, store.node.nbytes).view(STORED_DTYPES[store.node.dtype])
            shape = np.broadcast_shapes(np.shape(index), np.shape(value))
            at = np.broadcast_to(index, shape).ravel()
            out[at] = np.broadcast_to(value, shape).ravel().astype(out.dtype)

    def _contract(self, body: Contraction) -> None:
        """The product, over axes (b, m, n)."""
        batch, m, n = (np.arange(size) for size in (body.batch, body.m, body.n))
        sizes = [size for _, size in body.loops]
        along = np.unravel_index(np.arange(body.k), sizes) if body.k else [np.arange(0)] * len(sizes)
        k = {name: at for (name, _), at in zip(body.loops, along, strict=True)}
        self.env = {"b": batch[:, None, None], "m": m[:, None], **k}
        left = np.broadcast_to(self.value(body.left), (body.batch, body.m, body.k))
        self.memo.clear()
        self.env = {"b": batch[:, None, None], **{name: at[:, None] for name, at in k.items()}, "n": n}
        right = np.broadcast_to(self.value(body.right), (body.batch, body.k, body.n))
        self.memo.clear()
        self.env = {"b": batch[:, None, None], "m": m[:, None], "n": n, "total0": np.matmul(left, right)}
        self.env["i"] = self.value(self.kernel.index)
        self.env["sum_left"] = left.sum(2, keepdims=True)
        self.env["sum_right"] = right.sum(1, keepdims=True)

    def _rows(self, body: Rows) -> None:
        """The reductions, over axes (i, r)."""
        self.env = {"i": np.arange(body.rows)[:, None], "r": np.arange(body.length)}
        for reduction in body.reductions:
            terms = np.broadcast_to(self.value(reduction.body), (body.rows, body.length))
            op = _SUM if reduction.op.name == "fold" else reduction.op
            self.env[reduction.register] = op.numpy({"axes": (1,)}, terms)[:, None]

    def value(self, e: Expr) -> Any:
        """The expression at every point."""
        if e.uid not in self.memo:
            self.memo[e.uid] = self._value(e)
        return self.memo[e.uid]

    def _value(self, e: Expr) -> Any:
        kind, args = e.kind, e.args
        if kind in ("int", "const"):
            return e.attr
        if kind in ("var", "reg"):
            return self.env[e.attr]
        if kind == "sum":
            coefficients, constant = e.attr
            return sum((self.value(a) * c for a, c in zip(args, coefficients, strict=True)), constant)
        if kind == "within":
            return self.value(args[0])
        if kind == "div":
            return self.value(args[0]) // e.attr
        if kind == "mod":
            return self.value(args[0]) % e.attr
        if kind == "dyn":
            return np.clip(np.asarray(self.value(args[0])).astype(np.int64), 0, e.attr - 1)
        if kind == "ge0":
            return self.value(args[0]) >= 0
        if kind == "eq0":
            return self.value(args[0]) == 0
        if kind == "and":
            return self.value(args[0]) & self.value(args[1])
        if kind in ("true", "false"):
            return kind == "true"
        if kind == "scalar":
            place = (self.session.program.upload_buffer, self.session.program.scalars[e.attr].offset)
            return self.session.bytes_of(place, 4).copy().view(STORED_DTYPES[e.dtype])[0]
        if kind == "load":
            return self._load(e)
        op, attrs = e.attr
        if isinstance(op, RandomBits):
            seed, step, index = (np.asarray(self.value(a), np.uint32) for a in args)
            return op.bits(attrs, seed, step, np.asarray(index, np.uint32))
        values = [np.asarray(self.value(a)) for a in args]
        values = [v.astype(NUMPY_DTYPES[a.dtype]) for v, a in zip(values, args, strict=True)]
        return np.asarray(op.numpy(attrs, *values)).astype(NUMPY_DTYPES[e.dtype])

    def _load(self, e: Expr) -> Any:
        node = e.attr
        if node.size == 0:  # inside a loop that never runs
            return np.zeros((), NUMPY_DTYPES[node.dtype])
        raw = self.session.bytes_of(self.session.plan.where(node), node.nbytes)
        data = raw.view(STORED_DTYPES[node.dtype])
        index = np.clip(self.value(e.args[0]), 0, node.size - 1)
        return data[index].astype(NUMPY_DTYPES[node.dtype])
