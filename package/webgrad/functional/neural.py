"""What layers are made of: products, convolution, pooling, embedding, normalisation, dropout."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from webgrad.errors import DtypeError, InputError, ShapeError
from webgrad.functional import math as _m
from webgrad.functional import reductions as _r
from webgrad.functional.shape import as_tensor, broadcast_to, expand_dims, iota, pad, reshape
from webgrad.functional.spelling import numpy_names
from webgrad.ir import as_dtype, numel
from webgrad.ops import contract as _ct
from webgrad.ops import elementwise as _ew
from webgrad.ops import functions as _fn
from webgrad.ops import index as _ix
from webgrad.ops import movement as _mv
from webgrad.ops import random as _rand
from webgrad.trace import current_tracer, mark_ids, scalar_input

__all__ = [
    "conv2d", "dropout", "embedding", "layer_norm", "matmul", "max_pool2d", "one_hot", "scatter_add",
    "softmax_causal", "take_along_last", "where_causal",
]  # fmt: skip


def matmul(a: Any, b: Any) -> Any:
    """Matrix product with NumPy's rules: 1-D operands are vectors, leading axes broadcast."""
    a, b = as_tensor(a, "matmul"), as_tensor(b, "matmul")
    a, b = (_ew.cast_to(t, "f32") if t.dtype != "f32" else t for t in (a, b))
    if not a.ndim or not b.ndim:
        raise ShapeError("matmul needs at least one axis on each side: use * for scalars")
    if a.ndim == 1:
        return reshape(matmul(expand_dims(a, 0), b), _without(b.shape, -2))
    if b.ndim == 1:
        return reshape(matmul(a, expand_dims(b, 1)), a.shape[:-1])
    if a.shape[-1] != b.shape[-2]:
        raise ShapeError(
            f"matmul: {a.shape} @ {b.shape}: the last size of the left ({a.shape[-1]}) must equal the "
            f"second last of the right ({b.shape[-2]})"
        )
    if b.ndim == 2:  # one tall product: its weight gradient is one contraction over all leading axes
        rows = _ct.matmul_(reshape(a, (numel(a.shape[:-1]), a.shape[-1])), b)
        return reshape(rows, (*a.shape[:-1], b.shape[-1]))
    lead = _ew.common_shape([a.shape[:-2], b.shape[:-2]], "matmul")
    return _ct.matmul_(broadcast_to(a, (*lead, *a.shape[-2:])), broadcast_to(b, (*lead, *b.shape[-2:])))


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    at = axis % len(shape)
    return shape[:at] + shape[at + 1 :]


def pair(value: Any, what: str, least: int) -> tuple[int, int]:
    """A number for both axes, or one each; not below ``least``."""
    both = (value, value) if isinstance(value, Integral) else value
    if not isinstance(both, Sequence) or len(both) != 2 or not all(_at_least(v, least) for v in both):
        raise InputError(f"{what} must be an int or a pair of ints, not below {least}, found {value!r}")
    return int(both[0]), int(both[1])


def _at_least(value: Any, least: int) -> bool:
    return isinstance(value, Integral) and int(value) >= least


