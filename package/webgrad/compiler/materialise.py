"""Which values are stored: the cost model of recomputing against storing.

A value exists only inside the kernels that use it unless it is

- a reduction, a contraction, or demanded: read from outside, compared bit by bit, packed into an arena,
- an operand of a contraction, which would evaluate it once for every block,
- the end of the elementwise chain that alone uses a reduction or contraction,
- dear: recomputing it at each use costs more than one store and a load at each use,
- part of an expression with more loads than a kernel has bindings, or larger than a kernel should be.
"""

from __future__ import annotations

from webgrad.compiler.simplify import storage
from webgrad.compiler.target import Target
from webgrad.ir import Graph, Node

HEAVY = ("reduce", "contract")

# Prices, in elementary operations.
STORE = 4
LOAD = 1
#: the largest expression computed for one stored value, and the deepest
LARGEST = 300
DEEPEST = 40


def demanded(graph: Graph) -> set[Node]:
    """Nodes that must be stored whatever they cost."""
    found = {storage(n) for n in [*graph.roots(), *graph.pinned]}
    for node in graph.nodes:
        if node.op.family == "pack":
            found.update(node.inputs)
    return found


def is_source(node: Node) -> bool:
    """Whether reading ``node`` is a load from a buffer."""
    if node.op.family != "leaf":
        return True
    name = node.op.name
    return name in ("param", "input", "state") or (name == "const" and node.attrs["value"].ndim > 0)


def materialise(graph: Graph, target: Target, demanded: set[Node]) -> dict[Node, int]:
    """The nodes to store (no leaves), each with the depth of the expression that computes it."""
    state = _Costs(graph)
    most = target.max_storage_buffers - 2
    ends: set[Node] = set()
    for node in graph.nodes:
        if node.op.family in ("leaf", "pack"):
            state.weight[node] = state.depth[node] = 0
            state.sources[node] = frozenset([node] if is_source(node) else [])
            continue
        state.weigh(node)
        while len(state.sources[node]) > most or state.weight[node] > LARGEST or state.depth[node] > DEEPEST:
            inner = max(node.inputs, key=state.size)
            if state.sources[inner] <= {storage(inner)}:
                break
            state.store(storage(inner))
            state.weigh(node)
        if node.op.family in HEAVY:
            ends.add(state.end(node, demanded))
        if node.op.family in HEAVY or node in demanded or node in ends or state.dear(node):
            state.store(node)
    return {n: depth for n, depth in state.stored.items() if n.op.family != "leaf"}


class _Costs:
    """What evaluating each node costs and loads, given what is stored so far."""

    def __init__(self, graph: Graph) -> None:
        self.stored: dict[Node, int] = {}
        self.weight: dict[Node, int] = {}
        self.depth: dict[Node, int] = {}
        self.sources: dict[Node, frozenset[Node]] = {}
        self.users: dict[Node, list[Node]] = {n: [] for n in graph.nodes}
        for node in graph.nodes:
            for x in node.inputs:
                self.users[x].append(node)

    def weigh(self, node: Node) -> None:
        """Operations and sources of one evaluation."""
        own = 0 if node.op.family in HEAVY else node.op.cost
        self.weight[node] = own + sum(self.weight[x] for x in node.inputs)
        self.depth[node] = 1 + max((self.depth[x] for x in node.inputs), default=0)
        self.sources[node] = frozenset().union(*[self.sources[x] for x in node.inputs])

    def size(self, node: Node) -> tuple[int, int, int]:
        """What makes an operand too much to compute along."""
        return len(self.sources[node]), self.depth[node], self.weight[node]

    def store(self, node: Node) -> None:
        """Store ``node``: it and its reshapes are loads from here on."""
        self.stored.setdefault(node, self.depth[node])
        stack = [node]
        while stack:
            x = stack.pop()
            self.weight[x], self.depth[x], self.sources[x] = 0, 0, frozenset([node])
            stack.extend(u for u in self.users[x] if u.op.name == "reshape" and u in self.weight)

    def end(self, node: Node, demanded: set[Node]) -> Node:
        """The last of the elementwise nodes that alone use a reduction or contraction, each in turn: to store
        that one in its stead costs the same, and its users compute less.
        """
        end = node
        while node not in demanded and len(self.users[node]) == 1:
            (node,) = self.users[node]
            if node.size != end.size or (node.op.family != "elementwise" and node.op.name != "reshape"):
                break
            if node.op.family == "elementwise":
                end = node
        return end

    def dear(self, node: Node) -> bool:
        """Whether recomputing ``node`` wherever it is used costs more than storing and loading it."""
        if node.op.family == "movement" or self.weight[node] == 0:
            return False
        times, operand = self.evaluations(node, {})
        once = self.weight[node] + LOAD * len(self.sources[node])
        return operand or once * times > once + STORE + LOAD * times

    def evaluations(self, node: Node, memo: dict[Node, tuple[float, bool]]) -> tuple[float, bool]:
        """Through movement: how often each element would be evaluated, and whether for a contraction."""
        if node in memo:
            return memo[node]
        times, operand = 0.0, False
        for user in self.users[node]:
            if user.op.family == "movement" and user not in self.stored:
                more, contracted = self.evaluations(user, memo)
                times += more * user.size / max(node.size, 1)
                operand = operand or contracted
            else:
                times += user.size / max(node.size, 1) if user.op.family == "index" else 1
                operand = operand or user.op.family == "contract"
        memo[node] = (times, operand)
        return memo[node]
