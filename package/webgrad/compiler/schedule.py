"""Graph → Schedule: which nodes are stored, and which stored nodes share a kernel.

    1. simplify      the graph is rebuilt smaller (simplify.py)
    2. materialise   decide the nodes whose values may be stored; all others are recomputed where used
                     (materialise.py)
    3. group         put every such node into a kernel:
                     a contraction starts one; elementwise nodes join it as its epilogue, and so does the sum
                     of an operand over k (a bias gradient beside its weight gradient)
                     a reduction starts a row kernel, or joins one over the same rows of the same elements,
                     or turns the kernel that made its operand into one
                     an elementwise node joins the kernel of its operands, or one that reads the same
    4. commit        an update is written in place when its kernel alone reads the leaf, element by
                     element, after all other readers; else through a temporary and a copy
    5. lower         each group becomes a `ScheduledKernel` of index and value expressions (lower.py); a
                     contraction gets its strategy (strategy.py)

Whether nodes fit together is decided on symbolic indices, not on names or patterns: a member may be read
only at the coordinates at which the kernel computes it. A group may take a node only if none of the
node's other operands depends on the group: kernels stay acyclic by construction.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from webgrad.compiler.indexing import Expr, Indexer
from webgrad.compiler.kernels import Contraction, Schedule, ScheduledKernel, Side
from webgrad.compiler.lower import Domain, full_coords, lower_contract, lower_map, lower_rows
from webgrad.compiler.materialise import demanded, is_source, materialise
from webgrad.compiler.simplify import simplify, storage
from webgrad.compiler.strategy import LONG, choose
from webgrad.compiler.target import DEFAULT, Target
from webgrad.errors import CompileError
from webgrad.ir import Graph, Node, numel
from webgrad.ops import elementwise as ew
from webgrad.ops.contract import Access
from webgrad.stages import Steps, finish

#: the deepest expression of one kernel: expressions are written, signed and interpreted recursively
DEEPEST = 100
#: bytes that a reduction may keep alive to join an unrelated one over the same rows
COMPANION = 1 << 16
#: a row kernel runs one thread or workgroup a row: fewer rows leave cores idle, unless they are short
LEAST_ROWS, SHORT_ROWS = 32, {"software": 0, "hardware": LONG["hardware"]}


@dataclass(eq=False)
class Group:
    """One kernel to be. ``members`` are what it computes, in order, each once per element of the flat space,
    or, in a row kernel, once per row (``domain.rows``) or per element (``domain.size``).
    """

    number: int
    size: int
    heavy: Node | None = None
    domain: Domain | None = None
    members: list[Node] = field(default_factory=list)
    sums: dict[Node, Side] = field(default_factory=dict)
    #: leaves and nodes of other groups that it loads: only at its own element, or elsewhere too
    linear: set[Node] = field(default_factory=set)
    scattered: set[Node] = field(default_factory=set)
    deps: set[int] = field(default_factory=set)
    #: how deep the expression of each member is, other members included
    depth: dict[Node, int] = field(default_factory=dict)

    @property
    def loads(self) -> set[Node]:
        """Everything it loads."""
        return self.linear | self.scattered


class Scheduler:
    """State of one `schedule` call."""

    def __init__(self, graph: Graph, target: Target) -> None:
        self.graph, self.target = graph, target
        self.ix = Indexer()
        self.demanded = demanded(graph)
        self.depth = materialise(graph, target, self.demanded)
        self.stored = set(self.depth)
        self.alone: set[Node] = set()
        self.readers: dict[Node, set[Node]] = {}
        #: contraction -> the reductions that are sums of its operands over k
        self.side_sums: dict[Node, dict[Node, Side]] = {}
        self.restart()

    def restart(self) -> None:
        """Forget the groups."""
        self.groups: list[Group] = []
        self.home: dict[Node, Group] = {}
        self.placed: dict[Node, tuple[Node, int]] = {}
        self.writers: dict[Node, list[Group]] = {}

    # --- 3. group -----------------------------------------------------------------------------------

    def reads(self, node: Node, coords: tuple[Expr, ...]) -> dict[Node, set[Expr]]:
        """The flat indices at which evaluating ``node`` at ``coords`` loads each source."""
        ix = self.ix
        found: dict[Node, set[Expr]] = {}
        seen: set[tuple[int, tuple[int, ...]]] = set()
        stack = self.operands(node, coords)
        while stack:
            x, at = stack.pop()
            key = (x.id, tuple(c.uid for c in at))
            if key in seen:
                continue
            seen.add(key)
            if x in self.stored or x.op.family == "pack" or (x.op.family == "leaf" and is_source(x)):
                found.setdefault(x, set()).add(ix.ravel(at, x.shape))
            elif x.op.name == "reshape" and storage(x) in self.stored:
                base = storage(x)
                found.setdefault(base, set()).add(ix.ravel(at, x.shape))
            elif x.op.family != "leaf":
                stack.extend(self.operands(x, at))
        return found

    def operands(self, node: Node, coords: tuple[Expr, ...]) -> list[tuple[Node, tuple[Expr, ...]]]:
        """The operands of a node that is no reduction, with the coordinates at which it reads them."""
        ix, family = self.ix, node.op.family
        if family == "movement":
            return [(node.inputs[0], node.op.index_map(node, coords, ix)[0])]  # type: ignore[attr-defined]
        if family == "concat":
            axis, start, parts = node.attrs["axis"], 0, []
            for x in node.inputs:
                at = ix.add(coords[axis], ix.const(-start))
                parts.append((x, (*coords[:axis], at, *coords[axis + 1 :])))
                start += x.shape[axis]
            return parts
        if family == "index":
            x, ids = node.inputs
            size = x.shape[0 if node.op.name == "gather" else -1]
            index = ix.dyn(ix.register(f"%{ids.id}", "i32"), size)
            inner = node.op.index_map(node, coords, index)  # type: ignore[attr-defined]
            return [(x, inner), (ids, coords[: ids.ndim])]
        if family == "random":
            return []
        return [(x, coords) for x in node.inputs]

    def body_reads(self, node: Node, domain: Domain) -> dict[Node, set[Expr]]:
        """What the terms of a reduction load."""
        (x,), row = node.inputs, self.ix.unravel(domain.row, node.shape)
        if node.op.name == "fold":
            at = self.ix.unravel(domain.along, x.shape[-2:])
            coords = node.op.source(node, row, at, self.ix)[0]  # type: ignore[attr-defined]
        else:
            coords = full_coords(self.ix, node, row, domain.along)
        probe = Node(-1, ew.copy, (x,), {}, x.shape, x.dtype)
        return self.reads(probe, coords)

    def group(self) -> Steps[None]:
        """Assign every stored node to a group."""
        beside = {x for sums in self.side_sums.values() for x in sums}
        for number, node in enumerate(self.graph.nodes):
            yield number / len(self.graph.nodes)
            if node.op.family == "pack":
                offsets = zip(node.inputs, node.attrs["offsets"], strict=True)
                self.placed.update({part: (node, offset) for part, offset in offsets})
                homes = dict.fromkeys(self.home[part] for part in node.inputs)
                self.writers[node] = list(homes)
            elif node in self.stored and node not in beside:
                self.assign(node)

    def assign(self, node: Node) -> None:
        """Put a stored node into the best group that can compute it, or a new one."""
        family = node.op.family
        if family == "contract":
            found = {x: {self.ix.register("any", "i32")} for x in self.sources(node)}
            group = self.new_group(node.size, heavy=node)
            self.join(group, node, found)
            for total, side in self.side_sums.get(node, {}).items():
                group.sums[total] = side
                self.join(group, total, {})
            return
        domain = Domain(self.ix, node) if family == "reduce" else None
        if (domain.size if domain else node.size) and node not in self.alone:
            for group in self.candidates(node, domain):
                there = group.domain or domain
                reads = self.reads_in(group, node, there)
                if reads is not None and self.can_join(group, node, reads, there):
                    group.domain = there
                    self.join(group, node, reads)
                    return
        group = self.new_group(domain.size if domain else node.size, domain=domain)
        if domain:
            self.join(group, node, self.body_reads(node, domain))
        else:
            flat = self.ix.var("i", node.size)
            self.join(group, node, self.reads(node, self.ix.unravel(flat, node.shape)))

    def find_side_sums(self) -> None:
        """Fill ``side_sums`` with sums that nothing in the graph reads, only the outside."""
        sums: dict[Node, list[Node]] = {}
        for n in self.graph.nodes:
            if n.op.name == "sum" and n in self.stored and n not in self.readers and n not in self.alone:
                sums.setdefault(self.base(n.inputs[0]), []).append(n)
        for node in self.graph.nodes:
            if node.op.family != "contract" or node not in self.stored or not sums:
                continue
            form = node.op.form(node)  # type: ignore[attr-defined]
            if form.batch != 1:
                continue
            k = self.ix.ravel([self.ix.var(f"k{a}", n) for a, n in enumerate(form.k)], form.k)
            sides: list[tuple[Side, int, Access, int]] = [
                ("left", form.left, form.left_at, form.m),
                ("right", form.right, form.right_at, form.n),
            ]
            for side, operand, access, size in sides:
                x, line = node.inputs[operand], self.ix.var("line", size)
                options = sums.get(self.base(x), [])
                if not options:
                    continue
                at, mask = access(self.ix, self.ix.const(0), line, k)
                where = None if mask is not None else self.moved(x, at)
                for total in options if where is not None else []:
                    (y,) = total.inputs
                    if total.size == size and y.size == size * numel(form.k):
                        row = self.ix.unravel(line, total.shape)
                        if self.moved(y, full_coords(self.ix, total, row, k)) == where:
                            self.side_sums.setdefault(node, {})[total] = side
                            options.remove(total)
                            break

    def base(self, node: Node) -> Node:
        """What is left of ``node`` without movement."""
        while node not in self.stored and node.op.family == "movement":
            node = node.inputs[0]
        return node

    def moved(self, node: Node, coords: tuple[Expr, ...]) -> tuple[Node, Expr] | None:
        """The stored node and flat index that ``node`` at ``coords`` is, if it is a mere load."""
        while storage(node) not in self.stored and storage(node).op.family != "leaf":
            if node.op.family != "movement":
                return None
            coords, mask = node.op.index_map(node, coords, self.ix)  # type: ignore[attr-defined]
            node = node.inputs[0]
            if mask is not None:
                return None
        return storage(node), self.ix.ravel(coords, node.shape)

    def sources(self, node: Node) -> set[Node]:
        """What a node loads, wherever."""
        found, stack, seen = set(), list(node.inputs), set()
        while stack:
            x = stack.pop()
            if x in seen:
                continue
            seen.add(x)
            base = storage(x)
            if base in self.stored or (base.op.family in ("leaf", "pack") and is_source(base)):
                found.add(base)
            else:
                stack.extend(base.inputs)
        return found

    def new_group(self, size: int, heavy: Node | None = None, domain: Domain | None = None) -> Group:
        """An empty group."""
        self.groups.append(Group(len(self.groups), size, heavy, domain))
        return self.groups[-1]

    def candidates(self, node: Node, domain: Domain | None) -> list[Group]:
        """Groups whose space suits ``node``: first those that made its operands, then those that read the
        same; a reduction of little data may also accompany any other over the same rows.
        """
        sources = self.sources(node)
        makers = {g for x in sources for g in self.makers(x)}
        small = sum(x.nbytes for x in sources) <= COMPANION
        found = []
        for group in self.groups:
            if domain is not None:
                if group.heavy is not None or group.size != domain.size:
                    continue
                if group.domain is None and not self.enough_rows(domain):
                    continue
                if group.domain is not None and not group.domain.same(domain):
                    continue
            elif (node.size != group.size and (group.domain is None or node.size != group.domain.rows)) or (
                group.domain is not None
                and node.size == group.size != group.domain.rows
                and not self.enough_rows(group.domain)
            ):
                continue
            shares = group.heavy is None and bool(group.loads & sources)
            if (
                group.number in makers
                or shares
                or (domain is not None and small and group.domain is not None)
            ):
                found.append(group)
        found.sort(key=lambda g: (g.number in makers, bool(g.loads & sources), g.number), reverse=True)
        return found

    def enough_rows(self, domain: Domain) -> bool:
        """Whether one thread (or workgroup) a row keeps the adapter busy."""
        return domain.rows >= LEAST_ROWS or domain.length <= SHORT_ROWS[self.target.adapter_class]

    def reads_in(self, group: Group, node: Node, domain: Domain | None) -> dict[Node, set[Expr]] | None:
        """What ``node`` would load in ``group``, or None if it needs a member at other coordinates."""
        ix = self.ix
        if node.op.family == "reduce":
            assert domain is not None
            found = self.body_reads(node, domain)
        elif domain is None:
            flat = ix.var("i", node.size)
            found = self.reads(node, ix.unravel(flat, node.shape))
        else:
            index = domain.full if node.size == domain.size else domain.row
            found = self.reads(node, ix.unravel(index, node.shape))
        for source, indices in found.items():
            if source.op.family == "pack" and group.number in self.makers(source):
                return None
            if self.home.get(source) is not group:
                continue
            if domain is None:
                own = ix.var("i", source.size)
            else:
                own = domain.full if source.size == domain.size else domain.row
            if indices != {own}:
                return None
        return found

    def can_join(self, group: Group, node: Node, found: dict[Node, set[Expr]], domain: Domain | None) -> bool:
        """Whether ``group`` stays acyclic and within the adapter's bindings with ``node``."""
        members = set(group.members)
        if self.depth_in(group, node, found) > DEEPEST:
            return False
        loads = (group.loads | set(found)) - members
        written = [m for m in [*group.members, node] if self.leaves(m, group, node)]
        if len(loads) + len(written) > self.target.max_storage_buffers:
            return False
        if domain is not None and group.domain is None and any(m.size != domain.size for m in group.members):
            return False
        others = {g for x in found for g in self.makers(x)} - {group.number}
        return not any(self.depends(g, group.number) for g in others)

    def depth_in(self, group: Group, node: Node, found: dict[Node, set[Expr]]) -> int:
        """Depth of the node's expression, with those of the members that it uses in registers."""
        return self.depth.get(node, 1) + max((group.depth.get(x, 0) for x in found), default=0)

    def leaves(self, member: Node, group: Group, coming: Node | None = None) -> bool:
        """Whether a member is read by another group or the outside, as far as is known."""
        if member in self.demanded:
            return True
        readers = self.readers.get(member, set())
        return not readers or any(self.home.get(r) not in (None, group) and r is not coming for r in readers)

    def find_readers(self) -> None:
        """Fill ``readers``: which stored nodes load which."""
        for node in self.stored:
            for source in self.sources(node):
                self.readers.setdefault(source, set()).add(node)

    def join(self, group: Group, node: Node, found: dict[Node, set[Expr]]) -> None:
        """Compute ``node`` in ``group``."""
        domain = group.domain
        own = domain.full if domain else self.ix.var("i", node.size)
        size = domain.size if domain else node.size
        for source, indices in found.items():
            if self.home.get(source) is group:
                continue
            flat = indices == {own} and source.size == size
            (group.linear if flat else group.scattered).add(source)
        group.depth[node] = self.depth_in(group, node, found)
        group.members.append(node)
        group.deps |= {g for x in found for g in self.makers(x)} - {group.number}
        self.home[node] = group
        self.writers[node] = [group]

    def makers(self, source: Node) -> set[int]:
        """Numbers of the groups that write a source."""
        return {g.number for g in self.writers.get(source, [])}

    def depends(self, group: int, on: int) -> bool:
        """Whether ``group`` runs after ``on``."""
        seen, stack = set(), [group]
        while stack:
            g = stack.pop()
            if g == on:
                return True
            if g not in seen:
                seen.add(g)
                stack.extend(self.groups[g].deps)
        return False

    # --- 4. commit ----------------------------------------------------------------------------------

    def commit(self) -> None:
        """Give every update its way to the leaf."""
        for leaf, value in self.graph.updates:
            if not self.commit_in_place(leaf, storage(value)):
                self.commit_by_copy(leaf, storage(value))

    def aliases(self, leaf: Node) -> set[Node]:
        """Leaves that share the leaf's bytes: an arena and the parameters in it."""
        names = {leaf.attrs["name"]}
        layout = self.graph.layout
        if layout is not None and leaf.attrs["name"] in layout.arenas:
            names |= {p for p, r in layout.ranges.items() if r.arena == leaf.attrs["name"]}
        table = {**self.graph.params, **self.graph.states}
        return {leaf} | {table[n] for n in names if n in table}

    def commit_in_place(self, leaf: Node, value: Node) -> bool:
        """Store ``value`` straight into ``leaf``'s bytes, if every reader allows it."""
        if value in self.placed or value.op.family == "leaf" or value.nbytes != leaf.nbytes:
            return False
        same = self.aliases(leaf)
        writers = self.writers[value]
        readers = [g for g in self.groups if same & g.loads]
        for group in writers:
            if same & group.scattered or (same - {leaf}) & group.linear:
                return False
            if leaf in group.linear and not group.size == leaf.size == value.size:
                return False
        before = [g for g in readers if g not in writers]
        if any(self.depends(reader.number, writer.number) for reader in before for writer in writers):
            return False
        if value.op.family == "pack" and any(g in writers for g in readers):
            return False
        for writer in writers:
            writer.deps |= {g.number for g in before}
        self.placed[value] = (leaf, 0)
        return True

    def commit_by_copy(self, leaf: Node, value: Node) -> None:
        """Store a temporary, and copy it over when every reader has run."""
        temporary = Node(len(self.graph.nodes), ew.copy, (value,), {}, leaf.shape, leaf.dtype, leaf.sites)
        self.graph.nodes.append(temporary)
        same = self.aliases(leaf)
        readers = {g.number for g in self.groups if same & g.loads}
        self.stored.add(temporary)
        group = self.new_group(leaf.size)
        self.join(group, temporary, {value: {self.ix.var("i", leaf.size)}})
        group.deps |= readers
        self.placed[temporary] = (leaf, 0)

    def written(self) -> set[Node]:
        """Members that another kernel or the outside reads; the rest stay in registers."""
        return self.demanded.union(self.placed, *[g.loads for g in self.groups])

    def overfull(self) -> list[Group]:
        """Groups that need more bindings than the adapter has."""
        written = self.written()
        found = []
        for group in self.groups:
            stores = sum(m in written for m in group.members)
            if len(group.members) > 1 and len(group.loads) + stores > self.target.max_storage_buffers:
                found.append(group)
        return found

    # --- order --------------------------------------------------------------------------------------

    def order(self) -> list[Group]:
        """Groups in dependency order, otherwise as they were made."""
        done: list[Group] = []
        placed: set[int] = set()
        waiting = list(self.groups)
        while waiting:
            ready = next((g for g in waiting if g.deps <= placed), None)
            if ready is None:
                raise CompileError("internal error: the kernels depend on each other in a circle")
            done.append(ready)
            placed.add(ready.number)
            waiting.remove(ready)
        return done


