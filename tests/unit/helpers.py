"""What several unit tests use: run a function of tensors, check its gradient, expect an error on a line."""

from __future__ import annotations

import asyncio
import linecache
import os
import zlib
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import webgrad as wg
from webgrad import nn
from webgrad.runtime.reference import NumpyExecutor

#: how many times as many random programs to try; above 1 they differ from run to run
EFFORT = int(os.environ.get("WEBGRAD_TEST_EFFORT", "1"))


def examples(count):
    """Hypothesis settings: ``count`` examples, the same ones in every run (but see `EFFORT`)."""
    return settings(
        max_examples=count * EFFORT,
        derandomize=EFFORT == 1,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


class Empty(nn.Module):
    """A model without parameters."""


def leaf_values(arrays):
    """Values of the inputs ``x0, x1, …``."""
    return {f"x{k}": np.asarray(a) for k, a in enumerate(arrays)}


def compute(function, *arrays, training=False):
    """``function`` of these arrays: its tensor or tuple of tensors as arrays.

    Both levels of the NumPy executor run it and must agree.
    """
    given = leaf_values(arrays)
    found = {}
    for level in ("graph", "schedule"):

        async def go(level=level):
            program = await wg.compile_forward(
                Empty, lambda model, *inputs: function(*inputs), inputs=given, device=NumpyExecutor(level)
            )
            return await program.run(given)

        found[level] = asyncio.run(go())
    for a, b in zip(_listed(found["graph"]), _listed(found["schedule"]), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(
            a, b, rtol=2e-6, atol=1e-6 * np.max(np.abs(a), initial=1, where=np.isfinite(a))
        )
    return found["graph"]


def _listed(result):
    return list(result) if isinstance(result, tuple | list) else [result]


def slopes(function, *arrays, cotangent=None):
    """Gradients of ``function`` (times ``cotangent``, default ones) for every float array: a tuple."""

    def forward(*inputs):
        y = function(*inputs)
        weights = wg.zeros(y.shape) + np.asarray(1.0 if cotangent is None else cotangent, np.float32)
        return tuple(wg.grad(y, [x for x in inputs if x.dtype == "f32"], weights))

    found = compute(forward, *arrays)
    return found if len(found) > 1 else found[0]


def evaluate(graph, leaves, float64=False, only=None):
    """Every node's value by its op's NumPy meaning, on the graph as traced: nothing of the compiler.

    ``leaves`` holds values of params, inputs, states and scalars by name; ``only`` limits the nodes.
    """
    values = {}
    real = np.float64 if float64 else np.float32
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            if only is not None and node not in only:
                continue
            if node.op.name in ("param", "input", "state", "scalar"):
                value = np.asarray(leaves[node.attrs["name"]])
            else:
                value = node.op.numpy(node.attrs, *[values[x] for x in node.inputs])
            dtype = {"f32": real, "i32": np.int32, "u32": np.uint32, "bool": np.bool_}[node.dtype]
            values[node] = np.asarray(value, dtype)
            assert values[node].shape == node.shape, node.describe()
    return values


def check_grads(function, arrays, order=1, step=1e-5, rtol=1e-5, atol=1e-7):
    """The gradients of a weighted sum of ``function``'s result for every float array, against central
    differences in float64; and, for a higher order, the gradients of those gradients.
    """
    given = leaf_values(arrays)

    def traced_sum():
        tensors = [wg.tensor_input(n, a.shape, a.dtype) for n, a in given.items()]
        y = function(*tensors)
        if y.dtype != "f32":
            return [wg.sum(tensors[0]) * 0.0] + [wg.zeros_like(t) for t in tensors if t.dtype == "f32"]
        total = wg.sum(y * weights(y.shape))
        return [total, *wg.grad(total, [t for t in tensors if t.dtype == "f32"])]

    graph = wg.trace(traced_sum)
    total, *grads = graph.outputs
    given = {**given, "seed": 1, "rng_step": 2}
    names = [n for n, a in leaf_values(arrays).items() if a.dtype.kind == "f"]
    value = evaluate(graph, given, float64=True)
    forward = ancestors(total)
    for name, gradient in zip(names, grads, strict=True):
        numeric = np.zeros(given[name].shape)
        for at in np.ndindex(numeric.shape):
            moved = []
            for sign in (1, -1):
                other = given[name].astype(np.float64)
                other[at] += sign * step
                moved.append(evaluate(graph, {**given, name: other}, float64=True, only=forward)[total])
            numeric[at] = (moved[0] - moved[1]) / (2 * step)
        np.testing.assert_allclose(
            value[gradient], numeric, rtol=rtol, atol=atol * (1 + np.abs(numeric).max(initial=0))
        )
    if order > 1:

        def gradients(*tensors):
            y = function(*tensors)
            floats = [t for t in tensors if t.dtype == "f32"]
            if y.dtype != "f32":
                return y
            parts = wg.grad(wg.sum(y * weights(y.shape)), floats)
            return wg.concat([wg.reshape(p, -1) for p in parts])

        check_grads(gradients, arrays, order - 1, step, rtol * 10, atol * 100)


def weights(shape):
    """Fixed numbers that no symmetry cancels."""
    return np.random.default_rng(zlib.crc32(repr(shape).encode())).uniform(0.5, 1.5, shape).astype(np.float32)


def ancestors(node):
    """Everything a node is computed from, and itself."""
    found, stack = set(), [node]
    while stack:
        n = stack.pop()
        if n not in found:
            found.add(n)
            stack.extend(n.inputs)
    return found


@contextmanager
def raises_here(kind, match):
    """The block raises ``kind``, and the message names the line that carries the comment ``# here``."""
    with pytest.raises(kind, match=match) as caught:
        yield caught
    site = caught.value.site
    assert "# here" in linecache.getline(site.file, site.line), f"blames {site}"
    assert f"{site.file}:{site.line}" in str(caught.value)
