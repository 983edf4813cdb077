"""Symbolic expressions of a kernel: integer index arithmetic with bounds, and the values computed there.

Movement ops become index maps; composing them piles up ``(i / 64) % 8 * 64 + i % 64``, which must
collapse to ``i`` again. Integers are kept in one normal form

    sum = Σ coefficient · atom + constant          atoms: var, div, mod, dyn

and every atom knows its bounds, so ``div`` and ``mod`` vanish wherever the bounds allow:

    (m·64 + n) / 64 = m      when 0 ≤ n < 64
    x / 8 · 8 + x % 8 = x
    (x / 8) % 4 · 8 + x % 8 = x % 32

Expressions are hash-consed per `Indexer`: equal expressions are one object, so equality is ``is``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import gcd
from typing import Any

from webgrad.ir import strides_of


class Expr:
    """An expression; ``kind`` says which:

    integers  ``int``(attr value) ``var``(attr name) ``sum``(attr (coefficients, constant))
              ``div``/``mod``(attr divisor) ``dyn``(args (value,): an index read from data, clamped)
              ``within``(args (e,): e, known to be inside where it is used)
    masks     ``ge0`` ``eq0`` ``and`` ``false``
    values    ``const``(attr number) ``load``(attr source node, args (index,)) ``scalar``(attr name)
              ``apply``(attr (op, attrs), args) ``reg``(attr name: a reduction's result)

    ``lo`` and ``hi`` bound integers; ``free`` names the variables it depends on. ``loose`` tells that the
    bounds are only promised where a mask around it holds (``within``). ``mark`` is the attr in hashable form.
    """

    __slots__ = ("args", "attr", "dtype", "free", "hi", "kind", "lo", "loose", "mark", "uid")

    kind: str
    args: tuple[Expr, ...]
    attr: Any
    dtype: str
    lo: int
    hi: int
    free: frozenset[str]
    loose: bool
    mark: Any
    uid: int

    def __repr__(self) -> str:
        return show(self)


def show(e: Expr) -> str:
    """Readable text of an expression, for listings."""
    if e.kind in ("int", "var", "reg", "scalar"):
        return str(e.attr)
    if e.kind == "sum":
        parts = [show(a) if c == 1 else f"{show(a)}*{c}" for a, c in zip(e.args, e.attr[0], strict=True)]
        return "(" + " + ".join([*parts, *([str(e.attr[1])] if e.attr[1] else [])]) + ")"
    if e.kind in ("div", "mod"):
        return f"{show(e.args[0])}{'/' if e.kind == 'div' else '%'}{e.attr}"
    if e.kind == "load":
        return f"%{e.attr.id}[{show(e.args[0])}]"
    if e.kind == "const":
        return repr(e.attr)
    name = e.attr[0].name if e.kind == "apply" else e.kind
    return f"{name}({', '.join(show(a) for a in e.args)})"


class Indexer:
    """Builds interned expressions. ``None`` as a mask means "always"."""

    def __init__(self) -> None:
        self._table: dict[Any, Expr] = {}
        self.false = self._make("false", (), None, "bool")

    def _make(
        self,
        kind: str,
        args: tuple[Expr, ...],
        attr: Any,
        dtype: str = "i32",
        lo: int = 0,
        hi: int = 0,
        key: Any = None,
    ) -> Expr:
        identity = (kind, tuple(a.uid for a in args), attr if key is None else key, dtype)
        found = self._table.get(identity)
        if found is None:
            found = Expr()
            found.kind, found.args, found.attr, found.dtype = kind, args, attr, dtype
            found.lo, found.hi, found.uid = lo, hi, len(self._table)
            own = (attr,) if kind in ("var", "reg") else ()
            found.free = frozenset(own).union(*[a.free for a in args])
            found.loose = kind == "within" or any(a.loose for a in args)
            found.mark = identity[2]
            self._table[identity] = found
        return found

    # --- integers -----------------------------------------------------------------------------------

    def const(self, value: int) -> Expr:
        """An integer literal."""
        return self._make("int", (), value, "i32", value, value)

    def var(self, name: str, size: int) -> Expr:
        """A variable in [0, size); the constant 0 when that is all it can be."""
        if size <= 1:
            return self.const(0)
        return self._make("var", (), name, "i32", 0, size - 1, key=(name, size))

    def dyn(self, value: Expr, size: int) -> Expr:
        """An index that comes from data, clamped to [0, size)."""
        return self._make("dyn", (value,), size, "i32", 0, max(size - 1, 0))

    def within(self, e: Expr, size: int) -> Expr:
        """``e`` taken to be in [0, size), because a mask discards what is computed where it is not."""
        if e.lo >= 0 and e.hi < size:
            return e
        return self._make("within", (e,), size, "i32", 0, max(size - 1, 0))

    def terms(self, e: Expr) -> tuple[dict[Expr, int], int]:
        """The normal form: {atom: coefficient}, constant."""
        if e.kind == "int":
            return {}, e.attr
        if e.kind == "sum":
            return dict(zip(e.args, e.attr[0], strict=True)), e.attr[1]
        return {e: 1}, 0

    def sum(self, terms: Mapping[Expr, int], constant: int) -> Expr:
        """The expression of a normal form, after recombining divisions with their remainders."""
        work = {a: c for a, c in terms.items() if c}
        if len(work) > 1:
            work, constant = self._recombine(work, constant)
        if not work:
            return self.const(constant)
        if len(work) == 1 and constant == 0:
            ((atom, coefficient),) = work.items()
            if coefficient == 1:
                return atom
        atoms = tuple(sorted(work, key=lambda a: a.uid))
        coefficients = tuple(work[a] for a in atoms)
        lo = hi = constant
        for atom, c in zip(atoms, coefficients, strict=True):
            lo += c * (atom.lo if c > 0 else atom.hi)
            hi += c * (atom.hi if c > 0 else atom.lo)
        return self._make("sum", atoms, (coefficients, constant), "i32", lo, hi)

    def _recombine(self, work: dict[Expr, int], constant: int) -> tuple[dict[Expr, int], int]:
        again = True
        while again:
            again = False
            for atom in [a for a in work if a.kind == "mod"]:
                (y,), n, c = atom.args, atom.attr, work[atom]
                whole, offset = self.terms(self.div(y, n))
                if whole and offset == 0 and all(work.get(a) == c * n * k for a, k in whole.items()):
                    for a in (atom, *whole):
                        del work[a]
                    more, shift = self.terms(y)
                    constant += shift * c
                    again = True
                elif y.kind == "div" and c % y.attr == 0:
                    (x,), m = y.args, y.attr
                    low = self.mod(x, m)
                    if low.kind != "mod" or work.get(low) != c // m:
                        continue
                    del work[atom], work[low]
                    more, shift = self.terms(self.mod(x, m * n))
                    c = c // m
                    constant += shift * c
                    again = True
                else:
                    continue
                for a, k in more.items():
                    work[a] = work.get(a, 0) + k * c
                    if not work[a]:
                        del work[a]
                break
        return work, constant

    def add(self, a: Expr, b: Expr) -> Expr:
        """a + b."""
        terms, constant = self.terms(a)
        more, extra = self.terms(b)
        for atom, c in more.items():
            terms[atom] = terms.get(atom, 0) + c
        return self.sum(terms, constant + extra)

    def mul(self, a: Expr, factor: int) -> Expr:
        """a · factor."""
        if factor == 1:
            return a
        terms, constant = self.terms(a)
        return self.sum({atom: c * factor for atom, c in terms.items()}, constant * factor)

    def div(self, e: Expr, n: int) -> Expr:
        """⌊e / n⌋ for n > 0."""
        if n == 1:
            return e
        terms, constant = self.terms(e)
        whole = {a: c // n for a, c in terms.items() if c % n == 0}
        rest = self.sum({a: c for a, c in terms.items() if c % n}, constant % n)
        quotient = self.sum(whole, constant // n)
        if rest.lo // n == rest.hi // n:
            return self.add(quotient, self.const(rest.lo // n))
        found = self._split(rest, n)
        if found is not None:
            return self.add(quotient, self.div(found[0], n // found[2]))
        if rest.kind == "div":
            return self.add(quotient, self.div(rest.args[0], rest.attr * n))
        if rest.kind == "mod" and rest.attr % n == 0:
            return self.add(quotient, self.mod(self.div(rest.args[0], n), rest.attr // n))
        lift = -(rest.lo // n) if rest.lo < 0 else 0  # WGSL truncates: keep the dividend non-negative
        rest = self.add(rest, self.const(lift * n))
        atom = self._make("div", (rest,), n, "i32", rest.lo // n, rest.hi // n)
        return self.add(quotient, self.add(atom, self.const(-lift)))

    def mod(self, e: Expr, n: int) -> Expr:
        """e − n·⌊e / n⌋ for n > 0."""
        if n == 1:
            return self.const(0)
        terms, constant = self.terms(e)
        rest = self.sum({a: c for a, c in terms.items() if c % n}, constant % n)
        if rest.lo // n == rest.hi // n:
            return self.add(rest, self.const(-n * (rest.lo // n)))
        found = self._split(rest, n)
        if found is not None:
            high, low, g = found
            return self.add(self.mul(self.mod(high, n // g), g), low)
        if rest.kind == "mod" and rest.attr % n == 0:
            return self.mod(rest.args[0], n)
        if rest.lo < 0:
            rest = self.add(rest, self.const(-(rest.lo // n) * n))
        return self._make("mod", (rest,), n, "i32", 0, n - 1)

    def _split(self, e: Expr, n: int) -> tuple[Expr, Expr, int] | None:
        """``e = g·high + low`` with g dividing n and 0 ≤ low < g, if there is such a g > 1."""
        terms, constant = self.terms(e)
        for g in sorted({gcd(c, n) for c in terms.values()}, reverse=True):
            if g == 1:
                break
            low = self.sum({a: c for a, c in terms.items() if c % g}, constant % g)
            if low.lo >= 0 and low.hi < g:
                high = {a: c // g for a, c in terms.items() if c % g == 0}
                return self.sum(high, constant // g), low, g
        return None

    def ravel(self, coords: Sequence[Expr], shape: Sequence[int]) -> Expr:
        """The row-major flat index of coordinates."""
        terms: dict[Expr, int] = {}
        constant = 0
        for coord, stride in zip(coords, strides_of(shape), strict=True):
            more, extra = self.terms(coord)
            constant += extra * stride
            for atom, c in more.items():
                terms[atom] = terms.get(atom, 0) + c * stride
        return self.sum(terms, constant)

    def unravel(self, flat: Expr, shape: Sequence[int]) -> tuple[Expr, ...]:
        """Coordinates of a flat index."""
        coords = []
        for axis, stride in enumerate(strides_of(shape)):
            coord = self.div(flat, stride) if stride else self.const(0)
            coords.append(self.mod(coord, shape[axis]) if axis and shape[axis] else coord)
        return tuple(coords)

    def substitute(self, e: Expr, changes: Mapping[Expr, Expr]) -> Expr:
        """``e`` with variables replaced; everything above them is rebuilt and simplified."""
        memo: dict[Expr, Expr] = {v: new for v, new in changes.items() if v.kind == "var"}
        names = {v.attr for v in memo}

        def walk(x: Expr) -> Expr:
            if x in memo:
                return memo[x]
            if not (x.free & names):
                return x
            args = tuple(walk(a) for a in x.args)
            memo[x] = self.rebuild(x, args)
            return memo[x]

        return walk(e)

    def rebuild(self, e: Expr, args: tuple[Expr, ...]) -> Expr:
        """The same operation on other operands."""
        if e.kind == "sum":
            total = self.const(e.attr[1])
            for a, c in zip(args, e.attr[0], strict=True):
                total = self.add(total, self.mul(a, c))
            return total
        if e.kind == "div":
            return self.div(args[0], e.attr)
        if e.kind == "mod":
            return self.mod(args[0], e.attr)
        if e.kind == "within":
            return self.within(args[0], e.attr)
        if e.kind in ("ge0", "eq0"):
            mask = self.ge0(args[0]) if e.kind == "ge0" else self.eq0(args[0])
            return self.true if mask is None else mask
        if e.kind == "and":
            mask = self.both(args[0], args[1])
            return self.true if mask is None else mask
        if e.kind == "apply":
            return self.apply(e.attr[0], e.attr[1], args, e.dtype)
        return self._make(e.kind, args, e.attr, e.dtype, e.lo, e.hi)

    # --- masks --------------------------------------------------------------------------------------

    @property
    def true(self) -> Expr:
        """The mask that always holds, where an expression is needed."""
        return self._make("true", (), None, "bool")

    def ge0(self, e: Expr) -> Expr | None:
        """e ≥ 0."""
        if e.lo >= 0:
            return None
        return self.false if e.hi < 0 else self._make("ge0", (e,), None, "bool")

    def eq0(self, e: Expr) -> Expr | None:
        """e = 0."""
        if e.lo == e.hi == 0:
            return None
        return self.false if e.lo > 0 or e.hi < 0 else self._make("eq0", (e,), None, "bool")

    def both(self, a: Expr | None, b: Expr | None) -> Expr | None:
        """a and b."""
        a, b = (None if m is not None and m.kind == "true" else m for m in (a, b))
        if a is None or b is None or a is b:
            return b if a is None else a
        if self.false in (a, b):
            return self.false
        return self._make("and", (a, b), None, "bool")

    # --- values -------------------------------------------------------------------------------------

    def number(self, value: Any, dtype: str) -> Expr:
        """A literal value; floats are told apart by their bits (−0.0, NaN)."""
        return self._make("const", (), value, dtype, key=value.tobytes())

    def load(self, source: Any, index: Expr, dtype: str) -> Expr:
        """Element ``index`` of a stored node."""
        return self._make("load", (index,), source, dtype)

    def scalar(self, name: str, dtype: str) -> Expr:
        """A per-call number."""
        return self._make("scalar", (), name, dtype)

    def register(self, name: str, dtype: str) -> Expr:
        """The result of the kernel's reduction."""
        return self._make("reg", (), name, dtype)

    def apply(self, op: Any, attrs: Mapping[str, Any], args: Iterable[Expr], dtype: str) -> Expr:
        """An elementwise op on values."""
        frozen = tuple(sorted((k, repr(v)) for k, v in attrs.items()))
        return self._make("apply", tuple(args), (op, attrs), dtype, key=(op.name, frozen))
