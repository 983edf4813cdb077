"""Optimizers: update rules over whole parameter arenas, written as graph operations.

An optimizer is a value (hyperparameters). `append_optimizer` puts its rule into a traced graph: gradients
are packed into an arena of the parameters' layout, the rule is elementwise over the arenas, and
`Graph.updates` commits parameters and state in place. Per-step factors (bias corrections) are computed
here in float64 and uploaded as f32 scalars, so every hyperparameter may change between steps.

``t`` counts applied updates, from 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from webgrad.errors import InputError
from webgrad.ir import Graph, Layout, Node
from webgrad.layout import make_layout
from webgrad.ops import elementwise as ew
from webgrad.ops import functions as fn
from webgrad.ops import movement as mv
from webgrad.trace import scalar_input, state_input, trace_into

Scalar = Callable[[str], Any]


@dataclass(frozen=True)
class Optimizer:
    """Base. Subclasses are frozen dataclasses of float hyperparameters with an ``lr``."""

    #: names of the state tensors kept per parameter
    slots: ClassVar[tuple[str, ...]] = ()

    def update(self, p: Any, g: Any, state: Mapping[str, Any], scalar: Scalar) -> tuple[Any, dict[str, Any]]:
        """New parameter and state tensors; ``scalar(name)`` is a per-step number of `scalars`."""
        raise NotImplementedError

    def scalars(self, t: int) -> dict[str, float]:
        """The per-step numbers at step ``t`` (from 1)."""
        raise NotImplementedError

    def hyper(self) -> dict[str, float]:
        """The hyperparameters that may change between steps."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: float(v) for name, v in values.items() if not isinstance(v, bool)}

    def __post_init__(self) -> None:
        name = type(self).__name__
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, bool):
                continue
            if not isinstance(value, int | float | np.number) or not math.isfinite(value) or value < 0:
                raise InputError(
                    f"{name}: {f.name} must be a finite number that is not negative, found {value!r}"
                )
            if f.name in ("b1", "b2") and value >= 1:
                raise InputError(f"{name}: {f.name} must be below 1, found {value!r}")

    def set(self, **hyper: float) -> Optimizer:
        """A copy with other hyperparameters. Raises `InputError` for an unknown name, a value that is no
        number, and a switch (such as ``nesterov``), which is compiled in.
        """
        hot = list(self.hyper())
        for name, value in hyper.items():
            if name not in hot:
                raise InputError(f"{type(self).__name__} has no hyperparameter {name!r} to set: it has {hot}")
            if isinstance(value, bool) or not isinstance(value, int | float | np.number):
                raise InputError(f"{name} must be a number, found {value!r}")
        return replace(self, **{name: float(value) for name, value in hyper.items()})


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent with momentum, as torch.optim.SGD (dampening 0):

    ``g ← g + weight_decay·p``; ``v ← momentum·v + g``; ``p ← p − lr·v``, or with Nesterov
    ``p ← p − lr·(g + momentum·v)``.
    """

    lr: float = 1e-2
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    slots = ("velocity",)

    def update(self, p: Any, g: Any, state: Mapping[str, Any], scalar: Scalar) -> tuple[Any, dict[str, Any]]:
        """See the class."""
        g = ew.add(g, ew.mul(p, scalar("weight_decay")))
        v = ew.add(ew.mul(state["velocity"], scalar("momentum")), g)
        step = ew.add(g, ew.mul(v, scalar("momentum"))) if self.nesterov else v
        return ew.sub(p, ew.mul(step, scalar("lr"))), {"velocity": v}

    def scalars(self, t: int) -> dict[str, float]:
        """lr, momentum, weight_decay."""
        return {"lr": self.lr, "momentum": self.momentum, "weight_decay": self.weight_decay}


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba, arXiv:1412.6980) with PyTorch's epsilon. With t from 1:

    ``m ← b1·m + (1−b1)·g``, ``v ← b2·v + (1−b2)·g²``, ``lrt = lr·sqrt(1−b2ᵗ)/(1−b1ᵗ)``,
    ``p ← p − lrt·m/(sqrt(v) + eps·sqrt(1−b2ᵗ))``.
    """

    lr: float = 1e-3
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8

    slots = ("m", "v")

    def update(self, p: Any, g: Any, state: Mapping[str, Any], scalar: Scalar) -> tuple[Any, dict[str, Any]]:
        """See the class."""
        m = ew.add(ew.mul(state["m"], scalar("b1")), ew.mul(g, scalar("1-b1")))
        v = ew.add(ew.mul(state["v"], scalar("b2")), ew.mul(ew.mul(g, g), scalar("1-b2")))
        step = ew.div(ew.mul(m, scalar("lrt")), ew.add(fn.sqrt_(v), scalar("eps")))
        return ew.sub(self.decayed(p, scalar), step), {"m": m, "v": v}

    def decayed(self, p: Any, scalar: Scalar) -> Any:
        """The parameter before the step."""
        return p

    def scalars(self, t: int) -> dict[str, float]:
        """b1, b2 and what follows from t."""
        correction = math.sqrt(1 - self.b2**t)
        return {
            "b1": self.b1,
            "1-b1": 1 - self.b1,
            "b2": self.b2,
            "1-b2": 1 - self.b2,
            "lrt": self.lr * correction / (1 - self.b1**t),
            "eps": self.eps * correction,
        }


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101), as torch.optim.AdamW:
    ``p ← p·(1 − lr·weight_decay)`` before Adam's step.
    """

    weight_decay: float = 1e-2

    def decayed(self, p: Any, scalar: Scalar) -> Any:
        """p·(1 − lr·weight_decay)."""
        return ew.mul(p, scalar("decay"))

    def scalars(self, t: int) -> dict[str, float]:
        """Adam's, and the decay factor."""
        return {**super().scalars(t), "decay": 1 - self.lr * self.weight_decay}


