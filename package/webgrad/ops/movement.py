"""Movement: an output element *is* an input element (or a fill); nothing is computed.

Each op says, for symbolic output coordinates, which input coordinates it reads and under which mask
(`index_map`). The compiler composes these maps, so movement costs no kernel. ``ix`` is the compiler's
index builder: ``add, mul, div, mod`` on integer expressions and ``ge0, eq0, both`` on masks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from webgrad.errors import ShapeError
from webgrad.ir import Node, Shape, numel
from webgrad.ops.base import Array, Op
from webgrad.ops.leaves import constant

Coords = tuple[Any, ...]


class Movement(Op):
    """Base: one input, same dtype. ``attrs`` must be normalised (non-negative axes, full tuples)."""

    family = "movement"
    cost = 0

    def infer(self, inputs: tuple[Node, ...], attrs: Mapping[str, Any]) -> tuple[Shape, str]:
        return self.out_shape(inputs[0].shape, attrs), inputs[0].dtype

    def out_shape(self, shape: Shape, attrs: Mapping[str, Any]) -> Shape:
        """Shape of the result."""
        raise NotImplementedError(self.name)

    def index_map(self, node: Node, coords: Coords, ix: Any) -> tuple[Coords, Any]:
        """Input coordinates and a mask (None: always inside) for output coordinates."""
        raise NotImplementedError(self.name)


class Reshape(Movement):
    """Same elements in row-major order, another shape."""

    name = "reshape"

    def out_shape(self, shape: Shape, attrs: Mapping[str, Any]) -> Shape:
        target = tuple(attrs["shape"])
        if numel(shape) != numel(target) or any(n < 0 for n in target):
            raise ShapeError(
                f"cannot reshape {shape} ({numel(shape)} elements) to {target} ({numel(target)}): "
                "the number of elements must stay the same"
            )
        return target

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        return (reshape(dy, shape=node.inputs[0].shape),)

    def numpy(self, attrs: Mapping[str, Any], *args: Array) -> Array:
        return args[0].reshape(attrs["shape"])

    def index_map(self, node: Node, coords: Coords, ix: Any) -> tuple[Coords, Any]:
        inside = [ix.within(c, n) for c, n in zip(coords, node.shape, strict=True)]
        return ix.unravel(ix.ravel(inside, node.shape), node.inputs[0].shape), None


class Permute(Movement):
    """Axes reordered: output axis i is input axis ``axes[i]``."""

    name = "permute"

    def out_shape(self, shape: Shape, attrs: Mapping[str, Any]) -> Shape:
        return tuple(shape[a] for a in attrs["axes"])

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        axes = node.attrs["axes"]
        return (permute(dy, axes=tuple(axes.index(a) for a in range(len(axes)))),)

    def numpy(self, attrs: Mapping[str, Any], *args: Array) -> Array:
        return args[0].transpose(attrs["axes"])

    def index_map(self, node: Node, coords: Coords, ix: Any) -> tuple[Coords, Any]:
        axes = node.attrs["axes"]
        return tuple(coords[axes.index(a)] for a in range(len(axes))), None


class Broadcast(Movement):
    """NumPy broadcasting to ``shape``; its gradient is the one place that un-broadcasts."""

    name = "broadcast"

    def out_shape(self, shape: Shape, attrs: Mapping[str, Any]) -> Shape:
        target = tuple(attrs["shape"])
        lead = len(target) - len(shape)
        fits = lead >= 0 and all(s in (1, t) for s, t in zip(shape, target[lead:], strict=True))
        if not fits or any(n < 0 for n in target):
            raise ShapeError(f"cannot broadcast {shape} to {target}: sizes must match or be 1")
        return target

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        from webgrad.ops.reduce import reduce_sum

        shape, target = node.inputs[0].shape, node.shape
        lead = len(target) - len(shape)
        axes = [a for a in range(len(target)) if a < lead or (shape[a - lead] == 1 and target[a] != 1)]
        total = reduce_sum(dy, axes=tuple(axes)) if axes else dy
        return (total if total.shape == shape else reshape(total, shape=shape),)

    def numpy(self, attrs: Mapping[str, Any], *args: Array) -> Array:
        return np.broadcast_to(args[0], attrs["shape"])

    def index_map(self, node: Node, coords: Coords, ix: Any) -> tuple[Coords, Any]:
        shape = node.inputs[0].shape
        lead = len(coords) - len(shape)
        return tuple(ix.const(0) if s == 1 else c for s, c in zip(shape, coords[lead:], strict=True)), None


class Slice(Movement):
    """``x[start : start + size·step : step]`` on every axis; steps are positive (reversal is `flip`)."""

    name = "slice"

    def out_shape(self, shape: Shape, attrs: Mapping[str, Any]) -> Shape:
        return tuple(attrs["sizes"])

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        starts, steps = node.attrs["starts"], node.attrs["steps"]
        if dy.size == 0:
            return (broadcast(constant(0, dy.dtype), shape=node.inputs[0].shape),)
        reach = [s + (n - 1) * t + 1 for s, n, t in zip(starts, dy.shape, steps, strict=True)]
        high = tuple(n - r for n, r in zip(node.inputs[0].shape, reach, strict=True))
        return (pad(dy, low=starts, high=high, interior=tuple(t - 1 for t in steps), value=0.0),)

    def numpy(self, attrs: Mapping[str, Any], *args: Array) -> Array:
        parts = zip(attrs["starts"], attrs["sizes"], attrs["steps"], strict=True)
        return args[0][tuple(slice(s, s + (n - 1) * t + 1 if n else s, t) for s, n, t in parts)]

    def index_map(self, node: Node, coords: Coords, ix: Any) -> tuple[Coords, Any]:
        starts, steps = node.attrs["starts"], node.attrs["steps"]
        moved = (ix.add(ix.mul(c, t), ix.const(s)) for c, s, t in zip(coords, starts, steps, strict=True))
        return tuple(moved), None


class Pad(Movement):
    """``value`` added before (``low``), after (``high``) and between (``interior``) the elements of
    every axis. The interior form is the adjoint of a strided slice.
    """

    name = "pad"

    def out_shape(self, shape: Shape, attrs: Mapping[str, Any]) -> Shape:
        rows = zip(shape, attrs["low"], attrs["high"], attrs["interior"], strict=True)
        return tuple(lo + (n + max(n - 1, 0) * gap) + hi for n, lo, hi, gap in rows)

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        shape, low, interior = node.inputs[0].shape, node.attrs["low"], node.attrs["interior"]
        return (slice_(dy, starts=low, sizes=shape, steps=tuple(gap + 1 for gap in interior)),)

    def numpy(self, attrs: Mapping[str, Any], *args: Array) -> Array:
        (x,) = args
        out = np.full(self.out_shape(x.shape, attrs), attrs["value"], dtype=x.dtype)
        rows = zip(x.shape, attrs["low"], attrs["interior"], strict=True)
        out[tuple(slice(lo, lo + (n - 1) * (gap + 1) + 1 if n else lo, gap + 1) for n, lo, gap in rows)] = x
        return out

    def index_map(self, node: Node, coords: Coords, ix: Any) -> tuple[Coords, Any]:
        shape = node.inputs[0].shape
        mask, moved = None, []
        rows = zip(coords, shape, node.attrs["low"], node.attrs["interior"], strict=True)
        for coord, size, low, gap in rows:
            at = ix.add(coord, ix.const(-low))
            mask = ix.both(mask, ix.ge0(at))
            if gap:
                mask = ix.both(mask, ix.eq0(ix.mod(at, gap + 1)))
                at = ix.div(at, gap + 1)
            mask = ix.both(mask, ix.ge0(ix.add(ix.const(size - 1), ix.mul(at, -1))))
            moved.append(at)
        return tuple(moved), mask


class Flip(Movement):
    """Elements of ``axes`` in reverse order."""

    name = "flip"

    def out_shape(self, shape: Shape, attrs: Mapping[str, Any]) -> Shape:
        return shape

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        return (flip(dy, axes=node.attrs["axes"]),)

    def numpy(self, attrs: Mapping[str, Any], *args: Array) -> Array:
        return np.flip(args[0], attrs["axes"])

    def index_map(self, node: Node, coords: Coords, ix: Any) -> tuple[Coords, Any]:
        axes = node.attrs["axes"]
        turned = (
            ix.add(ix.const(n - 1), ix.mul(c, -1)) if a in axes else c
            for a, (c, n) in enumerate(zip(coords, node.shape, strict=True))
        )
        return tuple(turned), None


class Windows(Movement):
    """Sliding windows over the last two axes: ``[…, H, W] → […, OH, OW, KH, KW]``.

    Element ``[…, i, j, p, q]`` is ``x[…, i·s+p·d, j·s+q·d]``; pad first where padding is wanted.
    ``attrs``: ``kernel, stride, dilation``, each a pair. Its adjoint is `fold`.
    """

    name = "windows"

    def out_shape(self, shape: Shape, attrs: Mapping[str, Any]) -> Shape:
        rows = zip(shape[-2:], attrs["kernel"], attrs["stride"], attrs["dilation"], strict=True)
        out = tuple((n - (k - 1) * d - 1) // s + 1 for n, k, s, d in rows)
        if min(out) < 1:
            raise ShapeError(f"a window of {attrs['kernel']} does not fit into {shape[-2:]}")
        return (*shape[:-2], *out, *attrs["kernel"])

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        from webgrad.ops.reduce import fold

        a = node.attrs
        return (fold(dy, size=node.inputs[0].shape[-2:], stride=a["stride"], dilation=a["dilation"]),)

    def numpy(self, attrs: Mapping[str, Any], *args: Array) -> Array:
        (x,) = args
        out = self.out_shape(x.shape, attrs)
        rows = zip(out[-4:-2], attrs["kernel"], attrs["stride"], attrs["dilation"], strict=True)
        at_h, at_w = (np.arange(n)[:, None] * s + np.arange(k) * d for n, k, s, d in rows)
        return x[..., at_h[:, None, :, None], at_w[None, :, None, :]]

    def index_map(self, node: Node, coords: Coords, ix: Any) -> tuple[Coords, Any]:
        *lead, oh, ow, kh, kw = coords
        (sh, sw), (dh, dw) = node.attrs["stride"], node.attrs["dilation"]
        row = ix.add(ix.mul(oh, sh), ix.mul(kh, dh))
        col = ix.add(ix.mul(ow, sw), ix.mul(kw, dw))
        return (*lead, row, col), None


class StopGradient(Movement):
    """The identity, with no gradient."""

    name = "stop_gradient"
    differentiable = False

    def out_shape(self, shape: Shape, attrs: Mapping[str, Any]) -> Shape:
        return shape

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        return (None,)

    def numpy(self, attrs: Mapping[str, Any], *args: Array) -> Array:
        return args[0]

    def index_map(self, node: Node, coords: Coords, ix: Any) -> tuple[Coords, Any]:
        return coords, None


class Concat(Op):
    """Inputs joined along ``axis``. At most `Concat.most` at once; `functional.concat` nests."""

    name = "concat"
    family = "concat"
    cost = 1
    most = 4

    def infer(self, inputs: tuple[Node, ...], attrs: Mapping[str, Any]) -> tuple[Shape, str]:
        axis = attrs["axis"]
        first = inputs[0].shape
        for other in inputs[1:]:
            if other.shape[:axis] + other.shape[axis + 1 :] != first[:axis] + first[axis + 1 :]:
                raise ShapeError(f"cannot concat {first} and {other.shape} along axis {axis}")
        return (*first[:axis], sum(n.shape[axis] for n in inputs), *first[axis + 1 :]), inputs[0].dtype

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        axis, start, parts = node.attrs["axis"], 0, []
        ones = (1,) * dy.ndim
        for x in node.inputs:
            starts = tuple(start if a == axis else 0 for a in range(dy.ndim))
            parts.append(slice_(dy, starts=starts, sizes=x.shape, steps=ones))
            start += x.shape[axis]
        return tuple(parts)

    def numpy(self, attrs: Mapping[str, Any], *args: Array) -> Array:
        return np.concatenate(args, axis=attrs["axis"])


class Pack(Op):
    """Inputs flattened and laid side by side in a 1-D arena of ``size`` at ``offsets``; zero between.

    The scheduler lets each producer store straight into its range.
    """

    name = "pack"
    family = "pack"
    cost = 0
    differentiable = False

    def infer(self, inputs: tuple[Node, ...], attrs: Mapping[str, Any]) -> tuple[Shape, str]:
        return (attrs["size"],), attrs["dtype"]

    def numpy(self, attrs: Mapping[str, Any], *args: Array) -> Array:
        out = np.zeros(attrs["size"], dtype=np.result_type(*args) if args else np.float32)
        for offset, part in zip(attrs["offsets"], args, strict=True):
            out[offset : offset + part.size] = part.ravel()
        return out


reshape, permute, broadcast, slice_, pad = Reshape(), Permute(), Broadcast(), Slice(), Pad()
flip, windows, stop_gradient_, concat_, pack = Flip(), Windows(), StopGradient(), Concat(), Pack()
