"""Expressions → WGSL, in nested scopes.

A kernel's text is a stack of blocks: the thread, a loop, an inner loop. An expression is written in the
outermost block that knows all its variables, so what does not change in a loop is computed before it.
An expression used once is written inline, others get a ``let``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from webgrad.compiler.blocks import cost
from webgrad.compiler.indexing import Expr, Indexer
from webgrad.compiler.kernels import ScheduledKernel, Store
from webgrad.compiler.plan import Plan
from webgrad.compiler.program import Access
from webgrad.errors import CompileError, OutOfMemoryError
from webgrad.ir import ITEM_BYTES, Node
from webgrad.layout import round_up
from webgrad.ops.random import RandomBits
from webgrad.wgsl import prelude

WGSL_TYPES = {"f32": "f32", "i32": "i32", "u32": "u32", "bool": "u32"}
LARGEST_LITERAL = 1e38


def literal(value: Any, dtype: str) -> str:
    """A WGSL expression for a number; infinities, NaN and −0 are not literals in WGSL."""
    if dtype == "bool":
        return "true" if value else "false"
    if dtype == "u32":
        return f"{int(value)}u"
    if dtype == "i32":
        if value == -(2**31):
            return "(-2147483647i - 1i)"
        return f"{int(value)}i" if value >= 0 else f"({int(value)}i)"
    number = np.float32(value)
    if np.isnan(number):
        return "wg_nan()"
    if np.isinf(number):
        return "wg_inf()" if number > 0 else "(-wg_inf())"
    if abs(number) > LARGEST_LITERAL or (number == 0 and np.signbit(number)):
        return f"bitcast<f32>({int(number.view(np.uint32)):#010x}u)"
    text = str(number)
    text = text if any(c in text for c in ".e") else text + ".0"
    return f"({text}f)" if number < 0 else f"{text}f"


@cache
def reciprocal(n: int) -> tuple[int, int, int]:
    """``factor``, ``shift`` and ``most``: x / n = x · factor >> shift in 32 bits for 0 ≤ x ≤ most."""
    best = (0, 0, -1)
    for shift in range(32):
        factor = -(-(1 << shift) // n)
        excess = factor * n - (1 << shift)
        most = min((2**32 - 1) // factor, ((1 << shift) - 1) // excess if excess else 2**31 - 1)
        best = max(best, (factor, shift, most), key=lambda found: found[2])
    return best


def division(n: int) -> str:
    """The function that divides by n."""
    factor, shift, most = reciprocal(n)
    code = f"fn div{n}(x: i32) -> i32 {{ return i32((u32(x) * {factor}u) >> {shift}u); }}"
    return f"// x / {n}, for 0 <= x <= {most}\n{code}"


@dataclass
class Block:
    """Lines at one nesting level, the variables it declares and the names it gave to expressions."""

    variables: set[str]
    lines: list[str] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)


class Slot:
    """One binding of the kernel: a node's bytes, as scalars or as vec4s."""

    def __init__(
        self, name: str, where: tuple[int, int, int], dtype: str, vector: bool, written: bool
    ) -> None:
        self.name, self.where, self.dtype, self.vector, self.written = name, where, dtype, vector, written


