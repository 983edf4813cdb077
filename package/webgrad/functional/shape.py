"""Movement: the same values in another shape or order. Free: they become index maps of the kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any

from webgrad.errors import DtypeError, InputError, ShapeError, TraceError
from webgrad.functional.spelling import numpy_names
from webgrad.ir import Node, as_dtype, numel
from webgrad.ops import leaves as _leaves
from webgrad.ops import movement as _mv
from webgrad.ops.elementwise import cast_to, lift, lt, where
from webgrad.ops.index import gather
from webgrad.trace import mark_ids

__all__ = [
    "arange", "broadcast_to", "concat", "expand_dims", "flatten", "flip", "getitem", "iota", "pad",
    "reshape", "squeeze", "stack", "stop_gradient", "swapaxes", "transpose",
]  # fmt: skip


def as_tensor(x: Any, what: str) -> Any:
    """A tensor as it is, an array or number as a constant."""
    return x if isinstance(x, Node) else lift((x,), what)[0]


def sizes_of(shape: Any, what: str) -> tuple[int, ...]:
    """A shape from an int or a sequence of ints that are not negative, or `ShapeError`."""
    sizes = (shape,) if isinstance(shape, Integral) else shape
    if not isinstance(sizes, Sequence) or not all(isinstance(n, Integral) and int(n) >= 0 for n in sizes):
        raise ShapeError(f"{what}: a shape is made of ints that are not negative, found {shape!r}")
    return tuple(int(n) for n in sizes)


def axis_of(axis: Any, ndim: int, what: str) -> int:
    """A non-negative axis, or `ShapeError`."""
    if isinstance(axis, Node) or not hasattr(axis, "__index__"):
        raise InputError(f"{what}: axis must be a Python int, found {axis!r}")
    number = axis.__index__()
    if not -ndim <= number < ndim:
        raise ShapeError(f"{what}: axis {number} is out of range for {ndim} axes")
    return number % ndim if ndim else 0


def reshape(x: Any, *shape: Any) -> Any:
    """``x`` in row-major order with another shape; one size may be −1."""
    x = as_tensor(x, "reshape")
    sizes = list(shape[0]) if len(shape) == 1 and isinstance(shape[0], Sequence) else list(shape)
    free = [at for at, n in enumerate(sizes) if isinstance(n, Integral) and n == -1]
    known = numel(sizes_of([n for at, n in enumerate(sizes) if at not in free], "reshape"))
    if len(free) > 1:
        raise ShapeError(f"reshape: only one size may be -1, found {tuple(sizes)}")
    if free:
        if known == 0 or x.size % known:
            raise ShapeError(f"cannot reshape {x.shape} ({x.size} elements) to {tuple(sizes)}")
        sizes[free[0]] = x.size // known
    target = tuple(int(n) for n in sizes)
    return x if target == x.shape else _mv.reshape(x, shape=target)


@numpy_names
def flatten(x: Any, start_axis: int = 0, end_axis: int = -1) -> Any:
    """Axes ``start_axis`` … ``end_axis`` (inclusive) as one."""
    x = as_tensor(x, "flatten")
    if x.ndim == 0:
        return reshape(x, 1)
    first, last = axis_of(start_axis, x.ndim, "flatten"), axis_of(end_axis, x.ndim, "flatten")
    return reshape(x, (*x.shape[:first], numel(x.shape[first : last + 1]), *x.shape[last + 1 :]))


def transpose(x: Any, *axes: Any) -> Any:
    """Axes reordered; all reversed when none is given."""
    x = as_tensor(x, "transpose")
    order = list(axes[0]) if len(axes) == 1 and isinstance(axes[0], Sequence) else list(axes)
    order = [axis_of(a, x.ndim, "transpose") for a in order] or list(range(x.ndim))[::-1]
    if sorted(order) != list(range(x.ndim)):
        raise ShapeError(f"transpose: {tuple(order)} is no order of the {x.ndim} axes of {x.shape}")
    return x if order == sorted(order) else _mv.permute(x, axes=tuple(order))


@numpy_names
def swapaxes(x: Any, axis1: int, axis2: int) -> Any:
    """Two axes exchanged."""
    x = as_tensor(x, "swapaxes")
    order = list(range(x.ndim))
    first, second = axis_of(axis1, x.ndim, "swapaxes"), axis_of(axis2, x.ndim, "swapaxes")
    order[first], order[second] = order[second], order[first]
    return transpose(x, order)


@numpy_names
def expand_dims(x: Any, axis: int) -> Any:
    """A new axis of size 1 at ``axis``."""
    x = as_tensor(x, "expand_dims")
    at = axis_of(axis, x.ndim + 1, "expand_dims")
    return reshape(x, (*x.shape[:at], 1, *x.shape[at:]))


@numpy_names
def squeeze(x: Any, axis: int | Sequence[int] | None = None) -> Any:
    """Axes of size 1 removed: all of them, or those named (which must have size 1)."""
    x = as_tensor(x, "squeeze")
    if axis is None:
        drop = [a for a, n in enumerate(x.shape) if n == 1]
    else:
        drop = [axis_of(a, x.ndim, "squeeze") for a in (axis if isinstance(axis, Sequence) else [axis])]
    for a in drop:
        if x.shape[a] != 1:
            raise ShapeError(f"squeeze: axis {a} of {x.shape} has size {x.shape[a]}, not 1")
    return reshape(x, tuple(n for a, n in enumerate(x.shape) if a not in drop))


def broadcast_to(x: Any, shape: Sequence[int]) -> Any:
    """NumPy's broadcast to ``shape``."""
    x, target = as_tensor(x, "broadcast_to"), sizes_of(shape, "broadcast_to")
    return x if x.shape == target else _mv.broadcast(x, shape=target)


