"""Reductions over one, several or all axes. ``axis=None`` is all; ``keepdims`` keeps size-1 axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webgrad.errors import DtypeError, ShapeError
from webgrad.functional.shape import as_tensor, axis_of, reshape, stop_gradient
from webgrad.functional.spelling import numpy_names
from webgrad.ir import numel
from webgrad.ops import elementwise as _ew
from webgrad.ops import functions as _fn
from webgrad.ops import reduce as _rd

__all__ = [
    "all", "any", "argmax", "argmin", "log_softmax", "logsumexp", "max", "mean", "min", "prod", "softmax",
    "sum", "var",
]  # fmt: skip

Axis = int | Sequence[int] | None


def _axes(x: Any, axis: Axis, what: str) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(x.ndim))
    axes = [axis_of(a, x.ndim, what) for a in (axis if isinstance(axis, Sequence) else [axis])]
    if len(set(axes)) != len(axes):
        raise ShapeError(f"{what}: an axis is named twice in {axis}")
    return tuple(sorted(axes))


def _reduce(op: Any, x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    out = op(x, axes=axes) if axes else x
    return reshape(out, tuple(1 if a in axes else n for a, n in enumerate(x.shape))) if keepdims else out


@numpy_names
def sum(x: Any, axis: Axis = None, keepdims: bool = False) -> Any:
    """Sum; of bools an i32 count; over nothing 0."""
    x = as_tensor(x, "sum")
    x = _ew.cast_to(x, "i32") if x.dtype == "bool" else x
    return _reduce(_rd.reduce_sum, x, _axes(x, axis, "sum"), keepdims)


@numpy_names
def prod(x: Any, axis: Axis = None, keepdims: bool = False) -> Any:
    """Product; over nothing 1."""
    x = as_tensor(x, "prod")
    x = _ew.cast_to(x, "i32") if x.dtype == "bool" else x
    return _reduce(_rd.reduce_prod, x, _axes(x, axis, "prod"), keepdims)


@numpy_names
def mean(x: Any, axis: Axis = None, keepdims: bool = False) -> Any:
    """Arithmetic mean in f32; over nothing NaN."""
    x = _ew.cast_to(as_tensor(x, "mean"), "f32")
    axes = _axes(x, axis, "mean")
    count = numel([x.shape[a] for a in axes])
    total = _reduce(_rd.reduce_sum, x, axes, keepdims)
    return total * (1.0 / count) if count else total * float("nan")


@numpy_names
def var(x: Any, axis: Axis = None, keepdims: bool = False, correction: int = 0) -> Any:
    """Variance, mean((x − mean)²)·n/(n − correction); biased by default, as numpy.var."""
    x = _ew.cast_to(as_tensor(x, "var"), "f32")
    axes = _axes(x, axis, "var")
    count = numel([x.shape[a] for a in axes])
    centred = x - mean(x, axes, keepdims=True)
    total = sum(_fn.integer_pow(centred, exponent=2), axes, keepdims)
    return total * (1.0 / (count - correction)) if count > correction else total * float("nan")


@numpy_names
def max(x: Any, axis: Axis = None, keepdims: bool = False) -> Any:
    """Largest element; NaN if any is. The gradient is split evenly among ties."""
    return _extremum(_rd.reduce_max, x, axis, keepdims)


@numpy_names
def min(x: Any, axis: Axis = None, keepdims: bool = False) -> Any:
    """Smallest element; NaN if any is. The gradient is split evenly among ties."""
    return _extremum(_rd.reduce_min, x, axis, keepdims)


def _extremum(op: Any, x: Any, axis: Axis, keepdims: bool) -> Any:
    x = as_tensor(x, op.name)
    if x.dtype == "bool":
        return _ew.cast_to(_extremum(op, _ew.cast_to(x, "i32"), axis, keepdims), "bool")
    return _reduce(op, x, _axes(x, axis, op.name), keepdims)


def _arg(op: Any, x: Any, axis: int | None, keepdims: bool) -> Any:
    x = as_tensor(x, op.name)
    x = _ew.cast_to(x, "i32") if x.dtype == "bool" else x
    if axis is None:
        out = op(reshape(x, -1), axes=(0,))
        return reshape(out, (1,) * x.ndim) if keepdims else out
    return _reduce(op, x, (axis_of(axis, x.ndim, op.name),), keepdims)


@numpy_names
def argmax(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    """Index (i32) of the first largest element along ``axis`` (of the flat tensor by default)."""
    return _arg(_rd.argmax_, x, axis, keepdims)


@numpy_names
def argmin(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    """Index (i32) of the first smallest element along ``axis`` (of the flat tensor by default)."""
    return _arg(_rd.argmin_, x, axis, keepdims)


@numpy_names
def all(x: Any, axis: Axis = None, keepdims: bool = False) -> Any:
    """Whether every element is true (not zero)."""
    x = _ew.cast_to(_ew.cast_to(as_tensor(x, "all"), "bool"), "i32")
    return _ew.cast_to(_reduce(_rd.reduce_prod, x, _axes(x, axis, "all"), keepdims), "bool")


@numpy_names
def any(x: Any, axis: Axis = None, keepdims: bool = False) -> Any:
    """Whether some element is true (not zero)."""
    x = _ew.cast_to(_ew.cast_to(as_tensor(x, "any"), "bool"), "i32")
    return _ew.cast_to(_reduce(_rd.reduce_sum, x, _axes(x, axis, "any"), keepdims), "bool")


def _floats(x: Any, what: str) -> Any:
    x = as_tensor(x, what)
    if x.dtype != "f32":
        raise DtypeError(f"{what} needs an f32 tensor, found {x.dtype}")
    return x


@numpy_names
def logsumexp(x: Any, axis: Axis = -1, keepdims: bool = False) -> Any:
    """log Σ eˣ, shifted by the maximum; over nothing −inf."""
    x = _floats(x, "logsumexp")
    axes = _axes(x, axis, "logsumexp")
    if numel([x.shape[a] for a in axes]) == 0:
        return _fn.log(sum(x, axes, keepdims))
    peak = stop_gradient(_finite(max(x, axes, keepdims=True)))
    total = _fn.log(sum(_fn.exp(x - peak), axes, keepdims=True)) + peak
    return total if keepdims else reshape(total, tuple(n for a, n in enumerate(x.shape) if a not in axes))


def _finite(peak: Any) -> Any:
    """An infinite maximum must not be subtracted from itself."""
    return _ew.where(_ew.isfinite_(peak), peak, _ew.where(_ew.isnan_(peak), peak, 0.0))


@numpy_names
def softmax(x: Any, axis: int = -1) -> Any:
    """eˣ / Σ eˣ along ``axis``, shifted by the true maximum; a row of all −inf is NaN, as in torch."""
    e = _fn.exp(_shifted(_floats(x, "softmax"), axis))
    return e / sum(e, axis, keepdims=True)


@numpy_names
def log_softmax(x: Any, axis: int = -1) -> Any:
    """log softmax(x), without forming the quotient."""
    shifted = _shifted(_floats(x, "log_softmax"), axis)
    return shifted - _fn.log(sum(_fn.exp(shifted), axis, keepdims=True))


def _shifted(x: Any, axis: int) -> Any:
    """x minus its maximum along the axis."""
    return x - stop_gradient(max(x, axis, keepdims=True)) if x.size else x