class KernelWriter:
    """The text and bindings of one kernel."""

    def __init__(self, plan: Plan, kernel: ScheduledKernel) -> None:
        self.plan, self.kernel = plan, kernel
        self.ix: Indexer = kernel.ix
        self.slots: list[Slot] = []
        self.blocks: list[Block] = [Block(set())]
        self.uses: dict[int, int] = {}
        self.scalars_used = False
        #: numbers that are divided by with `reciprocal`
        self.divisors: set[int] = set()
        #: variables that go by another name in the text
        self.aliases: dict[str, str] = {}
        self._count = 0
        self.written = {plan.where(s.node)[0] for s in kernel.stores}
        self.count_uses(kernel.roots())

    def count_uses(self, roots: list[Expr]) -> None:
        """Note which of these expressions share parts: those get names."""
        stack = list(roots)
        for root in roots:
            self.uses[root.uid] = self.uses.get(root.uid, 0) + 1
        seen: set[int] = set()
        while stack:
            e = stack.pop()
            if e.uid in seen:
                continue
            seen.add(e.uid)
            for a in e.args:
                self.uses[a.uid] = self.uses.get(a.uid, 0) + 1
                stack.append(a)

    # --- blocks -------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """A line in the current block."""
        self.blocks[-1].lines.append(text)

    def open(self, header: str, *variables: str) -> None:
        """Begin a nested block."""
        self.blocks.append(Block(set(variables)))
        self._headers = getattr(self, "_headers", [])
        self._headers.append(header)

    def close(self) -> None:
        """End the current block."""
        block = self.blocks.pop()
        self.line(f"{self._headers.pop()} {{".lstrip())
        self.blocks[-1].lines += ["  " + text for text in block.lines] + ["}"]

    def declare(self, *variables: str) -> None:
        """Make variables known in the current block."""
        self.blocks[-1].variables.update(variables)

    def rename(self, variable: str, name: str) -> None:
        """Declare ``variable`` in the current block, where the text calls it ``name``."""
        self.aliases[variable] = name
        self.declare(variable)

    def fresh(self, stem: str = "v") -> str:
        """A new name."""
        self._count += 1
        return f"{stem}{self._count}"

    def depth(self, e: Expr) -> int:
        """The outermost block that knows all of the expression's variables."""
        missing = set(e.free)
        for level, block in enumerate(self.blocks):
            missing -= block.variables
            if not missing:
                return level
        raise CompileError(f"internal error: {e!r} uses {sorted(missing)} outside their scope")

    # --- bindings -----------------------------------------------------------------------------------

    def slot(self, node: Node, vector: bool = False, write: bool = False) -> Slot:
        """The binding through which ``node`` is read or written."""
        where = self.plan.span(node)
        buffer, offset, size = where
        for slot in self.slots:
            if slot.where == where and slot.vector == vector:
                slot.written |= write
                return slot
        for slot in self.slots:
            clash = (
                slot.where[0] == buffer
                and slot.where[1] < offset + size
                and offset < slot.where[1] + slot.where[2]
            )
            if clash and buffer in self.written:
                raise CompileError(
                    f"internal error: a kernel writes buffer {buffer} while another binding of it overlaps"
                )
        slot = Slot(f"t{len(self.slots)}", where, WGSL_TYPES[node.dtype], vector, write)
        self.slots.append(slot)
        return slot

    def accesses(self) -> list[Access]:
        """Access of each slot. A buffer written anywhere in the kernel is bound read_write throughout."""
        written = {s.where[0] for s in self.slots if s.written}
        return ["read_write" if s.where[0] in written else "read" for s in self.slots]

    def scalar_bytes(self) -> int:
        """Size of the uniform that holds the per-call numbers."""
        return round_up(4 * len(self.plan.scalars), 16)

    def declarations(self) -> list[str]:
        """The module's ``var`` lines."""
        lines = []
        for number, (slot, access) in enumerate(zip(self.slots, self.accesses(), strict=True)):
            kind, item = ("vec4<f32>", 16) if slot.vector else (slot.dtype, ITEM_BYTES)
            array = f"array<{kind}, {slot.where[2] // item}>"  # sized: its bound is a literal, not a lookup
            lines.append(f"@group(0) @binding({number}) var<storage, {access}> {slot.name}: {array};")
        if self.scalars_used:
            words = self.scalar_bytes() // 16
            lines.append(
                f"@group(0) @binding({len(self.slots)}) var<uniform> scalars: array<vec4<u32>, {words}>;"
            )
        return lines

    # --- expressions --------------------------------------------------------------------------------

    def text(self, e: Expr) -> str:
        """WGSL of an expression in the current block."""
        kind = e.kind
        if kind == "int":
            return literal(e.attr, "i32")
        if kind == "const":
            return literal(e.attr, e.dtype)
        if kind in ("var", "reg"):
            return self.aliases.get(e.attr, str(e.attr))
        if kind in ("true", "false"):
            return kind
        for block in reversed(self.blocks):
            if e.uid in block.names:
                return block.names[e.uid]
        level = self.depth(e)
        if level < len(self.blocks) - 1:
            inner, self.blocks = self.blocks[level + 1 :], self.blocks[: level + 1]
            name = self._named(e)
            self.blocks = self.blocks + inner
            return name
        if self.uses.get(e.uid, 0) > 1 or self._long(e):
            return self._named(e)
        return self.render(e)

    def _long(self, e: Expr) -> bool:
        return e.kind == "apply" and (e.attr[0].cost >= 10 or len(e.args) > 2)

    def _named(self, e: Expr) -> str:
        block = self.blocks[-1]
        if e.uid in block.names:
            return block.names[e.uid]
        code = self.render(e)
        name = self.fresh()
        self.line(f"let {name} = {code};")
        block.names[e.uid] = name
        return name

    def value(self, e: Expr) -> str:
        """An identifier (or literal) for an expression."""
        text = self.text(e)
        return text if text.isidentifier() or e.kind in ("int", "const") else self._named(e)

    def render(self, e: Expr) -> str:
        """WGSL of the expression's own operation."""
        kind, args = e.kind, e.args
        if e.dtype == "i32" and kind in ("sum", "div") and not -(2**31) <= e.lo <= e.hi < 2**31:
            sites = "; ".join(str(s) for s in self.kernel.sites[:3])
            names = "+".join(n.op.name for n in self.kernel.nodes)
            raise OutOfMemoryError(
                f"a kernel of {names} counts to {e.hi:,}, beyond the 32-bit "
                f"indices of a GPU (at {sites}): use smaller tensors, or reduce them in parts"
            )
        if kind == "sum":
            return self._sum(e)
        if kind == "within":
            return self.text(args[0])
        if kind in ("div", "mod"):
            return self._divided(e)
        if kind == "dyn":
            index = self.text(args[0])
            if args[0].dtype == "u32":
                return f"i32(min({index}, {e.attr - 1}u))"
            return f"clamp({index}, 0, {e.attr - 1})"
        if kind == "ge0":
            return self._ge0(args[0])
        if kind == "eq0":
            return f"({self.text(args[0])} == 0)"
        if (
            kind == "and"
        ):  # not &&: a short circuit is a branch, and drivers take seconds to unswitch loops on it
            return f"({self.text(args[0])} & {self.text(args[1])})"
        if kind == "scalar":
            return self._scalar(e)
        if kind == "load":
            return self._load(e)
        if kind == "apply":
            return self._apply(e)
        raise CompileError(f"internal error: no WGSL for {kind}")

    def _divided(self, e: Expr) -> str:
        """Quotient or remainder of an index, which is never negative. Software adapters divide lane by
        lane, so there a shift or a multiplication does it.
        """
        (x,), n = e.args, e.attr
        software = self.plan.target.adapter_class == "software"
        if software and n & (n - 1) == 0:
            text = self.text(x)
            return f"({text} >> {n.bit_length() - 1}u)" if e.kind == "div" else f"({text} & {n - 1})"
        halvings = (n & -n).bit_length() - 1
        odd = n >> halvings
        if not software or x.hi >> halvings > reciprocal(odd)[2]:
            return f"({self.text(x)} {'/' if e.kind == 'div' else '%'} {n})"
        self.divisors.add(odd)
        text = self.text(x) if e.kind == "div" else self.value(x)
        quotient = f"div{odd}({f'{text} >> {halvings}u' if halvings else text})"
        return quotient if e.kind == "div" else f"({text} - {quotient} * {n})"

    def _sum(self, e: Expr) -> str:
        coefficients, constant = e.attr
        levels = [self.depth(a) for a in e.args]
        deepest = max(levels)
        terms = list(zip(e.args, coefficients, levels, strict=True))
        parts = []
        outer = {a: c for a, c, level in terms if level < deepest}
        if outer and (len(outer) > 1 or constant or next(iter(outer.values())) != 1):
            parts.append(self.text(self.ix.sum(outer, constant)))
            constant = 0
            terms = [t for t in terms if t[2] == deepest]
        for atom, c, _ in terms:
            text = self.text(atom)
            if c == 1:
                parts.append(text)
            elif c == -1:
                parts.append(f"-{text}")
            else:
                parts.append(f"{text} * {c}" if c > 0 else f"-{text} * {-c}")
        if constant:
            parts.append(str(constant))
        joined = " + ".join(parts).replace("+ -", "- ")
        return f"({joined})"

    def _ge0(self, e: Expr) -> str:
        """``e >= 0``, written as a plain comparison where e is one atom and a constant."""
        if e.kind == "sum" and len(e.args) == 1:
            (c,), constant = e.attr
            atom = self.text(e.args[0])
            if c == 1:
                return f"({atom} >= {-constant})"
            if c == -1:
                return f"({atom} <= {constant})"
        return f"({self.text(e)} >= 0)"

    def _scalar(self, e: Expr) -> str:
        self.scalars_used = True
        word = self.plan.scalars[e.attr].offset // 4
        text = f"scalars[{word // 4}].{'xyzw'[word % 4]}"
        return text if e.dtype == "u32" else f"bitcast<{WGSL_TYPES[e.dtype]}>({text})"

    def index_text(self, e: Expr, size: int) -> str:
        """An index, clamped unless its bounds show that it is inside. Where they hold only under a mask, what
        lies outside is not used, and WGSL keeps it within the array.
        """
        text = self.text(e)
        return text if e.loose or (e.lo >= 0 and e.hi < size) else f"clamp({text}, 0, {max(size - 1, 0)})"

    def _load(self, e: Expr) -> str:
        node = e.attr
        text = f"{self.slot(node).name}[{self.index_text(e.args[0], node.size)}]"
        return f"({text} != 0u)" if node.dtype == "bool" else text

    def _apply(self, e: Expr) -> str:
        op, attrs = e.attr
        if isinstance(op, RandomBits):
            return op.wgsl(attrs, (), *[self.text(a) for a in e.args])
        take = self.value if getattr(op, "repeats", False) else self.text
        return op.wgsl(attrs, tuple(a.dtype for a in e.args), *[take(a) for a in e.args])

    # --- stores -------------------------------------------------------------------------------------

    def stores(self, stores: list[Store]) -> None:
        """Write results: every value first, so that a store in place changes no operand."""
        ready = []
        for store in stores:
            value = self.value(store.value)
            index = self.text(store.index)
            ready.append((store, index, value))
        for store, index, value in ready:
            slot = self.slot(store.node, write=True)
            stored = f"select(0u, 1u, {value})" if store.node.dtype == "bool" else value
            self.line(f"{slot.name}[{index}] = {stored};")

    def weight(self, roots: list[Expr]) -> float:
        """What evaluating the expressions once costs."""
        total, seen, stack = 0.0, set(), list(roots)
        while stack:
            e = stack.pop()
            if e.uid not in seen:
                seen.add(e.uid)
                total += cost(e)
                stack.extend(e.args)
        return total

    def finish_element(self) -> None:
        """Store what becomes of the product's element ``total0`` at the variables b, m and n."""
        stores = [s for s in self.kernel.stores if s.side is None]
        if any("i" in e.free for s in stores for e in (s.index, s.value)):
            self.line(f"let element = {self.text(self.kernel.index)};")
            self.rename("i", "element")
        self.stores(stores)

    # --- module -------------------------------------------------------------------------------------

    def module(
        self, workgroup: int, threads: int, grid: tuple[int, int, int], shared: list[str] | None = None
    ) -> str:
        """The whole module. ``t`` is the thread's flat number; the caller has used it freely."""
        body = self.blocks[0].lines
        flat = "gid.x" if grid[1] == 1 else f"gid.x + gid.y * {grid[0] * workgroup}u"
        head = [f"  let t = i32({flat});", f"  if (t >= {threads}) {{ return; }}"]
        main = [
            f"@compute @workgroup_size({workgroup})",
            "fn main(@builtin(global_invocation_id) gid: vec3<u32>) {",
            *head,
            *["  " + text for text in body],
            "}",
        ]
        return self.assemble(main, shared or [])

    def assemble(self, main: list[str], shared: list[str], extensions: Sequence[str] = ()) -> str:
        """Extensions, declarations, the prelude functions in use, and ``main``."""
        text = "\n".join(main)
        functions = "\n".join(map(division, sorted(self.divisors)))
        functions += "\n" + prelude.source_for(prelude.used_in(text))
        enabled = [f"enable {name};" for name in extensions]
        parts = ["\n".join([*enabled, *self.declarations(), *shared]), functions.strip(), text]
        return "\n\n".join(p for p in parts if p) + "\n"