def conv2d(
    x: Any, w: Any, b: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Any:
    """Cross-correlation, as torch.nn.functional.conv2d: ``x [N, C, H, W]``, ``w [O, C/groups, KH, KW]``,
    ``b [O]``. ``padding`` is a number, a pair, ``"same"`` (stride 1) or ``"valid"``.
    """
    x, w = _ew.cast_to(as_tensor(x, "conv2d"), "f32"), _ew.cast_to(as_tensor(w, "conv2d"), "f32")
    if x.ndim != 4 or w.ndim != 4 or groups < 1 or x.shape[1] != w.shape[1] * groups or w.shape[0] % groups:
        raise ShapeError(
            f"conv2d: x {x.shape} must be [N, C, H, W] and w {w.shape} [O, C/groups, KH, KW] with "
            f"groups={groups}"
        )
    strides, dilations = pair(stride, "stride", 1), pair(dilation, "dilation", 1)
    if padding == "same":
        if strides != (1, 1):
            raise InputError('conv2d: padding="same" needs stride 1')
        reach = [(k - 1) * d for k, d in zip(w.shape[2:], dilations, strict=True)]
        pads = tuple((n // 2, n - n // 2) for n in reach)
    else:
        pads = tuple((p, p) for p in pair(0 if padding == "valid" else padding, "padding", 0))
    y = _ct.conv(x, w, stride=strides, dilation=dilations, padding=pads, groups=groups)
    if b is None:
        return y
    b = as_tensor(b, "conv2d")
    if b.shape != w.shape[:1]:
        raise ShapeError(
            f"conv2d: the bias {b.shape} must have one element for each of {w.shape[0]} channels"
        )
    return y + reshape(b, (-1, 1, 1))


def max_pool2d(x: Any, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1) -> Any:
    """Largest of each window of ``x […, H, W]``; padding counts as −inf; the first of equals (or the
    first NaN) gets the gradient. As torch.nn.functional.max_pool2d, ``stride`` defaults to the kernel.
    """
    x = _ew.cast_to(as_tensor(x, "max_pool2d"), "f32")
    if x.ndim < 2:
        raise ShapeError(f"max_pool2d needs [..., H, W], found {x.shape}")
    size, low = pair(kernel, "kernel", 1), pair(padding, "padding", 0)
    if any(low):
        x = pad(x, [*[(0, 0)] * (x.ndim - 2), *[(p, p) for p in low]], value=float("-inf"))
    strides = size if stride is None else pair(stride, "stride", 1)
    views = _mv.windows(x, kernel=size, stride=strides, dilation=pair(dilation, "dilation", 1))
    flat = reshape(views, (*views.shape[:-2], size[0] * size[1]))
    return _ix.pick(flat, _r.argmax(flat, axis=-1))


def embedding(table: Any, ids: Any) -> Any:
    """Rows ``table[ids]``: ``[V, …], [*I] → [*I, …]``. Ids must be in [0, V): input ids are checked on
    the host, negative ones are refused. Repeated ids add up in the gradient, in a fixed order.
    """
    table = as_tensor(table, "embedding")
    return _ix.gather(table, _checked_ids(ids, table.shape[0] if table.ndim else 0, "embedding"))


def _checked_ids(ids: Any, count: int, what: str) -> Any:
    """Integer ids in [0, count), as far as the host can see them."""
    ids = as_tensor(ids, what)
    if ids.dtype not in ("i32", "u32"):
        raise DtypeError(
            f"{what} needs integer ids, found {ids.dtype}: declare the input with "
            f'webgrad.Input({ids.shape}, "i32")'
        )
    mark_ids(ids, 0, count - 1, what)
    return ids


def scatter_add(ids: Any, updates: Any, size: int) -> Any:
    """``out[ids[i]] += updates[i]`` into zeros of ``size`` rows; repeats add in row order."""
    ids = _checked_ids(ids, size, "scatter_add")
    return _ix.scatter_add(ids, as_tensor(updates, "scatter_add"), size=size)


def take_along_last(x: Any, ids: Any) -> Any:
    """``x […, n], ids […] → […]``: one element of the last axis each."""
    x = as_tensor(x, "take_along_last")
    return _ix.pick(x, _checked_ids(ids, x.shape[-1] if x.ndim else 0, "take_along_last"))


@numpy_names
def one_hot(ids: Any, classes: int, dtype: Any = "f32") -> Any:
    """1 at position ``ids`` of a new last axis of ``classes``, 0 elsewhere. An id made in the graph that is
    outside [0, classes) gives zeros; one from an input is refused.
    """
    ids = _checked_ids(ids, classes, "one_hot")
    shape = (*ids.shape, classes)
    ramp = iota(shape, len(shape) - 1)
    return _ew.cast_to(_ew.eq(expand_dims(ids, -1), ramp), as_dtype(dtype))


def where_causal(scores: Any, fill: float = float("-inf")) -> Any:
    """``scores […, T, S]`` with ``fill`` where the column is after the row (the future)."""
    scores = as_tensor(scores, "where_causal")
    square = scores.shape[-2:]
    return _m.where(iota(square, 1) <= iota(square, 0), scores, fill)


def softmax_causal(scores: Any) -> Any:
    """Softmax over the last axis of ``[…, T, S]``, each row seeing columns up to its own."""
    return _r.softmax(where_causal(scores), axis=-1)


def layer_norm(x: Any, g: Any = None, b: Any = None, eps: float = 1e-5) -> Any:
    """(x − mean)/√(var + eps)·g + b over the last axis, biased variance. As torch's layer_norm."""
    x = as_tensor(x, "layer_norm")
    centred = x - _r.mean(x, -1, keepdims=True)
    scale = _fn.rsqrt_(_r.mean(_m.square(centred), -1, keepdims=True) + eps)
    y = centred * scale
    y = y if g is None else y * g
    return y if b is None else y + b


def dropout(x: Any, p: float = 0.5, always: bool = False) -> Any:
    """Zero each element with probability ``p`` and scale the rest by 1/(1−p). Active in training
    programs only, unless ``always``. The mask is a function of (seed, step, place in the program).
    """
    x = as_tensor(x, "dropout")
    if not 0 <= p <= 1:
        raise InputError(f"dropout: p must be in [0, 1], found {p}")
    tracer = current_tracer("webgrad.dropout")
    if p == 0 or not (always or tracer.training):
        return x
    if p == 1:
        return _m.zeros_like(x)
    uniform = _rand.bits_to_uniform(random_bits(x.shape))
    return _m.where(uniform >= p, x * (1 / (1 - p)), 0.0)


def random_bits(shape: tuple[int, ...]) -> Any:
    """u32 random bits, a new stream of the program."""
    stream = current_tracer("random_bits").next_stream()
    seed, step = scalar_input("seed", "u32"), scalar_input("rng_step", "u32")
    return _rand.random_bits(seed, step, shape=tuple(shape), stream=stream)
