"""Optimizers: update rules over whole parameter arenas, written as graph operations.

An optimizer is a value (hyperparameters). `append_optimizer` puts its rule into a traced graph: gradients
are packed into an arena of the parameters' layout, the rule is elementwise over the arenas, and
`Graph.updates` commits parameters and state in place. Per-step factors (bias corrections) are computed
here in float64 and uploaded as f32 scalars, so every hyperparameter may change between steps.

Every optimizer also takes, by keyword,

- ``clip_norm``: gradients are clipped to this global norm before the rule, as torch's ``clip_grad_norm_``:
  ``g ← g · min(1, clip_norm / (‖g‖₂ + 1e-6))``, with the norm over the gradients of all parameters. Where a
  gradient is infinite, so is the norm: finite gradients become 0 and infinite ones NaN. A NaN makes all NaN.
- ``groups``: `Group`s of parameters whose ``lr`` and ``weight_decay`` are multiplied by factors.

``t`` counts applied updates, from 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import numpy as np

from webgrad.errors import InputError
from webgrad.groups import Factors, Group, Grouping, resolve
from webgrad.groups import vectors as vectors
from webgrad.ir import Graph, Layout, Node
from webgrad.layout import make_layout
from webgrad.ops import elementwise as ew
from webgrad.ops import functions as fn
from webgrad.ops import leaves
from webgrad.ops import movement as mv
from webgrad.ops import reduce as rd
from webgrad.trace import scalar_input, state_input, trace_into

Scalar = Callable[[str], Any]


@dataclass(frozen=True)
class Optimizer:
    """Base. Subclasses are frozen dataclasses of float hyperparameters with an ``lr``."""

    clip_norm: float | None = field(default=None, kw_only=True)
    groups: tuple[Group, ...] = field(default=(), kw_only=True)

    #: names of the state tensors kept per parameter
    slots: ClassVar[tuple[str, ...]] = ()
    #: hyperparameter that groups may multiply -> the `scalars` that follow from it
    grouped: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def update(self, p: Any, g: Any, state: Mapping[str, Any], scalar: Scalar) -> tuple[Any, dict[str, Any]]:
        """New parameter and state tensors; ``scalar(name)`` is a per-step number of `scalars`."""
        raise NotImplementedError

    def scalars(self, t: int) -> dict[str, float]:
        """The per-step numbers at step ``t`` (from 1)."""
        raise NotImplementedError

    def hyper(self) -> dict[str, float]:
        """The hyperparameters that may change between steps."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "groups"}
        return {n: float(v) for n, v in values.items() if v is not None and not isinstance(v, bool)}

    def __post_init__(self) -> None:
        name = type(self).__name__
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, bool) or f.name == "groups" or (f.name == "clip_norm" and value is None):
                continue
            if not isinstance(value, int | float | np.number) or not math.isfinite(value) or value < 0:
                raise InputError(
                    f"{name}: {f.name} must be a finite number that is not negative, found {value!r}"
                )
            if f.name in ("b1", "b2") and value >= 1:
                raise InputError(f"{name}: {f.name} must be below 1, found {value!r}")
            if f.name == "clip_norm" and value == 0:
                raise InputError(f"{name}: clip_norm must be positive, found 0: give None to clip nothing")
        self._check_groups()

    def _check_groups(self) -> None:
        name = type(self).__name__
        groups = (self.groups,) if isinstance(self.groups, Group) else self.groups
        if not isinstance(groups, tuple | list) or not all(isinstance(g, Group) for g in groups):
            raise InputError(f"{name}: groups must be webgrad.optim.Group values, found {self.groups!r}")
        object.__setattr__(self, "groups", tuple(groups))
        for group in groups:
            if group.weight_decay != 1 and "weight_decay" not in self.grouped:
                raise InputError(f"{name} has no weight_decay for {group} to multiply: AdamW and SGD have")

    def grouping(self, params: Mapping[str, Node]) -> Grouping:
        """Factors of the parameters that train. Raises `InputError` for a group that matches none."""
        return resolve(self.groups, {n: p.shape for n, p in params.items() if p.dtype == "f32"})

    def grouped_by(self, grouping: Grouping) -> tuple[Optimizer, ...]:
        """The optimizer of each group of factors: this one, its hyperparameters multiplied."""

        def multiplied(factors: Factors) -> Optimizer:
            own: dict[str, Any] = {h: getattr(self, h) * getattr(factors, h) for h in self.grouped}
            return replace(self, **own)

        return tuple(map(multiplied, grouping.factors))

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
        values: dict[str, Any] = {name: float(value) for name, value in hyper.items()}
        return replace(self, **values)


