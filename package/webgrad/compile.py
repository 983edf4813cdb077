"""compile_module and compile_forward: the one place that knows every stage.

    factory, forward, inputs → trace → gradient → optimizer → schedule → plan → kernels → Program → executor
"""

from __future__ import annotations

import asyncio
import inspect
import weakref
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from webgrad.arrays import Input, as_input, check_names, convert, from_bytes
from webgrad.autograd import append_grad, check_loss
from webgrad.compiler.plan import Plan, plan_buffers
from webgrad.compiler.program import Program, Range
from webgrad.compiler.schedule import Schedule, schedule
from webgrad.compiler.target import Target
from webgrad.errors import CheckpointError, InputError, ShapeError, TraceError
from webgrad.ir import ITEM_BYTES, STORED_DTYPES, ArenaRange, Graph, Layout, Node
from webgrad.layout import make_layout
from webgrad.nn.module import Module, build_model, initial_values, materialize_params
from webgrad.optim import Optimizer, append_optimizer, grad_arena, slot_arena
from webgrad.runtime.devices import open_executor
from webgrad.runtime.executor import Executor, Session, Stats
from webgrad.runtime.store import Params, ParamStore
from webgrad.tensor import Tensor
from webgrad.trace import tensor_input, trace
from webgrad.wgsl.emit import Kernel, emit_kernels
from webgrad.wgsl.link import make_program


class StepResult(NamedTuple):
    """What a training step returns with ``full=True`` or ``with_captures``."""

    loss: float
    metrics: dict[str, float]
    captures: dict[str, NDArray[Any]]


class RunResult(NamedTuple):
    """What a forward run returns with ``full=True`` or ``with_captures``."""

    output: Any
    metrics: dict[str, float]
    captures: dict[str, NDArray[Any]]


@dataclass(frozen=True)
class IR:
    """Every stage of a compiled program, for reading: each prints."""

    graph: Graph
    param_grads: dict[str, Tensor]
    loss: Node | None
    schedule: Schedule
    plan: Plan
    kernels: list[Kernel]
    program: Program


class Pending:
    """An awaitable whose work is already queued; awaiting it (any number of times) gives the result."""

    def __init__(self, waiting: Awaitable[Any], finish: Callable[[Any], Any]) -> None:
        self._waiting, self._finish = waiting, finish
        self._result: tuple[Any] | None = None

    def __await__(self) -> Generator[Any, None, Any]:
        if self._result is None:
            raw = yield from self._waiting.__await__()
            if self._result is None:
                self._result = (self._finish(raw),)
        return self._result[0]


_live: weakref.WeakSet[Compiled] = weakref.WeakSet()


