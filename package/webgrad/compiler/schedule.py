"""Graph → Schedule: which nodes are stored, and which stored nodes share a kernel.

    1. simplify      the graph is rebuilt smaller (simplify.py)
    2. materialise   decide the nodes whose values are stored; all others are recomputed where used
    3. group         each reduction or contraction starts a kernel; a stored elementwise node joins the
                     kernel that made its operands (epilogue) or one over the same space (horizontal)
    4. commit        an update is written in place when its kernel alone reads the leaf, element by
                     element, after all other readers; else through a temporary and a copy
    5. lower         each group becomes a `ScheduledKernel` of index and value expressions (lower.py)

A group may take a node only if none of the node's other operands depends on the group: kernels stay
acyclic by construction.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from webgrad.compiler.kernels import Schedule
from webgrad.compiler.lower import lower
from webgrad.compiler.simplify import simplify, storage, uniform_value
from webgrad.compiler.target import DEFAULT, Target
from webgrad.errors import CompileError
from webgrad.ir import Graph, Node
from webgrad.ops import elementwise as ew

HEAVY = ("reduce", "contract")
#: an inlined expression dearer than this is stored when it would be evaluated more than once
RECOMPUTE = 6
#: the largest expression one kernel computes per store
LARGEST = 300


@dataclass(eq=False)
class Group:
    """One kernel to be: ``heavy`` is its reduction or contraction, ``members`` what it computes at its
    own coordinates, in order; ``stored`` those it writes.
    """

    number: int
    size: int
    heavy: Node | None
    members: list[Node] = field(default_factory=list)
    linear: set[Node] = field(default_factory=set)
    scattered: set[Node] = field(default_factory=set)
    deps: set[int] = field(default_factory=set)


@dataclass
class Reads:
    """What the inlined expression of a node loads: at its own flat index, and elsewhere."""

    linear: set[Node] = field(default_factory=set)
    scattered: set[Node] = field(default_factory=set)


class Scheduler:
    """State of one `schedule` call."""

    def __init__(self, graph: Graph, target: Target) -> None:
        self.graph, self.target = graph, target
        self.users: dict[Node, list[Node]] = {n: [] for n in graph.nodes}
        for node in graph.nodes:
            for x in node.inputs:
                self.users[x].append(node)
        self.stored: set[Node] = set()
        self.groups: list[Group] = []
        self.home: dict[Node, Group] = {}
        self.placed: dict[Node, tuple[Node, int]] = {}
        self.writers: dict[Node, list[Group]] = {}

    # --- 2. materialise -----------------------------------------------------------------------------

    def demanded(self) -> set[Node]:
        """Nodes that must be stored whatever they cost: read from outside, pinned, or packed."""
        found = {storage(n) for n in [*self.graph.roots(), *self.graph.pinned]}
        for node in self.graph.nodes:
            if node.op.family == "pack":
                found.update(node.inputs)
        return found

    def materialise(self) -> None:
        """Fill ``stored``."""
        demanded = self.demanded()
        weight: dict[Node, int] = {}
        sources: dict[Node, frozenset[Node]] = {}
        for node in self.graph.nodes:
            if node.op.family == "leaf" or node.op.family == "pack":
                weight[node], sources[node] = 0, frozenset([node] if self.is_source(node) else [])
                continue
            while True:
                weight[node] = node.op.cost + sum(weight[x] for x in node.inputs)
                sources[node] = frozenset().union(*[sources[x] for x in node.inputs])
                if len(sources[node]) <= self.target.max_storage_buffers - 2 and weight[node] <= LARGEST:
                    break
                if node.op.family in HEAVY:
                    break
                inner = max(node.inputs, key=lambda x: (len(sources[x]), weight[x]))
                if sources[inner] <= {storage(inner)}:
                    break
                self.keep(storage(inner), weight, sources)
            if node.op.family in HEAVY or node in demanded or self.dear(node, weight[node]):
                self.keep(node, weight, sources)
        self.stored = {n for n in self.stored if n.op.family != "leaf"}

    def keep(self, node: Node, weight: dict[Node, int], sources: dict[Node, frozenset[Node]]) -> None:
        """Store ``node``; what was computed on top of it is weighed anew by the caller."""
        self.stored.add(node)
        stack = [node]
        while stack:  # the node and the reshapes of it seen so far
            x = stack.pop()
            weight[x], sources[x] = 0, frozenset([node])
            stack.extend(u for u in self.users[x] if u.op.name == "reshape" and u in weight)

    def is_source(self, node: Node) -> bool:
        """Whether reading ``node`` is a load from a buffer."""
        if node.op.family != "leaf":
            return True
        name = node.op.name
        return name in ("param", "input", "state") or (name == "const" and node.attrs["value"].ndim > 0)

    def dear(self, node: Node, weight: int) -> bool:
        """Whether recomputing ``node`` wherever it is used would cost more than storing it."""
        if node.op.family == "movement":
            return False
        count, expands, operand = self.fanout(node, {})
        return (weight > 0 and operand) or (weight > RECOMPUTE and (count > 1 or expands))

    def fanout(self, node: Node, memo: dict[Node, tuple[int, bool, bool]]) -> tuple[int, bool, bool]:
        """Through movement: how many consumers, whether some evaluate an element more than once, whether
        some are contractions.
        """
        if node in memo:
            return memo[node]
        count, expands, operand = 0, False, False
        for user in self.users[node]:
            if user.op.family == "movement" and user not in self.stored:
                more, wider, contracted = self.fanout(user, memo)
                grows = user.size > node.size and uniform_value(node) is None
                count, expands = count + more, expands or wider or (grows and more > 0)
                operand = operand or contracted
            else:
                count += 1
                expands = expands or user.op.family == "index"
                operand = operand or user.op.family == "contract"
        memo[node] = (count, expands, operand)
        return memo[node]

    # --- 3. group -----------------------------------------------------------------------------------

    def reads(self, node: Node) -> Reads:
        """What evaluating ``node`` loads."""
        found = Reads()
        seen: set[tuple[int, bool]] = set()
        stack = [(x, node.op.family == "elementwise") for x in node.inputs]
        if node.op.name == "reshape":
            stack = [(x, True) for x in node.inputs]
        while stack:
            x, linear = stack.pop()
            if (x.id, linear) in seen:
                continue
            seen.add((x.id, linear))
            base = storage(x)
            if base in self.stored or (base.op.family in ("leaf", "pack") and self.is_source(base)):
                (found.linear if linear else found.scattered).add(base)
                continue
            straight = (linear and x.op.family in ("elementwise", "random")) or x.op.name == "reshape"
            stack.extend((y, linear and straight) for y in x.inputs)
        return found

    def group(self) -> None:
        """Assign every stored node to a group."""
        for node in self.graph.nodes:
            if node.op.family == "pack":
                offsets = zip(node.inputs, node.attrs["offsets"], strict=True)
                self.placed.update({part: (node, offset) for part, offset in offsets})
                self.writers[node] = [self.home[part] for part in dict.fromkeys(node.inputs)]
            if node not in self.stored or node in self.home:
                continue
            reads = self.reads(node)
            host = None if node.op.family in HEAVY else self.host(node, reads)
            if host is None:
                heavy = node if node.op.family in HEAVY else None
                host = Group(len(self.groups), node.size, heavy)
                self.groups.append(host)
            self.join(host, node, reads)

    def join(self, group: Group, node: Node, reads: Reads) -> None:
        """Compute ``node`` in ``group``."""
        own = set(group.members)
        group.members.append(node)
        group.linear |= reads.linear - own
        group.scattered |= reads.scattered
        group.deps |= {g for x in reads.linear | reads.scattered for g in self.makers(x)} - {group.number}
        self.home[node] = group
        self.writers[node] = [group]

    def makers(self, source: Node) -> set[int]:
        """Numbers of the groups that write a source."""
        return {g.number for g in self.writers.get(source, [])}

    def host(self, node: Node, reads: Reads) -> Group | None:
        """The best existing group that can also compute ``node``."""
        if node.size == 0:
            return None
        linked = {g for x in reads.linear for g in self.makers(x)}
        candidates = [g for g in self.groups if g.size == node.size]
        candidates.sort(key=lambda g: (g.number in linked, g.number), reverse=True)
        for group in candidates:
            related = group.number in linked or (
                group.heavy is None and (group.linear | group.scattered) & (reads.linear | reads.scattered)
            )
            if related and self.can_join(group, node, reads):
                return group
        return None

    def can_join(self, group: Group, node: Node, reads: Reads) -> bool:
        """Whether ``node`` may be computed in ``group``: element by element, acyclic, within bindings."""
        own = set(group.members)
        if reads.scattered & own:
            return False
        if any(group.number in self.makers(x) for x in reads.scattered):
            return False
        if any(x not in own and group.number in self.makers(x) for x in reads.linear):
            return False  # a pack this group writes a part of
        loads = (group.linear | group.scattered | reads.linear | reads.scattered) - own
        if len(loads) + len(own) + 1 > self.target.max_storage_buffers:
            return False
        others = {g for x in reads.linear | reads.scattered for g in self.makers(x)} - {group.number}
        return not any(self.depends(g, group.number) for g in others)

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
        readers = [g for g in self.groups if same & (g.linear | g.scattered)]
        for group in writers:
            if same & group.scattered or (same - {leaf}) & group.linear:
                return False
            if leaf in group.linear and not self.reads_leaf_in_step(group, leaf, value):
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

    def reads_leaf_in_step(self, group: Group, leaf: Node, value: Node) -> bool:
        """The leaf's flat index equals the store's: both have the group's size."""
        return group.size == leaf.size == value.size

    def commit_by_copy(self, leaf: Node, value: Node) -> None:
        """Store a temporary, and copy it over when every reader has run."""
        temporary = Node(len(self.graph.nodes), ew.copy, (value,), {}, leaf.shape, leaf.dtype, leaf.sites)
        self.graph.nodes.append(temporary)
        same = self.aliases(leaf)
        group = Group(len(self.groups), leaf.size, None)
        readers = {g.number for g in self.groups if same & (g.linear | g.scattered)}
        self.groups.append(group)
        self.stored.add(temporary)
        self.join(group, temporary, Reads(linear={value}))
        group.deps |= readers
        self.placed[temporary] = (leaf, 0)

    def written(self) -> set[Node]:
        """Members that another kernel or the outside reads; the rest stay in registers."""
        return self.demanded().union(*[g.linear | g.scattered for g in self.groups])

    # --- order --------------------------------------------------------------------------------------

    def order(self) -> list[Group]:
        """Groups in dependency order, otherwise as they were made."""
        done: list[Group] = []
        placed: set[int] = set()
        waiting = list(self.groups)
        while waiting:
            ready = [g for g in waiting if g.deps <= placed]
            if not ready:
                raise CompileError("internal error: the kernels depend on each other in a circle")
            done.append(ready[0])
            placed.add(ready[0].number)
            waiting.remove(ready[0])
        return done


def schedule(graph: Graph, target: Target = DEFAULT) -> Schedule:
    """Plan the kernels that compute ``graph`` on ``target``; see the module's text."""
    small = simplify(graph, target)
    state = Scheduler(small, target)
    state.materialise()
    state.group()
    state.commit()
    written = state.written() | set(state.placed)
    kernels = [lower(g.heavy, g.members, state.stored, written) for g in state.order() if g.size]
    return Schedule(small, target, kernels, state.placed)