def schedule(graph: Graph, target: Target = DEFAULT) -> Schedule:
    """Plan the kernels that compute ``graph`` on ``target``; see the module's text."""
    return finish(schedule_steps(simplify(graph, target), target))


def schedule_steps(small: Graph, target: Target) -> Steps[Schedule]:
    """`schedule` of a simplified graph, piece by piece: grouping is one half, lowering the other."""
    yield 0.0
    state = Scheduler(small, target)
    yield 0.0
    state.find_readers()
    yield 0.0
    state.find_side_sums()
    for done in state.group():
        yield done / 2
    while groups := state.overfull():
        for group in groups:
            state.alone.add(group.members[-1])
            if group.heavy is not None:
                state.side_sums.pop(group.heavy, None)
        state.restart()
        for done in state.group():
            yield done / 2
    state.commit()
    written = state.written()
    in_place = {value for value, (leaf, _) in state.placed.items() if leaf.op.family == "leaf"}
    groups = [g for g in state.order() if g.members[0].size]
    kernels: list[ScheduledKernel] = []
    for group in groups:
        yield 0.5 + 0.5 * len(kernels) / len(groups)
        kernels.append(_lowered(group, state.stored, written, in_place, target))
    return Schedule(small, target, kernels, state.placed)


def _lowered(
    group: Group, stored: set[Node], written: set[Node], in_place: set[Node], target: Target
) -> ScheduledKernel:
    if group.heavy is not None:
        kernel = lower_contract(group.heavy, group.members, group.sums, stored, written)
        assert isinstance(kernel.body, Contraction)
        kernel.body = replace(kernel.body, strategy=choose(kernel.ix, kernel.body, target))
        return kernel
    if group.domain is not None:
        return lower_rows(group.members, group.domain, stored, written, in_place)
    return lower_map(group.members, stored, written)
