"""Layers. Each has a function form (``linear_fwd(p, x)``) and is callable (``layer(x)``)."""

from __future__ import annotations

from typing import Any

from webgrad import functional as F
from webgrad.errors import ShapeError
from webgrad.nn.module import Module


class Linear(Module):
    """x @ W + b, with ``W [in_dim, out_dim]`` normal(0.02) and ``b [out_dim]`` zeros, or None.

    ``init`` and ``scale`` go to the weight's `Module.param`.
    """

    def __init__(
        self, in_dim: int, out_dim: int, bias: bool = True, *, init: Any = "randn", scale: float = 0.02
    ) -> None:
        self.W = self.param((in_dim, out_dim), init=init, scale=scale)
        self.b = self.param((out_dim,), init="zeros") if bias else None

    def __call__(self, x: Any) -> Any:
        """``x [..., in_dim] → [..., out_dim]``."""
        return linear_fwd(self, x)


def linear_fwd(p: Any, x: Any) -> Any:
    """x @ p.W + p.b."""
    if x.shape[-1:] != p.W.shape[:1]:
        raise ShapeError(f"Linear expects [..., {p.W.shape[0]}], found {x.shape}")
    y = F.matmul(x, p.W)
    return y if p.b is None else y + p.b


class LayerNorm(Module):
    """(x − mean)/√(var + eps)·g + b over the last axis of size ``d``; g ones, b zeros, biased variance."""

    def __init__(self, d: int, eps: float = 1e-5) -> None:
        self.g = self.param((d,), init="ones")
        self.b = self.param((d,), init="zeros")
        self.eps = eps

    def __call__(self, x: Any) -> Any:
        """``x [..., d] → [..., d]``."""
        return layer_norm_fwd(self, x)


def layer_norm_fwd(p: Any, x: Any) -> Any:
    """`functional.layer_norm` with the layer's gain, shift and eps."""
    if x.shape[-1:] != p.g.shape:
        raise ShapeError(f"LayerNorm expects [..., {p.g.shape[0]}], found {x.shape}")
    return F.layer_norm(x, p.g, p.b, p.eps)
