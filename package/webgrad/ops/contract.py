"""Contractions: matmul, and convolution with both its gradients.

Each op tells the compiler its matrix form (`plan`): sizes (batch, M, N, K) and, for symbolic
coordinates, where the two operands and the result are read and written. One kernel template serves all.
The three convolutions are the three partial maps of one trilinear form, so each one's gradient is the
other two, to any order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from webgrad.errors import DtypeError, ShapeError
from webgrad.ir import Node, Shape, numel
from webgrad.ops.base import Array, Op
from webgrad.ops.movement import permute

Coords = tuple[Any, ...]
#: (index builder, batch, row or column, k) -> operand coordinates and mask
Access = Callable[[Any, Any, Any, Any], tuple[Coords, Any]]


@dataclass(frozen=True)
class MatrixForm:
    """``out[b, m, n] = Σ_k left(b, m, k) · right(b, n, k)``; operands are input numbers.

    ``k`` is the shape over which the sum runs; access functions get its flat index.
    """

    batch: int
    m: int
    n: int
    k: Shape
    left: int
    right: int
    left_at: Access
    right_at: Access
    out_at: Callable[[Any, Any, Any, Any], Coords]


class Contract(Op):
    """Base of the contractions."""

    family = "contract"
    cost = 1000

    def form(self, node: Node) -> MatrixForm:
        """The matrix form of this node."""
        raise NotImplementedError(self.name)


def _swap(x: Any) -> Any:
    axes = (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
    return permute(x, axes=axes)


class MatMul(Contract):
    """``[*B, M, K] @ [*B, K, N] → [*B, M, N]``, equal batch shapes (`functional.matmul` broadcasts)."""

    name = "matmul"

    def infer(self, inputs: tuple[Node, ...], attrs: Mapping[str, Any]) -> tuple[Shape, str]:
        a, b = inputs
        if a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
            raise ShapeError(f"matmul: {a.shape} @ {b.shape}: the inner sizes must be equal")
        if a.dtype != "f32" or b.dtype != "f32":
            raise DtypeError(f"matmul multiplies f32 tensors, found {a.dtype} and {b.dtype}: cast them")
        return (*a.shape[:-1], b.shape[-1]), "f32"

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        a, b = node.inputs
        return matmul_(dy, _swap(b)), matmul_(_swap(a), dy)

    def numpy(self, attrs: Mapping[str, Any], *args: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.matmul(*args)

    def form(self, node: Node) -> MatrixForm:
        a, b = node.inputs
        lead = a.shape[:-2]
        return MatrixForm(
            numel(lead), a.shape[-2], b.shape[-1], a.shape[-1:], 0, 1,
            lambda ix, batch, row, k: ((*ix.unravel(batch, lead), row, k), None),
            lambda ix, batch, col, k: ((*ix.unravel(batch, lead), k, col), None),
            lambda ix, batch, row, col: (*ix.unravel(batch, lead), row, col),
        )  # fmt: skip


class ConvForm(Contract):
    """Shared by the three: ``x [N, C, H, W]``, ``w [O, C/G, KH, KW]``, ``y [N, O, OH, OW]``.

    ``attrs``: ``stride, dilation`` pairs, ``padding`` ((top, bottom), (left, right)), ``groups``, and the
    sizes that the inputs do not tell: ``image`` (H, W) or ``kernel`` (KH, KW).
    """

    def out_size(self, image: Shape, kernel: Shape, attrs: Mapping[str, Any]) -> Shape:
        """(OH, OW)."""
        rows = zip(image, kernel, attrs["stride"], attrs["dilation"], attrs["padding"], strict=True)
        return tuple((n + sum(p) - (k - 1) * d - 1) // s + 1 for n, k, s, d, p in rows)

    def tap(self, ix: Any, attrs: Mapping[str, Any], axis: int, out: Any, tap: Any) -> Any:
        """The image coordinate that output ``out`` reads at kernel position ``tap``."""
        stride, dilation = attrs["stride"][axis], attrs["dilation"][axis]
        shift = ix.const(-attrs["padding"][axis][0])
        return ix.add(ix.add(ix.mul(out, stride), ix.mul(tap, dilation)), shift)

    def inside(self, ix: Any, mask: Any, at: Any, size: int) -> Any:
        """``mask`` and 0 ≤ at < size."""
        return ix.both(ix.both(mask, ix.ge0(at)), ix.ge0(ix.add(ix.const(size - 1), ix.mul(at, -1))))

    def patches(self, x: Array, kernel: Shape, attrs: Mapping[str, Any]) -> Array:
        """NumPy im2col: [N, C, OH, OW, KH, KW]."""
        padded = np.pad(x, [(0, 0), (0, 0), *attrs["padding"]])
        oh, ow = self.out_size(x.shape[2:], kernel, attrs)
        rows = zip((oh, ow), kernel, attrs["stride"], attrs["dilation"], strict=True)
        at_h, at_w = (np.arange(n)[:, None] * s + np.arange(k) * d for n, k, s, d in rows)
        return padded[:, :, at_h[:, None, :, None], at_w[None, :, None, :]]


class Conv(ConvForm):
    """Cross-correlation ``x, w → y`` as torch.nn.functional.conv2d."""

    name = "conv"

    def infer(self, inputs: tuple[Node, ...], attrs: Mapping[str, Any]) -> tuple[Shape, str]:
        x, w = inputs
        size = self.out_size(x.shape[2:], w.shape[2:], attrs)
        if min(size) < 1:
            raise ShapeError(f"conv2d: a kernel of {w.shape[2:]} does not fit into the image {x.shape[2:]}")
        return (x.shape[0], w.shape[0], *size), "f32"

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        x, w = node.inputs
        attrs = {k: node.attrs[k] for k in ("stride", "dilation", "padding", "groups")}
        return (
            conv_input_grad(dy, w, **attrs, image=x.shape[2:]),
            conv_weight_grad(x, dy, **attrs, kernel=w.shape[2:]),
        )

    def numpy(self, attrs: Mapping[str, Any], *args: Array) -> Array:
        x, w = args
        g, o = attrs["groups"], w.shape[0]
        p = self.patches(x, w.shape[2:], attrs)
        p = p.reshape(x.shape[0], g, w.shape[1], *p.shape[2:])
        y = np.einsum("ngchwpq,gocpq->ngohw", p, w.reshape(g, o // g, *w.shape[1:]), optimize=True)
        return y.reshape(x.shape[0], o, *y.shape[3:]).astype(x.dtype)

    def form(self, node: Node) -> MatrixForm:
        x, w = node.inputs
        attrs, groups = node.attrs, node.attrs["groups"]
        (images, _, h, wide), (out, cg, kh, kw) = x.shape, w.shape
        oh, ow = node.shape[2:]
        og = out // groups

        def weight(ix: Any, g: Any, m: Any, k: Any) -> tuple[Coords, Any]:
            return (ix.add(ix.mul(g, og), m), *ix.unravel(k, (cg, kh, kw))), None

        def patch(ix: Any, g: Any, n: Any, k: Any) -> tuple[Coords, Any]:
            image, i, j = ix.unravel(n, (images, oh, ow))
            c, p, q = ix.unravel(k, (cg, kh, kw))
            row, col = self.tap(ix, attrs, 0, i, p), self.tap(ix, attrs, 1, j, q)
            mask = self.inside(ix, self.inside(ix, None, row, h), col, wide)
            return (image, ix.add(ix.mul(g, cg), c), row, col), mask

        def result(ix: Any, g: Any, m: Any, n: Any) -> Coords:
            image, i, j = ix.unravel(n, (images, oh, ow))
            return (image, ix.add(ix.mul(g, og), m), i, j)

        return MatrixForm(groups, og, images * oh * ow, (cg, kh, kw), 1, 0, weight, patch, result)


class ConvInputGrad(ConvForm):
    """``dy, w → dx``: the transposed convolution. ``attrs['image']`` is dx's (H, W)."""

    name = "conv_input_grad"

    def infer(self, inputs: tuple[Node, ...], attrs: Mapping[str, Any]) -> tuple[Shape, str]:
        dy, w = inputs
        return (dy.shape[0], w.shape[1] * attrs["groups"], *attrs["image"]), "f32"

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        cotangent, w = node.inputs
        attrs = {k: node.attrs[k] for k in ("stride", "dilation", "padding", "groups")}
        return conv(dy, w, **attrs), conv_weight_grad(dy, cotangent, **attrs, kernel=w.shape[2:])

    def numpy(self, attrs: Mapping[str, Any], *args: Array) -> Array:
        dy, w = args
        g, (n, _, oh, ow), (kh, kw) = attrs["groups"], dy.shape, w.shape[2:]
        og = w.shape[0] // g
        slopes, weights = dy.reshape(n, g, og, oh, ow), w.reshape(g, og, *w.shape[1:])
        parts = np.einsum("ngohw,gocpq->ngchwpq", slopes, weights, optimize=True)
        (top, bottom), (left, right) = attrs["padding"]
        h, wide = attrs["image"]
        (sh, sw), (dh, dw) = attrs["stride"], attrs["dilation"]
        out = np.zeros((n, w.shape[1] * g, h + top + bottom, wide + left + right), dtype=dy.dtype)
        parts = parts.reshape(n, w.shape[1] * g, oh, ow, kh, kw)
        for p in range(kh):
            for q in range(kw):
                rows = slice(p * dh, p * dh + (oh - 1) * sh + 1, sh)
                cols = slice(q * dw, q * dw + (ow - 1) * sw + 1, sw)
                out[:, :, rows, cols] += parts[..., p, q]
        return out[:, :, top : top + h, left : left + wide]

    def form(self, node: Node) -> MatrixForm:
        dy, w = node.inputs
        attrs, groups = node.attrs, node.attrs["groups"]
        (images, out, oh, ow), (_, cg, kh, kw) = dy.shape, w.shape
        h, wide = attrs["image"]
        og = out // groups

        def weight(ix: Any, g: Any, m: Any, k: Any) -> tuple[Coords, Any]:
            o, p, q = ix.unravel(k, (og, kh, kw))
            return (ix.add(ix.mul(g, og), o), m, p, q), None

        def spread(ix: Any, g: Any, n: Any, k: Any) -> tuple[Coords, Any]:
            image, i, j = ix.unravel(n, (images, h, wide))
            o, p, q = ix.unravel(k, (og, kh, kw))
            mask, at = None, []
            for axis, (pixel, tap, count) in enumerate(((i, p, oh), (j, q, ow))):
                stride, dilation = attrs["stride"][axis], attrs["dilation"][axis]
                reach = ix.add(ix.add(pixel, ix.const(attrs["padding"][axis][0])), ix.mul(tap, -dilation))
                if stride > 1:
                    mask = ix.both(mask, ix.eq0(ix.mod(reach, stride)))
                window = ix.div(reach, stride)
                mask = self.inside(ix, mask, window, count)
                at.append(window)
            return (image, ix.add(ix.mul(g, og), o), *at), mask

        def result(ix: Any, g: Any, m: Any, n: Any) -> Coords:
            image, i, j = ix.unravel(n, (images, h, wide))
            return (image, ix.add(ix.mul(g, cg), m), i, j)

        return MatrixForm(groups, cg, images * h * wide, (og, kh, kw), 1, 0, weight, spread, result)


