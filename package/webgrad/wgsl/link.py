"""Kernels → Program: equal texts become one module, named tensors become byte ranges."""

from __future__ import annotations

import re

from webgrad.compiler import check
from webgrad.compiler.plan import Plan
from webgrad.compiler.program import KernelSpec, Program, Range
from webgrad.wgsl.emit import Kernel

ENABLED = re.compile(r"^enable (\w+);", re.MULTILINE)


def make_program(plan: Plan, kernels: list[Kernel], entry: str = "step") -> Program:
    """The hand-off of a plan and its kernels; ``entry`` names the one sequence of dispatches."""
    modules: dict[str, int] = {}
    specs = []
    for kernel in kernels:
        module = modules.setdefault(kernel.wgsl, len(modules))
        specs.append(
            KernelSpec(kernel.name, module, kernel.bindings, kernel.workgroups, kernel.nodes, kernel.sites)
        )
    grads: dict[str, Range] = {}
    program = Program(
        buffers=tuple(plan.buffers),
        modules=tuple(modules),
        kernels=tuple(specs),
        entries={entry: tuple(range(len(specs)))},
        upload_buffer=plan.upload,
        inputs=plan.inputs,
        scalars=plan.scalars,
        ranges=plan.ranges,
        params=plan.params,
        grads=grads,
        features=tuple(sorted({name for text in modules for name in ENABLED.findall(text)})),
        blobs=tuple(plan.blobs),
    )
    if check.wanted():
        check.check_program(plan, program)
    return program
