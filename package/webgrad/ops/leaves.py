"""Leaves: values that come from outside the computation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from webgrad.ir import NUMPY_DTYPES, Node, Shape, as_dtype
from webgrad.ops.base import Array, Op


class Leaf(Op):
    """A named value: ``attrs`` carry ``name``, ``shape`` and ``dtype``."""

    family = "leaf"
    cost = 0
    differentiable = False

    def infer(self, inputs: tuple[Node, ...], attrs: Mapping[str, Any]) -> tuple[Shape, str]:
        return tuple(attrs["shape"]), attrs["dtype"]

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        return ()


class Param(Leaf):
    """A trainable parameter: a range of a parameter arena."""

    name = "param"


class Input(Leaf):
    """A tensor given at each call."""

    name = "input"


class State(Leaf):
    """A tensor that lives between calls: a whole arena, an optimizer slot, a statistic."""

    name = "state"


class Scalar(Leaf):
    """A rank-0 number given at each call (learning rate, random step): one word of the upload."""

    name = "scalar"


class Const(Leaf):
    """A literal: ``attrs['value']`` is a NumPy array (rank 0 is folded into the kernel's text)."""

    name = "const"

    def infer(self, inputs: tuple[Node, ...], attrs: Mapping[str, Any]) -> tuple[Shape, str]:
        return attrs["value"].shape, as_dtype(attrs["value"].dtype)

    def numpy(self, attrs: Mapping[str, Any], *args: Array) -> Array:
        return attrs["value"]


class Iota(Leaf):
    """0, 1, 2, … along ``axis`` of ``shape``, as i32."""

    name = "iota"

    def infer(self, inputs: tuple[Node, ...], attrs: Mapping[str, Any]) -> tuple[Shape, str]:
        return tuple(attrs["shape"]), "i32"

    def numpy(self, attrs: Mapping[str, Any], *args: Array) -> Array:
        shape, axis = attrs["shape"], attrs["axis"]
        along = np.arange(shape[axis], dtype=np.int32)
        return np.broadcast_to(along.reshape([-1 if a == axis else 1 for a in range(len(shape))]), shape)


param, input_, state, scalar, const, iota = Param(), Input(), State(), Scalar(), Const(), Iota()


def constant(value: Any, dtype: str) -> Any:
    """A `const` node holding ``value`` converted to ``dtype``."""
    return const(value=np.array(value, dtype=NUMPY_DTYPES[dtype]))