class Compiled:
    """A program on a device. Frees itself when collected, by `destroy`, or as ``async with``."""

    def __init__(self, parts: Parts, executor: Executor, store: ParamStore, shared: Params | None) -> None:
        self.ir = parts.ir
        self._parts, self._executor, self._shared = parts, executor, shared
        self._store = store
        self._session: Session | None = None
        self._upload = np.zeros(parts.ir.program.upload_bytes, np.uint8)
        self._seed = parts.seed & 0xFFFFFFFF
        self._runs = 0
        self.params = Params(store, parts.layout)
        _live.add(self)

    async def _load(self) -> None:
        externals = {}
        for buffer in self.ir.program.buffers:
            if buffer.kind == "external":
                externals[buffer.key] = self._store_of(buffer.key).ensure(buffer.key, buffer.bytes)
        self._session = await self._executor.load(self.ir.program, self.ir.plan, externals)
        self._finalizer = weakref.finalize(self, _free, self._session, self._store)

    def _store_of(self, arena: str) -> ParamStore:
        if self._shared is not None and arena in self._shared.layout.arenas:
            return self._shared.store
        return self._store

    @property
    def device(self) -> str:
        """The executor's name: ``"webgpu"`` or ``"numpy"``."""
        return self._executor.name

    @property
    def adapter(self) -> Mapping[str, Any]:
        """What is known of the adapter: vendor, architecture, ..."""
        return self._executor.adapter

    def _ready(self) -> Session:
        if self._session is None:
            raise InputError("this program was destroyed: compile it again")
        if self._shared is not None:
            self._shared.store.check()
        return self._session

    def _pack(self, inputs: Mapping[str, Any], scalars: Mapping[str, float]) -> None:
        """Check every input, then write inputs and scalars into the upload."""
        program = self.ir.program
        check_names(inputs, program.inputs, "inputs")
        ready = [
            (where, convert(name, inputs[name], where.shape, where.dtype, where.bounds))
            for name, where in program.inputs.items()
        ]
        for where, array in ready:
            view(self._upload, where)[...] = array
        for name, where in program.scalars.items():
            view(self._upload, where)[...] = scalars[name]

    def _reads(self, with_captures: bool | Sequence[str], full: bool, first: tuple[str, ...]) -> tuple[str, ...]:
        available = list(self.ir.graph.captures)
        names: list[str] = []
        if with_captures is not False:
            if not available:
                raise InputError(
                    "with_captures: the program captures nothing: call webgrad.capture(name, tensor) in the forward"
                )
            names = available if with_captures is True else list(with_captures)
            unknown = [n for n in names if n not in available]
            if unknown:
                raise InputError(f"with_captures: unknown {unknown}; the program captures {available}")
        metrics = self.ir.graph.metrics if full or names else {}
        return (*first, *(f"metric:{n}" for n in metrics), *(f"capture:{n}" for n in names))

    def _array(self, raw: Mapping[str, NDArray[np.uint8]], key: str) -> NDArray[Any]:
        where = self.ir.program.ranges[key]
        return from_bytes(raw[key], where.shape, where.dtype)

    def _extras(self, raw: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, NDArray[Any]]]:
        metrics = {k[7:]: float(self._array(raw, k).reshape(())) for k in raw if k.startswith("metric:")}
        captures = {k[8:]: self._array(raw, k) for k in raw if k.startswith("capture:")}
        return metrics, captures

    # --- parameters ---------------------------------------------------------------------------------

    @property
    def _own(self) -> Layout:
        """The part of the layout that this program owns."""
        shared = self._shared.layout.arenas if self._shared is not None else {}
        arenas = {a: n for a, n in self._parts.layout.arenas.items() if a not in shared}
        ranges = {n: r for n, r in self._parts.layout.ranges.items() if r.arena not in shared}
        return Layout(arenas, ranges)

    def upload_initial_params(self, seed: int | None = None) -> None:
        """Write the initial values again, from ``seed`` (default: the one given at compile)."""
        self._ready()
        values = initial_values(self._parts.model, self._parts.seed if seed is None else seed)
        own = self._own
        self._store.upload(own, {n: values[n] for n in own.ranges}, partial=False)

    def upload_params(self, values: Mapping[str, Any], partial: bool = False) -> None:
        """Write parameters by name. Raises before anything is written: `InputError` for unknown names and
        (unless ``partial``) missing ones, `ShapeError` for a wrong size.
        """
        self._ready()
        check = self._parts.layout
        expected = {n: r for n, r in check.ranges.items() if n in values or not partial}
        check_names(values, expected, "upload_params")
        own = self._own
        mine = {n: v for n, v in values.items() if n in own.ranges}
        theirs = {n: v for n, v in values.items() if n not in own.ranges}
        if theirs and self._shared is not None:
            layout = Layout(check.arenas, {n: check.ranges[n] for n in theirs})
            for name, value in mine.items():
                if np.size(value) != np.prod(check.ranges[name].shape, dtype=np.int64):
                    self._store.upload(own, {name: value}, partial=True)  # raises
            self._shared.store.upload(layout, theirs, partial=True)
        self._store.upload(own, mine, partial=True)

    async def download_params(self) -> dict[str, NDArray[Any]]:
        """Every parameter's values by name."""
        self._ready()
        found = await self._store.download(self._own)
        if self._shared is not None:
            shared = {n: r for n, r in self._parts.layout.ranges.items() if r.arena in self._shared.layout.arenas}
            found |= await self._shared.store.download(Layout(self._shared.layout.arenas, shared))
        return {name: found[name] for name in self._parts.layout.ranges}

    def stats(self) -> Stats:
        """Dispatches, submissions, maps, pipelines, distinct modules, buffers and bytes of this program
        (``buffers`` and ``bytes`` include the arenas it owns).
        """
        session = self._ready().stats()
        arenas = self._store.arenas.values()
        session.buffers += len(arenas)
        session.bytes += sum(nbytes for _, nbytes in arenas)
        return session

    def destroy(self) -> None:
        """Free the program's buffers and the parameters it owns. Idempotent."""
        if self._session is not None:
            self._finalizer()
            self._session = None
        _live.discard(self)

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.destroy()