@numpy_names
def flip(x: Any, axis: int | Sequence[int] | None = None) -> Any:
    """Order reversed along the axes (all by default)."""
    x = as_tensor(x, "flip")
    axes = range(x.ndim) if axis is None else axis if isinstance(axis, Sequence) else [axis]
    return _mv.flip(x, axes=tuple(sorted(axis_of(a, x.ndim, "flip") for a in axes)))


def _several(tensors: Sequence[Any], what: str) -> list[Any]:
    parts = tuple(tensors)
    if not parts:
        raise ShapeError(f"{what} joins at least one tensor, found none")
    return lift(parts, what)


@numpy_names
def concat(tensors: Sequence[Any], axis: int = 0) -> Any:
    """Tensors joined along an existing axis; dtypes promote."""
    parts = _several(tensors, "concat")
    if not parts[0].ndim:
        raise ShapeError("concat joins along an axis, and rank-0 tensors have none: use stack")
    at = axis_of(axis, parts[0].ndim, "concat")
    for part in parts:
        if part.ndim != parts[0].ndim:
            raise ShapeError(f"concat: ranks differ: {[p.shape for p in parts]}")
    while len(parts) > 1:
        most = _mv.Concat.most
        groups = [parts[i : i + most] for i in range(0, len(parts), most)]
        parts = [g[0] if len(g) == 1 else _mv.concat_(*g, axis=at) for g in groups]
    return parts[0]


@numpy_names
def stack(tensors: Sequence[Any], axis: int = 0) -> Any:
    """Tensors of one shape joined along a new axis."""
    parts = _several(tensors, "stack")
    at = axis_of(axis, parts[0].ndim + 1, "stack")
    for part in parts:
        if part.shape != parts[0].shape:
            raise ShapeError(f"stack: shapes differ: {parts[0].shape} and {part.shape}")
    return concat([expand_dims(p, at) for p in parts], at)


def pad(x: Any, widths: Any, value: float = 0.0) -> Any:
    """``value`` around ``x``; ``widths`` as in numpy.pad: a number, (before, after), or a pair per axis."""
    x = as_tensor(x, "pad")
    if isinstance(widths, Integral):
        pairs = [(widths, widths)] * x.ndim
    elif len(widths) == 2 and all(isinstance(w, Integral) for w in widths):
        pairs = [tuple(widths)] * x.ndim
    else:
        pairs = [tuple(w) for w in widths]
    if len(pairs) != x.ndim or any(len(p) != 2 or min(p) < 0 for p in pairs):
        raise ShapeError(f"pad: widths {widths!r} must be a (before, after) pair for each axis of {x.shape}")
    if x.dtype != "f32" and not float(value).is_integer():
        raise DtypeError(f"pad: {value!r} is no {x.dtype}: cast the tensor to f32 first")
    low, high = tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)
    return _mv.pad(x, low=low, high=high, interior=(0,) * x.ndim, value=value)


