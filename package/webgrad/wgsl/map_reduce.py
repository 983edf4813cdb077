"""Templates of the map and reduce families.

map      one thread an element
reduce   one thread a result, in runs of at most 256 terms, so no chain of roundings is long;
         or, on hardware adapters, one workgroup a result, combined in shared memory as a tree
"""

from __future__ import annotations

from webgrad.compiler.kernels import Reduction
from webgrad.compiler.target import Target
from webgrad.errors import OutOfMemoryError
from webgrad.ir import numel
from webgrad.wgsl.writer import WGSL_TYPES, KernelWriter

RUN = 256
Grid = tuple[int, int, int]


def launch(threads: int, target: Target) -> tuple[int, Grid]:
    """Workgroup size and grid for a number of threads: several workgroups a core on few cores, and a
    second grid dimension beyond the limit of one.
    """
    size = 64 if target.adapter_class == "hardware" or threads > 1024 else 16
    return size, grid_of(-(-threads // size), target)


def grid_of(groups: int, target: Target) -> Grid:
    """A grid of at least ``groups`` workgroups."""
    if groups <= target.max_workgroups:
        return max(groups, 1), 1, 1
    rows = -(-groups // target.max_workgroups)
    if rows > target.max_workgroups:
        raise OutOfMemoryError(
            f"{groups:,} workgroups are more than the adapter can launch: use smaller tensors"
        )
    return -(-groups // rows), rows, 1


def emit_map(w: KernelWriter) -> tuple[str, Grid]:
    """One thread an element."""
    threads = numel(w.kernel.space)
    size, grid = launch(threads, w.plan.target)
    w.line("let i = t;")
    w.declare("i")
    w.stores()
    return w.module(size, threads, grid), grid


def emit_reduce(w: KernelWriter) -> tuple[str, Grid]:
    """A thread or a workgroup a result."""
    body = w.kernel.body
    assert isinstance(body, Reduction)
    results = numel(w.kernel.space)
    if w.plan.target.adapter_class == "hardware" and body.length >= 128 and results <= 4096:
        return _workgroup(w, body, results)
    size, grid = launch(results, w.plan.target)
    w.line("let i = t;")
    w.declare("i")
    state = _states(body, "total")
    _initial(w, body, state)
    if body.length > RUN:
        part = _states(body, "part")
        w.open(f"for (var start = 0; start < {body.length}; start += {RUN})", "start")
        _initial(w, body, part)
        w.open(f"for (var r = start; r < min(start + {RUN}, {body.length}); r++)", "r")
        _take(w, body, part)
        w.close()
        _assign(w, body, state, part)
        w.close()
    else:
        w.open(f"for (var r = 0; r < {body.length}; r++)", "r")
        _take(w, body, state)
        w.close()
    _finish(w, body, state)
    return w.module(size, results, grid), grid


def _states(body: Reduction, stem: str) -> tuple[str, ...]:
    count = len(body.op.init(body.dtype))
    return (stem,) if count == 1 else (f"{stem}_value", f"{stem}_index")


def _types(body: Reduction) -> tuple[str, ...]:
    return (WGSL_TYPES[body.dtype], "i32")


def _initial(w: KernelWriter, body: Reduction, state: tuple[str, ...]) -> None:
    for name, kind, value in zip(state, _types(body), body.op.init(body.dtype), strict=False):
        w.line(f"var {name}: {kind} = {value};")


def _take(w: KernelWriter, body: Reduction, state: tuple[str, ...]) -> None:
    """Add term ``r`` to the state."""
    value = w.value(body.body) if len(state) > 1 else w.text(body.body)
    _assign(w, body, state, (value, "r") if len(state) > 1 else (value,))


def _assign(w: KernelWriter, body: Reduction, state: tuple[str, ...], more: tuple[str, ...]) -> None:
    combined = body.op.combine(body.dtype, state, more)
    if len(state) == 1:
        w.line(f"{state[0]} = {combined[0]};")
        return
    names = [w.fresh("next") for _ in state]
    for name, value in zip(names, combined, strict=True):
        w.line(f"let {name} = {value};")
    for name, value in zip(state, names, strict=True):
        w.line(f"{name} = {value};")


def _finish(w: KernelWriter, body: Reduction, state: tuple[str, ...]) -> None:
    if state[-1] != "total":
        w.line(f"let total = {state[-1]};")
    w.declare("total")
    w.stores()


def _workgroup(w: KernelWriter, body: Reduction, results: int) -> tuple[str, Grid]:
    """Threads of a workgroup stride over the terms, then halve the partial results in shared memory."""
    lanes = 64
    grid = grid_of(results, w.plan.target)
    w.declare("i")
    state = _states(body, "total")
    _initial(w, body, state)
    w.open(f"for (var r = lane; r < {body.length}; r += {lanes})", "r")
    _take(w, body, state)
    w.close()
    shared = [f"shared_{name}" for name in state]
    for name, value in zip(shared, state, strict=True):
        w.line(f"{name}[lane] = {value};")
    w.line("workgroupBarrier();")
    w.open(f"for (var half = {lanes // 2}; half > 0; half /= 2)")
    w.open("if (lane < half)")
    left, right = tuple(f"{n}[lane]" for n in shared), tuple(f"{n}[lane + half]" for n in shared)
    _assign(w, body, left, right)
    w.close()
    w.line("workgroupBarrier();")
    w.close()
    w.open("if (lane == 0)")
    w.line(f"let total = {shared[-1]}[0];") if len(shared) > 1 else w.line(f"total = {shared[0]}[0];")
    w.declare("total")
    w.stores()
    w.close()
    flat = "wid.x" if grid[1] == 1 else f"wid.x + wid.y * {grid[0]}u"
    main = [
        f"@compute @workgroup_size({lanes})",
        "fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) local: u32) {",
        f"  let i = min(i32({flat}), {results - 1});",
        "  let lane = i32(local);",
        *["  " + text for text in w.blocks[0].lines],
        "}",
    ]
    types = zip(shared, _types(body), strict=False)
    return w.assemble(main, [f"var<workgroup> {n}: array<{kind}, {lanes}>;" for n, kind in types]), grid