class ConvWeightGrad(ConvForm):
    """``x, dy → dw``. ``attrs['kernel']`` is dw's (KH, KW)."""

    name = "conv_weight_grad"

    def infer(self, inputs: tuple[Node, ...], attrs: Mapping[str, Any]) -> tuple[Shape, str]:
        x, dy = inputs
        return (dy.shape[1], x.shape[1] // attrs["groups"], *attrs["kernel"]), "f32"

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        x, cotangent = node.inputs
        attrs = {k: node.attrs[k] for k in ("stride", "dilation", "padding", "groups")}
        return conv_input_grad(cotangent, dy, **attrs, image=x.shape[2:]), conv(x, dy, **attrs)

    def numpy(self, attrs: Mapping[str, Any], *args: Array) -> Array:
        x, dy = args
        g, n = attrs["groups"], x.shape[0]
        p = self.patches(x, attrs["kernel"], attrs)[:, :, : dy.shape[2], : dy.shape[3]]
        og, cg = dy.shape[1] // g, x.shape[1] // g
        p = p.reshape(n, g, cg, *p.shape[2:])
        dw = np.einsum("ngohw,ngchwpq->gocpq", dy.reshape(n, g, og, *dy.shape[2:]), p, optimize=True)
        return dw.reshape(dy.shape[1], cg, *attrs["kernel"]).astype(x.dtype)

    def form(self, node: Node) -> MatrixForm:
        x, dy = node.inputs
        attrs, groups = node.attrs, node.attrs["groups"]
        (images, channels, h, wide), (_, out, oh, ow) = x.shape, dy.shape
        kh, kw = attrs["kernel"]
        og, cg = out // groups, channels // groups

        def slope(ix: Any, g: Any, m: Any, k: Any) -> tuple[Coords, Any]:
            image, i, j = ix.unravel(k, (images, oh, ow))
            return (image, ix.add(ix.mul(g, og), m), i, j), None

        def patch(ix: Any, g: Any, n: Any, k: Any) -> tuple[Coords, Any]:
            c, p, q = ix.unravel(n, (cg, kh, kw))
            image, i, j = ix.unravel(k, (images, oh, ow))
            row, col = self.tap(ix, attrs, 0, i, p), self.tap(ix, attrs, 1, j, q)
            mask = self.inside(ix, self.inside(ix, None, row, h), col, wide)
            return (image, ix.add(ix.mul(g, cg), c), row, col), mask

        def result(ix: Any, g: Any, m: Any, n: Any) -> Coords:
            return (ix.add(ix.mul(g, og), m), *ix.unravel(n, (cg, kh, kw)))

        return MatrixForm(groups, og, cg * kh * kw, (images, oh, ow), 1, 0, slope, patch, result)


matmul_, conv = MatMul(), Conv()
conv_input_grad, conv_weight_grad = ConvInputGrad(), ConvWeightGrad()
