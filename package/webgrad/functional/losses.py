"""Losses. ``reduction`` is "mean" (default), "sum" or "none", as in torch."""

from __future__ import annotations

from typing import Any

from webgrad.errors import DtypeError, InputError, ShapeError
from webgrad.functional import math as _m
from webgrad.functional import reductions as _r
from webgrad.functional.neural import take_along_last
from webgrad.functional.shape import as_tensor

__all__ = ["cross_entropy", "mse"]


def _reduced(values: Any, reduction: str) -> Any:
    if reduction == "none":
        return values
    if reduction not in ("mean", "sum"):
        raise InputError(f'reduction must be "mean", "sum" or "none", found {reduction!r}')
    return _r.mean(values) if reduction == "mean" else _r.sum(values)


def mse(prediction: Any, target: Any, reduction: str = "mean") -> Any:
    """(prediction − target)². The two must have one shape: a silent broadcast is never meant."""
    prediction, target = as_tensor(prediction, "mse"), as_tensor(target, "mse")
    if prediction.shape != target.shape:
        raise ShapeError(f"mse: prediction {prediction.shape} and target {target.shape} must have one shape")
    return _reduced(_m.square(prediction - target), reduction)


def cross_entropy(logits: Any, targets: Any, reduction: str = "mean") -> Any:
    """−log softmax(logits)[target] over the last axis: ``logits […, C]``, integer ``targets […]``.

    The classes stand on the *last* axis (torch: the second). Targets from inputs must be in [0, C).
    """
    logits, targets = as_tensor(logits, "cross_entropy"), as_tensor(targets, "cross_entropy")
    if targets.dtype not in ("i32", "u32"):
        raise DtypeError(
            f"cross_entropy needs integer targets of shape {logits.shape[:-1]}, found {targets.dtype} of "
            f'shape {targets.shape}: declare the input with webgrad.Input(shape, "i32")'
        )
    if targets.shape != logits.shape[:-1]:
        raise ShapeError(
            f"cross_entropy: targets {targets.shape} must have the shape of the logits {logits.shape} "
            "without their last axis"
        )
    return _reduced(-take_along_last(_r.log_softmax(logits), targets), reduction)
