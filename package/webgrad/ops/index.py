"""Indexing by data: gather, its adjoint, and one-element picks.

An index in the graph is clamped to its axis; ids that come from inputs are checked on the host
(`webgrad.trace.mark_ids`), so only ids made in the graph ever clamp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from webgrad.errors import DtypeError, ShapeError
from webgrad.ir import Node, Shape
from webgrad.ops.base import Array, Op
from webgrad.ops.leaves import iota
from webgrad.ops.movement import broadcast, reshape


def _check_ids(op: str, ids: Node) -> None:
    if ids.dtype not in ("i32", "u32"):
        raise DtypeError(f"{op} needs integer ids, found {ids.dtype}: declare the input as i32")


class Gather(Op):
    """Rows of a table: ``table [V, …], ids [*I] → [*I, …]``."""

    name, family, cost = "gather", "index", 1

    def infer(self, inputs: tuple[Node, ...], attrs: Mapping[str, Any]) -> tuple[Shape, str]:
        table, ids = inputs
        _check_ids(self.name, ids)
        if not table.shape or (table.shape[0] == 0 and ids.size):
            raise ShapeError(f"gather needs a table with rows, found shape {table.shape}")
        return ids.shape + table.shape[1:], table.dtype

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        table, ids = node.inputs
        return scatter_add(ids, dy, size=table.shape[0]), None

    def numpy(self, attrs: Mapping[str, Any], *args: Array) -> Array:
        table, ids = args
        return table[np.clip(ids, 0, max(len(table) - 1, 0))]

    def index_map(self, node: Node, coords: tuple[Any, ...], index: Any) -> tuple[Any, ...]:
        """Table coordinates, given the ids' value ``index`` as an integer expression."""
        return (index, *coords[node.inputs[1].ndim :])


class ScatterAdd(Op):
    """Sum of rows by id: ``ids [*I], updates [*I, …] → [size, …]``; repeated ids add in row order."""

    name, family, cost = "scatter_add", "scatter", 1

    def infer(self, inputs: tuple[Node, ...], attrs: Mapping[str, Any]) -> tuple[Shape, str]:
        ids, updates = inputs
        _check_ids(self.name, ids)
        if updates.shape[: ids.ndim] != ids.shape:
            raise ShapeError(f"scatter_add: updates {updates.shape} must start with the ids' {ids.shape}")
        if updates.dtype == "bool":
            raise DtypeError("scatter_add sums numbers, found bool: cast to i32 first")
        if attrs["size"] < (1 if ids.size else 0):
            raise ShapeError(f"scatter_add: {attrs['size']} rows hold no {ids.size} updates")
        return (attrs["size"], *updates.shape[ids.ndim :]), updates.dtype

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        return None, gather(dy, node.inputs[0])

    def numpy(self, attrs: Mapping[str, Any], *args: Array) -> Array:
        ids, updates = args
        out = np.zeros((attrs["size"], *updates.shape[ids.ndim :]), dtype=updates.dtype)
        np.add.at(out, np.clip(ids, 0, attrs["size"] - 1), updates)
        return out


class Pick(Op):
    """One element of the last axis each: ``x […, n], ids […] → […]`` (of a max-pool window, of a
    row of log-probabilities).
    """

    name, family, cost = "pick", "index", 1

    def infer(self, inputs: tuple[Node, ...], attrs: Mapping[str, Any]) -> tuple[Shape, str]:
        x, ids = inputs
        _check_ids(self.name, ids)
        if x.shape[:-1] != ids.shape or not x.shape or (x.shape[-1] == 0 and ids.size):
            raise ShapeError(f"pick: ids {ids.shape} must have the shape of {x.shape} without its last axis")
        return ids.shape, x.dtype

    def vjp(self, node: Any, dy: Any) -> tuple[Any, ...]:
        from webgrad.ops.elementwise import eq, maximum_, minimum_, where

        x, ids = node.inputs
        inside = minimum_(maximum_(ids, 0), x.shape[-1] - 1)
        here = eq(iota(shape=x.shape, axis=x.ndim - 1), spread(inside, x.shape))
        return where(here, spread(dy, x.shape), 0.0), None

    def numpy(self, attrs: Mapping[str, Any], *args: Array) -> Array:
        x, ids = args
        at = np.clip(ids, 0, max(x.shape[-1] - 1, 0)).astype(np.int64)
        return np.take_along_axis(x, at[..., None], axis=-1)[..., 0]

    def index_map(self, node: Node, coords: tuple[Any, ...], index: Any) -> tuple[Any, ...]:
        """x's coordinates, given the ids' value ``index`` as an integer expression."""
        return (*coords, index)


def spread(t: Any, shape: Shape) -> Any:
    """``t […]`` repeated along a new last axis to ``shape``."""
    return broadcast(reshape(t, shape=(*t.shape, 1)), shape=shape)


gather, scatter_add, pick = Gather(), ScatterAdd(), Pick()
