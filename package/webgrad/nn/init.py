"""Initialisers: functions ``(size, shape, rng) -> array`` for `Module.param(init=…)`.

``rng`` is a NumPy Generator seeded from the program's seed and the parameter's path.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Init = Callable[..., NDArray[Any]]


def normal(scale: float = 0.02) -> Init:
    """Normal of standard deviation ``scale``."""
    return lambda size, shape, rng: rng.standard_normal(size) * scale


def uniform(bound: float) -> Init:
    """Uniform in [−bound, bound)."""
    return lambda size, shape, rng: rng.uniform(-bound, bound, size)


def fans(shape: Sequence[int]) -> tuple[int, int]:
    """(fan_in, fan_out): ``[in, out]`` for matrices, ``[out, in, *kernel]`` for convolutions."""
    if len(shape) < 2:
        return (shape[0], shape[0]) if shape else (1, 1)
    if len(shape) == 2:
        return shape[0], shape[1]
    taps = int(np.prod(shape[2:]))
    return shape[1] * taps, shape[0] * taps


def kaiming_normal(gain: float = math.sqrt(2)) -> Init:
    """He et al., arXiv:1502.01852: standard deviation gain/√fan_in, for ReLU by default."""
    return lambda size, shape, rng: rng.standard_normal(size) * gain / math.sqrt(max(fans(shape)[0], 1))


def xavier_uniform(gain: float = 1.0) -> Init:
    """Glorot and Bengio 2010: bound gain·√(6/(fan_in + fan_out))."""

    def values(size: int, shape: Sequence[int], rng: np.random.Generator) -> NDArray[Any]:
        bound = gain * math.sqrt(6 / max(sum(fans(shape)), 1))
        return rng.uniform(-bound, bound, size)

    return values
