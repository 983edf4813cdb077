"""What the compiler makes of the workloads, without a browser.

``python -m bench.static [--target=software|hardware] [--json] [--show=W1]`` prints dispatches, modules, peak
bytes, bytes moved, floating-point operations and compile seconds of each training step.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from bench.workloads import WORKLOADS
from webgrad.compile import build_training
from webgrad.compiled import IR
from webgrad.compiler.kernels import Contraction, Rows
from webgrad.compiler.target import Target
from webgrad.ir import numel

#: SwiftShader, and a graphics card, with the limits that every device grants
TARGETS = {"software": Target("software", quads=True), "hardware": Target("hardware")}


def measure(name: str, adapter_class: str) -> tuple[dict[str, Any], IR]:
    """Counts of one workload, and its stages."""
    w = WORKLOADS[name]
    parts = build_training(w.model, w.loss, w.inputs, w.optimizer, 0, TARGETS[adapter_class])
    ir = parts.ir
    moved = sum(b.size for k in ir.program.kernels for b in k.bindings if b.access != "uniform")
    return {
        "dispatches": len(ir.program.kernels),
        "modules": len(ir.program.modules),
        "pipelines": len({(k.module, tuple(b.access for b in k.bindings)) for k in ir.program.kernels}),
        "peak_bytes": sum(b.bytes for b in ir.program.buffers),
        "bytes_moved": moved,
        "flops": sum(kernel_flops(k) for k in ir.schedule.kernels),
        "compile_s": round(sum(parts.timings.values()), 3),
    }, ir


def kernel_flops(kernel: Any) -> int:
    """Arithmetic of one kernel: exact for products, one operation per term or element elsewhere."""
    body = kernel.body
    if isinstance(body, Contraction):
        return 2 * body.batch * body.m * body.n * body.k
    return body.rows * body.length if isinstance(body, Rows) else numel(kernel.space) * len(kernel.nodes)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", choices=TARGETS, default="software")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--show", choices=WORKLOADS, help="print one workload's schedule and plan")
    options = parser.parse_args()
    if options.show:
        _, ir = measure(options.show, options.target)
        print(ir.schedule, ir.plan, sep="\n")
        return
    table = {name: measure(name, options.target)[0] for name in WORKLOADS}
    if options.json:
        print(json.dumps(table))
        return
    columns = list(table["W1"])
    print(f"{'':4}" + "".join(f"{c:>14}" for c in columns))
    for name, row in table.items():
        print(f"{name:4}" + "".join(f"{row[c]:>14,}" for c in columns))


if __name__ == "__main__":
    main()
