"""Templates of the map and row families.

map   one thread an element
row   one thread a row: a loop over the row for each stage of reductions, in runs of at most 256 terms, so
      that no chain of roundings is long; results per element are stored in the first loop that can
      or, on hardware adapters, one workgroup a row, its partial results combined in workgroup memory

Rows are at most 65,536 terms long; `strategy.reduction_parts` has split longer ones.
"""

from __future__ import annotations

from webgrad.compiler.kernels import Reduction, Rows, Store
from webgrad.compiler.target import Target
from webgrad.errors import OutOfMemoryError
from webgrad.ir import numel
from webgrad.wgsl.writer import WGSL_TYPES, KernelWriter

RUN = 256
#: on hardware adapters, rows from the first length on get a workgroup each, from the second on a large one
SHARED, LONG = 64, 2048
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
    w.stores(w.kernel.stores)
    return w.module(size, threads, grid), grid


def emit_rows(w: KernelWriter) -> tuple[str, Grid]:
    """A thread or a workgroup a row."""
    body = w.kernel.body
    assert isinstance(body, Rows)
    w.declare("i")
    if w.plan.target.adapter_class == "hardware" and body.length >= SHARED:
        return _workgroup(w, body)
    size, grid = launch(body.rows, w.plan.target)
    w.line("let i = t;")
    for stage in range(_stages(w, body)):
        _loop(w, body, stage)
        for reduction in _at(body, stage):
            _finish(w, reduction)
    w.stores(_per_row(w))
    return w.module(size, body.rows, grid), grid


def _stages(w: KernelWriter, body: Rows) -> int:
    """How many loops over the row there are."""
    return max([body.stages, *(1 + s.stage for s in w.kernel.stores if s.stage is not None)])


def _at(body: Rows, stage: int) -> list[Reduction]:
    return [r for r in body.reductions if r.stage == stage]


def _per_row(w: KernelWriter) -> list[Store]:
    return [s for s in w.kernel.stores if s.stage is None]


def _loop(w: KernelWriter, body: Rows, stage: int) -> None:
    """One pass over the row: its reductions, and the elements that can be stored."""
    reductions = _at(body, stage)
    stores = [s for s in w.kernel.stores if s.stage == stage]
    for reduction in reductions:
        _initial(w, reduction, _state(reduction))
    if body.length <= RUN or not reductions:
        w.open(f"for (var r = 0; r < {body.length}; r++)", "r")
        for reduction in reductions:
            _take(w, reduction, _state(reduction))
        w.stores(stores)
        w.close()
        return
    w.open(f"for (var start = 0; start < {body.length}; start += {RUN})", "start")
    for reduction in reductions:
        _initial(w, reduction, _state(reduction, "part_"))
    w.open(f"for (var r = start; r < min(start + {RUN}, {body.length}); r++)", "r")
    for reduction in reductions:
        _take(w, reduction, _state(reduction, "part_"))
    w.stores(stores)
    w.close()
    for reduction in reductions:
        _assign(w, reduction, _state(reduction), _state(reduction, "part_"))
    w.close()


def _state(reduction: Reduction, prefix: str = "") -> tuple[str, ...]:
    """The variables that hold a reduction's state; the last one is the result."""
    name = prefix + reduction.register
    return (name,) if len(reduction.op.init(reduction.dtype)) == 1 else (f"{name}_value", f"{name}_index")


def _types(reduction: Reduction) -> tuple[str, ...]:
    return (WGSL_TYPES[reduction.dtype], "i32")


def _initial(w: KernelWriter, reduction: Reduction, state: tuple[str, ...]) -> None:
    for name, kind, value in zip(state, _types(reduction), reduction.op.init(reduction.dtype), strict=False):
        w.line(f"var {name}: {kind} = {value};")


def _take(w: KernelWriter, reduction: Reduction, state: tuple[str, ...]) -> None:
    """Add term ``r`` to the state."""
    if len(state) > 1:
        _assign(w, reduction, state, (w.value(reduction.body), "r"))
    else:
        _assign(w, reduction, state, (w.text(reduction.body),))


def _assign(w: KernelWriter, reduction: Reduction, state: tuple[str, ...], more: tuple[str, ...]) -> None:
    combined = reduction.op.combine(reduction.dtype, state, more)
    if len(state) == 1:
        w.line(f"{state[0]} = {combined[0]};")
        return
    names = [w.fresh("next") for _ in state]
    for name, value in zip(names, combined, strict=True):
        w.line(f"let {name} = {value};")
    for name, value in zip(state, names, strict=True):
        w.line(f"{name} = {value};")


def _finish(w: KernelWriter, reduction: Reduction) -> None:
    """Make the result known under the reduction's name."""
    result = _state(reduction)[-1]
    if result != reduction.register:
        w.line(f"let {reduction.register} = {result};")
    w.declare(reduction.register)


def _workgroup(w: KernelWriter, body: Rows) -> tuple[str, Grid]:
    """Lanes stride over the row, then halve their partial results in shared memory."""
    grid = grid_of(body.rows, w.plan.target)
    lanes = min(256, w.plan.target.max_workgroup_size) if body.length >= LONG else 64
    shared: list[str] = []
    for stage in range(_stages(w, body)):
        reductions = _at(body, stage)
        for reduction in reductions:
            _initial(w, reduction, _state(reduction))
        w.open(f"for (var r = lane; r < {body.length}; r += {lanes})", "r")
        for reduction in reductions:
            _take(w, reduction, _state(reduction))
        w.stores([s for s in w.kernel.stores if s.stage == stage])
        w.close()
        if reductions:
            _combine(w, reductions, lanes)
        for reduction in reductions:
            parts = zip(_state(reduction, "shared_"), _types(reduction), strict=False)
            shared += [f"var<workgroup> {name}: array<{kind}, {lanes}>;" for name, kind in parts]
            _finish(w, reduction)
    if _per_row(w):
        w.open("if (lane == 0)")
        w.stores(_per_row(w))
        w.close()
    flat = "wid.x" if grid[1] == 1 else f"wid.x + wid.y * {grid[0]}u"
    more = [f"  if (i >= {body.rows}) {{ return; }}"] if grid[0] * grid[1] > body.rows else []
    main = [
        f"@compute @workgroup_size({lanes})",
        "fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) local: u32) {",
        f"  let i = i32({flat});",
        *more,
        "  let lane = i32(local);",
        *["  " + text for text in w.blocks[0].lines],
        "}",
    ]
    return w.assemble(main, shared), grid


def _combine(w: KernelWriter, reductions: list[Reduction], lanes: int) -> None:
    """Every lane's state becomes that of the whole row."""
    for reduction in reductions:
        for name, value in zip(_state(reduction, "shared_"), _state(reduction), strict=True):
            w.line(f"{name}[lane] = {value};")
    w.line("workgroupBarrier();")
    w.open(f"for (var half = {lanes // 2}; half > 0; half /= 2)")
    w.open("if (lane < half)")
    for reduction in reductions:
        names = _state(reduction, "shared_")
        left, right = (tuple(f"{n}[{at}]" for n in names) for at in ("lane", "lane + half"))
        _assign(w, reduction, left, right)
    w.close()
    w.line("workgroupBarrier();")
    w.close()
    for reduction in reductions:
        for name, value in zip(_state(reduction, "shared_"), _state(reduction), strict=True):
            w.line(f"{value} = {name}[0];")