def per_step(groups: Sequence[Optimizer], t: int) -> dict[str, float]:
    """All numbers of step ``t`` (from 1) by name, given `Optimizer.grouped_by`: the first group's plainly,
    the k-th's as ``name/k``, and ``clip_norm``.
    """
    clip = groups[0].clip_norm
    found = {} if clip is None else {"clip_norm": clip}
    for number, optimizer in enumerate(groups):
        found |= {_numbered(name, number): value for name, value in optimizer.scalars(t).items()}
    return found


def _numbered(name: str, number: int) -> str:
    return f"{name}/{number}" if number else name


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
    grouped: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "lr": ("lr",),
        "weight_decay": ("weight_decay",),
    }

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
    grouped: ClassVar[Mapping[str, tuple[str, ...]]] = {"lr": ("lrt",)}

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

    grouped: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "lr": ("lrt", "decay"),
        "weight_decay": ("decay",),
    }

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
    only stored. Raises `InputError` for a group that matches no parameter.
    """
    grouping = optimizer.grouping(graph.params) if optimizer is not None else resolve((), {})
    graph.layout = layout = make_layout(graph.params, max_arena_bytes, order=grouping.member)

    def build() -> None:
        packed: dict[str, Any] = {}
        for arena, size in layout.arenas.items():
            names = [n for n, r in layout.ranges.items() if r.arena == arena]
            if layout.ranges[names[0]].dtype != "f32":
                continue  # integer parameters do not train
            offsets = tuple(layout.ranges[n].offset for n in names)
            packed[arena] = mv.pack(*[grads[n] for n in names], size=size, offsets=offsets, dtype="f32")
            graph.updates.append((state_input(grad_arena(arena), (size,)), packed[arena]))
        if optimizer is None:
            return
        used = packed if optimizer.clip_norm is None else _clipped(packed)
        for arena, g in used.items():
            p = state_input(arena, g.shape)
            state = {slot: state_input(slot_arena(slot, arena), g.shape) for slot in optimizer.slots}
            new, slots = optimizer.update(p, g, state, _Scalars(optimizer, grouping, layout, arena))
            graph.updates += [*((state[s], slots[s]) for s in optimizer.slots), (p, new)]

    trace_into(graph, build)
    return layout


#: partial sums of squares of an arena: few enough to be summed again by every row of the update
_FEW, _MANY = 64, 256


def _clipped(grads: Mapping[str, Any]) -> dict[str, Any]:
    """The gradients times ``min(1, clip_norm / (norm + 1e-6))``, over all arenas.

    One kernel makes partial sums of squares. The update's kernel, in rows as long as there are partial sums,
    sums them in every row: that costs one load an element, and no kernel.
    """
    parts = _FEW if max(g.size for g in grads.values()) <= _FEW * 1024 else _MANY
    total: Any = None
    for g in grads.values():
        rows = mv.reshape(g, shape=(parts, g.size // parts))
        squares = rd.reduce_sum(ew.mul(rows, rows), axes=(1,))
        total = squares if total is None else ew.add(total, squares)
    found = {}
    for arena, g in grads.items():
        rows = mv.reshape(g, shape=(g.size // parts, parts))
        whole = mv.broadcast(mv.reshape(total, shape=(1, parts)), shape=rows.shape)
        norm = fn.sqrt_(rd.reduce_sum(whole, axes=(1,)))
        scale = ew.minimum_(ew.div(scalar_input("clip_norm"), ew.add(norm, 1e-6)), 1.0)
        scale = mv.broadcast(mv.reshape(scale, shape=(*norm.shape, 1)), shape=rows.shape)
        found[arena] = mv.reshape(ew.mul(rows, scale), shape=g.shape)
    return found


class _Scalars:
    """The per-step numbers of an arena, by name: rank 0, or one for each element where groups differ."""

    def __init__(self, optimizer: Optimizer, grouping: Grouping, layout: Layout, arena: str) -> None:
        here = sorted((r.offset, grouping.member[n]) for n, r in layout.ranges.items() if r.arena == arena)
        #: (first element, number of the factors), where the number changes
        self.runs = [run for i, run in enumerate(here) if i == 0 or run[1] != here[i - 1][1]]
        self.size = layout.arenas[arena]
        differ = [h for h in optimizer.grouped if len({getattr(f, h) for f in grouping.factors}) > 1]
        self.varying = {name for h in differ for name in optimizer.grouped[h]}

    def __call__(self, name: str) -> Any:
        """The number, chosen by the element's index."""
        (_, first), *rest = self.runs
        value = scalar_input(_numbered(name, first if name in self.varying else 0))
        if name not in self.varying or not rest:
            return value
        index = leaves.iota(shape=(self.size,), axis=0)
        for start, number in rest:
            value = ew.where(ew.lt(index, start), value, scalar_input(_numbered(name, number)))
        return value


def append_adam(graph: Graph, grads: Mapping[str, Node], **hyper: Any) -> Layout:
    """`append_optimizer` with `Adam(**hyper)`."""
    return append_optimizer(graph, grads, Adam(**hyper))
