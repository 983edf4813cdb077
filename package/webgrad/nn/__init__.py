"""Modules, initialisers and layers."""

from webgrad.nn import init
from webgrad.nn.layers import LayerNorm, Linear, layer_norm_fwd, linear_fwd
from webgrad.nn.module import Module, Parameter, initial_values, materialize_params

__all__ = [
    "LayerNorm", "Linear", "Module", "Parameter", "init", "initial_values", "layer_norm_fwd", "linear_fwd",
    "materialize_params",
]  # fmt: skip
