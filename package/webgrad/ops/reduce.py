"""Reductions over any axes (always dropped here; ``keepdims`` is a reshape in `functional`).

A reduction is described to the compiler as a fold: ``init`` state, ``combine`` of two states, each a
short tuple of WGSL expressions, so that thread, workgroup and two-stage strategies share one text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from webgrad.errors import DtypeError, ShapeError
from webgrad.ir import Node, Shape
from webgrad.ops.base import Array, Op
from webgrad.ops.movement import broadcast, reshape, windows


class Reduce(Op):
    """Base: ``attrs['axes']`` is a sorted tuple of non-negative axes."""

    family = "reduce"
    cost = 1
    #: whether reducing parts and then the parts' results is the same operation
    splits = True

    def infer(self, inputs: tuple[Node, ...], attrs: Mapping[str, Any]) -> tuple[Shape, str]:
        (x,) = inputs
        axes = attrs["axes"]
        if x.dtype == "bool":
            raise DtypeError(f"{self.name} reduces numbers, found bool: cast to i32 first")
        return tuple(n for a, n in enumerate(x.shape) if a not in axes), self.out_dtype(x.dtype)

    def out_dtype(self, dtype: str) -> str:
        """Dtype of the result."""
        return dtype

    def init(self, dtype: str) -> tuple[str, ...]:
        """WGSL of the empty reduction's state."""
        raise NotImplementedError(self.name)

    def combine(self, dtype: str, left: tuple[str, ...], right: tuple[str, ...]) -> tuple[str, ...]:
        """WGSL of two states combined, in any order."""
        raise NotImplementedError(self.name)


def keep(node: Any, reduced: Any) -> Any:
    """A reduction's result broadcast back over its input's shape."""
    x = node.inputs[0]
    shape = tuple(1 if a in node.attrs["axes"] else n for a, n in enumerate(x.shape))
    return broadcast(reshape(reduced, shape=shape), shape=x.shape)


class Sum(Reduce):
    """Sum; of bools an i32 count (the cast is `functional`'s)."""

    name = "sum"

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        return (keep(node, dy),)

    def numpy(self, attrs: Mapping[str, Any], *args: Array) -> Array:
        return args[0].sum(axis=attrs["axes"], dtype=args[0].dtype)

    def init(self, dtype: str) -> tuple[str, ...]:
        return ({"f32": "0.0", "i32": "0i", "u32": "0u"}[dtype],)

    def combine(self, dtype: str, left: tuple[str, ...], right: tuple[str, ...]) -> tuple[str, ...]:
        return (f"{left[0]} + {right[0]}",)


class Prod(Reduce):
    """Product. Its gradient divides by each element, so zeros are handled by counting them."""

    name = "prod"

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        from webgrad.ops.elementwise import cast, div, eq, logical_and, mul, where

        (x,) = node.inputs
        zero = eq(x, 0.0)
        zeros = keep(node, reduce_sum(cast(zero, dtype="f32"), axes=node.attrs["axes"]))
        others = keep(node, reduce_prod(where(zero, 1.0, x), axes=node.attrs["axes"]))
        alone = logical_and(zero, eq(zeros, 1.0))
        slope = where(eq(zeros, 0.0), div(others, where(zero, 1.0, x)), where(alone, others, 0.0))
        return (mul(keep(node, dy), slope),)

    def numpy(self, attrs: Mapping[str, Any], *args: Array) -> Array:
        return args[0].prod(axis=attrs["axes"], dtype=args[0].dtype)

    def init(self, dtype: str) -> tuple[str, ...]:
        return ({"f32": "1.0", "i32": "1i", "u32": "1u"}[dtype],)

    def combine(self, dtype: str, left: tuple[str, ...], right: tuple[str, ...]) -> tuple[str, ...]:
        return (f"{left[0]} * {right[0]}",)


class Extremum(Reduce):
    """Maximum or minimum; NaN wins. The gradient is split evenly among ties."""

    def infer(self, inputs: tuple[Node, ...], attrs: Mapping[str, Any]) -> tuple[Shape, str]:
        (x,) = inputs
        if any(x.shape[a] == 0 for a in attrs["axes"]):
            raise ShapeError(f"{self.name} over an empty axis of {x.shape} has no value")
        return super().infer(inputs, attrs)

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        from webgrad.ops.base import current_builder
        from webgrad.ops.elementwise import cast, div, eq, mul

        (x,) = node.inputs
        builder = current_builder(self.name)
        builder.pin(x)
        builder.pin(node)
        best = cast(eq(x, keep(node, node)), dtype="f32")
        ties = reduce_sum(best, axes=node.attrs["axes"])
        return (mul(best, keep(node, div(dy, ties))),)


class Max(Extremum):
    """Largest element."""

    name = "max"

    def numpy(self, attrs: Mapping[str, Any], *args: Array) -> Array:
        return args[0].max(axis=attrs["axes"])

    def init(self, dtype: str) -> tuple[str, ...]:
        return ({"f32": "-wg_inf()", "i32": "(-2147483647i - 1i)", "u32": "0u"}[dtype],)

    def combine(self, dtype: str, left: tuple[str, ...], right: tuple[str, ...]) -> tuple[str, ...]:
        return (f"{'wg_max' if dtype == 'f32' else 'max'}({left[0]}, {right[0]})",)


