"""What compiling returns: programs on a device, with their parameters.

`CompiledModule` trains (`step`), `CompiledForward` infers (`run`). Both check and copy their inputs and queue
their work at the call, and return an awaitable.
"""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from webgrad.arrays import check_names, convert, from_bytes
from webgrad.compiler.kernels import Schedule
from webgrad.compiler.plan import Plan
from webgrad.compiler.program import Program, Range
from webgrad.errors import CheckpointError, InputError
from webgrad.ir import ITEM_BYTES, STORED_DTYPES, ArenaRange, Graph, Layout, Node
from webgrad.nn.module import Module, initial_values
from webgrad.optim import Optimizer, grad_arena, per_step, slot_arena
from webgrad.runtime.executor import Executor, Session, Stats
from webgrad.runtime.store import Params, ParamStore
from webgrad.tensor import Tensor
from webgrad.wgsl.emit import Kernel


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
    """Every stage of a compiled program, for reading: each prints.

    ``planning`` gives the plan. A program that was remembered has none yet: then it is made at its first use.
    """

    graph: Graph
    param_grads: dict[str, Tensor]
    loss: Node | None
    planning: Callable[[], Plan]
    kernels: list[Kernel]
    program: Program

    @cached_property
    def plan(self) -> Plan:
        """Where every stored value lives."""
        return self.planning()

    @property
    def schedule(self) -> Schedule:
        """What each kernel computes."""
        return self.plan.schedule


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


@dataclass
class Parts:
    """What compiling made, before it is loaded."""

    ir: IR
    model: Module
    layout: Layout
    seed: int
    #: seconds that each stage took
    timings: dict[str, float] = field(default_factory=dict, kw_only=True)


@dataclass
class TrainParts(Parts):
    """A training program's parts."""

    optimizer: Optimizer | None


@dataclass
class ForwardParts(Parts):
    """A forward program's parts; ``rebuild`` restores the output's structure."""

    rebuild: Callable[[list[Any]], Any]


_live: weakref.WeakSet[Compiled] = weakref.WeakSet()


