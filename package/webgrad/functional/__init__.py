"""The public functions on tensors: compositions of primitives, named as NumPy (arrays) and torch (layers).

math         arithmetic, comparison, activations: one value in, one out
shape        reshape, indexing, joining: the same values elsewhere
reductions   sum, mean, max, argmax, softmax: many values to one
neural       matmul, convolution, pooling, embedding, normalisation, dropout
losses       mse, cross_entropy
"""

from webgrad.functional import losses, math, neural, reductions, shape
from webgrad.functional.losses import *  # noqa: F403
from webgrad.functional.math import *  # noqa: F403
from webgrad.functional.neural import *  # noqa: F403
from webgrad.functional.reductions import *  # noqa: F403
from webgrad.functional.shape import *  # noqa: F403

__all__ = [*losses.__all__, *math.__all__, *neural.__all__, *reductions.__all__, *shape.__all__]
