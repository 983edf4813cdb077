"""Reductions over one, several or all axes. ``axis=None`` is all; ``keepdims`` keeps size-1 axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webgrad.errors import DtypeError, ShapeError
from webgrad.functional.shape import as_tensor, axis_of, refuse_torch, reshape, stop_gradient
from webgrad.ir import numel
from webgrad.ops import elementwise as _ew
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


def sum(x: Any, axis: Axis = None, keepdims: bool = False, **torch: Any) -> Any:
    """Sum; of bools an i32 count; over nothing 0."""
    refuse_torch(torch, "sum")
    x = as_tensor(x, "sum")
    x = _ew.cast_to(x, "i32") if x.dtype == "bool" else x
    return _reduce(_rd.reduce_sum, x, _axes(x, axis, "sum"), keepdims)


def prod(x: Any, axis: Axis = None, keepdims: bool = False, **torch: Any) -> Any:
    """Product; over nothing 1."""
    refuse_torch(torch, "prod")
    x = as_tensor(x, "prod")
    x = _ew.cast_to(x, "i32") if x.dtype == "bool" else x
    return _reduce(_rd.reduce_prod, x, _axes(x, axis, "prod"), keepdims)


def mean(x: Any, axis: Axis = None, keepdims: bool = False, **torch: Any) -> Any:
    """Arithmetic mean in f32; over nothing NaN."""
    refuse_torch(torch, "mean")
    x = _ew.cast_to(as_tensor(x, "mean"), "f32")
    axes = _axes(x, axis, "mean")
    count = numel([x.shape[a] for a in axes])
    total = _reduce(_rd.reduce_sum, x, axes, keepdims)
    return total * (1.0 / count) if count else total * float("nan")


def var(x: Any, axis: Axis = None, keepdims: bool = False, correction: int = 0, **torch: Any) -> Any:
    """Variance, mean((x − mean)²)·n/(n − correction); biased by default, as numpy.var."""
    refuse_torch(torch, "var")
    x = _ew.cast_to(as_tensor(x, "var"), "f32")
    axes = _axes(x, axis, "var")
    count = numel([x.shape[a] for a in axes])
    centred = x - mean(x, axes, keepdims=True)
    total = sum(_ew.integer_pow(centred, exponent=2), axes, keepdims)
    return total * (1.0 / (count - correction)) if count > correction else total * float("nan")


def max(x: Any, axis: Axis = None, keepdims: bool = False, **torch: Any) -> Any:
    """Largest element; NaN if any is. The gradient is split evenly among ties."""
    refuse_torch(torch, "max")
    x = as_tensor(x, "max")
    return _reduce(_rd.reduce_max, x, _axes(x, axis, "max"), keepdims)


def min(x: Any, axis: Axis = None, keepdims: bool = False, **torch: Any) -> Any:
    """Smallest element; NaN if any is. The gradient is split evenly among ties."""
    refuse_torch(torch, "min")
    x = as_tensor(x, "min")
    return _reduce(_rd.reduce_min, x, _axes(x, axis, "min"), keepdims)


def _arg(op: Any, x: Any, axis: int | None, keepdims: bool) -> Any:
    x = as_tensor(x, op.name)
    x = _ew.cast_to(x, "i32") if x.dtype == "bool" else x
    if axis is None:
        out = op(reshape(x, -1), axes=(0,))
        return reshape(out, (1,) * x.ndim) if keepdims else out
    return _reduce(op, x, (axis_of(axis, x.ndim, op.name),), keepdims)


def argmax(x: Any, axis: int | None = None, keepdims: bool = False, **torch: Any) -> Any:
    """Index (i32) of the first largest element along ``axis`` (of the flat tensor by default)."""
    refuse_torch(torch, "argmax")
    return _arg(_rd.argmax_, x, axis, keepdims)


def argmin(x: Any, axis: int | None = None, keepdims: bool = False, **torch: Any) -> Any:
    """Index (i32) of the first smallest element along ``axis`` (of the flat tensor by default)."""
    refuse_torch(torch, "argmin")
    return _arg(_rd.argmin_, x, axis, keepdims)


def all(x: Any, axis: Axis = None, keepdims: bool = False) -> Any:
    """Whether every element is true (not zero)."""
    x = _ew.cast_to(_ew.cast_to(as_tensor(x, "all"), "bool"), "i32")
    return _ew.cast_to(_reduce(_rd.reduce_prod, x, _axes(x, axis, "all"), keepdims), "bool")


def any(x: Any, axis: Axis = None, keepdims: bool = False) -> Any:
    """Whether some element is true (not zero)."""
    x = _ew.cast_to(_ew.cast_to(as_tensor(x, "any"), "bool"), "i32")
    return _ew.cast_to(_reduce(_rd.reduce_sum, x, _axes(x, axis, "any"), keepdims), "bool")


def _floats(x: Any, what: str) -> Any:
    x = as_tensor(x, what)
    if x.dtype != "f32":
        raise DtypeError(f"{what} needs an f32 tensor, found {x.dtype}")
    return x


def logsumexp(x: Any, axis: Axis = -1, keepdims: bool = False) -> Any:
    """log Σ eˣ, shifted by the maximum."""
    x = _floats(x, "logsumexp")
    axes = _axes(x, axis, "logsumexp")
    peak = stop_gradient(_finite(max(x, axes, keepdims=True)))
    total = _ew.log(sum(_ew.exp(x - peak), axes, keepdims=True)) + peak
    return total if keepdims else reshape(total, tuple(n for a, n in enumerate(x.shape) if a not in axes))


def _finite(peak: Any) -> Any:
    """An infinite maximum must not be subtracted from itself."""
    return _ew.where(_ew.isfinite_(peak), peak, _ew.where(_ew.isnan_(peak), peak, 0.0))


def softmax(x: Any, axis: int = -1) -> Any:
    """eˣ / Σ eˣ along ``axis``, shifted by the true maximum; a row of all −inf is NaN, as in torch."""
    x = _floats(x, "softmax")
    e = _ew.exp(x - stop_gradient(max(x, axis, keepdims=True)))
    return e / sum(e, axis, keepdims=True)


def log_softmax(x: Any, axis: int = -1) -> Any:
    """log softmax(x), without forming the quotient."""
    x = _floats(x, "log_softmax")
    shifted = x - stop_gradient(max(x, axis, keepdims=True))
    return shifted - _ew.log(sum(_ew.exp(shifted), axis, keepdims=True))