class Compiled:
    """A program on a device. Frees itself when collected, by `destroy`, or as ``async with``."""

    def __init__(self, parts: Parts, executor: Executor, shared: Params | None = None) -> None:
        self.ir = parts.ir
        #: seconds that each stage of compiling took (`webgrad.stages.STAGES`), without the page's pauses
        self.timings = dict(parts.timings)
        self.params = Params(parts.layout, ParamStore(executor), shared)
        self._parts, self._executor = parts, executor
        self._session: Session | None = None
        self._upload = np.zeros(parts.ir.program.upload_bytes, np.uint8)
        self._seed = parts.seed & 0xFFFFFFFF
        self._runs = 0
        _live.add(self)

    async def load(self) -> None:
        """Allocate the arenas, load the program, write the initial parameters."""
        externals = {b.key: b.bytes for b in self.ir.program.buffers if b.kind == "external"}
        arenas = {arena: n * ITEM_BYTES for arena, n in self._parts.layout.arenas.items()}
        handles = {k: self.params.store_of(k).ensure(k, n) for k, n in {**arenas, **externals}.items()}
        plan = self.ir.plan if self._executor.needs_plan else None
        self._session = await self._executor.load(
            self.ir.program, plan, {key: handles[key] for key in externals}
        )
        self._finalizer = weakref.finalize(self, _free, self._session, self.params.owner)
        self.upload_initial_params()

    @property
    def device(self) -> str:
        """The executor's name: ``"webgpu"``, ``"native"`` or ``"numpy"``."""
        return self._executor.name

    @property
    def adapter(self) -> Mapping[str, Any]:
        """What is known of the adapter: vendor, architecture, ..."""
        return self._executor.adapter

    def _ready(self) -> Session:
        if self._session is None:
            raise InputError("this program was destroyed: compile it again")
        self.params.check()
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

    def _reads(
        self, with_captures: bool | Sequence[str], full: bool, first: tuple[str, ...]
    ) -> tuple[str, ...]:
        available = list(self.ir.graph.captures)
        names: list[str] = []
        if with_captures is not False:
            if not available:
                raise InputError(
                    "with_captures: the program captures nothing: call webgrad.capture(name, tensor) in the "
                    "forward"
                )
            names = available if with_captures is True else list(with_captures)
            unknown = [n for n in names if n not in available]
            if unknown:
                raise InputError(f"with_captures: unknown {unknown}; the program captures {available}")
        metrics = self.ir.graph.metrics if full or with_captures is not False else {}
        return (*first, *(f"metric:{n}" for n in metrics), *(f"capture:{n}" for n in names))

    def _array(self, raw: Mapping[str, NDArray[np.uint8]], key: str) -> NDArray[Any]:
        where = self.ir.program.ranges[key]
        return from_bytes(raw[key], where.shape, where.dtype)

    def _extras(self, raw: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, NDArray[Any]]]:
        metrics = {k[7:]: float(self._array(raw, k).reshape(())) for k in raw if k.startswith("metric:")}
        captures = {k[8:]: self._array(raw, k) for k in raw if k.startswith("capture:")}
        return metrics, captures

    # --- parameters ---------------------------------------------------------------------------------

    def upload_initial_params(self, seed: int | None = None) -> None:
        """Write the initial values again, from ``seed`` (default: the one given at compile). Shared
        parameters are their owner's and stay.
        """
        self._ready()
        values = initial_values(self._parts.model, self._parts.seed if seed is None else seed)
        self.params.upload({name: values[name] for name in self.params.own()}, partial=True)

    def upload_params(self, values: Mapping[str, Any], partial: bool = False) -> None:
        """Write parameters by name. Raises before anything is written: `InputError` for unknown names and
        (unless ``partial``) missing ones, `ShapeError` for a wrong size.
        """
        self._ready()
        self.params.upload(values, partial)

    async def download_params(self) -> dict[str, NDArray[Any]]:
        """Every parameter's values by name."""
        self._ready()
        return await self.params.download()

    def stats(self) -> Stats:
        """Dispatches, submissions, maps, pipelines, distinct modules, buffers and bytes of this program
        (``buffers`` and ``bytes`` include the arenas it owns).
        """
        session = self._ready().stats()
        arenas = self.params.owner.arenas.values()
        session.buffers += len(arenas)
        session.bytes += sum(nbytes for _, nbytes in arenas)
        return session

    def destroy(self) -> None:
        """Free the program's buffers and the parameters it owns. Idempotent."""
        if self._session is not None:
            self._finalizer()
            self._session = None
        self.params.owner.destroy()
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

    def __init__(self, parts: TrainParts, executor: Executor) -> None:
        super().__init__(parts, executor)
        self.optimizer: Optimizer | None = None
        if parts.optimizer is not None:
            self._grouping = parts.optimizer.grouping(parts.ir.graph.params)
            self._use(parts.optimizer)
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
            InputError, ShapeError, DtypeError: at the call, before anything is queued; the step does not
                count.
        """
        session = self._ready()
        rich = full or with_captures is not False
        reads = self._reads(with_captures, full, ("output:0",)) if read_loss else ()
        t = self.t + 1
        scalars: dict[str, float] = {"seed": self._seed, "rng_step": self._runs & 0xFFFFFFFF}
        if self.optimizer is not None:
            scalars |= per_step(self._groups, t)
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
        self._use(self.optimizer.set(**hyper))

    def _use(self, optimizer: Optimizer) -> None:
        """Take the hyperparameters of the steps to come, and what follows from them alone."""
        self.optimizer, self._groups = optimizer, optimizer.grouped_by(self._grouping)

    def _slots(self) -> tuple[str, ...]:
        return self.optimizer.slots if self.optimizer is not None else ()

    def reset_optimizer_state(self) -> None:
        """Zero the optimizer's state and its step counter; parameters stay."""
        self._ready()
        store = self.params.owner
        for key in [slot_arena(s, a) for s in self._slots() for a in self._parts.layout.arenas]:
            if key in store.arenas:
                store.clear(key)
        self.t = 0

    async def download_param_grads(self) -> dict[str, NDArray[Any]]:
        """The last step's gradients by parameter name."""
        self._ready()
        return await self.params.download(grad_arena)

    async def state_dict(self) -> dict[str, Any]:
        """Everything that training needs to go on exactly, as of this call: ``params``, ``optimizer`` slots
        by name, ``hyper`` parameters, ``t``, ``rng_step`` and ``seed``.
        """
        self._ready()
        counters = {"t": self.t, "rng_step": self._runs, "seed": self._seed}
        hyper = self.optimizer.hyper() if self.optimizer is not None else {}
        # every read is queued before the first is awaited: a step in between would tear the checkpoint
        pending = {slot: self.params.reading(partial(slot_arena, slot)) for slot in self._slots()}
        params = self.params.reading()
        slots = {slot: await self.params.arrays(raw) for slot, raw in pending.items()}
        return {"params": await self.params.arrays(params), "optimizer": slots, "hyper": hyper, **counters}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`'s result. Raises `CheckpointError` before anything is written."""
        self._ready()
        if not isinstance(state, Mapping):
            raise CheckpointError(f"a checkpoint is what state_dict() returned, not {type(state).__name__}")
        tables, counters = ("params", "optimizer", "hyper"), ("t", "rng_step", "seed")
        wrong = [k for k in tables if not isinstance(state.get(k), Mapping)]
        wrong += [k for k in counters if not isinstance(state.get(k), int | np.integer)]
        if wrong:
            raise CheckpointError(
                f"the checkpoint lacks {wrong}, or they are no tables and counts: give what "
                "state_dict() returned"
            )
        unknown = [n for n in state["params"] if n not in self.params]
        if unknown:
            raise CheckpointError(f"the checkpoint has parameters {unknown}, which this program has not")
        if set(state["optimizer"]) != set(self._slots()):
            raise CheckpointError(
                f"the checkpoint has optimizer state {sorted(state['optimizer'])}, this program's optimizer "
                f"keeps {sorted(self._slots())}: compile with the optimizer that saved it"
            )
        kept = self.optimizer.hyper() if self.optimizer is not None else {}
        if set(state["hyper"]) != set(kept):
            raise CheckpointError(
                f"the checkpoint has hyperparameters {sorted(state['hyper'])}, this program's optimizer "
                f"{sorted(kept)}: compile with the optimizer that saved it"
            )
        optimizer = self.optimizer.set(**state["hyper"]) if self.optimizer is not None else None
        writes = self._fitting("parameter", state["params"], str)
        for slot, values in state["optimizer"].items():
            writes += self._fitting(slot, values, partial(slot_arena, slot))
        for where, array in writes:
            self.params.owner.write(where, array)
        if optimizer is not None:
            self._use(optimizer)
        self.t, self._runs, self._seed = int(state["t"]), int(state["rng_step"]), int(state["seed"])

    def _fitting(
        self, what: str, values: Mapping[str, Any], rename: Callable[[str], str]
    ) -> list[tuple[ArenaRange, NDArray[Any]]]:
        """Each value with its range in the renamed arena, all checked."""
        found = []
        for name, r in self._parts.layout.ranges.items():
            if rename(r.arena) not in self.params.owner.arenas:
                continue
            if name not in values or np.shape(values[name]) != r.shape:
                shape = np.shape(values[name]) if name in values else "nothing"
                raise CheckpointError(f"{what} {name!r}: the checkpoint has {shape}, this program {r.shape}")
            array = convert(name, values[name], r.shape, r.dtype)
            found.append((ArenaRange(rename(r.arena), r.offset, r.shape, r.dtype), array))
        return found


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


def destroy_all() -> None:
    """Destroy every live program (a notebook's "start afresh")."""
    for compiled in list(_live):
        compiled.destroy()
