"""ParamStore: owns the arenas of parameters, gradients and optimizer state on one executor.

Programs hold arenas as externals, by key, so several programs (training, inference, other batch sizes)
read and write the same bytes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from webgrad.arrays import check_names, convert, from_bytes
from webgrad.errors import InputError, ShapeError
from webgrad.ir import ITEM_BYTES, ArenaRange, Layout, Shape, numel
from webgrad.runtime.executor import Executor


@dataclass(frozen=True)
class ParamHandle:
    """Where a parameter is: ``nbytes`` bytes at ``offset`` of the arena. It holds no values."""

    name: str
    shape: Shape
    dtype: str
    arena: str
    offset: int
    nbytes: int


class Params(Mapping[str, ParamHandle]):
    """A program's parameters by name; give it to ``compile_forward(shared_params=…)``."""

    def __init__(self, store: ParamStore, layout: Layout) -> None:
        self.store, self.layout = store, layout

    def __getitem__(self, name: str) -> ParamHandle:
        r = self.layout.ranges[name]
        return ParamHandle(name, r.shape, r.dtype, r.arena, r.offset * ITEM_BYTES, numel(r.shape) * ITEM_BYTES)

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout.ranges)

    def __len__(self) -> int:
        return len(self.layout.ranges)

    def __repr__(self) -> str:
        return "Params(" + ", ".join(f"{p.name} {p.dtype}{list(p.shape)}" for p in self.values()) + ")"


class ParamStore:
    """Arena buffers by key, and the values in them."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.arenas: dict[str, tuple[int, int]] = {}
        self.destroyed = False

    def ensure(self, key: str, nbytes: int) -> int:
        """The arena's handle; made, zeroed, at first use."""
        self.check()
        if key not in self.arenas:
            self.arenas[key] = (self.executor.allocate(nbytes, key), nbytes)
        return self.arenas[key][0]

    def check(self) -> None:
        """Raise `InputError` after `destroy`."""
        if self.destroyed:
            raise InputError("these parameters were destroyed: keep the program that owns them alive")

    def clear(self, keys: list[str]) -> None:
        """Queue zeros into whole arenas."""
        for key in keys:
            handle, nbytes = self.arenas[key]
            self.executor.clear(handle, 0, nbytes)

    def upload(self, layout: Layout, values: Mapping[str, Any], partial: bool) -> None:
        """Write parameters. Names and sizes are all checked before anything is written."""
        self.check()
        expected = {n: r for n, r in layout.ranges.items() if n in values or not partial}
        check_names(values, expected, "upload_params")
        ready = [(layout.ranges[name], _fit(name, value, layout.ranges[name])) for name, value in values.items()]
        for where, array in ready:
            if array.size:
                self.executor.write(self.arenas[where.arena][0], where.offset * ITEM_BYTES, array)

    async def download(self, layout: Layout, rename: Any = lambda arena: arena) -> dict[str, NDArray[Any]]:
        """Every parameter's values (or those of the arenas ``rename`` leads to)."""
        self.check()
        used = {a: rename(a) for a in layout.arenas if rename(a) in self.arenas}
        pending: dict[str, Awaitable[Any]] = {}
        for arena, key in used.items():
            handle, nbytes = self.arenas[key]
            pending[arena] = self.executor.read(handle, 0, nbytes)
        raw = {arena: await reading for arena, reading in pending.items()}
        found = {}
        for name, r in layout.ranges.items():
            if r.arena in raw:
                start = r.offset * ITEM_BYTES
                found[name] = from_bytes(raw[r.arena][start : start + numel(r.shape) * ITEM_BYTES], r.shape, r.dtype)
        return found

    def destroy(self) -> None:
        """Free every arena. Idempotent."""
        for handle, _ in self.arenas.values():
            self.executor.free(handle)
        self.arenas.clear()
        self.destroyed = True


def _fit(name: str, value: Any, where: ArenaRange) -> NDArray[Any]:
    array = np.asarray(value)
    if array.size != numel(where.shape):
        raise ShapeError(
            f"parameter {name!r}: expected {where.shape} ({numel(where.shape)} values), found {array.shape} "
            f"({array.size} values)"
        )
    return convert(name, array.reshape(where.shape), where.shape, where.dtype)
