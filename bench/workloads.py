"""The benchmark's workloads: models, initial weights and batches, the same for webgrad and its peers.

    W1  MLP 1-64-64-1, batch 256, MSE, Adam            W2  MLP 784-256-128-10, batch 128, cross-entropy, Adam
    W3  causal transformer, 2 layers of width 64       W4  CNN 28x28 with 8 and 16 channels, batch 32
    W5  matmul                                         W6  addition transformer, 3 layers, AdamW and clipping

Weights of linear layers are [in, out], of convolutions [out, in, kh, kw]; images are NCHW. The random numbers
come from one small generator that JavaScript computes alike (mulberry32, Box-Muller).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

import webgrad as wg
from webgrad import nn
from webgrad.optim import Group, vectors

BATCHES = 8


class Random:
    """mulberry32: the i-th number is a pure function of seed and i, so NumPy can draw many at once."""

    def __init__(self, seed: int) -> None:
        self.seed, self.drawn = seed, 0

    def uniform(self, count: int) -> NDArray[np.float64]:
        """``count`` numbers in [0, 1)."""
        i = np.arange(self.drawn + 1, self.drawn + count + 1, dtype=np.uint32)
        self.drawn += count
        with np.errstate(over="ignore"):
            a = np.uint32(self.seed) + i * np.uint32(0x6D2B79F5)
            t = (a ^ (a >> np.uint32(15))) * (np.uint32(1) | a)
            t = (t + (t ^ (t >> np.uint32(7))) * (np.uint32(61) | t)) ^ t
        return (t ^ (t >> np.uint32(14))) / 4294967296

    def one(self) -> float:
        """One number in [0, 1)."""
        return float(self.uniform(1)[0])

    def normal(self, count: int, scale: float) -> NDArray[np.float32]:
        """``count`` normal numbers."""
        u = self.uniform(2 * count).reshape(count, 2)
        return (scale * np.sqrt(-2 * np.log(1 - u[:, 0])) * np.cos(2 * np.pi * u[:, 1])).astype(np.float32)


class MLP(nn.Module):
    """Linear layers l1, l2, … with ReLU between them."""

    def __init__(self, *sizes: int) -> None:
        for number, (a, b) in enumerate(pairwise(sizes), 1):
            setattr(self, f"l{number}", nn.Linear(a, b))
        self.count = len(sizes) - 1

    def __call__(self, x: Any) -> Any:
        """[B, first] to [B, last]."""
        for number in range(1, self.count):
            x = wg.relu(getattr(self, f"l{number}")(x))
        return getattr(self, f"l{self.count}")(x)


class CNN(nn.Module):
    """conv 3x3x8, ReLU, pool 2, conv 3x3x16, ReLU, pool 2, linear 10."""

    def __init__(self) -> None:
        self.conv1, self.conv2 = ConvLayer(1, 8), ConvLayer(8, 16)
        self.fc = nn.Linear(16 * 7 * 7, 10)

    def __call__(self, x: Any) -> Any:
        """[B, 784] to [B, 10]."""
        x = wg.reshape(x, -1, 1, 28, 28)
        for layer in (self.conv1, self.conv2):
            x = wg.max_pool2d(wg.relu(wg.conv2d(x, layer.W, layer.b, padding=1)), 2)
        return self.fc(wg.reshape(x, x.shape[0], -1))


class ConvLayer(nn.Module):
    """The parameters of one convolution."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.W = self.param((outputs, inputs, 3, 3))
        self.b = self.param((outputs,), init="zeros")


