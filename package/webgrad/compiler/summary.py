"""What a plan's bytes are for: peak bytes by kind, and from which kernel to which each value lives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from webgrad.compiler.kernels import Schedule
from webgrad.compiler.simplify import storage
from webgrad.ir import Node

if TYPE_CHECKING:
    from webgrad.compiler.plan import Plan

KINDS = (
    "parameters",
    "gradients",
    "optimizer state",
    "other state",
    "inputs",
    "constants",
    "activations",
    "captures",
    "outputs",
    "staging",
)


@dataclass(frozen=True)
class Lifetime:
    """A stored value: its bytes, and the kernels that write it first and read it last. ``last`` is the number
    of kernels for what is read back or kept.
    """

    value: str
    buffer: int
    offset: int
    bytes: int
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.value} {self.first}–{self.last}"


@dataclass(frozen=True)
class Summary:
    """Bytes of a plan. Buffers count under one kind each:

    - ``parameters``, ``gradients``, ``optimizer state``, ``other state``: arenas, perhaps shared
    - ``inputs``: the upload, with the per-call numbers; ``constants``: array literals
    - ``activations``: recycled buffers of which nothing is read back
    - ``captures``, ``outputs``: buffers that hold one at the end; outputs include loss and metrics
    - ``staging``: the transfer that brings everything home at once; smaller reads need less
    """

    bytes: Mapping[str, int]
    #: kind, bytes and values of each buffer, by number
    buffers: tuple[tuple[str, int, tuple[Lifetime, ...]], ...]
    kernels: int

    @property
    def total(self) -> int:
        """All bytes at once: buffers live from load to destroy, so this is the peak."""
        return sum(self.bytes.values())

    @property
    def line(self) -> str:
        """One line: the total and every kind that has bytes."""
        kinds = ", ".join(f"{kind} {size:,}" for kind, size in self.bytes.items() if size)
        return f"{self.total:,} bytes: {kinds}"

    def __str__(self) -> str:
        lines = [
            self.line,
            f"buffer        bytes  kind             values, and kernels 0–{self.kernels} in which they live",
        ]
        for number, (kind, size, values) in enumerate(self.buffers):
            lines.append(f"b{number:<5} {size:>12,}  {kind:15}  {', '.join(map(str, values))}".rstrip())
        return "\n".join(lines)


def summarise(plan: Plan) -> Summary:
    """See `Summary`."""
    sched = plan.schedule
    end = len(sched.kernels)
    spans = lifetimes(plan)
    captured = {plan.where(n)[0] for n in sched.graph.captures.values()}
    read = {plan.where(n)[0] for n in (*sched.graph.outputs, *sched.graph.metrics.values())}
    buffers = []
    sizes = dict.fromkeys(KINDS, 0)
    for number, buffer in enumerate(plan.buffers):
        if number == plan.upload:
            kind = "inputs"
        elif buffer.kind == "external":
            kind = _arena_kind(buffer.key)
        elif buffer.kind == "constant":
            kind = "constants"
        else:
            kind = "captures" if number in captured else "outputs" if number in read else "activations"
        sizes[kind] += buffer.bytes
        buffers.append((kind, buffer.bytes, tuple(v for v in spans if v.buffer == number)))
    sizes["staging"] = sum(r.bytes for r in plan.ranges.values())
    return Summary(sizes, tuple(buffers), end)


def _arena_kind(key: str) -> str:
    while key.startswith("own/"):
        key = key[len("own/") :]
    prefixes = {"param/": "parameters", "grad/": "gradients", "opt.": "optimizer state"}
    return next((kind for prefix, kind in prefixes.items() if key.startswith(prefix)), "other state")


def lifespans(sched: Schedule) -> dict[Node, tuple[int, int]]:
    """The first and last kernel of every value that is stored or loaded; see `Lifetime`."""
    found: dict[Node, tuple[int, int]] = {}

    def use(node: Node, number: int) -> None:
        base = storage(node)
        found[base] = (found.get(base, (number, number))[0], number)
        for part in base.inputs if base.op.family == "pack" else ():
            use(part, number)

    for number, kernel in enumerate(sched.kernels):
        for node in [*(s.node for s in kernel.stores), *kernel.loads]:
            use(node, number)
    for root in sched.graph.roots():
        use(root, len(sched.kernels))
    return found


def lifetimes(plan: Plan) -> list[Lifetime]:
    """Every stored value, in order of its first kernel. Leaves are there from kernel 0 on."""
    names = _names(plan)
    end = len(plan.schedule.kernels)
    found = []
    for node, (first, last) in lifespans(plan.schedule).items():
        if not node.size or node.op.family == "pack":
            continue
        leaf = node.op.family == "leaf"
        kept = leaf and plan.buffers[plan.where(node)[0]].kind != "owned"
        value = names.get(node, f"%{node.id} {node.op.name}")
        found.append(
            Lifetime(value, *plan.where(node), node.nbytes, 0 if leaf else first, end if kept else last)
        )
    return sorted(found, key=lambda v: (v.first, v.buffer, v.offset))


def _names(plan: Plan) -> dict[Node, str]:
    """What a reader calls a value: its capture's, parameter's or input's name, or whose gradient it is."""
    graph = plan.schedule.graph
    found: dict[Node, str] = {}
    params = {(r.arena, r.offset): name for name, r in plan.layout.ranges.items()}
    for leaf, value in graph.updates:
        arena = leaf.attrs["name"].replace("grad/", "param/", 1)
        if value.op.family == "pack" and leaf.attrs["name"].startswith("grad/"):
            for part, offset in zip(value.inputs, value.attrs["offsets"], strict=True):
                found[part] = f"gradient of {params[arena, offset]}"
    for table in (graph.states, graph.params, graph.inputs, graph.metrics, graph.captures):
        found.update({storage(node): name for name, node in table.items()})
    return found
