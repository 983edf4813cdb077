"""compile_module and compile_forward: the one place that knows every stage.

factory, forward, inputs → trace → gradient → optimizer → (lowering.py) → Program → executor
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any, TypeVar

from webgrad import debug
from webgrad.arrays import Input, as_input
from webgrad.autograd import append_grad, check_loss
from webgrad.compiled import IR, Compiled, CompiledForward, CompiledModule, ForwardParts, TrainParts
from webgrad.compiler.target import Target
from webgrad.errors import InputError, ShapeError, TraceError
from webgrad.ir import ArenaRange, Graph, Layout
from webgrad.layout import make_layout
from webgrad.lowering import Traced, lowered, lowering
from webgrad.nn.module import Module, build_model, materialize_params
from webgrad.optim import Optimizer, append_optimizer
from webgrad.runtime.devices import open_executor
from webgrad.runtime.executor import Executor
from webgrad.runtime.store import Params
from webgrad.stages import Conductor, Progress, Work
from webgrad.tensor import Tensor
from webgrad.trace import tensor_input, trace

Loaded = TypeVar("Loaded", bound=Compiled)
AnyParts = TypeVar("AnyParts", TrainParts, ForwardParts)


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
            f"inputs {list(names)} match the parameters {named} of {_name(forward)} only in part: name all "
            "of them alike (by name) or none (by position)"
        )
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    needed = sum(p.default is p.empty for p in positional)
    if not variadic and not needed <= len(names) <= len(positional):
        raise InputError(
            f"{_name(forward)} takes {len(positional)} inputs after the model, but {len(names)} are "
            f"declared: {list(names)}"
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
        list(result.values())
        if isinstance(result, dict)
        else list(result)
        if isinstance(result, tuple | list)
        else [result]
    )
    for item in items:
        if not isinstance(item, Tensor):
            raise TraceError(
                f"{_name(forward)} must return a tensor, or a tuple or dict of tensors; "
                f"found {type(item).__name__}"
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


def _flag(name: str, value: Any) -> bool:
    """``value``, which must be True or False."""
    if not isinstance(value, bool):
        raise InputError(f"{name} must be True or False, found {value!r}")
    return value


def _specs(inputs: Mapping[str, Any], seed: int) -> dict[str, Input]:
    if not isinstance(inputs, Mapping):
        raise InputError(
            f"inputs must be a dict of name → shape, Input or array, found {type(inputs).__name__}"
        )
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        raise InputError(f"seed must be a non-negative int, found {seed!r}")
    return {name: as_input(name, value) for name, value in inputs.items()}


def build_training(
    factory: Any,
    forward: Callable[..., Any],
    inputs: Mapping[str, Any],
    optimizer: Optimizer | None,
    seed: int,
    target: Target,
) -> TrainParts:
    """Everything of `compile_module` that needs no device."""
    return _straight(trace_training(factory, forward, inputs, optimizer, seed, target))


def trace_training(
    factory: Any,
    forward: Callable[..., Any],
    inputs: Mapping[str, Any],
    optimizer: Optimizer | None,
    seed: int,
    target: Target,
) -> Work[Traced[TrainParts]]:
    """Trace the loss, append its gradient and the optimizer."""
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise InputError(
            f"optimizer must be an optimizer such as webgrad.optim.Adam(lr=1e-3), found {optimizer!r}"
        )
    specs = _specs(inputs, seed)
    yield "trace", 0.0
    graph, model, result = _trace_forward(factory, forward, specs, training=True)
    if not isinstance(result, Tensor):
        raise ShapeError(
            f"{_name(forward)} must return the loss, one rank-0 f32 tensor; found {type(result).__name__}: "
            "report other values with webgrad.metric or webgrad.capture"
        )
    check_loss(result)
    yield "gradient", 0.0
    grads = append_grad(graph, result)
    yield "optimizer", 0.0
    layout = append_optimizer(graph, grads, optimizer, target.max_binding_bytes)

    def parts(ir: IR) -> TrainParts:
        return TrainParts(ir, model, layout, seed, optimizer)

    return Traced(graph, grads, result, layout, target, "step", parts)


def build_forward(
    factory: Any,
    forward: Callable[..., Any],
    inputs: Mapping[str, Any],
    shared: Params | None,
    seed: int,
    target: Target,
) -> ForwardParts:
    """Everything of `compile_forward` that needs no device."""
    return _straight(trace_inference(factory, forward, inputs, shared, seed, target))


def trace_inference(
    factory: Any,
    forward: Callable[..., Any],
    inputs: Mapping[str, Any],
    shared: Params | None,
    seed: int,
    target: Target,
) -> Work[Traced[ForwardParts]]:
    """Trace the forward alone."""
    specs = _specs(inputs, seed)
    yield "trace", 0.0
    graph, model, result = _trace_forward(factory, forward, specs, training=False)
    layout = _shared_layout(graph, shared, target)

    def parts(ir: IR) -> ForwardParts:
        return ForwardParts(ir, model, layout, seed, _rebuilder(result))

    return Traced(graph, {}, None, layout, target, "run", parts)


def _straight(tracing: Work[Traced[AnyParts]]) -> AnyParts:
    """Trace and lower without a pause."""

    def work() -> Work[AnyParts]:
        traced = yield from tracing
        return traced.parts((yield from lowering(traced)))

    conductor = Conductor()
    parts = conductor.finish(work())
    parts.timings = conductor.seconds
    return parts


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
    depth = 1 + max((a.count("own/") for a in shared.layout.arenas), default=0)  # sharers of sharers
    own = make_layout(rest, target.max_binding_bytes, prefix="own/" * depth)
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
    tune: bool = False,
    cache: bool = True,
    on_progress: Callable[[Progress], Any] | None = None,
) -> CompiledModule:
    """Compile a training program.

    In a browser the compiler gives way to the page about every 30 ms. A task that is cancelled
    meanwhile leaves nothing behind.

    Args:
        factory: a `nn.Module` class or a function that returns one (or an instance, which is copied).
        forward: ``forward(model, *inputs)`` returns the loss, a rank-0 f32 tensor.
        inputs: name → shape (f32), `Input(shape, dtype)` or an example array.
        optimizer: from `webgrad.optim`; None computes gradients only.
        seed: of the initial parameters and the random operations.
        device: ``"auto"``, ``"webgpu"``, ``"numpy"`` or, outside a page, ``"native"`` (this machine's GPU).
        tune: time a few strategies of each matrix product and convolution on this adapter, and use and
            remember the fastest (a few tenths of a second each, the first time). Ignored on NumPy.
        cache: remember the compiled program (see the guide), so that the next visit only traces the model.
        on_progress: called with a `Progress` as the stages go by; what it raises ends the compilation.

    Raises:
        InputError, ShapeError, DtypeError, TraceError: with the user's line.
        NoAdapterError: ``device="webgpu"`` or ``"native"`` without an adapter.
        CompileError: a kernel the adapter refuses.
    """
    executor = await open_executor(device)
    tracing = trace_training(factory, forward, inputs, optimizer, seed, executor.target)
    return await _compile(
        tracing, executor, lambda parts: CompiledModule(parts, executor), tune, cache, on_progress
    )


async def create_runtime(parts: TrainParts, executor: Executor) -> CompiledModule:
    """Load a training program on an executor and initialise its parameters."""
    return await _load(CompiledModule(parts, executor), Conductor())


async def compile_forward(
    factory: Any,
    forward: Callable[..., Any],
    *,
    inputs: Mapping[str, Any],
    shared_params: Params | Compiled | None = None,
    seed: int = 0,
    device: Any = "auto",
    tune: bool = False,
    cache: bool = True,
    on_progress: Callable[[Progress], Any] | None = None,
) -> CompiledForward:
    """Compile an inference program: no gradient, no optimizer.

    ``shared_params`` (another program's ``params``) binds the same buffers: the next run after a step sees
    the new weights. Extra names are ignored, missing ones are this program's own. It then runs on the
    owner's device. ``tune`` and what it raises are as in `compile_module`; also `ShapeError` naming a shared
    parameter whose sizes differ.
    """
    shared = shared_params.params if isinstance(shared_params, Compiled) else shared_params
    if shared is not None and not isinstance(shared, Params):
        raise InputError(f"shared_params takes another program's .params, found {type(shared).__name__}")
    if shared is not None:
        shared.check()
    executor = shared.owner.executor if shared is not None else await open_executor(device)
    tracing = trace_inference(factory, forward, inputs, shared, seed, executor.target)
    return await _compile(
        tracing, executor, lambda parts: CompiledForward(parts, executor, shared), tune, cache, on_progress
    )


async def create_forward_runtime(
    parts: ForwardParts, executor: Executor, shared: Params | None = None
) -> CompiledForward:
    """Load a forward program on an executor and initialise the parameters it owns."""
    return await _load(CompiledForward(parts, executor, shared), Conductor())


async def _compile(
    tracing: Work[Traced[AnyParts]],
    executor: Executor,
    make: Callable[[AnyParts], Loaded],
    tune: bool,
    cache: bool,
    on_progress: Callable[[Progress], Any] | None,
) -> Loaded:
    """Trace, lower or recall, load."""
    tune, cache = _flag("tune", tune), _flag("cache", cache)
    conductor = Conductor(on_progress)
    traced = await conductor.run(tracing)
    ir, keep = await lowered(traced, executor, conductor, tune, cache)
    compiled = await _load(make(traced.parts(ir)), conductor)
    await keep()
    return compiled


async def _load(compiled: Loaded, conductor: Conductor) -> Loaded:
    """Bring a program onto its device, or leave nothing there."""
    try:
        await conductor.wait("pipelines", compiled.load)
        conductor.end()
    except BaseException:
        compiled.destroy()
        raise
    compiled.timings |= conductor.seconds
    debug.tell(compiled)
    return compiled


def run(coroutine: Any) -> Any:
    """Run ``main()``: to its end in a plain Python, as a scheduled task where a loop already runs (a page,
    a notebook; awaiting ``main()`` is simpler there).
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    return asyncio.ensure_future(coroutine)