def stop_gradient(x: Any) -> Any:
    """The identity, through which no gradient flows."""
    return _mv.stop_gradient_(as_tensor(x, "stop_gradient"))


def arange(start: float, stop: float | None = None, step: float = 1, dtype: Any = None) -> Any:
    """start, start + step, … below ``stop`` (0 … start−1 with one argument); i32 if all are integers."""
    first, last = (0, start) if stop is None else (start, stop)
    if step == 0:
        raise InputError("arange: the step must not be 0")
    whole = all(isinstance(n, Integral) for n in (first, last, step))
    count = max(0, math.ceil((last - first) / step))
    ramp: Any = _leaves.iota(shape=(count,), axis=0)
    ramp = ramp * step if step != 1 else ramp
    ramp = ramp + first if first else ramp
    return cast_to(ramp, as_dtype(dtype or ("i32" if whole else "f32")))


@numpy_names
def iota(shape: Sequence[int], axis: int) -> Any:
    """The coordinate along ``axis`` at every element of ``shape``, as i32."""
    sizes = sizes_of(shape, "iota")
    return _leaves.iota(shape=sizes, axis=axis_of(axis, len(sizes), "iota"))


def getitem(x: Any, key: Any) -> Any:
    """NumPy basic indexing (ints, slices, None, …) and one integer tensor or array on the first axis."""
    x = as_tensor(x, "getitem")
    keys = list(key) if isinstance(key, tuple) else [key]
    if (
        len(keys) == 1
        and not isinstance(keys[0], int | slice | type(None) | type(...))
        and not _is_index(keys[0])
    ):
        return _take(x, keys[0])
    for k in keys:
        if not (isinstance(k, slice | type(None) | type(...)) or _is_index(k)):
            raise TraceError(
                f"t[…] takes ints, slices, None and ..., or a single integer array; found {type(k).__name__}"
            )
    used = sum(k is not None and k is not ... for k in keys)
    if used > x.ndim or keys.count(...) > 1:
        raise ShapeError(f"too many indices for a tensor of shape {x.shape}")
    at = next((i for i, k in enumerate(keys) if k is ...), len(keys))
    keys[at : at + 1] = [slice(None)] * (x.ndim - used)
    starts, sizes, steps, shape, turned, axis = [], [], [], [], [], 0
    for k in keys:
        if k is None:
            shape.append(1)
            continue
        size = x.shape[axis]
        if isinstance(k, slice):
            start, stop, step = k.indices(size)
            count = len(range(start, stop, step))
            if step < 0:
                turned.append(axis)
                start, step = start + (count - 1) * step if count else 0, -step
            shape.append(count)
        else:
            index = k.__index__()
            if not -size <= index < size:
                raise ShapeError(f"index {index} is out of range for axis {axis} of {x.shape}")
            start, step, count = index % size, 1, 1
        starts.append(min(start, max(size - 1, 0)) if count else 0)
        sizes.append(count)
        steps.append(step)
        axis += 1
    if tuple(sizes) != x.shape or any(s != 1 for s in steps):
        x = _mv.slice_(x, starts=tuple(starts), sizes=tuple(sizes), steps=tuple(steps))
    if turned:
        x = _mv.flip(x, axes=tuple(turned))
    return reshape(x, tuple(shape))


def _is_index(key: Any) -> bool:
    return not isinstance(key, Node | bool) and hasattr(key, "__index__") and getattr(key, "ndim", 0) == 0


def _take(x: Any, ids: Any) -> Any:
    """Rows of ``x``; negative ids count from the end."""
    ids = as_tensor(ids, "t[ids]")
    if ids.dtype not in ("i32", "u32"):
        raise TraceError(f"t[ids]: ids must be integers, found {ids.dtype}; for a mask use webgrad.where")
    if not x.ndim:
        raise ShapeError("t[ids]: a rank-0 tensor has no rows")
    rows = x.shape[0]
    mark_ids(ids, -rows if ids.dtype == "i32" else 0, rows - 1, "t[ids]")
    if ids.dtype == "i32":
        ids = where(lt(ids, 0), ids + rows, ids)
    return gather(x, ids)
