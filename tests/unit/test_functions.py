"""Every public function against NumPy in float64, on both levels, and its gradient against differences.

Values agree to 5e-6 relative (float32 has 6e-8; sums of a few dozen terms lose a digit), integers and bools
exactly.
"""

# ruff: noqa: E501  (a case is a line)

from __future__ import annotations

from math import erf, pi

import numpy as np
import pytest

import webgrad as wg
from tests.unit.helpers import check_grads, compute
from tests.unit.optable import apart, bools, conv_loop, integers, normal, positive
from webgrad import functional

ERF = np.vectorize(erf, otypes=[np.float64])


def softmax(x, axis=-1):
    """By the definition."""
    e = np.exp(x - x.max(axis, keepdims=True, initial=-np.inf))
    return e / e.sum(axis, keepdims=True)


def layer_norm(x, g=1.0, b=0.0, eps=1e-5):
    """By the definition."""
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + eps) * g + b


def pool(x, kernel, stride, padding, dilation=(1, 1)):
    """Max pooling, one output at a time."""
    spots = [(0, 0)] * (x.ndim - 2)
    x = np.pad(x, [*spots, *[(p, p) for p in padding]], constant_values=-np.inf)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    size = [(n - r) // s + 1 for n, r, s in zip(x.shape[-2:], reach, stride, strict=True)]
    out = np.zeros((*x.shape[:-2], *size))
    for i, j in np.ndindex(*size):
        top, left = i * stride[0], j * stride[1]
        window = x[..., top : top + reach[0] : dilation[0], left : left + reach[1] : dilation[1]]
        out[..., i, j] = window.max((-2, -1))
    return out


def cross_entropy(x, t):
    """Per row."""
    log_p = np.log(softmax(x))
    return -np.take_along_axis(log_p, t[..., None], -1)[..., 0]


def scatter_add(ids, updates, size):
    """By NumPy's unbuffered add."""
    out = np.zeros((size, *updates.shape[ids.ndim :]))
    np.add.at(out, ids, updates)
    return out


X, Y, P = normal(3, 4), normal(4, key=1), positive(3, 4)
A, B = apart(3, 4), apart(3, 4, key=1)
I, J, U = integers(3, 4), integers(4, low=1, key=1), integers(3, 4, low=0).astype(np.uint32)
Z, S = normal(0, 4), normal()
C, D = bools(3, 4), bools(4, key=1)
IMAGE = apart(2, 1, 5, 6)
CAUSAL = np.tril(np.ones((4, 5), bool))

#: (function, arguments (arrays are tensors), NumPy's result); marked when it has a gradient
ROWS = {
    # elementwise
    "add": [(wg.add, (X, Y), X + Y), (wg.add, (I, J), I + J), (wg.add, (Z, Y), Z + Y), (wg.add, (S, S), S + S)],
    "subtract": [(wg.subtract, (X, Y), X - Y), (wg.subtract, (I, 3), I - 3), (wg.subtract, (C, D), C * 1 - D)],
    "multiply": [(wg.multiply, (X, Y), X * Y), (wg.multiply, (I, J), I * J), (wg.multiply, (C, 2.5), C * 2.5)],
    "divide": [(wg.divide, (X, P), X / P), (wg.divide, (I, J), I / J), (wg.divide, (1, P), 1 / P)],
    "floor_divide": [(wg.floor_divide, (X, P), X // P), (wg.floor_divide, (I, J), I // J)],
    "remainder": [(wg.remainder, (X, P), X % P), (wg.remainder, (I, -J), I % -J), (wg.remainder, (-X, -P), -X % -P)],
    "power": [
        (lambda x: wg.power(x, 3), (X,), X**3), (lambda x: wg.power(x, -2), (P,), P**-2.0),
        (wg.power, (P, X), P**X), (lambda x: wg.power(2.0, x), (X,), 2.0**X), (lambda x: wg.power(x, 0.5), (P,), P**0.5),
        (lambda x: wg.power(x, 2.0), (X,), X**2), (lambda x: wg.power(x, 0), (X,), X**0), (wg.power, (I, 3), I**3),
        (lambda x: wg.power(x, 1.5), (P,), P**1.5),
    ],
    "minimum": [(wg.minimum, (A, B), np.minimum(A, B)), (wg.minimum, (I, J), np.minimum(I, J))],
    "maximum": [(wg.maximum, (A, B), np.maximum(A, B)), (wg.maximum, (I, 0), np.maximum(I, 0))],
    "less": [(wg.less, (X, Y), X < Y), (wg.less, (I, J), I < J)],
    "less_equal": [(wg.less_equal, (X, X), X <= X), (wg.less_equal, (I, J), I <= J)],
    "greater": [(wg.greater, (X, Y), X > Y), (wg.greater, (X, 0), X > 0)],
    "greater_equal": [(wg.greater_equal, (X, X), X >= X)],
    "equal": [(wg.equal, (I, J), I == J), (wg.equal, (C, D), C == D)],
    "not_equal": [(wg.not_equal, (I, J), I != J)],
    "logical_and": [(wg.logical_and, (C, D), C & D), (wg.logical_and, (I, X), (I != 0) & (X != 0))],
    "logical_or": [(wg.logical_or, (C, D), C | D)],
    "logical_xor": [(wg.logical_xor, (C, D), C ^ D)],
    "logical_not": [(wg.logical_not, (C,), ~C), (wg.logical_not, (I,), I == 0)],
    "negative": [(wg.negative, (X,), -X), (wg.negative, (C,), -(C * 1))],
    "abs": [(wg.abs, (A,), np.abs(A)), (wg.abs, (I,), np.abs(I))],
    "sign": [(wg.sign, (A,), np.sign(A)), (wg.sign, (I,), np.sign(I)), (wg.sign, (U,), np.sign(U))],
    "exp": [(wg.exp, (X,), np.exp(X)), (wg.exp, (J,), np.exp(J))],
    "expm1": [(wg.expm1, (X * 1e-3,), np.expm1(X * 1e-3))],
    "log": [(wg.log, (P,), np.log(P))],
    "log1p": [(wg.log1p, (P * 1e-3,), np.log1p(P * 1e-3))],
    "sqrt": [(wg.sqrt, (P,), np.sqrt(P))],
    "rsqrt": [(wg.rsqrt, (P,), 1 / np.sqrt(P))],
    "tanh": [(wg.tanh, (X,), np.tanh(X))],
    "sigmoid": [(wg.sigmoid, (X,), 1 / (1 + np.exp(-X)))],
    "erf": [(wg.erf, (X,), ERF(X))],
    "sin": [(wg.sin, (X,), np.sin(X))],
    "cos": [(wg.cos, (X,), np.cos(X))],
    "relu": [(wg.relu, (A,), np.maximum(A, 0)), (wg.relu, (I,), np.maximum(I, 0))],
    "floor": [(wg.floor, (A,), np.floor(A)), (wg.floor, (I,), I)],
    "ceil": [(wg.ceil, (A,), np.ceil(A))],
    "round": [(wg.round, (A,), np.round(A))],
    "isnan": [(wg.isnan, (np.array([1.0, np.nan, np.inf]),), [False, True, False]), (wg.isnan, (I,), I != I)],
    "isinf": [(wg.isinf, (np.array([1.0, np.nan, -np.inf]),), [False, False, True])],
    "isfinite": [(wg.isfinite, (np.array([1.0, np.nan, np.inf]),), [True, False, False]), (wg.isfinite, (I,), I == I)],
    "square": [(wg.square, (X,), X**2), (wg.square, (I,), I**2)],
    "reciprocal": [(wg.reciprocal, (P,), 1 / P)],
    "clip": [
        (lambda x: wg.clip(x, -0.5, 0.7), (A,), np.clip(A, -0.5, 0.7)), (lambda x: wg.clip(x, low=0.3), (A,), np.maximum(A, 0.3)),
        (lambda x: wg.clip(x, None, 0.3), (A,), np.minimum(A, 0.3)), (lambda x: wg.clip(x), (A,), A),
        (lambda x: wg.clip(x, -2, 2), (I,), np.clip(I, -2, 2)), (wg.clip, (A, -1.0, B), np.minimum(np.maximum(A, -1), B)),
    ],
    "where": [(wg.where, (C, X, Y), np.where(C, X, Y)), (lambda x: wg.where(x > 0, x, 0), (A,), np.where(A > 0, A, 0))],
    "astype": [(lambda x: wg.astype(x, "i32"), (A,), np.trunc(A).astype(int)), (lambda x: x.astype(bool), (I,), I != 0)],
    "gelu": [
        (wg.gelu, (X,), X * 0.5 * (1 + ERF(X / np.sqrt(2)))),
        (lambda x: wg.gelu(x, "tanh"), (X,), 0.5 * X * (1 + np.tanh(np.sqrt(2 / pi) * (X + 0.044715 * X**3)))),
    ],
    "silu": [(wg.silu, (X,), X / (1 + np.exp(-X)))],
    "softplus": [(wg.softplus, (A * 9,), np.logaddexp(0, A * 9))],
    "full": [(lambda: wg.full((2, 3), 7), (), np.full((2, 3), 7)), (lambda: wg.full(np.int64(2), np.int64(3)), (), np.full(2, 3)), (lambda: wg.full(2, 0.5), (), np.full(2, 0.5))],
    "zeros": [(lambda: wg.zeros((2, 0)), (), np.zeros((2, 0))), (lambda: wg.zeros((2,), "i32"), (), np.zeros(2, int))],
    "ones": [(lambda: wg.ones(()), (), np.ones(())), (lambda: wg.ones((3,), bool), (), np.ones(3, bool))],
    "full_like": [(lambda x: wg.full_like(x, 2), (I,), np.full_like(I, 2))],
    "zeros_like": [(lambda: wg.zeros_like(I), (), np.zeros_like(I)), (wg.zeros_like, (C,), np.zeros_like(C))],
    "ones_like": [(wg.ones_like, (X,), np.ones_like(X)), (lambda x: wg.ones_like(x, "i32"), (X,), np.ones((3, 4), int))],
    # shape
    "reshape": [
        (lambda x: wg.reshape(x, 2, -1), (X,), X.reshape(2, -1)), (lambda x: x.reshape((12,)), (X,), X.ravel()),
        (lambda x: wg.reshape(x, -1), (S,), S.reshape(-1)), (lambda x: wg.reshape(x, 0, 7), (Z,), np.zeros((0, 7))),
    ],
    "flatten": [
        (wg.flatten, (X,), X.ravel()), (lambda x: wg.flatten(x, 1), (normal(2, 3, 4),), normal(2, 3, 4).reshape(2, 12)),
        (lambda x: wg.flatten(x, 0, 1), (normal(2, 3, 4),), normal(2, 3, 4).reshape(6, 4)), (wg.flatten, (S,), S.reshape(1)),
    ],
    "transpose": [
        (wg.transpose, (X,), X.T), (lambda x: wg.transpose(x, 1, 2, 0), (normal(2, 3, 4),), normal(2, 3, 4).transpose(1, 2, 0)),
        (lambda x: x.transpose((0, -1, 1)), (normal(2, 3, 4),), normal(2, 3, 4).transpose(0, 2, 1)), (lambda x: x.T, (S,), S),
    ],
    "swapaxes": [(lambda x: wg.swapaxes(x, 0, -1), (normal(2, 3, 4),), normal(2, 3, 4).swapaxes(0, -1))],
    "expand_dims": [(lambda x, a=a: wg.expand_dims(x, a), (X,), np.expand_dims(X, a)) for a in (0, 1, 2, -1, -3)],
    "squeeze": [
        (wg.squeeze, (normal(1, 3, 1),), normal(1, 3, 1).squeeze()), (lambda x: wg.squeeze(x, 0), (normal(1, 3, 1),), normal(1, 3, 1)[0]),
        (lambda x: wg.squeeze(x, (0, -1)), (normal(1, 3, 1),), normal(1, 3, 1)[0, :, 0]),
    ],
    "broadcast_to": [(lambda x: wg.broadcast_to(x, (2, 3, 4)), (Y,), np.broadcast_to(Y, (2, 3, 4)))],
    "flip": [(wg.flip, (X,), np.flip(X)), (lambda x: wg.flip(x, -1), (X,), X[:, ::-1]), (lambda x: wg.flip(x, (0, 1)), (I,), np.flip(I))],
    "concat": [
        (lambda x, y: wg.concat([x, y, x]), (X, normal(2, 4)), np.concatenate([X, normal(2, 4), X])),
        (lambda x: wg.concat([x * k for k in range(10)], axis=1), (X,), np.concatenate([X * k for k in range(10)], 1)),
        (lambda *t: wg.concat(t, -1), tuple(normal(2, k, key=k) for k in range(10)),
         np.concatenate([normal(2, k, key=k) for k in range(10)], -1)),
        (lambda x, i: wg.concat([x, i]), (X, I), np.concatenate([X, I])),
        (lambda x: wg.concat([x]), (X,), X),
    ],
    "stack": [
        (lambda x, y: wg.stack([x, y]), (X, P), np.stack([X, P])), (lambda x, y: wg.stack([x, y], -1), (X, P), np.stack([X, P], -1)),
        (lambda x: wg.stack([x + k for k in range(10)], 1), (X,), np.stack([X + k for k in range(10)], 1)),
        (lambda x: wg.stack([x, 2.0 * x]), (S,), np.stack([S, 2 * S])),
    ],
    "pad": [
        (lambda x: wg.pad(x, 1), (X,), np.pad(X, 1)), (lambda x: wg.pad(x, (1, 2), value=3.0), (X,), np.pad(X, (1, 2), constant_values=3)),
        (lambda x: wg.pad(x, ((0, 2), (1, 0))), (X,), np.pad(X, ((0, 2), (1, 0)))),
        (lambda x: wg.pad(x, 1, value=7), (I,), np.pad(I, 1, constant_values=7)),
        (lambda x: wg.pad(x, ((1, 1), (0, 0)), value=-np.inf), (X,), np.pad(X, ((1, 1), (0, 0)), constant_values=-np.inf)),
    ],
    "stop_gradient": [(wg.stop_gradient, (X,), X)],
    "arange": [
        (lambda: wg.arange(5), (), np.arange(5)), (lambda: wg.arange(0), (), np.arange(0)), (lambda: wg.arange(2, 9, 3), (), np.arange(2, 9, 3)),
        (lambda: wg.arange(5, 0, -2), (), np.arange(5, 0, -2)), (lambda: wg.arange(3, 1), (), np.arange(3, 1)),
        (lambda: wg.arange(3, dtype="f32"), (), np.arange(3.0)), (lambda: wg.arange(0.0, 1.0, 0.25), (), np.arange(0, 1, 0.25)),
        (lambda: wg.arange(-1, 1, 0.5), (), np.arange(-1, 1, 0.5)), (lambda: wg.arange(2.5), (), np.arange(2.5)),
    ],
    "iota": [(lambda: wg.iota((2, 3), 1), (), np.indices((2, 3))[1]), (lambda: wg.iota((2, 3), -2), (), np.indices((2, 3))[0])],
    "getitem": [(lambda x: wg.getitem(x, (slice(None), 1)), (X,), X[:, 1])],
    # reductions
    "sum": [
        (wg.sum, (X,), X.sum()), (lambda x: wg.sum(x, 0), (X,), X.sum(0)), (lambda x: x.sum(-1, keepdims=True), (X,), X.sum(-1, keepdims=True)),
        (lambda x: wg.sum(x, (0, 2)), (normal(2, 3, 4),), normal(2, 3, 4).sum((0, 2))), (lambda x: wg.sum(x, 0), (Z,), Z.sum(0)),
        (lambda x: wg.sum(x, [0, 1], keepdims=True), (X,), X.sum((0, 1), keepdims=True)), (wg.sum, (C,), C.sum()), (wg.sum, (I,), I.sum()),
        (lambda x: wg.sum(x, ()), (X,), X.sum(())), (wg.sum, (S,), S),
    ],
    "prod": [(wg.prod, (P,), P.prod()), (lambda x: wg.prod(x, 1), (I,), I.prod(1)), (lambda x: wg.prod(x, 0), (Z,), Z.prod(0))],
    "mean": [(wg.mean, (X,), X.mean()), (lambda x: wg.mean(x, 1), (I,), I.mean(1)), (lambda x: x.mean((0, 1), True), (X,), X.mean((0, 1), keepdims=True))],
    "var": [(wg.var, (X,), X.var()), (lambda x: wg.var(x, 1, correction=1), (X,), X.var(1, ddof=1)), (lambda x: wg.var(x, 0, True), (X,), X.var(0, keepdims=True))],
    "max": [(wg.max, (A,), A.max()), (lambda x: wg.max(x, 0, keepdims=True), (A,), A.max(0, keepdims=True)), (lambda x: wg.max(x, 1), (I,), I.max(1)), (lambda x: wg.max(x, 0), (C,), C.max(0))],
    "min": [(wg.min, (A,), A.min()), (lambda x: wg.min(x, (0, 1)), (A,), A.min()), (lambda x: wg.min(x, 0), (U,), U.min(0)), (wg.min, (C,), C.min())],
    "argmax": [(wg.argmax, (A,), A.argmax()), (lambda x: wg.argmax(x, 1), (A,), A.argmax(1)), (lambda x: wg.argmax(x, 0, keepdims=True), (I,), I.argmax(0)[None]), (wg.argmax, (C,), C.argmax())],
    "argmin": [(wg.argmin, (A,), A.argmin()), (lambda x: wg.argmin(x, 0), (I,), I.argmin(0))],
    "all": [(wg.all, (C,), C.all()), (lambda x: wg.all(x, 1), (I,), (I != 0).all(1)), (lambda x: wg.all(x, 0), (Z,), Z.all(0))],
    "any": [(wg.any, (C,), C.any()), (lambda x: wg.any(x, 0, True), (I,), (I != 0).any(0, keepdims=True)), (lambda x: wg.any(x, 0), (Z,), Z.any(0))],
    "logsumexp": [(wg.logsumexp, (X,), np.log(np.exp(X).sum(-1))), (lambda x: wg.logsumexp(x, None, True), (X,), np.log(np.exp(X).sum(keepdims=True)))],
    "softmax": [(wg.softmax, (X,), softmax(X)), (lambda x: wg.softmax(x, 0), (X,), softmax(X, 0)), (wg.softmax, (Z,), Z), (wg.softmax, (normal(3, 0),), normal(3, 0))],
    "log_softmax": [(wg.log_softmax, (X,), np.log(softmax(X))), (lambda x: wg.log_softmax(x, 0), (X,), np.log(softmax(X, 0)))],
    # neural
    "matmul": [
        (wg.matmul, (normal(*a), normal(*b, key=1)), normal(*a) @ normal(*b, key=1))
        for a, b in (
            ((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 2)), ((3, 4), (4, 2)), ((2, 3, 4), (4, 2)), ((2, 3, 4), (4,)), ((4,), (2, 4, 3)),
            ((2, 3, 4), (2, 4, 2)), ((2, 1, 3, 4), (5, 4, 2)), ((3, 4), (2, 4, 2)), ((0, 4), (4, 2)), ((3, 0), (0, 2)), ((1,), (1,)),
        )
    ],
    "conv2d": [],
    "max_pool2d": [
        (lambda x, k=k, o=o: wg.max_pool2d(x, k, **o), (IMAGE,), pool(IMAGE, *p))
        for k, o, p in (
            (2, {}, ((2, 2), (2, 2), (0, 0))), ((2, 3), {"stride": 1}, ((2, 3), (1, 1), (0, 0))),
            (3, {"stride": (2, 1), "padding": 1}, ((3, 3), (2, 1), (1, 1))),
            (2, {"stride": 1, "dilation": (2, 3), "padding": (0, 1)}, ((2, 2), (1, 1), (0, 1), (2, 3))),
        )
    ],
    "embedding": [(wg.embedding, (X, integers(2, 5, low=0, high=2)), X[integers(2, 5, low=0, high=2)]), (wg.embedding, (X, np.array(1)), X[1])],
    "one_hot": [
        (lambda i: wg.one_hot(i, 4), (np.array([[0, 3], [1, 1]]),), np.eye(4)[np.array([[0, 3], [1, 1]])]),
        (lambda i: wg.one_hot(i, 3, "i32"), (np.array(2, np.uint32),), np.eye(3, dtype=int)[2]), (lambda i: wg.one_hot(i, 3), (np.zeros(0, int),), np.zeros((0, 3))),
    ],
    "take_along_last": [(wg.take_along_last, (X, np.array([0, 3, 1])), X[[0, 1, 2], [0, 3, 1]])],
    "scatter_add": [
        (lambda i, u: wg.scatter_add(i, u, 4), (np.array([0, 3, 0]), X), scatter_add(np.array([0, 3, 0]), X, 4)),
        (lambda i, u: wg.scatter_add(i, u, 2), (np.zeros((3, 4), int), X), [X.sum(), 0]),
    ],
    "where_causal": [(wg.where_causal, (normal(2, 4, 5),), np.where(CAUSAL, normal(2, 4, 5), -np.inf))],
    "softmax_causal": [(wg.softmax_causal, (normal(2, 4, 5),), softmax(np.where(CAUSAL, normal(2, 4, 5), -np.inf)))],
    "layer_norm": [(wg.layer_norm, (X,), layer_norm(X)), (wg.layer_norm, (X, Y, normal(4, key=2)), layer_norm(X, Y, normal(4, key=2))), (lambda x: wg.layer_norm(x, eps=1.0), (X,), layer_norm(X, eps=1.0))],
    "dropout": [(lambda x: wg.dropout(x, 0.0, always=True), (X,), X), (lambda x: wg.dropout(x, 1.0, always=True), (X,), X * 0), (wg.dropout, (X,), X)],
    # losses
    "mse": [(wg.mse, (X, P), ((X - P) ** 2).mean()), (lambda x, y: wg.mse(x, y, "sum"), (X, P), ((X - P) ** 2).sum()), (lambda x, y: wg.mse(x, y, reduction="none"), (X, P), (X - P) ** 2)],
    "cross_entropy": [
        (wg.cross_entropy, (X, np.array([0, 3, 1])), cross_entropy(X, np.array([0, 3, 1])).mean()),
        (lambda x, t: wg.cross_entropy(x, t, "sum"), (X, np.array([0, 3, 1], np.uint8)), cross_entropy(X, np.array([0, 3, 1])).sum()),
        (lambda x, t: wg.cross_entropy(x, t, "none"), (normal(2, 3, 4), np.array([[0, 3, 1], [2, 2, 2]])), cross_entropy(normal(2, 3, 4), np.array([[0, 3, 1], [2, 2, 2]]))),
        (wg.cross_entropy, (Y, np.array(2)), cross_entropy(Y, np.array(2))),
    ],
}  # fmt: skip

CASES = [
    pytest.param(*case, id=f"{name} {k}") for name, cases in ROWS.items() for k, case in enumerate(cases)
]
#: gradients that are zero on purpose where differences are not
NO_GRADIENT = ("stop_gradient", "floor_divide")


def test_every_function_has_a_row():
    assert sorted(ROWS) == sorted(functional.__all__)


def split(arguments):
    """(arrays, function that puts scalars back)."""
    arrays = [a for a in arguments if isinstance(a, np.ndarray | np.generic)]

    def merge(tensors):
        rest = iter(tensors)
        return [next(rest) if isinstance(a, np.ndarray | np.generic) else a for a in arguments]

    return arrays, merge


@pytest.mark.parametrize(("function", "arguments", "expected"), CASES)
def test_values_are_numpys(function, arguments, expected):
    arrays, merge = split(arguments)
    found = compute(lambda *tensors: function(*merge(tensors)), *arrays)
    expected = np.asarray(expected)
    assert found.shape == expected.shape
    assert found.dtype.kind == expected.dtype.kind
    if found.dtype.kind == "f":
        np.testing.assert_allclose(found, expected, rtol=5e-6, atol=2e-6)
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("function", "arguments", "expected"),
    [
        p
        for p in CASES
        if np.asarray(p.values[2]).dtype.kind == "f"
        and any(getattr(a, "dtype", np.dtype(int)).kind == "f" for a in p.values[1])
        and np.all(np.isfinite(p.values[2]))
        and not p.id.startswith(NO_GRADIENT)
    ],
)
def test_gradients_agree_with_finite_differences(function, arguments, expected):
    arrays, merge = split(arguments)
    small = sum(a.size for a in arrays) <= 12
    check_grads(
        lambda *tensors: function(*merge(tensors)), arrays, order=2 if small else 1, rtol=2e-5, atol=1e-6
    )


# --- indexing ---------------------------------------------------------------------------------------

T = normal(4, 5, 6)
KEYS = {
    "an int": np.s_[1], "a negative int": np.s_[-1], "ints": np.s_[1, -2, 3], "a NumPy int": (np.int64(2), slice(None)),
    "a 0-d array": (np.array(2),), "slices": np.s_[1:3, :4], "steps": np.s_[::2, 1::3], "negative steps": np.s_[::-1, ::-2],
    "a backwards range": np.s_[3:0:-1, 4:1:-2], "negative bounds": np.s_[-3:-1, -2:], "beyond the end": np.s_[1:99, -99:3],
    "nothing": np.s_[2:2, 3:1], "nothing backwards": np.s_[0:3:-1], "None": np.s_[None, :, None], "None at the end": np.s_[..., None],
    "an ellipsis": np.s_[..., 1], "an ellipsis between": np.s_[1, ..., ::2], "an ellipsis of nothing": np.s_[:, :, ..., :],
    "everything": np.s_[...], "an empty tuple": (), "a mix": np.s_[None, 1, ..., None, ::-3],
}  # fmt: skip


@pytest.mark.parametrize("name", KEYS)
def test_basic_indexing_is_numpys(name):
    key = KEYS[name]
    np.testing.assert_array_equal(compute(lambda t: t[key], T), T.astype(np.float32)[key])
    check_grads(lambda t: t[key], [T], atol=1e-6)


@pytest.mark.parametrize(
    "ids", [[0, 2], [-1, 0, -4], np.array([[1, 3], [3, 3]]), np.array([], int), np.array([3], np.uint8)]
)
def test_indexing_by_integers_wraps_negatives(ids):
    expected = T.astype(np.float32)[ids]
    np.testing.assert_array_equal(compute(lambda t: t[ids], T), expected)
    np.testing.assert_array_equal(compute(lambda t, i: t[i], T, np.asarray(ids)), expected)


# --- convolution ------------------------------------------------------------------------------------

CONVS = [
    {}, {"stride": 2}, {"padding": 1}, {"padding": "same"}, {"padding": "valid"}, {"dilation": 2}, {"groups": 2},
    {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2)}, {"stride": 3, "padding": 2, "groups": 2},
    {"padding": "same", "dilation": (2, 1)},
]  # fmt: skip


@pytest.mark.parametrize("options", CONVS, ids=str)
def test_conv2d_is_the_direct_loop(options):
    groups = options.get("groups", 1)
    x, w, b = normal(2, 4, 7, 6), normal(6, 4 // groups, 3, 2, key=1), normal(6, key=2)
    pair = lambda v: v if isinstance(v, tuple) else (v, v)  # noqa: E731
    stride, dilation = pair(options.get("stride", 1)), pair(options.get("dilation", 1))
    padding = options.get("padding", 0)
    if padding == "same":
        reach = [2 * dilation[0], 1 * dilation[1]]
        pads = [(r // 2, r - r // 2) for r in reach]
    else:
        pads = [(p, p) for p in pair(0 if padding == "valid" else padding)]
    expected = conv_loop(x, w, stride, pads, dilation, groups) + b[:, None, None]
    found = compute(lambda x, w, b: wg.conv2d(x, w, b, **options), x, w, b)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    if padding == "same":
        assert found.shape[2:] == x.shape[2:]


def test_conv2d_of_no_images_and_of_integers():
    assert compute(lambda x: wg.conv2d(x, np.ones((3, 2, 2, 2))), np.zeros((0, 2, 4, 4))).shape == (
        0,
        3,
        3,
        3,
    )
    ones = compute(lambda x: wg.conv2d(x, np.ones((1, 1, 2, 2), int)), np.ones((1, 1, 3, 3), int))
    np.testing.assert_array_equal(ones, np.full((1, 1, 2, 2), 4.0))
