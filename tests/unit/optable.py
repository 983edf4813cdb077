"""The table of primitives: a row an op, with example operands and what NumPy says of them.

To add an op: add its row. ``order`` is how often its gradient may be differentiated against finite
differences (0: the op has no gradient, on purpose). Cases begin with sizes 0 and ranks 0.
"""

# ruff: noqa: E501  (a case is a line)

from __future__ import annotations

import importlib
import pkgutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from math import erf
from typing import Any

import numpy as np

import webgrad.ops
from webgrad.ops import contract as ct
from webgrad.ops import elementwise as ew
from webgrad.ops import functions as fn
from webgrad.ops import index as ix
from webgrad.ops import leaves
from webgrad.ops import movement as mv
from webgrad.ops import random as rand
from webgrad.ops import reduce as rd
from webgrad.ops.base import Op
from webgrad.rng import threefry2x32, uniform


@dataclass(frozen=True)
class Case:
    """Operands (float64, int or bool arrays) and attributes of one application."""

    arrays: tuple[Any, ...]
    attrs: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join(
            [*("x".join(map(str, a.shape)) or "()" for a in self.arrays), *map(str, self.attrs.values())]
        )


@dataclass(frozen=True)
class Row:
    """An op, its cases, ``expected(*arrays, **attrs)`` in NumPy, and how deep its gradient is checked."""

    op: Op
    cases: tuple[Case, ...]
    expected: Callable[..., Any]
    order: int = 2


# --- operands ---------------------------------------------------------------------------------------


def _rng(*key: Any) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


def normal(*shape: int, key: Any = 0) -> Any:
    """Normal numbers."""
    return _rng(shape, key).normal(size=shape)


def positive(*shape: int, key: Any = 0) -> Any:
    """Between 0.3 and 3."""
    return _rng(shape, key).uniform(0.3, 3, shape)


def apart(*shape: int, key: Any = 0) -> Any:
    """Multiples of 0.2, all different, none an integer, half-integer or 0: no kink and no tie is near."""
    count = int(np.prod(shape))
    order = _rng(shape, key).permutation(count)
    return ((order - count // 2) * 0.2 + 0.05 + (0.1 if key else 0)).reshape(shape)


def integers(*shape: int, low: int = -9, high: int = 9, key: Any = 0) -> Any:
    """int32 in [low, high]."""
    return _rng(shape, low, key).integers(low, high + 1, shape).astype(np.int32)


def bools(*shape: int, key: Any = 0) -> Any:
    """Either."""
    return _rng(shape, "b", key).random(shape) < 0.5


SHAPES: tuple[tuple[int, ...], ...] = ((0,), (2, 0, 3), (), (1,), (7,), (3, 5), (2, 1, 3))
PAIRS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((0,), (0,)), ((0, 3), (1,)), ((), ()), ((5,), ()), ((3, 4), (3, 4)), ((3, 1), (1, 4)), ((2, 3, 4), (3, 1)),
)  # fmt: skip


def unary(make: Callable[..., Any] = normal, **attrs: Any) -> tuple[Case, ...]:
    """One operand of each shape."""
    return tuple(Case((make(*shape),), attrs) for shape in SHAPES)


def binary(left: Callable[..., Any] = normal, right: Callable[..., Any] | None = None) -> tuple[Case, ...]:
    """Two operands that broadcast."""
    return tuple(Case((left(*a), (right or left)(*b, key=1))) for a, b in PAIRS)


def _int_pairs(low: int = -9) -> tuple[Case, ...]:
    return tuple(Case((integers(*a), integers(*b, low=low, key=1))) for a, b in PAIRS)


# --- meanings that NumPy has no function for --------------------------------------------------------


def _integer_pow(x: Any, exponent: int) -> Any:
    result = np.ones_like(x)
    for _ in range(abs(exponent)):
        result = result * x
    return 1 / result if exponent < 0 else result


def _slice(x: Any, starts: Any, sizes: Any, steps: Any) -> Any:
    places = [s + np.arange(n) * t for s, n, t in zip(starts, sizes, steps, strict=True)]
    return x[np.ix_(*places)] if places else x


def _pad(x: Any, low: Any, high: Any, interior: Any, value: Any) -> Any:
    for axis, gap in enumerate(interior):
        parts = []
        for index in range(x.shape[axis]):
            parts.append(np.take(x, [index], axis))
            if index < x.shape[axis] - 1 and gap:
                shape = list(x.shape)
                shape[axis] = gap
                parts.append(np.full(shape, value, x.dtype))
        x = np.concatenate(parts, axis) if parts else x
    return np.pad(x, list(zip(low, high, strict=True)), constant_values=value) if x.ndim else x


def _windows(x: Any, kernel: Any, stride: Any, dilation: Any) -> Any:
    views = np.lib.stride_tricks.sliding_window_view(
        x, [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)], axis=(-2, -1)
    )
    return views[..., :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]


