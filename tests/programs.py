"""Small programs that every executor must agree on: each a function of tensors, with its inputs.

Run by `run_program` in CPython (NumPy executor, both levels) and in the page (WebGPU): all outputs, and
the gradients of a weighted sum of the float outputs for every float input.
"""

import zlib

import numpy as np

import webgrad as wg
from webgrad import nn


class Empty(nn.Module):
    """A model without parameters."""


def _norm(x):
    return (x - wg.mean(x, -1, keepdims=True)) / wg.sqrt(wg.mean(x * x, -1, keepdims=True) + 1e-5)


def _attention(q, k, v):
    scores = q @ wg.swapaxes(k, -1, -2) * 0.5
    return wg.softmax_causal(scores) @ v


#: name -> (function, {input: shape or (shape, dtype, low, high)})
PROGRAMS = {
    "arithmetic": (lambda x, y: (x + y, x - 2 * y, x * y, x / (y * y + 1), -x), {"x": (5, 7), "y": (5, 7)}),
    "broadcast": (lambda x, y, z: (x + y) * z, {"x": (4, 1, 6), "y": (3, 1), "z": ()}),
    "functions": (
        lambda x: (wg.exp(x), wg.tanh(x), wg.sigmoid(x), wg.sin(x), wg.cos(x), wg.erf(x), wg.gelu(x)),
        {"x": (67,)},
    ),
    "positive functions": (
        lambda x: (wg.log(x), wg.sqrt(x), wg.rsqrt(x), wg.log1p(x), x**1.5, x**-2, x**0.5),
        {"x": ((33,), "f32", 0.1, 4.0)},
    ),
    "activations": (
        lambda x: (
            wg.relu(x),
            wg.silu(x),
            wg.softplus(x),
            wg.gelu(x, "tanh"),
            wg.abs(x),
            wg.clip(x, -0.5, 0.5),
        ),
        {"x": (5, 31)},
    ),
    "extrema": (
        lambda x, y: (wg.minimum(x, y), wg.maximum(x, 0.25), wg.where(x > y, x, y * 2)),
        {"x": (40,), "y": (40,)},
    ),
    "integers": (
        lambda i, j: (i // j, i % j, i * j - 3, (i < j) & (i != 2), i / j, wg.abs(i), i**3),
        {"i": ((6, 5), "i32", -9, 9), "j": ((6, 5), "i32", 1, 5)},
    ),
    "float modulo": (lambda x, y: (x // y, x % y), {"x": (50,), "y": ((50,), "f32", 0.3, 2.0)}),
    "rounding": (lambda x: (wg.floor(x * 3), wg.ceil(x * 3), wg.round(x * 3), wg.sign(x)), {"x": (41,)}),
    "casts": (
        lambda x, i: (wg.astype(x * 4, "i32"), wg.astype(i, "f32") + x, x > 0),
        {"x": (9,), "i": ((9,), "i32", -5, 5)},
    ),
    "movement": (
        lambda x: (
            wg.transpose(x, 2, 0, 1) * 2,
            wg.reshape(wg.swapaxes(x, 0, 1), 10, -1) + 1,
            wg.flip(x, 1),
            x[1, ::2, -3:],
            x[:, None, ::-1],
            wg.squeeze(x[0:1]),
        ),
        {"x": (4, 5, 6)},
    ),
    "pad and slice": (lambda x: wg.pad(x, ((1, 2), (0, 3)), value=0.5)[1:, ::3] * x[0, 0], {"x": (5, 7)}),
    "concat": (
        lambda x, y: (wg.concat([x, y, x * 2], axis=1), wg.stack([x[:, 0], y[:, 1]], axis=1)),
        {"x": (3, 4), "y": (3, 5)},
    ),
    "concat of many": (lambda x: wg.concat([x * i for i in range(11)], axis=0), {"x": (2, 3)}),
    "many inputs": (
        lambda **t: sum((t[n] * (k + 1) for k, n in enumerate(t)), 0.0),
        {f"x{k}": (6, 4) for k in range(12)},
    ),
    "sums": (
        lambda x: (
            wg.sum(x),
            wg.sum(x, 1),
            wg.mean(x, (0, 2), keepdims=True),
            wg.sum(x * x, -1),
            wg.var(x, 0),
        ),
        {"x": (4, 5, 6)},
    ),
    "long sum": (lambda x: (wg.sum(x), wg.max(x), wg.mean(x * x)), {"x": (5000,)}),
    "long rows": (lambda x: (wg.sum(x, 0), wg.max(x, 0)), {"x": (3000, 3)}),
    "max and arg": (
        lambda x: (wg.max(x, 1), wg.min(x, 0), wg.argmax(x, 1), wg.argmin(x), wg.prod(x[:, :4], 1)),
        {"x": (6, 9)},
    ),
    "any and all": (lambda x: (wg.any(x > 1, 0), wg.all(x > -1, 1), wg.sum(x > 0)), {"x": (7, 8)}),
    "softmax": (lambda x: (wg.softmax(x), wg.log_softmax(x, 0), wg.logsumexp(x)), {"x": (5, 11)}),
    "long softmax": (lambda x: (wg.softmax(x), wg.argmax(x, 1), wg.max(x, 1)), {"x": (3, 777)}),
    "layer norm": (
        lambda x, g, b: (wg.layer_norm(x, g, b), _norm(x)),
        {"x": (6, 16), "g": (16,), "b": (16,)},
    ),
    "cross entropy": (lambda x, t: wg.cross_entropy(x, t), {"x": (9, 10), "t": ((9,), "i32", 0, 9)}),
    "mse": (lambda x, y: wg.mse(x, y), {"x": (8, 3), "y": (8, 3)}),
    "embedding": (lambda w, i: wg.embedding(w, i) * 2, {"w": (7, 5), "i": ((3, 4), "i32", 0, 6)}),
    "take": (lambda w, i: w[i], {"w": (7, 5), "i": ((3, 4), "i32", -7, 6)}),
    "one hot": (lambda i: wg.one_hot(i, 6), {"i": ((5,), "i32", 0, 5)}),
    "arange": (lambda x: x * wg.arange(2, 20, 3) + wg.iota((6, 6), 0), {"x": (6,)}),
    "matmul": (lambda a, b: a @ b, {"a": (17, 33), "b": (33, 9)}),
    "matmul blocks": (lambda a, b: wg.relu(a @ b) * 2, {"a": (64, 32), "b": (32, 48)}),
    "matmul transposed": (lambda a, b: a.T @ wg.swapaxes(b, 0, 1), {"a": (24, 16), "b": (40, 24)}),
    "matmul vectors": (lambda a, v, w: (a @ v, w @ a, v @ v), {"a": (12, 20), "v": (20,), "w": (12,)}),
    "matmul large": (lambda a, b: a @ b, {"a": (260, 256), "b": (256, 260)}),
    "matmul batched": (lambda a, b: a @ b, {"a": (3, 1, 8, 5), "b": (2, 5, 7)}),
    "matmul tall": (lambda a, b: wg.swapaxes(a, 0, 1) @ b, {"a": (1024, 6), "b": (1024, 5)}),
    "matmul one": (lambda a, b: a @ b + 1, {"a": (1, 1), "b": (1, 1)}),
    "attention": (_attention, {"q": (2, 3, 9, 4), "k": (2, 3, 9, 4), "v": (2, 3, 9, 4)}),
    "linear relu": (
        lambda x, w, b: wg.relu(x @ w + b),
        {"x": (4, 10, 12), "w": (12, 20), "b": (20,)},
    ),
    "conv": (
        lambda x, w, b: wg.conv2d(x, w, b, padding=1),
        {"x": (2, 3, 9, 8), "w": (5, 3, 3, 3), "b": (5,)},
    ),
    "conv strided": (
        lambda x, w: wg.conv2d(x, w, stride=(2, 1), padding=(1, 2), dilation=(1, 2)),
        {"x": (3, 2, 9, 10), "w": (4, 2, 3, 3)},
    ),
    "conv grouped": (
        lambda x, w: wg.conv2d(x, w, groups=2, padding="same"),
        {"x": (2, 4, 6, 6), "w": (6, 2, 3, 3)},
    ),
    "pool": (lambda x: wg.max_pool2d(wg.relu(x), 2), {"x": (2, 3, 8, 6)}),
    "pool overlapping": (lambda x: wg.max_pool2d(x, 3, stride=2, padding=1), {"x": (2, 2, 9, 9)}),
    "convnet": (
        lambda x, w, v: wg.max_pool2d(wg.relu(wg.conv2d(x, w, padding=1)), 2).reshape(4, -1) @ v,
        {"x": (4, 1, 8, 8), "w": (8, 1, 3, 3), "v": (128, 10)},
    ),
    "second derivative": (lambda x: wg.grad(wg.sum(wg.tanh(x) * x * x), x), {"x": (13,)}),
    "size zero": (lambda x, y: (wg.sum(x), x @ y, wg.concat([x, x], 1)), {"x": (3, 0), "y": (0, 4)}),
    "rank zero": (lambda x, y: (x * y, wg.exp(x)), {"x": (), "y": ()}),
    "rank eight": (lambda x: wg.sum(wg.transpose(x), (1, 4, 6)), {"x": (2, 1, 2, 3, 1, 2, 2, 2)}),
    "many elements": (lambda x: x * 2 + 1, {"x": (65_535 * 4 + 1,)}),
    "constants": (lambda x: x * np.arange(12, dtype=np.float32).reshape(3, 4) + np.ones((4,)), {"x": (3, 4)}),
    "stop gradient": (lambda x: x * wg.stop_gradient(x * x), {"x": (6,)}),
    "dear twice": (lambda x: (wg.exp(x) + 1, wg.exp(x) * wg.sum(wg.exp(x), 0)), {"x": (6, 70)}),
}


def inputs_of(name):
    """Declared inputs and their values, the same everywhere."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    specs, values = {}, {}
    for key, spec in PROGRAMS[name][1].items():
        shape, dtype, low, high = (
            spec if len(spec) == 4 and isinstance(spec[0], tuple) else (spec, "f32", None, None)
        )
        specs[key] = wg.Input(shape, dtype)
        if dtype == "i32":
            values[key] = rng.integers(low, high + 1, shape).astype(np.int32)
        elif low is None:
            values[key] = rng.standard_normal(shape).astype(np.float32)
        else:
            values[key] = rng.uniform(low, high, shape).astype(np.float32)
    return specs, values


def with_gradients(function):
    """``function`` and the gradients of a weighted sum of its float outputs."""

    def forward(model, **inputs):
        result = function(**inputs)
        outputs = list(result) if isinstance(result, tuple) else [result]
        floats = [t for t in outputs if t.dtype == "f32"]
        targets = [t for t in inputs.values() if t.dtype == "f32"]
        if not floats or not targets:
            return outputs
        weights = [wg.cos(wg.astype(wg.iota((max(t.size, 1),), 0), "f32") + 1.0)[: t.size] for t in floats]
        total = sum((wg.sum(wg.reshape(t, -1) * w) for t, w in zip(floats, weights, strict=True)), 0.0)
        return outputs + wg.grad(total, targets)

    return forward


async def run_program(name, device):
    """Outputs and gradients of a program, as a list of arrays."""
    specs, values = inputs_of(name)
    forward = with_gradients(PROGRAMS[name][0])
    async with await wg.compile_forward(Empty, forward, inputs=specs, device=device) as program:
        return await program.run(values)


NAN, INF = float("nan"), float("inf")

#: name -> (function, inputs): values where built-in functions of adapters differ; compared bit for bit
SPECIALS = {
    "nan stays": (
        lambda x: (
            wg.relu(x),
            wg.maximum(x, 0.0),
            wg.minimum(x, 1.0),
            wg.clip(x, -1, 1),
            wg.where(x > 0, x, -x),
            wg.abs(x),
            wg.sign(x),
            wg.floor(x),
            wg.round(x),
        ),
        {"x": [NAN, -NAN, 0.0, -0.0, 1.0, -2.5, INF, -INF]},
    ),
    "comparisons": (
        lambda x, y: (x < y, x <= y, x > y, x >= y, x == y, x != y, wg.isnan(x), wg.isinf(x), wg.isfinite(x)),
        {"x": [NAN, NAN, 1.0, INF, -INF, 0.0, -0.0, 2.0], "y": [NAN, 1.0, NAN, INF, INF, -0.0, 0.0, 1.0]},
    ),
    "reductions": (
        lambda x: (
            wg.max(x, 1),
            wg.min(x, 1),
            wg.argmax(x, 1),
            wg.argmin(x, 1),
            wg.isnan(wg.sum(x, 1)),
            wg.any(wg.isnan(x), 1),
            wg.isnan(x @ wg.ones((4, 2))),
        ),
        {"x": [[1.0, NAN, 3.0, INF], [-INF, -INF, -INF, -INF], [INF, 1.0, INF, 2.0], [0.0, -0.0, 0.0, -1.0]]},
    ),
    "long reductions": (
        lambda x: (wg.max(x, 1), wg.min(x, 1), wg.argmax(x, 1), wg.argmin(x, 1)),
        {"x": [[1.0] * 100 + [NAN] + [3.0] * 99, [-INF] * 200, [2.0] * 70 + [INF] * 130, [0.0, -1.0] * 100]},
    ),
    "constants": (
        lambda x: (
            x + wg.full((3,), -INF),
            wg.where(x > 5, x, NAN),
            wg.where(x > 5, x, 3.4028235e38),
            wg.where(x > 5, x, -0.0),
            wg.astype(x * 1e12, "i32"),
            wg.astype(x - NAN, "i32"),
        ),
        {"x": [1.0, -1.0, 0.0]},
    ),
    "divisions": (
        lambda x, i: (x / 0.0, wg.abs(0.0 / x), 1.0 / x, i // 0, i % 0, x**2, x**3, x**-1),
        {"x": [1.0, -2000.0, 0.0, INF, NAN], "i": [3, -3, 0, 7, 1]},
    ),
    "pools": (
        lambda x: wg.max_pool2d(x, 2),
        {"x": [[[1.0, NAN, -INF, -INF], [2.0, 0.0, -INF, -INF]]]},
    ),
    "saturated": (
        lambda x, z: (wg.tanh(x), wg.sigmoid(x), wg.exp(-wg.abs(x) * INF), wg.log(z), wg.sqrt(z)),
        {"x": [200.0, -200.0, 1e30, -1e30, INF, -INF], "z": [0.0, -1.0, INF, NAN, 1.0, -0.0]},
    ),
    "softmax rows": (
        lambda x: (wg.softmax(x), wg.isnan(wg.log_softmax(x))),
        {"x": [[-1000.0, -1000.0], [1000.0, 0.0], [-INF, 0.0], [-INF, -INF]]},
    ),
}


async def run_special(name, device):
    """Outputs of a program of `SPECIALS`."""
    function, given = SPECIALS[name]
    values = {
        k: np.array(v, np.float32 if isinstance(np.ravel(v)[0], float) else np.int32)
        for k, v in given.items()
    }
    forward = lambda model, **inputs: function(**inputs)  # noqa: E731
    async with await wg.compile_forward(Empty, forward, inputs=values, device=device) as program:
        result = await program.run(values)
    return list(result) if isinstance(result, tuple) else [result]
