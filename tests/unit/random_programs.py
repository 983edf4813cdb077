"""Random programs for Hypothesis: a few inputs, a dozen operations on whatever exists so far, many outputs.

`Draw` is called inside a trace and draws operation by operation, so a failing program shrinks to few lines.
Each value knows whether it is *exact*: made by operations whose float32 result does not depend on the order
of evaluation. Exact values must agree bit for bit, and only they are compared, rounded or ranked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import webgrad as wg

LARGEST = 400  # elements


@dataclass(frozen=True)
class Value:
    """A traced tensor and whether its bits are the same in every order of evaluation."""

    tensor: Any
    exact: bool

    @property
    def shape(self):
        """Of the tensor."""
        return self.tensor.shape


class Draw:
    """Draws the operations of one program. ``smooth`` leaves out what has no unique gradient; no value gets
    more elements than ``largest``.
    """

    def __init__(self, data, inputs, smooth=False, largest=LARGEST):
        self.data, self.smooth, self.largest = data, smooth, largest
        self.pool = [Value(t, True) for t in inputs]

    def pick(self, strategy):
        """A value of a strategy."""
        return self.data.draw(strategy)

    def number(self, low, high):
        """An int in [low, high]."""
        return self.pick(st.integers(low, high))

    def choose(self, options):
        """One of a non-empty list; the newest comes first, so that programs become deep."""
        options = list(options)
        return options[len(options) - 1 - self.number(0, len(options) - 1)]

    def floats(self, exact=False, rank=0):
        """The float values with at least ``rank`` axes."""
        return [
            v
            for v in self.pool
            if v.tensor.dtype == "f32" and (v.exact or not exact) and len(v.shape) >= rank
        ]

    def any_float(self, rank=0, exact=False):
        """One of them; made from the first value if there is none."""
        found = self.floats(exact, rank)
        if found:
            return self.choose(found)
        base = next(v for v in self.pool if v.tensor.dtype == "f32" and v.exact)
        return Value(wg.reshape(base.tensor, (1,) * (rank - len(base.shape)) + base.shape), True)

    def partner(self, value):
        """A float value that broadcasts with ``value`` to something small."""
        fits = [v for v in self.floats() if self.joined(v.shape, value.shape) is not None]
        return self.choose(fits)

    def integers(self):
        """An i32 value: ids for anything."""
        found = [v for v in self.pool if v.tensor.dtype == "i32"]
        if found and self.number(0, 2):
            return self.choose(found)
        source = self.any_float(exact=True)
        return Value(wg.astype(wg.floor(source.tensor * 3.0), "i32"), True)

    def step(self):
        """Draw one operation and add its result to the pool."""
        kinds = [
            self.unary, self.binary, self.movement, self.movement, self.reduce, self.join, self.matmul,
            self.select, self.lookup, self.row, self.image, self.constant, self.integer, self.bools,
        ]  # fmt: skip
        made = kinds[self.number(0, len(kinds) - 1)]()
        if made.tensor.size <= self.largest:
            self.pool.append(made)

    # --- kinds of operations ------------------------------------------------------------------------

    def unary(self):
        """A function of one float."""
        x = self.any_float()
        exact = [wg.negative, lambda t: t * 0.5, lambda t: wg.clip(t + 1, -8.0, 8.0), lambda t: 2.0 - t]
        kinks = [wg.abs, wg.relu, lambda t: wg.minimum(t, 0.25)]
        steps = [wg.floor, wg.sign, wg.round]
        rounded = [
            wg.tanh, wg.sigmoid, wg.sin, wg.cos, wg.erf, wg.gelu, lambda t: wg.log1p(t * t),
            lambda t: wg.exp(wg.clip(t, -3, 2) if x.exact else wg.tanh(t)),
            lambda t: wg.sqrt(t * t + 1), lambda t: 1.0 / (t * t + 1),
        ]  # fmt: skip
        options = exact + (kinks if x.exact or not self.smooth else []) + (steps if x.exact else [])
        number = self.number(0, len(options) + len(rounded) - 1)
        if number < len(options):
            return Value(options[number](x.tensor), x.exact)
        return Value(rounded[number - len(options)](x.tensor), False)

    def binary(self):
        """Arithmetic with broadcasting."""
        a = self.any_float()
        b = self.partner(a)
        exact = a.exact and b.exact
        options = [wg.add, wg.subtract, lambda x, y: wg.tanh(x) * y, lambda x, y: x / (y * y + 1)]
        kept = [True, True, False, False]
        if exact:
            options += [lambda x, y: wg.clip(x * y, -8.0, 8.0), wg.maximum, wg.minimum]
            kept += [True, True, True]
        number = self.number(0, len(options) - 1)
        return Value(options[number](a.tensor, b.tensor), exact and kept[number])

    def movement(self):
        """The same elements elsewhere."""
        v = self.choose(self.pool)
        t, shape = v.tensor, v.shape
        kind = self.number(0, 6)
        if kind == 0:
            return Value(wg.transpose(t, self.pick(st.permutations(range(t.ndim)))), v.exact)
        if kind == 1:
            return Value(wg.reshape(t, self.factors(t.size)), v.exact)
        if kind == 2 and t.ndim:
            keys = [self.number(-n, n - 1) if n and self.number(0, 3) == 0 else self.slice(n) for n in shape]
            return Value(t[tuple(keys)], v.exact)
        if kind == 3 and t.dtype != "bool":
            widths = [(self.number(0, 2), self.number(0, 2)) for _ in shape]
            return Value(wg.pad(t, widths, value=self.number(-1, 2)), v.exact)
        if kind == 4 and t.ndim:
            return Value(wg.flip(t, self.number(0, t.ndim - 1)), v.exact)
        if kind == 5:
            return Value(wg.broadcast_to(t, (self.number(1, 3), *shape)), v.exact)
        return Value(wg.expand_dims(t, self.number(0, t.ndim)), v.exact)

    def factors(self, size):
        """A shape with ``size`` elements."""
        shape = []
        for _ in range(self.number(0, 3)):
            options = [n for n in range(1, size + 1) if size % n == 0] if size else [0, 1, 2]
            shape.append(self.choose(options))
            size = size // shape[-1] if shape[-1] else size
        return (*shape, size)

    def slice(self, n):
        """A slice of an axis, mostly not empty."""
        start, stop = sorted((self.number(0, n), self.number(0, n)))
        step = self.number(1, 3)
        if self.number(0, 3) == 0 and n:
            return slice(None, None, -step)
        return slice(start, max(stop, min(start + 1, n)), step)

    def axes(self, t):
        """Some axes."""
        return tuple(a for a in range(t.ndim) if self.number(0, 1))

    def reduce(self):
        """Over some axes."""
        v = self.any_float()
        t, axes, keep = v.tensor, self.axes(v.tensor), bool(self.number(0, 1))
        kind = self.number(0, 4)
        empty = any(t.shape[a] == 0 for a in axes)
        if kind == 0:
            return Value(wg.mean(t, axes, keep) if axes and not empty else t, v.exact and not axes)
        if kind in (1, 2) and not empty and (v.exact or not self.smooth):
            return Value((wg.max, wg.min)[kind - 1](t, axes, keep), v.exact)
        if kind == 3 and v.exact and t.ndim and t.shape[-1]:
            return Value((wg.argmax, wg.argmin)[self.number(0, 1)](t, -1), True)
        if kind == 4 and math.prod(t.shape[a] for a in axes) <= 6:
            return Value(wg.prod(wg.tanh(t) if not v.exact else wg.clip(t, -2, 2), axes, keep), False)
        scale = 1.0 / max(1, math.prod(t.shape[a] for a in axes) // 4)
        return Value(wg.sum(t, axes, keep) * scale, False)

    def join(self):
        """Several values along an axis."""
        first = self.any_float(rank=1)
        axis = self.number(0, len(first.shape) - 1)
        rest = first.shape[:axis] + first.shape[axis + 1 :]
        fits = [
            v for v in self.floats(rank=1)
            if len(v.shape) == len(first.shape) and v.shape[:axis] + v.shape[axis + 1 :] == rest
        ]  # fmt: skip
        parts = [first] + [self.choose(fits) for _ in range(self.number(0, 5))]
        if self.number(0, 2) == 0:
            parts = [p for p in parts if p.shape == first.shape]
            joined = wg.stack([p.tensor for p in parts], axis)
        else:
            joined = wg.concat([p.tensor for p in parts], axis)
        return Value(joined, all(p.exact for p in parts))

    def matmul(self):
        """A product, of vectors, matrices or batches."""
        a = self.any_float(rank=1)
        inner = a.shape[-1]
        fits = [
            v
            for v in self.floats(rank=1)
            if v.shape[-2:][0] == inner and self.joined(v.shape[:-2], a.shape[:-2]) is not None
        ]
        if fits and self.number(0, 3):
            b = self.choose(fits).tensor
        else:
            b = wg.swapaxes(a.tensor, -1, -2) if len(a.shape) > 1 else a.tensor
        return Value(wg.sin(a.tensor) @ wg.tanh(b) * (1.0 / max(inner, 1)), False)

    def select(self):
        """A choice by a condition on exact values."""
        a = self.any_float(exact=True)
        b = self.partner(a)
        fits = [
            v
            for v in self.pool
            if v.tensor.dtype == "bool" and self.joined(v.shape, self.joined(a.shape, b.shape)) is not None
        ]
        condition = self.choose(fits).tensor if fits and self.number(0, 1) else a.tensor > 0.25
        return Value(wg.where(condition, a.tensor, b.tensor), b.exact)

    def lookup(self):
        """Rows or elements by ids, and sums by id."""
        ids = self.integers().tensor
        v = self.any_float(rank=1)
        t, kind = v.tensor, self.number(0, 4)
        if kind == 0 and t.shape[0]:
            return Value(wg.embedding(t, ids), v.exact)
        if kind == 1 and t.shape[0]:
            return Value(t[wg.remainder(ids, t.shape[0])], v.exact)
        if kind == 2 and t.shape[-1]:
            at = wg.argmax(wg.floor(t * 2.0), -1) if v.exact else wg.argmax(wg.zeros(t.shape), -1)
            return Value(wg.take_along_last(t, at), v.exact)
        if kind == 3:
            return Value(wg.one_hot(wg.remainder(ids, 4), self.number(1, 5)), True)
        rows = wg.broadcast_to(v.tensor, (ids.size, *v.shape))
        if rows.size <= self.largest:
            return Value(
                wg.scatter_add(wg.reshape(wg.remainder(ids, 3), -1), rows, self.number(1, 4)) * 0.25, False
            )
        return v

    def row(self):
        """Softmax, normalisation and their like."""
        v = self.any_float(rank=1)
        t, kind = v.tensor, self.number(0, 4)
        if not t.shape[-1]:
            return v
        if kind == 0 and t.ndim > 1:
            return Value(wg.softmax_causal(t), False)
        if kind == 1:
            return Value(wg.layer_norm(t, eps=0.5), False)
        if kind == 2:
            return Value(wg.log_softmax(t, self.number(0, t.ndim - 1)) if 0 not in t.shape else t, False)
        if kind == 3:
            return Value(wg.dropout(t, self.choose([0.25, 0.5]), always=True), False)
        return Value(wg.softmax(t), False)

    def image(self):
        """A convolution or a pooling."""
        v = self.any_float(rank=2)
        h, w = v.shape[-2:]
        if not h or not w:
            return v
        kernel = (self.number(1, min(h, 3)), self.number(1, min(w, 3)))
        stride = (self.number(1, 2), self.number(1, 2))
        if self.number(0, 1) and (v.exact or not self.smooth):
            pool = wg.max_pool2d(v.tensor, kernel, stride, padding=(kernel[0] // 2, 0))
            return Value(pool, v.exact)
        x = wg.reshape(v.tensor, (1, -1, h, w)) if v.tensor.size else v.tensor
        if x.ndim != 4 or x.size == 0 or x.shape[1] > 6:
            return v
        channels = x.shape[1]
        size = 2 * channels * kernel[0] * kernel[1]
        weights = wg.reshape(wg.sin(wg.astype(wg.arange(size), "f32")), (2, channels, *kernel))
        padding = (self.number(0, 1), self.number(0, 1))
        return Value(wg.conv2d(x, weights, stride=stride, padding=padding) * (1.0 / size), False)

    def constant(self):
        """A literal array or a ramp."""
        if self.number(0, 1):
            return Value(wg.astype(wg.arange(self.number(1, 9)), "f32") * 0.25, True)
        shape = tuple(self.number(1, 3) for _ in range(self.number(0, 2)))
        values = np.arange(math.prod(shape), dtype=np.float32).reshape(shape) / 2 - 1
        return Value(self.any_float(exact=True).tensor.sum() * 0.0 + values, True)

    def integer(self):
        """Integer arithmetic: exact."""
        a = self.integers().tensor
        options = [
            lambda: a // 3, lambda: a % 5 - 2, lambda: a * a % 7, lambda: wg.sum(a), lambda: wg.max(a),
            lambda: wg.maximum(a, 1), lambda: wg.astype(a, "u32") % 3,
            lambda: a + wg.iota(a.shape or (1,), 0),
        ]  # fmt: skip
        made = options[self.number(0, len(options) - 1)]()
        return Value(wg.remainder(wg.astype(made, "i32"), 8), True)

    def bools(self):
        """A comparison of exact values, or logic."""
        a = self.any_float(exact=True).tensor
        options = [
            lambda: a < 0.5, lambda: a == wg.flip(a), lambda: ~(a >= 1), lambda: (a > 0) & (a < 1),
            lambda: wg.any(a > 1, self.axes(a)), lambda: wg.all(a < 2, self.axes(a)),
            lambda: (a > 0) ^ (a > 1),
        ]  # fmt: skip
        return Value(options[self.number(0, len(options) - 1)](), True)

    def joined(self, a, b):
        """The broadcast shape, unless there is none or it is large."""
        try:
            shape = np.broadcast_shapes(a, b)
        except ValueError:
            return None
        return shape if math.prod(shape) <= self.largest else None