def grad_arena(arena: str) -> str:
    """Name of the gradient arena that matches a parameter arena."""
    return arena.replace("param/", "grad/", 1)


def slot_arena(slot: str, arena: str) -> str:
    """Name of an optimizer-state arena that matches a parameter arena."""
    return arena.replace("param/", f"opt.{slot}/", 1)


def append_optimizer(
    graph: Graph,
    grads: Mapping[str, Node],
    optimizer: Optimizer | None,
    max_arena_bytes: int = 128 * 1024 * 1024,
) -> Layout:
    """Pack ``grads`` into arenas and append ``optimizer``'s update of every parameter.

    Fills ``graph.layout`` and ``graph.updates``; returns the layout. Without an optimizer the gradients are
    only stored.
    """
    graph.layout = layout = make_layout(graph.params, max_arena_bytes)

    def build() -> None:
        for arena, size in layout.arenas.items():
            names = [n for n, r in layout.ranges.items() if r.arena == arena]
            if layout.ranges[names[0]].dtype != "f32":
                continue  # integer parameters do not train
            offsets = tuple(layout.ranges[n].offset for n in names)
            packed = mv.pack(*[grads[n] for n in names], size=size, offsets=offsets, dtype="f32")
            graph.updates.append((state_input(grad_arena(arena), (size,)), packed))
            if optimizer is None:
                continue
            p = state_input(arena, (size,))
            state = {slot: state_input(slot_arena(slot, arena), (size,)) for slot in optimizer.slots}
            new, slots = optimizer.update(p, packed, state, scalar_input)
            graph.updates += [*((state[s], slots[s]) for s in optimizer.slots), (p, new)]

    trace_into(graph, build)
    return layout


def append_adam(graph: Graph, grads: Mapping[str, Node], **hyper: float) -> Layout:
    """`append_optimizer` with `Adam(**hyper)`."""
    return append_optimizer(graph, grads, Adam(**hyper))