class Block(nn.Module):
    """A pre-LayerNorm transformer block."""

    def __init__(self, width: int, heads: int, activation: Callable[[Any], Any]) -> None:
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads, self.activation = heads, activation

    def __call__(self, x: Any) -> Any:
        """[B, T, D] to [B, T, D]."""
        b, t, d = x.shape
        h = self.ln1(x)
        split = lambda y: wg.transpose(wg.reshape(y, b, t, self.heads, d // self.heads), 0, 2, 1, 3)  # noqa: E731
        q, k, v = split(self.q(h)), split(self.k(h)), split(self.v(h))
        scores = q @ wg.swapaxes(k, -1, -2) * (1 / np.sqrt(d // self.heads))
        mixed = wg.transpose(wg.softmax_causal(scores) @ v, 0, 2, 1, 3)
        x = x + self.o(wg.reshape(mixed, b, t, d))
        return x + self.down(self.activation(self.up(self.ln2(x))))


class Transformer(nn.Module):
    """Token and position embeddings, blocks, a last LayerNorm, and the tied token table as the head."""

    def __init__(
        self, vocabulary: int, length: int, width: int, heads: int, layers: int, activation: Any
    ) -> None:
        self.tok = self.param((vocabulary, width))
        self.pos = self.param((length, width))
        self.layers = [Block(width, heads, activation) for _ in range(layers)]
        self.lnf = nn.LayerNorm(width)

    def __call__(self, ids: Any) -> Any:
        """[B, T] ids to [B, T, V] logits."""
        x = wg.embedding(self.tok, ids) + self.pos
        for layer in self.layers:
            x = layer(x)
        return self.lnf(x) @ wg.transpose(self.tok)


@dataclass(frozen=True)
class Workload:
    """How to build one: factory, loss, inputs and optimizer."""

    title: str
    model: Callable[[], nn.Module]
    loss: Callable[..., Any]
    inputs: dict[str, Any]
    optimizer: wg.optim.Optimizer


def _regression(model: Any, x: Any, y: Any) -> Any:
    return wg.mse(model(x), y)


def _classification(model: Any, x: Any, y: Any) -> Any:
    return wg.cross_entropy(model(x), y)


def _addition(model: Any, x: Any, y: Any) -> Any:
    return wg.cross_entropy(model(x)[:, 5:], y[:, 5:])


WORKLOADS = {
    "W1": Workload(
        "MLP regression",
        lambda: MLP(1, 64, 64, 1),
        _regression,
        {"x": (256, 1), "y": (256, 1)},
        wg.optim.Adam(lr=0.005),
    ),
    "W2": Workload(
        "wide MLP classifier",
        lambda: MLP(784, 256, 128, 10),
        _classification,
        {"x": (128, 784), "y": wg.Input((128,), "i32")},
        wg.optim.Adam(lr=0.001),
    ),
    "W3": Workload(
        "causal transformer",
        lambda: Transformer(65, 64, 64, 4, 2, wg.gelu),
        _classification,
        {"x": wg.Input((8, 64), "i32"), "y": wg.Input((8, 64), "i32")},
        wg.optim.Adam(lr=0.001),
    ),
    "W4": Workload(
        "small CNN",
        CNN,
        _classification,
        {"x": (32, 784), "y": wg.Input((32,), "i32")},
        wg.optim.Adam(lr=0.001),
    ),
    "W6": Workload(
        "addition transformer",
        lambda: Transformer(12, 8, 64, 4, 3, wg.relu),
        _addition,
        {"x": wg.Input((128, 8), "i32"), "y": wg.Input((128, 8), "i32")},
        wg.optim.AdamW(lr=0.002, weight_decay=0.01, clip_norm=1.0, groups=[Group(vectors, weight_decay=0)]),
    ),
}


@dataclass(frozen=True)
class Product:
    """A matrix product of W5, [batch, m, k] by [batch, k, n]; no batch axis where ``batch`` is 1."""

    batch: int
    m: int
    k: int
    n: int

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.batch * self.m * self.k * self.n

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of the operands."""
        batch = () if self.batch == 1 else (self.batch,)
        return (*batch, self.m, self.k), (*batch, self.k, self.n)


PRODUCTS = {
    "256³": Product(1, 256, 256, 256),
    "512³": Product(1, 512, 512, 512),
    "1024³": Product(1, 1024, 1024, 1024),
    "8×128×64×128": Product(8, 128, 64, 128),
}


def operands(product: Product) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Both operands, the second scaled so that a chain of products keeps its magnitude."""
    r = Random(7)
    left, right = product.shapes
    a = r.normal(int(np.prod(left)), 1.0).reshape(left)
    return a, r.normal(int(np.prod(right)), float(1 / np.sqrt(product.k))).reshape(right)


def initial_params(name: str) -> dict[str, NDArray[np.float32]]:
    """Initial weights by webgrad's parameter paths."""
    r = Random(1234)
    found: dict[str, NDArray[np.float32]] = {}

    def weight(path: str, shape: tuple[int, ...], scale: float) -> None:
        found[path] = r.normal(int(np.prod(shape)), scale).reshape(shape)

    def linear(path: str, i: int, o: int, bias: bool = True, gain: float = 2.0) -> None:
        weight(f"{path}.W", (i, o), float(np.sqrt(gain / i)))
        if bias:
            found[f"{path}.b"] = np.zeros(o, np.float32)

    if name in ("W1", "W2"):
        sizes = (1, 64, 64, 1) if name == "W1" else (784, 256, 128, 10)
        for number, (a, b) in enumerate(pairwise(sizes), 1):
            linear(f"l{number}", a, b)
    elif name == "W4":
        weight("conv1.W", (8, 1, 3, 3), float(np.sqrt(2 / 9)))
        found["conv1.b"] = np.zeros(8, np.float32)
        weight("conv2.W", (16, 8, 3, 3), float(np.sqrt(2 / 72)))
        found["conv2.b"] = np.zeros(16, np.float32)
        linear("fc", 16 * 7 * 7, 10)
    else:
        v, t, layers, d = (65, 64, 2, 64) if name == "W3" else (12, 8, 3, 64)
        weight("tok", (v, d), 0.05)
        weight("pos", (t, d), 0.05)
        norms = []
        for i in range(layers):
            block = f"layers.{i}"
            norms += [f"{block}.ln1", f"{block}.ln2"]
            for part in "qkvo":
                linear(f"{block}.{part}", d, d, False, 1)
            linear(f"{block}.up", d, 4 * d, True, 1)
            linear(f"{block}.down", 4 * d, d, True, 1)
        for norm in [*norms, "lnf"]:
            found[f"{norm}.g"], found[f"{norm}.b"] = np.ones(d, np.float32), np.zeros(d, np.float32)
    return found


def batches(name: str) -> list[dict[str, NDArray[Any]]]:
    """`BATCHES` batches of inputs."""
    r = Random(99)
    protos = r.normal(7840, 1.0).reshape(10, 784) if name in ("W2", "W4") else None
    return [_batch(name, r, protos) for _ in range(BATCHES)]


def _batch(name: str, r: Random, protos: Any) -> dict[str, NDArray[Any]]:
    if name == "W1":
        x = ((r.uniform(256) * 2 - 1) * np.pi).astype(np.float32).reshape(256, 1)
        return {"x": x, "y": np.sin(x)}
    if name in ("W2", "W4"):
        size = 128 if name == "W2" else 32
        x = r.normal(size * 784, 1.0).reshape(size, 784)
        y = np.floor(r.uniform(size) * 10).astype(np.int32)
        return {"x": (x + 0.5 * protos[y]).astype(np.float32), "y": y}
    if name == "W6":
        x, y = np.zeros((2, 128, 8), np.int32)
        for row in range(128):
            a, b = int(r.one() * 100), int(r.one() * 100)
            digits = [*f"{a:02}", 10, *f"{b:02}", 11, *f"{a + b:03}"]
            sequence = [int(d) for d in digits]
            x[row], y[row] = sequence[:8], sequence[1:]
        return {"x": x, "y": y}
    x, y = np.zeros((2, 8, 64), np.int32)
    for row in range(8):
        token = int(r.one() * 65)
        for t in range(64):
            x[row, t] = token
            token = (token * 7 + 3) % 65 if r.one() < 0.9 else int(r.one() * 65)
            y[row, t] = token
    return {"x": x, "y": y}
