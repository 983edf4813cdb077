"""Program: the hand-off to an executor, as plain data.

`Program.to_json` and `Program.blobs` are all that JavaScript ever sees: buffers, WGSL text, bindings
and named byte ranges. No tensor, model or gradient crosses the border.

    buffers   [{bytes, kind, key, zero}]          kind: owned | external | constant
    modules   [wgsl]                              one per distinct kernel text
    kernels   [{name, module, bindings, workgroups, nodes, sites}]
    entries   {"step": [kernel, ...]}             kernels in dispatch order
    upload    {buffer, bytes}                     inputs and scalars: one write per call
    ranges    {"loss" | "output:0" | "capture:h" | "metric:kl": {buffer, offset, bytes, shape, dtype}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

VERSION = 1

Access = Literal["read", "read_write", "uniform"]


@dataclass(frozen=True)
class BufferSpec:
    """One GPU buffer. ``external`` ones are found by ``key`` at load; ``constant`` ones carry a blob
    (``key`` is its index in `Program.blobs`); ``owned`` ones belong to the loaded program.

    ``zero`` says when an owned buffer is cleared: ``"never"``, ``"once"`` (at load), ``"each_step"``.
    """

    bytes: int
    kind: Literal["owned", "external", "constant"]
    key: str = ""
    zero: Literal["never", "once", "each_step"] = "never"


@dataclass(frozen=True)
class Binding:
    """A byte range of a buffer as one kernel sees it; its position is the WGSL ``@binding``."""

    buffer: int
    offset: int
    size: int
    access: Access


@dataclass(frozen=True)
class KernelSpec:
    """One dispatch: a module, its bindings in ``@group(0)`` order, and the grid."""

    name: str
    module: int
    bindings: tuple[Binding, ...]
    workgroups: tuple[int, int, int]
    nodes: tuple[str, ...] = ()
    sites: tuple[str, ...] = ()


@dataclass(frozen=True)
class Range:
    """A named tensor inside a buffer. ``bounds`` is the allowed value range of integer ids."""

    buffer: int
    offset: int
    bytes: int
    shape: tuple[int, ...]
    dtype: str
    bounds: tuple[int, int] | None = None


#: the fields of `Program` that map names to ranges
TABLES = ("inputs", "scalars", "ranges", "params", "grads")


def _range(data: Mapping[str, Any]) -> Range:
    bounds = data["bounds"]
    return Range(
        **{**data, "shape": tuple(data["shape"]), "bounds": None if bounds is None else tuple(bounds)}
    )


def _kernel(data: Mapping[str, Any]) -> KernelSpec:
    lists = {name: tuple(data[name]) for name in ("workgroups", "nodes", "sites")}
    bindings = tuple(Binding(**b) for b in data["bindings"])
    return KernelSpec(**{**data, **lists, "bindings": bindings})


@dataclass(frozen=True)
class Program:
    """See the module's docstring. ``inputs`` and ``scalars`` are ranges of the upload buffer."""

    buffers: tuple[BufferSpec, ...]
    modules: tuple[str, ...]
    kernels: tuple[KernelSpec, ...]
    entries: dict[str, tuple[int, ...]]
    upload_buffer: int
    inputs: dict[str, Range]
    scalars: dict[str, Range]
    ranges: dict[str, Range]
    params: dict[str, Range] = field(default_factory=dict)
    grads: dict[str, Range] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    blobs: tuple[bytes, ...] = ()
    version: int = VERSION

    @property
    def upload_bytes(self) -> int:
        """Size of the packed upload: every input and scalar of one call."""
        return self.buffers[self.upload_buffer].bytes

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, without the blobs."""
        data = {k: getattr(self, k) for k in ("version", "modules", "entries", "features")}
        data["buffers"] = [vars(b) for b in self.buffers]
        data["kernels"] = [{**vars(k), "bindings": [vars(b) for b in k.bindings]} for k in self.kernels]
        data["upload"] = {"buffer": self.upload_buffer, "bytes": self.upload_bytes}
        for name in TABLES:
            data[name] = {key: vars(value) for key, value in getattr(self, name).items()}
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], blobs: tuple[bytes, ...]) -> Program:
        """The program of `to_dict`'s result, before or after it was JSON, and its blobs.

        Raises `KeyError`, `TypeError` or `ValueError` for anything else.
        """
        if data["version"] != VERSION:
            raise ValueError(f"program version {data['version']}, not {VERSION}")
        tables: dict[str, Any] = {t: {name: _range(r) for name, r in data[t].items()} for t in TABLES}
        return cls(
            buffers=tuple(BufferSpec(**b) for b in data["buffers"]),
            modules=tuple(data["modules"]),
            kernels=tuple(_kernel(k) for k in data["kernels"]),
            entries={name: tuple(order) for name, order in data["entries"].items()},
            upload_buffer=data["upload"]["buffer"],
            features=tuple(data["features"]),
            blobs=blobs,
            **tables,
        )

    def to_json(self) -> str:
        """The text the bridge parses."""
        return json.dumps(self.to_dict())

    def __str__(self) -> str:
        lines = [
            f"Program v{self.version}: {len(self.kernels)} kernels, {len(self.modules)} modules, "
            f"{len(self.buffers)} buffers, {sum(b.bytes for b in self.buffers):,} bytes"
        ]
        for index, kernel in enumerate(self.kernels):
            bound = ", ".join(
                f"{b.access} b{b.buffer}[{b.offset}:{b.offset + b.size}]" for b in kernel.bindings
            )
            lines.append(f"  {index:3} {kernel.name:12} m{kernel.module} {kernel.workgroups}  {bound}")
        return "\n".join(lines)
