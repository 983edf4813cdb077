"""Counter-based random bits: a pure function of (seed, rng_step, stream, index), DESIGN §11.

``stream`` is the node's ordinal in trace order and ``index`` its flat index, so a mask does not depend
on the schedule, and forward and backward recompute the same one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from webgrad import rng
from webgrad.ir import Node, Shape
from webgrad.ops.base import Array, Op
from webgrad.ops.elementwise import Unary


class RandomBits(Op):
    """u32 bits of ``shape``: Threefry-2x32 keyed by (seed, rng_step), counter (index, stream)."""

    name, family, cost = "random_bits", "random", 40
    differentiable = False

    def infer(self, inputs: tuple[Node, ...], attrs: Mapping[str, Any]) -> tuple[Shape, str]:
        return tuple(attrs["shape"]), "u32"

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        return None, None

    def numpy(self, attrs: Mapping[str, Any], *args: Array) -> Array:
        seed, step = (np.asarray(a, dtype=np.uint32) for a in args)
        shape = tuple(attrs["shape"])
        index = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.uint32)
        return self.bits(attrs, seed, step, index).reshape(shape)

    def bits(self, attrs: Mapping[str, Any], seed: Array, step: Array, index: Array) -> Array:
        """The bits at flat ``index``."""
        stream = np.full_like(index, attrs["stream"])
        return rng.threefry2x32(seed, step, index, stream)[0]

    def wgsl(self, attrs: Mapping[str, Any], dtypes: tuple[str, ...], *args: str) -> str:
        """WGSL from seed, step and the flat index (i32)."""
        seed, step, index = args
        key, counter = f"vec2<u32>({seed}, {step})", f"vec2<u32>(u32({index}), {attrs['stream']}u)"
        return f"wg_threefry({key}, {counter}).x"


class BitsToUniform(Unary):
    """Bits to a float in [0, 1): the top 24 bits over 2²⁴, never 1."""

    name, text, cost = "bits_to_uniform", "wg_uniform({0})", 2
    differentiable = False
    reference = staticmethod(lambda bits: rng.uniform(bits))

    def infer(self, inputs: tuple[Node, ...], attrs: Mapping[str, Any]) -> tuple[Shape, str]:
        return inputs[0].shape, "f32"

    def wgsl(self, attrs: Mapping[str, Any], dtypes: tuple[str, ...], *args: str) -> str:
        return f"wg_uniform({args[0]})"

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        return (None,)


random_bits, bits_to_uniform = RandomBits(), BitsToUniform()