def _fold(x: Any, size: Any, stride: Any, dilation: Any) -> Any:
    out = np.zeros((*x.shape[:-4], *size), x.dtype)
    for i, j, p, q in product(*map(range, x.shape[-4:])):
        out[..., i * stride[0] + p * dilation[0], j * stride[1] + q * dilation[1]] += x[..., i, j, p, q]
    return out


def conv_loop(x: Any, w: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    """Cross-correlation by the definition, one output at a time."""
    x = np.pad(x, [(0, 0), (0, 0), *padding])
    (n, _, h, wide), (o, cg, kh, kw) = x.shape, w.shape
    oh = (h - (kh - 1) * dilation[0] - 1) // stride[0] + 1
    ow = (wide - (kw - 1) * dilation[1] - 1) // stride[1] + 1
    y = np.zeros((n, o, oh, ow))
    for image, out, i, j in product(range(n), range(o), range(oh), range(ow)):
        first = out // (o // groups) * cg
        for c, p, q in product(range(cg), range(kh), range(kw)):
            pixel = x[image, first + c, i * stride[0] + p * dilation[0], j * stride[1] + q * dilation[1]]
            y[image, out, i, j] += w[out, c, p, q] * pixel
    return y


def _conv_input_grad(dy: Any, w: Any, image: Any, **attrs: Any) -> Any:
    """The adjoint, entry by entry: dx[e] = Σ dy · conv(unit e)."""
    dx = np.zeros((dy.shape[0], w.shape[1] * attrs["groups"], *image))
    for at in np.ndindex(dx.shape):
        unit = np.zeros(dx.shape)
        unit[at] = 1
        dx[at] = np.sum(dy * conv_loop(unit, w, **attrs))
    return dx


def _conv_weight_grad(x: Any, dy: Any, kernel: Any, **attrs: Any) -> Any:
    dw = np.zeros((dy.shape[1], x.shape[1] // attrs["groups"], *kernel))
    for at in np.ndindex(dw.shape):
        unit = np.zeros(dw.shape)
        unit[at] = 1
        dw[at] = np.sum(dy * conv_loop(x, unit, **attrs))
    return dw


def _scatter_add(ids: Any, updates: Any, size: int) -> Any:
    out = np.zeros((size, *updates.shape[ids.ndim :]), updates.dtype)
    for at in np.ndindex(ids.shape):
        out[min(max(int(ids[at]), 0), size - 1)] += updates[at]
    return out


def _pick(x: Any, ids: Any) -> Any:
    out = np.zeros(ids.shape, x.dtype)
    for at in np.ndindex(ids.shape):
        out[at] = x[at][min(max(int(ids[at]), 0), x.shape[-1] - 1)]
    return out


def _pack(*parts: Any, size: int, offsets: Any, dtype: str) -> Any:
    out = np.zeros(size)
    for part, offset in zip(parts, offsets, strict=True):
        out[offset : offset + part.size] = part.ravel()
    return out


def _cast(x: Any, dtype: str) -> Any:
    return x.astype({"f32": np.float64, "i32": np.int32, "u32": np.uint32, "bool": np.bool_}[dtype])


def _random_bits(seed: Any, step: Any, shape: Any, stream: int) -> Any:
    count = int(np.prod(shape))
    return threefry2x32(seed, step, np.arange(count), np.full(count, stream))[0].reshape(shape)


CONVS = (
    ((0, 2, 4, 4), (3, 2, 2, 2), (1, 1), (1, 1), ((0, 0), (0, 0)), 1),
    ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1), (1, 1), ((0, 0), (0, 0)), 1),
    ((2, 2, 5, 4), (3, 2, 3, 2), (1, 1), (1, 1), ((0, 0), (0, 0)), 1),
    ((1, 2, 6, 5), (2, 2, 3, 3), (2, 1), (1, 1), ((1, 1), (0, 1)), 1),
    ((1, 1, 7, 6), (2, 1, 2, 3), (3, 2), (2, 1), ((2, 0), (1, 1)), 1),
    ((2, 4, 4, 4), (4, 2, 2, 2), (1, 2), (1, 1), ((1, 0), (0, 0)), 2),
    ((1, 3, 3, 3), (6, 1, 2, 2), (1, 1), (1, 1), ((0, 0), (0, 0)), 3),
)


def _convs(kind: str) -> tuple[Case, ...]:
    cases = []
    for x, w, stride, dilation, padding, groups in CONVS:
        attrs: dict[str, Any] = {"stride": stride, "dilation": dilation, "padding": padding, "groups": groups}
        y = conv_loop(np.zeros(x), np.zeros(w), **attrs).shape
        if kind == "conv":
            cases.append(Case((normal(*x), normal(*w, key=1)), attrs))
        elif kind == "input":
            cases.append(Case((normal(*y), normal(*w, key=1)), {**attrs, "image": x[2:]}))
        else:
            cases.append(Case((normal(*x), normal(*y, key=1)), {**attrs, "kernel": w[2:]}))
    return tuple(cases)


def _reductions(make: Callable[..., Any], empty: bool = True) -> tuple[Case, ...]:
    cases = [
        ((3, 0), (0,)),
        ((5,), (0,)),
        ((1, 1), (0, 1)),
        ((3, 4), (0,)),
        ((3, 4), (1,)),
        ((2, 3, 4), (0, 2)),
    ]
    cases += [((3, 0), (1,)), ((0,), (0,))] if empty else []
    cases += [((2, 3, 2), (0, 1, 2)), ((2, 1, 3), (1,))]
    return tuple(Case((make(*shape),), {"axes": axes}) for shape, axes in cases)


def _args(make: Callable[..., Any]) -> tuple[Case, ...]:
    return tuple(c for c in _reductions(make, empty=False) if len(c.attrs["axes"]) == 1)


ONES2 = {"stride": (1, 1), "dilation": (1, 1)}
WINDOWS = (
    ((1, 1), {"kernel": (1, 1), **ONES2}),
    ((2, 4, 5), {"kernel": (2, 3), **ONES2}),
    ((5, 6), {"kernel": (2, 2), "stride": (2, 3), "dilation": (1, 1)}),
    ((1, 2, 7, 5), {"kernel": (3, 2), "stride": (1, 2), "dilation": (2, 3)}),
    ((0, 3, 3), {"kernel": (2, 2), **ONES2}),
)


def _folds() -> tuple[Case, ...]:
    cases = []
    for shape, attrs in WINDOWS:
        views = _windows(np.zeros(shape), **attrs).shape
        rest = {k: attrs[k] for k in ("stride", "dilation")}
        cases.append(Case((normal(*views),), {"size": shape[-2:], **rest}))
    return tuple(cases)


def _with_ids(make: Callable[..., Any], low: int, high: int) -> tuple[Case, ...]:
    shapes: tuple[tuple[int, ...], ...] = ((0,), (), (4,), (2, 3))
    return tuple(Case((make(6, 2), integers(*s, low=low, high=high))) for s in shapes)


def _scatters() -> tuple[Case, ...]:
    cases = [
        Case((integers(*s, low=-1, high=4), normal(*s, *rest)), {"size": 4})
        for s, rest in (((0,), (2,)), ((), (3,)), ((6,), ()), ((2, 3), (2,)), ((5,), (0,)))
    ]
    return (*cases, Case((integers(6, low=0, high=2), integers(6, 2, key=1)), {"size": 3}))


def _picks() -> tuple[Case, ...]:
    shapes: tuple[tuple[int, ...], ...] = ((0,), (), (4,), (2, 3))
    return tuple(Case((normal(*s, 5), integers(*s, low=-1, high=5))) for s in shapes)


NAN, INF = np.nan, np.inf
SPECIAL = np.array([NAN, INF, -INF, 0.0, -0.0, 1.5])

ROWS = [
    # leaves
    Row(leaves.param, (Case((), {"name": "p", "shape": (2, 3), "dtype": "f32"}),), None, 0),  # type: ignore[arg-type]
    Row(leaves.input_, (Case((), {"name": "i", "shape": (), "dtype": "i32"}),), None, 0),  # type: ignore[arg-type]
    Row(leaves.state, (Case((), {"name": "s", "shape": (0,), "dtype": "f32"}),), None, 0),  # type: ignore[arg-type]
    Row(leaves.scalar, (Case((), {"name": "n", "shape": (), "dtype": "u32"}),), None, 0),  # type: ignore[arg-type]
    Row(
        leaves.const,
        tuple(Case((), {"value": v}) for v in (np.float32(2), np.arange(6, dtype=np.int32).reshape(2, 3), bools(4))),
        lambda value: value,
        0,
    ),
    Row(
        leaves.iota,
        tuple(Case((), {"shape": s, "axis": a}) for s, a in (((0,), 0), ((5,), 0), ((2, 3), 0), ((2, 3, 4), 1))),
        lambda shape, axis: np.indices(shape)[axis],
        0,
    ),
    # arithmetic
    Row(ew.add, binary() + _int_pairs(), np.add),
    Row(ew.sub, binary() + _int_pairs(), np.subtract),
    Row(ew.mul, binary() + _int_pairs(), np.multiply),
    Row(ew.div, binary(normal, positive) + _int_pairs(1), np.divide),
    Row(ew.floordiv, binary(normal, positive) + _int_pairs(1), np.floor_divide, 0),
    Row(ew.remainder_, binary(apart, positive) + _int_pairs(1), np.remainder, 1),
    Row(fn.power, binary(positive, normal), np.power),
    Row(
        fn.integer_pow,
        tuple(Case((positive(4, 3),), {"exponent": n}) for n in (-3, -1, 0, 1, 2, 5, 8))
        + tuple(Case((integers(5),), {"exponent": n}) for n in (0, 1, 2, 3))
        + (Case((normal(0),), {"exponent": 2}), Case((normal(),), {"exponent": 3})),
        _integer_pow,
    ),
    Row(ew.neg, unary() + unary(integers), np.negative),
    Row(ew.minimum_, binary(apart) + _int_pairs(), np.minimum),
    Row(ew.maximum_, binary(apart) + _int_pairs(), np.maximum),
    # functions
    Row(fn.abs_, unary(apart) + unary(integers), np.abs),
    Row(fn.sign, unary(apart) + unary(integers), np.sign),
    Row(fn.exp, unary(), np.exp),
    Row(fn.expm1_, unary(), np.expm1),
    Row(fn.log, unary(positive), np.log),
    Row(fn.log1p_, unary(positive), np.log1p),
    Row(fn.sqrt_, unary(positive), np.sqrt),
    Row(fn.rsqrt_, unary(positive), lambda x: 1 / np.sqrt(x)),
    Row(fn.tanh_, unary(), np.tanh),
    Row(fn.sigmoid_, unary(), lambda x: 1 / (1 + np.exp(-x))),
    Row(fn.erf_, unary(), lambda x: np.array([erf(v) for v in x.flat]).reshape(x.shape)),
    Row(fn.sin, unary(), np.sin),
    Row(fn.cos, unary(), np.cos),
    Row(fn.relu_, unary(apart) + unary(integers), lambda x: np.maximum(x, 0)),
    Row(fn.floor_, unary(apart) + unary(integers), np.floor),
    Row(fn.ceil_, unary(apart) + unary(integers), np.ceil),
    Row(fn.round_, unary(apart) + unary(integers), np.round),
    # comparison and logic
    Row(ew.lt, binary() + _int_pairs(), np.less, 0),
    Row(ew.le, binary() + _int_pairs(), np.less_equal, 0),
    Row(ew.eq, binary() + _int_pairs() + binary(bools), np.equal, 0),
    Row(ew.logical_and, binary(bools), np.logical_and, 0),
    Row(ew.logical_or, binary(bools), np.logical_or, 0),
    Row(ew.logical_xor, binary(bools), np.logical_xor, 0),
    Row(ew.logical_not, unary(bools), np.logical_not, 0),
    Row(ew.isnan_, (*unary(), Case((SPECIAL,))), np.isnan, 0),
    Row(ew.isinf_, (*unary(), Case((SPECIAL,))), np.isinf, 0),
    Row(ew.isfinite_, (*unary(), Case((SPECIAL,))), np.isfinite, 0),
    Row(
        ew.where,
        (
            Case((bools(0), normal(0), normal(0))),
            Case((bools(), normal(), normal(key=1))),
            Case((bools(3, 4), normal(3, 4), normal(4))),
            Case((bools(4), normal(3, 1), normal(1, 4))),
            Case((bools(3), integers(3), integers(3, key=1))),
            Case((bools(3), bools(3), bools(3, key=2))),
        ),
        np.where,
    ),
    Row(
        ew.cast,
        tuple(
            Case((make(5),), {"dtype": to})
            for make in (apart, lambda n: integers(n, low=0), bools)
            for to in ("f32", "i32", "u32", "bool")
            if not (make is apart and to == "u32")
        ),
        _cast,
    ),
    Row(ew.copy, unary() + unary(integers) + unary(bools), np.array),
    # movement
    Row(
        mv.reshape,
        tuple(
            Case((normal(*a),), {"shape": b})
            for a, b in (((0, 3), (2, 0)), ((), (1, 1)), ((6,), (2, 3)), ((2, 3, 4), (4, 6)), ((1,), ()))
        ),
        lambda x, shape: x.reshape(shape),
    ),
    Row(
        mv.permute,
        tuple(
            Case((normal(*a),), {"axes": b})
            for a, b in (((), ()), ((3, 4), (1, 0)), ((2, 3, 4), (2, 0, 1)), ((2, 0, 3), (1, 2, 0)))
        ),
        lambda x, axes: x.transpose(axes),
    ),
    Row(
        mv.broadcast,
        tuple(
            Case((normal(*a),), {"shape": b})
            for a, b in (((), (2, 3)), ((1,), (0,)), ((3, 1), (2, 3, 4)), ((2, 3), (2, 3)), ((1, 3), (4, 3)))
        ),
        lambda x, shape: np.broadcast_to(x, shape),
    ),
    Row(
        mv.slice_,
        tuple(
            Case((normal(*a),), {"starts": s, "sizes": n, "steps": t})
            for a, s, n, t in (
                ((), (), (), ()), ((5,), (1,), (0,), (1,)), ((5,), (1,), (3,), (1,)), ((5,), (0,), (3,), (2,)),
                ((4, 7), (1, 2), (2, 2), (2, 3)), ((3, 4), (0, 3), (3, 1), (1, 1)),
            )
        ),
        _slice,
    ),
    Row(
        mv.pad,
        tuple(
            Case((make(*a),), {"low": lo, "high": hi, "interior": gap, "value": value})
            for make in (normal, integers)
            for a, lo, hi, gap, value in (
                ((), (), (), (), 0.0), ((0,), (1,), (2,), (0,), 2.0), ((3,), (2,), (0,), (0,), -1.0),
                ((2, 3), (0, 1), (1, 0), (0, 2), 3.0), ((3, 1), (1, 0), (0, 0), (1, 3), 0.0),
            )
        ),
        _pad,
    ),
    Row(
        mv.flip,
        tuple(Case((normal(*a),), {"axes": b}) for a, b in (((), ()), ((0,), (0,)), ((3,), (0,)), ((2, 3, 2), (0, 2)))),
        lambda x, axes: np.flip(x, axes),
    ),
    Row(mv.windows, tuple(Case((normal(*shape),), attrs) for shape, attrs in WINDOWS), _windows),
    Row(mv.stop_gradient_, unary(), np.array, 0),
    Row(
        mv.concat_,
        tuple(
            Case(tuple(make(*s, key=k) for k, s in enumerate(shapes)), {"axis": axis})
            for make in (normal, integers)
            for shapes, axis in (
                (((0,), (3,)), 0), (((2, 3), (2, 1)), 1), (((1, 2), (0, 2), (3, 2), (2, 2)), 0), (((2, 0), (2, 0)), 1),
            )
        ),
        lambda *parts, axis: np.concatenate(parts, axis),
    ),
    Row(
        mv.pack,
        (
            Case((normal(2, 3), normal(), normal(4)), {"size": 20, "offsets": (1, 8, 12), "dtype": "f32"}),
            Case((normal(0), normal(5)), {"size": 6, "offsets": (0, 0), "dtype": "f32"}),
        ),
        _pack,
        0,
    ),
    # reductions
    Row(rd.reduce_sum, _reductions(normal) + _reductions(integers), lambda x, axes: x.sum(axes)),
    Row(rd.reduce_prod, _reductions(normal) + _reductions(integers), lambda x, axes: x.prod(axes)),
    Row(rd.reduce_max, _reductions(apart, False) + _reductions(integers, False), lambda x, axes: x.max(axes)),
    Row(rd.reduce_min, _reductions(apart, False) + _reductions(integers, False), lambda x, axes: x.min(axes)),
    Row(rd.argmax_, _args(normal) + _args(integers), lambda x, axes: x.argmax(axes[0]), 0),
    Row(rd.argmin_, _args(normal) + _args(integers), lambda x, axes: x.argmin(axes[0]), 0),
    Row(rd.fold, _folds(), _fold),
    # contractions
    Row(
        ct.matmul_,
        tuple(
            Case((normal(*a), normal(*b, key=1)))
            for a, b in (
                ((0, 3), (3, 2)), ((2, 0), (0, 3)), ((1, 1), (1, 1)), ((3, 4), (4, 2)), ((5, 1), (1, 6)),
                ((2, 3, 4), (2, 4, 5)), ((2, 1, 2, 3), (2, 1, 3, 1)), ((0, 2, 3), (0, 3, 2)),
            )
        ),
        np.matmul,
    ),
    Row(ct.conv, _convs("conv"), conv_loop),
    Row(ct.conv_input_grad, _convs("input"), _conv_input_grad),
    Row(ct.conv_weight_grad, _convs("weight"), _conv_weight_grad),
    # indexing
    Row(ix.gather, _with_ids(normal, -1, 6) + _with_ids(integers, 0, 5), lambda x, i: x[np.clip(i, 0, len(x) - 1)]),
    Row(ix.scatter_add, _scatters(), _scatter_add),
    Row(ix.pick, _picks(), _pick),
    # random
    Row(
        rand.random_bits,
        tuple(
            Case((np.uint32(7)[()], np.uint32(3)[()]), {"shape": s, "stream": n}) for s, n in (((0,), 0), ((), 1), ((2, 9), 2))
        ),
        _random_bits,
        0,
    ),
    Row(rand.bits_to_uniform, (Case((np.array([0, 255, 2**32 - 1, 12345678], np.uint32),)),), uniform, 0),
]  # fmt: skip


def all_ops() -> dict[str, Op]:
    """Every op instance that the package's modules define."""
    found: dict[str, Op] = {}
    for module in pkgutil.iter_modules(webgrad.ops.__path__):
        for value in vars(importlib.import_module(f"webgrad.ops.{module.name}")).values():
            if isinstance(value, Op):
                found[value.name] = value
    return found


def all_op_classes() -> set[type[Op]]:
    """Every concrete subclass of `Op`: one that has a name."""
    found, stack = set(), [Op]
    while stack:
        for kind in stack.pop().__subclasses__():
            stack.append(kind)
            if "name" in vars(kind):
                found.add(kind)
    return found