def view(upload: NDArray[np.uint8], where: Range) -> NDArray[Any]:
    """The typed array of a range of the upload."""
    raw = upload[where.offset : where.offset + where.bytes]
    return raw.view(STORED_DTYPES[where.dtype]).reshape(where.shape)


def _free(session: Session, store: ParamStore) -> None:
    session.destroy()
    store.destroy()


class CompiledModule(Compiled):
    """A training program: `step` computes the loss, the gradients and the update."""

    _parts: TrainParts

    def __init__(self, parts: TrainParts, executor: Executor, store: ParamStore) -> None:
        super().__init__(parts, executor, store, None)
        self.optimizer = parts.optimizer
        #: applied optimizer updates so far
        self.t = 0

    def step(
        self,
        inputs: Mapping[str, Any],
        *,
        with_captures: bool | Sequence[str] = False,
        full: bool = False,
        read_loss: bool = True,
    ) -> Pending:
        """Queue one training step now; await the result for the loss.

        Args:
            inputs: arrays by name; checked and copied at this call.
            with_captures: True for all captures, or a list of names; the result is then a `StepResult`.
            full: return a `StepResult` with the metrics even without captures.
            read_loss: False queues the step without reading anything; awaiting it only waits for room in the
                queue and gives None.

        Returns:
            an awaitable of the loss (float), a `StepResult` or None.

        Raises:
            InputError, ShapeError, DtypeError: at the call, before anything is queued; the step does not count.
        """
        session = self._ready()
        rich = full or with_captures is not False
        reads = self._reads(with_captures, full, ("output:0",)) if read_loss else ()
        t = self.t + 1
        scalars = {"seed": self._seed, "rng_step": self._runs & 0xFFFFFFFF}
        if self.optimizer is not None:
            scalars |= self.optimizer.scalars(t)
        self._pack(inputs, scalars)
        waiting = session.run("step", self._upload, reads)
        self.t, self._runs = t, self._runs + 1
        if not read_loss:
            return Pending(waiting, lambda raw: None)

        def finish(raw: Mapping[str, Any]) -> Any:
            loss = float(self._array(raw, "output:0"))
            return StepResult(loss, *self._extras(raw)) if rich else loss

        return Pending(waiting, finish)

    def set(self, **hyper: float) -> None:
        """Change hyperparameters (``lr=…``) from the next step on, without recompiling."""
        if self.optimizer is None:
            raise InputError("this program has no optimizer to set")
        self.optimizer = self.optimizer.set(**hyper)

    def _slots(self) -> list[str]:
        slots = self.optimizer.slots if self.optimizer is not None else ()
        names = [slot_arena(s, a) for s in slots for a in self._parts.layout.arenas]
        return [n for n in names if n in self._store.arenas]

    def reset_optimizer_state(self) -> None:
        """Zero the optimizer's state and its step counter; parameters stay."""
        self._ready()
        self._store.clear(self._slots())
        self.t = 0

    async def download_param_grads(self) -> dict[str, NDArray[Any]]:
        """The last step's gradients by parameter name."""
        self._ready()
        return await self._store.download(self._parts.layout, grad_arena)

    async def state_dict(self) -> dict[str, Any]:
        """Everything that training needs to go on exactly: ``params``, ``optimizer`` slots by name, ``t``,
        ``rng_step`` and ``seed``.
        """
        slots = self.optimizer.slots if self.optimizer is not None else ()
        t, runs = self.t, self._runs
        params = await self.download_params()
        state = {
            s: await self._store.download(self._parts.layout, lambda a, s=s: slot_arena(s, a)) for s in slots
        }
        return {"params": params, "optimizer": state, "t": t, "rng_step": runs, "seed": self._seed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`'s result. Raises `CheckpointError` before anything is written."""
        self._ready()
        slots = self.optimizer.slots if self.optimizer is not None else ()
        missing = [k for k in ("params", "optimizer", "t", "rng_step", "seed") if k not in state]
        if missing or set(state["optimizer"]) != set(slots):
            found = sorted(state.get("optimizer", {}))
            raise CheckpointError(
                f"the checkpoint lacks {missing} or has optimizer state {found}, expected {sorted(slots)}"
            )
        layout = self._parts.layout
        writes = []
        for slot, values in (("", state["params"]), *state["optimizer"].items()):
            arenas = {a: slot_arena(slot, a) if slot else a for a in layout.arenas}
            ranges = {
                n: ArenaRange(arenas[r.arena], r.offset, r.shape, r.dtype)
                for n, r in layout.ranges.items()
                if arenas[r.arena] in self._store.arenas
            }
            for name in ranges:
                if name not in values or np.shape(values[name]) != ranges[name].shape:
                    raise CheckpointError(
                        f"the checkpoint's {slot or 'parameter'} {name!r} does not fit {ranges[name].shape}"
                    )
            writes.append((Layout({}, ranges), {n: values[n] for n in ranges}))
        for part, values in writes:
            self._store.upload(part, values, partial=False)
        self.t, self._runs, self._seed = int(state["t"]), int(state["rng_step"]), int(state["seed"])


class CompiledForward(Compiled):
    """An inference program: `run` computes the outputs."""

    _parts: ForwardParts

    def run(
        self,
        inputs: Mapping[str, Any],
        *,
        with_captures: bool | Sequence[str] = False,
        full: bool = False,
        seed: int | None = None,
    ) -> Pending:
        """Queue one run now; await the result for the outputs, as arrays in the structure the forward
        returned (tensor, tuple or dict).

        Args:
            inputs: arrays by name; checked and copied at this call.
            with_captures: True or a list of names; the result is then a `RunResult`.
            full: return a `RunResult` with the metrics even without captures.
            seed: pins the random stream of this run (default: a run counter).

        Raises:
            InputError, ShapeError, DtypeError: at the call, before anything is queued.
        """
        session = self._ready()
        rich = full or with_captures is not False
        outputs = tuple(f"output:{i}" for i in range(len(self.ir.graph.outputs)))
        reads = self._reads(with_captures, full, outputs)
        chosen = self._seed if seed is None else seed & 0xFFFFFFFF
        step = self._runs & 0xFFFFFFFF if seed is None else 0
        self._pack(inputs, {"seed": chosen, "rng_step": step})
        waiting = session.run("run", self._upload, reads)
        self._runs += seed is None

        def finish(raw: Mapping[str, Any]) -> Any:
            output = self._parts.rebuild([self._array(raw, name) for name in outputs])
            return RunResult(output, *self._extras(raw)) if rich else output

        return Pending(waiting, finish)


# --- tracing ----------------------------------------------------------------------------------------


@dataclass
class Parts:
    """What compiling made, before it is loaded."""

    ir: IR
    model: Module
    layout: Layout
    seed: int


@dataclass
class TrainParts(Parts):
    """A training program's parts."""

    optimizer: Optimizer | None


@dataclass
class ForwardParts(Parts):
    """A forward program's parts; ``rebuild`` restores the output's structure."""

    rebuild: Callable[[list[Any]], Any]


def bind_inputs(forward: Callable[..., Any], names: Sequence[str]) -> Callable[[Any, dict[str, Any]], Any]:
    """How ``forward(model, *inputs)`` is called: by name when ``names`` are its parameter names, by
    position when none is. Raises `InputError` for a partial match.
    """
    try:
        parameters = list(inspect.signature(forward).parameters.values())[1:]
    except (TypeError, ValueError):
        return lambda model, given: forward(model, *given.values())
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    required = [p.name for p in parameters if p.default is p.empty and p.name in named]
    matching = [n for n in names if n in named]
    if takes_any or (len(matching) == len(names) and set(required) <= set(names)):
        return lambda model, given: forward(model, **given)
    if matching:
        raise InputError(
            f"inputs {list(names)} match the parameters {named} of {_name(forward)} only in part: name all of "
            "them alike (by name) or none (by position)"
        )
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    needed = sum(p.default is p.empty for p in positional)
    if not variadic and not needed <= len(names) <= len(positional):
        raise InputError(
            f"{_name(forward)} takes {len(positional)} inputs after the model, but {len(names)} are declared: "
            f"{list(names)}"
        )
    return lambda model, given: forward(model, *given.values())


def _name(fn: Any) -> str:
    return getattr(fn, "__name__", repr(fn))


def _trace_forward(
    factory: Any, forward: Callable[..., Any], specs: Mapping[str, Input], training: bool
) -> tuple[Graph, Module, Any]:
    """Trace ``forward``; returns the graph, the model with its specifications, and what it returned."""
    call = bind_inputs(forward, list(specs))
    specification = build_model(factory)
    model = build_model(specification)
    returned: list[Any] = []

    def traced() -> list[Tensor]:
        materialize_params(model)
        given = {name: tensor_input(name, spec.shape, spec.dtype) for name, spec in specs.items()}
        returned.append(call(model, given))
        return _tensors(returned[0], forward)

    return trace(traced, training), specification, returned[0]


def _tensors(result: Any, forward: Any) -> list[Tensor]:
    """The tensors of a forward's result: a tensor, or a tuple, list or dict of tensors."""
    items = (
        list(result.values()) if isinstance(result, dict) else list(result) if isinstance(result, tuple | list) else [result]
    )
    for item in items:
        if not isinstance(item, Tensor):
            raise TraceError(
                f"{_name(forward)} must return a tensor, or a tuple or dict of tensors; found {type(item).__name__}"
            )
    return items


def _rebuilder(result: Any) -> Callable[[list[Any]], Any]:
    if isinstance(result, dict):
        keys = list(result)
        return lambda arrays: dict(zip(keys, arrays, strict=True))
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        kind = type(result)
        return lambda arrays: kind(*arrays)
    if isinstance(result, tuple | list):
        container = tuple if isinstance(result, tuple) else list
        return lambda arrays: container(arrays)
    return lambda arrays: arrays[0]


def lower_graph(graph: Graph, grads: dict[str, Tensor], loss: Node | None, layout: Layout, target: Target, entry: str) -> IR:
    """Schedule, plan, emit and link a finished graph."""
    sched = schedule(graph, target)
    plan = plan_buffers(sched, layout)
    kernels = emit_kernels(plan)
    program = make_program(plan, kernels, entry)
    return IR(graph, grads, loss, sched, plan, kernels, program)


def build_training(
    factory: Any,
    forward: Callable[..., Any],
    inputs: Mapping[str, Any],
    optimizer: Optimizer | None,
    seed: int,
    target: Target,
) -> TrainParts:
    """Everything of `compile_module` that needs no device."""
    specs = {name: as_input(name, value) for name, value in inputs.items()}
    graph, model, result = _trace_forward(factory, forward, specs, training=True)
    if not isinstance(result, Tensor):
        raise ShapeError(
            f"{_name(forward)} must return the loss, one rank-0 f32 tensor; found {type(result).__name__}: "
            "report other values with webgrad.metric or webgrad.capture"
        )
    check_loss(result)
    grads = append_grad(graph, result)
    layout = append_optimizer(graph, grads, optimizer, target.max_binding_bytes)
    ir = lower_graph(graph, grads, result, layout, target, "step")
    return TrainParts(ir, model, layout, seed, optimizer)


def build_forward(
    factory: Any,
    forward: Callable[..., Any],
    inputs: Mapping[str, Any],
    shared: Params | None,
    seed: int,
    target: Target,
) -> ForwardParts:
    """Everything of `compile_forward` that needs no device."""
    specs = {name: as_input(name, value) for name, value in inputs.items()}
    graph, model, result = _trace_forward(factory, forward, specs, training=False)
    layout = _shared_layout(graph, shared, target)
    ir = lower_graph(graph, {}, None, layout, target, "run")
    return ForwardParts(ir, model, layout, seed, _rebuilder(result))


def _shared_layout(graph: Graph, shared: Params | None, target: Target) -> Layout:
    """Shared parameters where their owner keeps them, the others in arenas of this program."""
    if shared is None:
        return make_layout(graph.params, target.max_binding_bytes)
    ranges: dict[str, ArenaRange] = {}
    for name, node in graph.params.items():
        if name not in shared.layout.ranges:
            continue
        theirs = shared.layout.ranges[name]
        if (theirs.shape, theirs.dtype) != (node.shape, node.dtype):
            raise ShapeError(
                f"shared parameter {name!r}: this model has {node.dtype}{list(node.shape)}, the shared one "
                f"{theirs.dtype}{list(theirs.shape)}"
            )
        ranges[name] = theirs
    rest = {n: node for n, node in graph.params.items() if n not in ranges}
    own = make_layout(rest, target.max_binding_bytes, prefix="own/")
    ordered = {n: (ranges | dict(own.ranges))[n] for n in graph.params}
    return Layout({**shared.layout.arenas, **own.arenas}, ordered)


async def compile_module(
    factory: Any,
    forward: Callable[..., Any],
    *,
    inputs: Mapping[str, Any],
    optimizer: Optimizer | None = None,
    seed: int = 0,
    device: Any = "auto",
) -> CompiledModule:
    """Compile a training program.

    Args:
        factory: a `nn.Module` class or a function that returns one (or an instance, which is copied).
        forward: ``forward(model, *inputs)`` returns the loss, a rank-0 f32 tensor.
        inputs: name → shape (f32), `Input(shape, dtype)` or an example array.
        optimizer: from `webgrad.optim`; None computes gradients only.
        seed: of the initial parameters and the random operations.
        device: ``"auto"``, ``"webgpu"`` or ``"numpy"``.

    Raises:
        InputError, ShapeError, DtypeError, TraceError: with the user's line.
        NoAdapterError: ``device="webgpu"`` without an adapter. CompileError: a kernel the adapter refuses.
    """
    executor = await open_executor(device)
    parts = build_training(factory, forward, inputs, optimizer, seed, executor.target)
    return await create_runtime(parts, executor)


async def create_runtime(parts: TrainParts, executor: Executor) -> CompiledModule:
    """Load a training program on an executor and initialise its parameters."""
    compiled = CompiledModule(parts, executor, ParamStore(executor))
    return await _start(compiled)


async def compile_forward(
    factory: Any,
    forward: Callable[..., Any],
    *,
    inputs: Mapping[str, Any],
    shared_params: Params | Compiled | None = None,
    seed: int = 0,
    device: Any = "auto",
) -> CompiledForward:
    """Compile an inference program: no gradient, no optimizer.

    ``shared_params`` (another program's ``params``) binds the same buffers: the next run after a step sees
    the new weights. Extra names are ignored, missing ones are this program's own. It then runs on the
    owner's device. Raises `ShapeError` naming a parameter whose sizes differ; otherwise as `compile_module`.
    """
    shared = shared_params.params if isinstance(shared_params, Compiled) else shared_params
    if shared is not None and not isinstance(shared, Params):
        raise InputError(f"shared_params takes another program's .params, found {type(shared).__name__}")
    if shared is not None:
        shared.store.check()
    executor = shared.store.executor if shared is not None else await open_executor(device)
    parts = build_forward(factory, forward, inputs, shared, seed, executor.target)
    return await create_forward_runtime(parts, executor, shared)


async def create_forward_runtime(parts: ForwardParts, executor: Executor, shared: Params | None) -> CompiledForward:
    """Load a forward program on an executor and initialise the parameters it owns."""
    return await _start(CompiledForward(parts, executor, ParamStore(executor), shared))


async def _start(compiled: Any) -> Any:
    try:
        await compiled._load()
        for arena, size in compiled._own.arenas.items():
            compiled._store.ensure(arena, size * ITEM_BYTES)
        compiled.upload_initial_params()
    except BaseException:
        compiled.destroy()
        compiled._store.destroy()
        raise
    return compiled


def destroy_all() -> None:
    """Destroy every live program (a notebook's "start afresh")."""
    for compiled in list(_live):
        compiled.destroy()


def run(coroutine: Any) -> Any:
    """Run ``main()``: to its end in a plain Python, as a scheduled task where a loop already runs (a page,
    a notebook; awaiting ``main()`` is simpler there).
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    return asyncio.ensure_future(coroutine)


