"""Programs that are remembered: a second visit traces the model, and finds the rest done.

    place = place_of(graph, layout, context)     what the program follows from, as a key
    program = await recall(place)                the `Program`, or None
    await remember(place, program)

The key is a digest of the traced graph with its gradients and optimizer (operations, attributes, edges,
names, layout), of what the compiler was told (target, entry) and of webgrad's own sources, so that an edit of
theirs forgets everything. Lines of the user's program are not part of it: they move with every edit. What
matters is which nodes share a line, so lines are numbered in the order of the nodes, the numbers are part of
the key, and a remembered kernel names its lines by number: its errors tell where they are today.

An entry holds its own digest, JSON and the constants' bytes, compressed. One that is damaged, or not of this
kind, counts as missing and is written anew. See `webgrad.storage` for where they are kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import numpy as np

from webgrad import storage
from webgrad.compiler.program import Program
from webgrad.ir import Graph, Layout, Node, Site
from webgrad.stages import in_browser

NAMESPACE = "programs"
FORMAT = 1
#: seconds after which a page writes, so that the first steps are not kept waiting
LATER = 2.0

_writing: set[asyncio.Task[None]] = set()


@dataclass(frozen=True)
class Place:
    """Where a program is kept, and the user's lines by number."""

    key: str
    sites: tuple[str, ...]


def place_of(graph: Graph, layout: Layout, context: Sequence[Any]) -> Place | None:
    """The place of the program that is compiled from ``graph``, ``layout`` and ``context``; None when they
    hold something that no text can stand for.
    """
    numbers: dict[Site, int] = {}
    try:
        lines = [canonical([sources_digest(), context, layout])]
        for node in graph.nodes:
            sites = [numbers.setdefault(site, len(numbers)) for site in node.sites]
            inputs = [x.id for x in node.inputs]
            lines.append(f"{node.op.name}{inputs}{canonical(node.attrs)}{node.dtype}{node.shape}{sites}")
        rest = {f.name: getattr(graph, f.name) for f in fields(graph) if f.name != "nodes"}
        lines.append(canonical(rest))
    except TypeError:
        return None
    key = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return Place(key, tuple(str(site) for site in numbers))


def canonical(value: Any) -> str:
    """A text that is equal for equal values alone. Raises `TypeError` for a kind that is not known here."""
    kind = type(value)
    if kind in (int, str, bool, float, type(None)):
        return repr(value)
    if kind in (tuple, list):
        return f"({','.join([canonical(item) for item in value])})"
    if isinstance(value, Node):
        return f"%{value.id}"
    if isinstance(value, Mapping):
        return f"{{{','.join([f'{key!r}:{canonical(item)}' for key, item in value.items()])}}}"
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "iufb":
        raw = value.tobytes()
        text = raw.hex() if len(raw) <= 32 else hashlib.sha256(raw).hexdigest()
        return f"array{value.shape}{value.dtype.str}{text}"
    if kind in (set, frozenset):
        return f"{{{','.join(sorted(canonical(item) for item in value))}}}"
    if is_dataclass(value):
        return f"{kind.__name__}{canonical([getattr(value, f.name) for f in fields(value)])}"
    raise TypeError(f"no text stands for a {kind.__name__}")


@cache
def sources_digest() -> str:
    """What identifies this webgrad: the text of its modules."""
    digest = hashlib.sha256()

    def walk(folder: Traversable) -> None:
        for entry in sorted(folder.iterdir(), key=lambda e: e.name):
            if entry.is_dir():
                walk(entry)
            elif entry.name.endswith(".py"):
                digest.update(entry.name.encode() + b"\0" + entry.read_bytes() + b"\0")

    walk(files("webgrad"))
    return digest.hexdigest()


async def recall(place: Place) -> Program | None:
    """The program kept at ``place``, with the user's lines of today."""
    raw = await storage.get(NAMESPACE, place.key)
    return None if raw is None else unpacked(raw, place)


async def remember(place: Place, program: Program) -> None:
    """Keep ``program``; in a browser later on."""
    if not in_browser():
        await storage.put(NAMESPACE, place.key, packed(program, place))
        return

    async def write() -> None:
        await asyncio.sleep(LATER)
        await storage.put(NAMESPACE, place.key, packed(program, place))

    task = asyncio.ensure_future(write())
    _writing.add(task)
    task.add_done_callback(_writing.discard)


async def settled() -> None:
    """Wait until everything is written."""
    await asyncio.gather(*_writing)


def packed(program: Program, place: Place) -> bytes:
    """The bytes that `unpacked` reads."""
    number = {site: i for i, site in enumerate(place.sites)}
    data = program.to_dict()
    for kernel in data["kernels"]:
        kernel["sites"] = [number[site] for site in kernel["sites"]]
    sizes = [len(blob) for blob in program.blobs]
    head = json.dumps({"format": FORMAT, "key": place.key, "blobs": sizes, "program": data})
    raw = b"\0".join([head.encode(), b"".join(program.blobs)])
    return hashlib.sha256(raw).digest() + zlib.compress(raw, 1)


def unpacked(stored: bytes, place: Place) -> Program | None:
    """The program in ``stored``, or None when it is not what `packed` makes for this place."""
    try:
        raw = zlib.decompress(stored[32:])
        head, _, tail = raw.partition(b"\0")
        found = json.loads(head) if hashlib.sha256(raw).digest() == stored[:32] else {}
        if (found["format"], found["key"]) != (FORMAT, place.key):
            return None
        blobs, start = [], 0
        for size in found["blobs"]:
            blobs.append(tail[start : start + size])
            start += size
        program = Program.from_dict(found["program"], tuple(blobs))
        kernels = [replace(k, sites=tuple(place.sites[int(i)] for i in k.sites)) for k in program.kernels]
        return replace(program, kernels=tuple(kernels))
    except (zlib.error, ValueError, KeyError, TypeError, IndexError):
        return None
