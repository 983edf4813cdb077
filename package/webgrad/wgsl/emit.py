"""Plan → kernels: WGSL text, bindings and grid of every scheduled kernel.

The templates of the kernel families are in `rows` and `contract`; all share `KernelWriter`.
"""

from __future__ import annotations

from dataclasses import dataclass

from webgrad.compiler.plan import Plan
from webgrad.compiler.program import Binding
from webgrad.errors import CompileError
from webgrad.wgsl.contract import emit_contract
from webgrad.wgsl.rows import emit_map, emit_rows
from webgrad.wgsl.writer import KernelWriter

FAMILIES = {"map": emit_map, "row": emit_rows, "contract": emit_contract}


@dataclass(frozen=True)
class Kernel:
    """One dispatch, as text."""

    name: str
    wgsl: str
    bindings: tuple[Binding, ...]
    workgroups: tuple[int, int, int]
    nodes: tuple[str, ...]
    sites: tuple[str, ...]

    def __str__(self) -> str:
        return f"// {self.name}: {', '.join(self.nodes)} {self.workgroups}\n{self.wgsl}"


def emit_kernels(plan: Plan) -> list[Kernel]:
    """Write every kernel of a plan."""
    kernels = []
    for number, scheduled in enumerate(plan.schedule.kernels):
        writer = KernelWriter(plan, scheduled)
        wgsl, workgroups = FAMILIES[scheduled.kind](writer)
        bindings = writer.bindings()
        storage = sum(b.access != "uniform" for b in bindings)
        if storage > plan.target.max_storage_buffers:
            raise CompileError(
                f"internal error: kernel {number} needs {storage} storage bindings\n{scheduled}"
            )
        nodes = tuple(n.op.name for n in scheduled.nodes)
        sites = tuple(str(s) for s in scheduled.sites)
        name = f"{scheduled.kind} {number}"
        kernels.append(Kernel(name, wgsl, bindings, workgroups, nodes, sites))
    return kernels
