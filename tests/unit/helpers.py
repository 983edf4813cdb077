"""What several unit tests use: run a function of tensors, differentiate it, and expect an error on a line."""

from __future__ import annotations

import asyncio
import linecache
from contextlib import contextmanager

import numpy as np
import pytest

import webgrad as wg
from webgrad import nn
from webgrad.runtime.reference import NumpyExecutor


class Empty(nn.Module):
    """A model without parameters."""


def declared(arrays):
    """Inputs ``x0, x1, …`` for example arrays."""
    return {f"x{number}": np.asarray(array) for number, array in enumerate(arrays)}


def compute(function, *arrays, training=False):
    """``function`` of these arrays: its tensor or tuple of tensors as arrays.

    Both levels of the NumPy executor run it and must agree.
    """
    given = declared(arrays)
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
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-6 * np.max(np.abs(a), initial=1, where=np.isfinite(a)))
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


@contextmanager
def raises_here(kind, match):
    """The block raises ``kind``, and the message names the line that carries the comment ``# here``."""
    with pytest.raises(kind, match=match) as caught:
        yield caught
    site = caught.value.site
    assert "# here" in linecache.getline(site.file, site.line), f"blames {site}"
    assert f"{site.file}:{site.line}" in str(caught.value)
