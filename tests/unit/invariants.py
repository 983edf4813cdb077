"""What must hold of every compiled program, checked on its data: bindings, lifetimes, and the WGSL's text."""

from __future__ import annotations

import re

from webgrad.compiler.simplify import storage


def check_program(ir):
    """All of them, for the stages of one compiled program."""
    check_bindings(ir.program, ir.plan.target)
    check_lifetimes(ir.plan)
    for text in ir.program.modules:
        check_text(text)


def check_bindings(program, target):
    """WebGPU's rules: within a dispatch a buffer is read, or written through disjoint ranges."""
    for kernel in program.kernels:
        storages = [b for b in kernel.bindings if b.access != "uniform"]
        assert len(storages) <= target.max_storage_buffers, kernel
        written = {b.buffer for b in storages if b.access == "read_write"}
        assert written, "a kernel stores something"
        for number, binding in enumerate(kernel.bindings):
            assert binding.offset % 256 == 0 and binding.size >= 16 and binding.size % 16 == 0, binding
            assert binding.offset + binding.size <= program.buffers[binding.buffer].bytes, binding
            assert binding.size <= target.max_binding_bytes
            if binding.buffer not in written:
                continue
            assert binding.access == "read_write", "a written buffer is bound read_write throughout"
            for other in kernel.bindings[:number]:
                apart = (
                    other.offset + other.size <= binding.offset
                    or binding.offset + binding.size <= other.offset
                )
                assert other.buffer != binding.buffer or apart, f"{other} overlaps {binding}"
        declared = re.findall(r"@binding\((\d+)\) var<(\w+)(?:, (\w+))?>", program.modules[kernel.module])
        found = [kind if kind == "uniform" else access for _, kind, access in declared]
        assert found == [b.access for b in kernel.bindings], "the text declares what is bound"
        assert all(0 < n <= target.max_workgroups for n in kernel.workgroups)


def check_lifetimes(plan):
    """Every load finds the value it names: no buffer was recycled, or a leaf overwritten, before its last
    reader; and a kernel that stores where it loads does so at the same index.
    """
    graph = plan.schedule.graph
    held = {}  # buffer -> [(start, end, node)]
    leaves = [*graph.params.values(), *graph.inputs.values(), *graph.states.values()]

    def overlapping(node):
        buffer, start = plan.where(node)
        return [o for a, b, o in held.get(buffer, []) if a < start + storage(node).nbytes and start < b]

    def put(node):
        buffer, start = plan.where(node)
        kept = [r for r in held.get(buffer, []) if not (r[0] < start + node.nbytes and start < r[1])]
        held[buffer] = [*kept, (start, start + node.nbytes, node)]

    for kernel in plan.schedule.kernels:
        expressions = loads_of(kernel)
        for node in kernel.loads:
            base, owners = storage(node), overlapping(node)
            if base.op.family == "leaf":
                assert not owners, f"%{base.id} was overwritten before\n{kernel}"
            elif base.op.family == "pack":
                assert set(owners) <= set(base.inputs), f"%{base.id} was overwritten before\n{kernel}"
            elif base.size:
                assert owners == [base], f"%{base.id} is no longer there for\n{kernel}"
        for store in kernel.stores:
            buffer, start = plan.where(store.node)
            for e in expressions:
                other, at = plan.where(e.attr)
                if other == buffer and at < start + store.node.nbytes and start < at + e.attr.nbytes:
                    assert e.args[0] is store.index, f"reads {e} while it stores %{store.node.id}\n{kernel}"
        for store in kernel.stores:
            put(store.node)
    for node in graph.roots():
        base = storage(node)
        if base.size and base.op.family != "pack":
            assert overlapping(base) == [base], f"%{base.id} is not there at the end"
    for leaf, _ in graph.updates:
        if leaf.size:
            where, size = plan.where(leaf), leaf.nbytes
            owners = [o for a, b, o in held.get(where[0], []) if a < where[1] + size and where[1] < b]
            assert owners and all(o not in leaves for o in owners), (
                f"nothing was written to {leaf.attrs['name']}"
            )


def loads_of(kernel):
    """Every load expression of a kernel."""
    found, seen, stack = [], set(), list(kernel.roots())
    while stack:
        e = stack.pop()
        if e.uid in seen:
            continue
        seen.add(e.uid)
        stack.extend(e.args)
        if e.kind == "load":
            found.append(e)
    return found


def check_text(text):
    """No literal that WGSL compilers refuse, no user's name or line, no arena's name."""
    code = re.sub("//.*", "", text)
    assert not re.search(r"(?<![\w.])-?(inf|nan)\b", code, re.IGNORECASE), "an infinite literal"
    assert not re.search(r"/ *-?0(\.0)?f?\b(?!\.)", code), "a division by a literal zero"
    assert not re.search(r"bitcast<f32>\(0x(7f8|ff8|7fc|ffc)", code), "a constant infinity or NaN"
    for literal in re.findall(r"(?<![\w.])\d+(?:\.\d*)?(?:e[+-]?\d+)?f\b", code):
        assert abs(float(literal[:-1])) < 3.4028235e38, literal
    for integer in re.findall(r"(?<![\w.])\d+(?![\w.])", code):
        assert int(integer) < 2**31, integer
    assert code.count("{") == code.count("}") and code.count("(") == code.count(")")
    assert "@compute @workgroup_size(" in code
    assert ".py" not in text and "param/" not in text and "opt." not in text