class Min(Extremum):
    """Smallest element."""

    name = "min"

    def numpy(self, attrs: Mapping[str, Any], *args: Array) -> Array:
        return args[0].min(axis=attrs["axes"])

    def init(self, dtype: str) -> tuple[str, ...]:
        return ({"f32": "wg_inf()", "i32": "2147483647i", "u32": "4294967295u"}[dtype],)

    def combine(self, dtype: str, left: tuple[str, ...], right: tuple[str, ...]) -> tuple[str, ...]:
        return (f"{'wg_min' if dtype == 'f32' else 'min'}({left[0]}, {right[0]})",)


class ArgExtremum(Reduce):
    """Index (i32) of the first extremum along one axis; the first NaN wins, as in NumPy.

    The state is (value, index); an index of −1 marks the empty state.
    """

    differentiable = False
    splits = False

    def infer(self, inputs: tuple[Node, ...], attrs: Mapping[str, Any]) -> tuple[Shape, str]:
        (axis,) = attrs["axes"]
        if inputs[0].shape[axis] == 0:
            raise ShapeError(f"{self.name} over an empty axis of {inputs[0].shape} has no value")
        return super().infer(inputs, attrs)

    def out_dtype(self, dtype: str) -> str:
        return "i32"

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        return (None,)

    def init(self, dtype: str) -> tuple[str, ...]:
        return ({"f32": "0.0", "i32": "0i", "u32": "0u"}[dtype], "-1i")

    better = ">"

    def combine(self, dtype: str, left: tuple[str, ...], right: tuple[str, ...]) -> tuple[str, ...]:
        (lv, li), (rv, ri) = left, right
        wins = f"(({rv} {self.better} {lv}) | (({rv} == {lv}) & ({ri} < {li})))"
        if dtype == "f32":
            nan = f"(!wg_isnan({lv}) | ({ri} < {li}))"
            wins = f"select({wins} & !wg_isnan({lv}), {nan}, wg_isnan({rv}))"
        take = f"(({ri} >= 0i) & (({li} < 0i) | {wins}))"
        return (f"select({lv}, {rv}, {take})", f"select({li}, {ri}, {take})")


class ArgMax(ArgExtremum):
    """Index of the first largest element."""

    name = "argmax"
    better = ">"

    def numpy(self, attrs: Mapping[str, Any], *args: Array) -> Array:
        return args[0].argmax(axis=attrs["axes"][0]).astype(np.int32)


class ArgMin(ArgExtremum):
    """Index of the first smallest element."""

    name = "argmin"
    better = "<"

    def numpy(self, attrs: Mapping[str, Any], *args: Array) -> Array:
        return args[0].argmin(axis=attrs["axes"][0]).astype(np.int32)


class Fold(Reduce):
    """Sum overlapping windows back into an image, the adjoint of `windows`:
    ``[…, OH, OW, KH, KW] → […, H, W]``. ``attrs``: ``size = (H, W)``, ``stride``, ``dilation``.

    As a reduction: output pixel (h, w) sums over (p, q) the element of the window at
    ``((h − p·d)/s, (w − q·d)/s)`` where that division is exact and inside.
    """

    name = "fold"

    def infer(self, inputs: tuple[Node, ...], attrs: Mapping[str, Any]) -> tuple[Shape, str]:
        (x,) = inputs
        if x.dtype not in ("f32", "i32"):
            raise DtypeError(f"fold sums numbers, not {x.dtype}")
        return (*x.shape[:-4], *attrs["size"]), x.dtype

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        a, kernel = node.attrs, node.inputs[0].shape[-2:]
        return (windows(dy, kernel=kernel, stride=a["stride"], dilation=a["dilation"]),)

    def numpy(self, attrs: Mapping[str, Any], *args: Array) -> Array:
        (x,) = args
        out = np.zeros((*x.shape[:-4], *attrs["size"]), dtype=x.dtype)
        oh, ow, kh, kw = x.shape[-4:]
        (sh, sw), (dh, dw) = attrs["stride"], attrs["dilation"]
        for p in range(kh):
            for q in range(kw):
                rows = slice(p * dh, p * dh + (oh - 1) * sh + 1, sh)
                cols = slice(q * dw, q * dw + (ow - 1) * sw + 1, sw)
                out[..., rows, cols] += x[..., p, q]
        return out

    def init(self, dtype: str) -> tuple[str, ...]:
        return reduce_sum.init(dtype)

    def combine(self, dtype: str, left: tuple[str, ...], right: tuple[str, ...]) -> tuple[str, ...]:
        return reduce_sum.combine(dtype, left, right)

    def source(self, node: Node, coords: tuple[Any, ...], at: tuple[Any, ...], ix: Any) -> tuple[Any, Any]:
        """Window coordinates and mask for output ``coords`` and window position ``at`` = (p, q)."""
        *lead, h, w = coords
        mask, moved = None, []
        rows = zip((h, w), at, node.attrs["stride"], node.attrs["dilation"], strict=True)
        for axis, (pixel, tap, stride, dilation) in enumerate(rows):
            count = node.inputs[0].shape[len(lead) + axis]
            reach = ix.add(pixel, ix.mul(tap, -dilation))
            mask = ix.both(mask, ix.ge0(reach))
            if stride > 1:
                mask = ix.both(mask, ix.eq0(ix.mod(reach, stride)))
            window = ix.div(reach, stride)
            mask = ix.both(mask, ix.ge0(ix.add(ix.const(count - 1), ix.mul(window, -1))))
            moved.append(window)
        return (*lead, *moved, *at), mask


reduce_sum, reduce_prod, reduce_max, reduce_min = Sum(), Prod(), Max(), Min()
argmax_, argmin_, fold = ArgMax(), ArgMin(), Fold()
