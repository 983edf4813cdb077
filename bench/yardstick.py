"""The yardstick of the products: plain WGSL, in the page (bench/peers/wgsl.mjs) and as a `Program` outside.

A thread computes ``rows`` rows of ``vectors`` vec4 columns of C = A·B with register blocking and nothing
else: no workgroup memory, no guards. Along k it takes four steps at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.workloads import Product
from webgrad.compiler.program import Binding, BufferSpec, KernelSpec, Program, Range

#: rows and vec4 columns of a thread
BLOCKS = {"wgsl 8x2": (8, 2), "wgsl 8x4": (8, 4), "wgsl 16x2": (16, 2)}
#: threads of a workgroup, along columns and rows
GROUP = (8, 8)


def text(p: Product, rows: int, vectors: int) -> str:
    """The kernel's WGSL."""
    sums = [(r, v) for r in range(rows) for v in range(vectors)]
    turn = [f"let a{r} = a[(row + {r}u) * {p.k // 4}u + i];" for r in range(rows)]
    for j in range(4):
        turn += [f"let b{j}_{v} = b[first + (4u * i + {j}u) * {p.n // 4}u + {v}u];" for v in range(vectors)]
        turn += [f"c{r}_{v} += a{r}[{j}] * b{j}_{v};" for r, v in sums]
    return "\n".join(
        [
            "@group(0) @binding(0) var<storage, read> a: array<vec4<f32>>;",
            "@group(0) @binding(1) var<storage, read> b: array<vec4<f32>>;",
            "@group(0) @binding(2) var<storage, read_write> c: array<vec4<f32>>;",
            f"@compute @workgroup_size({GROUP[0]}, {GROUP[1]})",
            "fn main(@builtin(global_invocation_id) thread: vec3<u32>) {",
            f"let row = thread.z * {p.m}u + thread.y * {rows}u;",
            f"let column = thread.x * {vectors}u;",
            f"let first = thread.z * {p.k * p.n // 4}u + column;",
            *(f"var c{r}_{v} = vec4<f32>(0.0);" for r, v in sums),
            f"for (var i = 0u; i < {p.k // 4}u; i++) {{",
            *turn,
            "}",
            *(f"c[(row + {r}u) * {p.n // 4}u + column + {v}u] = c{r}_{v};" for r, v in sums),
            "}",
        ]
    )


def workgroups(p: Product, rows: int, vectors: int) -> tuple[int, int, int]:
    """The dispatch of `text`. Raises ValueError where the blocks do not divide the product."""
    across, down = 4 * vectors * GROUP[0], rows * GROUP[1]
    if p.n % across or p.m % down or p.k % 4:
        raise ValueError(f"{rows}x{vectors} blocks do not divide {p}")
    return p.n // across, p.m // down, p.batch


def program(p: Product, block: tuple[int, int], left: NDArray[Any], right: NDArray[Any]) -> Program:
    """One product of these operands; its entry is ``run``, its result ``output:0``.

    Raises ValueError where the blocks do not divide the product.
    """
    rows, vectors = block
    size = 4 * p.batch * p.m * p.n
    shape = (*left.shape[:-1], right.shape[-1])
    return Program(
        buffers=(
            BufferSpec(left.nbytes, "constant", "0"),
            BufferSpec(right.nbytes, "constant", "1"),
            BufferSpec(size, "owned"),
            BufferSpec(16, "owned"),
        ),
        modules=(text(p, rows, vectors),),
        kernels=(
            KernelSpec(
                f"{rows}x{vectors}",
                0,
                (
                    Binding(0, 0, left.nbytes, "read"),
                    Binding(1, 0, right.nbytes, "read"),
                    Binding(2, 0, size, "read_write"),
                ),
                workgroups(p, rows, vectors),
            ),
        ),
        entries={"run": (0,)},
        upload_buffer=3,
        inputs={},
        scalars={},
        ranges={"output:0": Range(2, 0, size, shape, "f32")},
        blobs=(np.ascontiguousarray(left).tobytes(), np.ascontiguousarray(right).tobytes()),
    )
