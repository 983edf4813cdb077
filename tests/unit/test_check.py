"""The compiler's checker passes what the compiler makes, and finds every way to spoil it, by name."""

from __future__ import annotations

import dataclasses
import itertools
import re

import numpy as np
import pytest

import webgrad as wg
from bench import static
from bench.workloads import WORKLOADS
from tests.unit.helpers import Empty
from webgrad import nn
from webgrad.compile import build_forward, build_training
from webgrad.compiler import check
from webgrad.compiler.check import check_program, size_of, wanted
from webgrad.compiler.program import BufferSpec
from webgrad.compiler.simplify import storage
from webgrad.compiler.target import Target
from webgrad.optim import Adam


@pytest.mark.parametrize("target", static.TARGETS)
@pytest.mark.parametrize("name", WORKLOADS)
def test_the_workloads_pass(name, target):
    _, ir = static.measure(name, target)
    check_program(ir.plan, ir.program)


def test_it_runs_where_the_environment_asks_for_it(monkeypatch):
    for value, expected in (("0", False), ("", False), ("1", True), ("3", True)):
        monkeypatch.setenv("WEBGRAD_DEBUG", value)
        assert wanted() is expected
    monkeypatch.delenv("WEBGRAD_DEBUG")
    assert not wanted()


def test_what_is_compiled_is_checked(monkeypatch):
    seen = []
    monkeypatch.setattr(check, "check_program", lambda plan, program: seen.append(program))
    parts = forward_parts(lambda x: x * 2, x=(3,))
    assert seen == [parts.ir.program]
    monkeypatch.setattr(check, "wanted", lambda: False)
    forward_parts(lambda x: x * 2, x=(3,))
    assert len(seen) == 1


# --- programs to spoil ------------------------------------------------------------------------------


class MLP(nn.Module):
    """Two layers."""

    def __init__(self):
        self.l1, self.l2 = nn.Linear(4, 8), nn.Linear(8, 3)


def loss_fn(model, x, t):
    """Cross-entropy, with a capture on the way."""
    return wg.cross_entropy(model.l2(wg.capture("h", wg.tanh(model.l1(x)))), t)


def training_ir(**options):
    """Stages of a training program."""
    inputs = {"x": (16, 4), "t": wg.Input((16,), "i32")}
    return build_training(MLP, loss_fn, inputs, Adam(**options), 0, Target()).ir


def forward_parts(function, **shapes):
    """Parts of a forward program."""
    inputs = {k: wg.Input(s) for k, s in shapes.items()}
    return build_forward(Empty, lambda model, **t: function(**t), inputs, None, 0, Target())


def forward_ir(function, **shapes):
    """Its stages."""
    return forward_parts(function, **shapes).ir


def relinked(plan, monkeypatch):
    """A program for a plan that was changed, unchecked."""
    with monkeypatch.context() as patch:
        patch.setattr(check, "wanted", lambda: False)
        return wg.make_program(plan, wg.emit_kernels(plan))


def with_kernel(program, number, **changes):
    """The program with one kernel changed."""
    kernels = list(program.kernels)
    kernels[number] = dataclasses.replace(kernels[number], **changes)
    return dataclasses.replace(program, kernels=tuple(kernels))


def with_binding(program, number, at, **changes):
    """The program with one binding of a kernel changed."""
    bindings = list(program.kernels[number].bindings)
    bindings[at] = dataclasses.replace(bindings[at], **changes)
    return with_kernel(program, number, bindings=tuple(bindings))


def refused_values(plan, program, message):
    """The checker finds that a kernel does not read what it should."""
    with pytest.raises(wg.CompileError, match=re.compile("internal error: " + message, re.DOTALL)):
        check.check_values(plan, program, range(len(program.kernels)))


def with_ranges(plan, program):
    """The program with what is read back where the plan has it."""
    graph = plan.schedule.graph
    tables = {
        "output": {str(i): n for i, n in enumerate(graph.outputs)},
        "capture": graph.captures,
        "metric": graph.metrics,
    }
    named = {f"{kind}:{name}": node for kind, table in tables.items() for name, node in table.items()}
    return dataclasses.replace(program, ranges={name: plan.range_of(node) for name, node in named.items()})


def stores_of(plan):
    """Every computed value that is stored, in order."""
    return [s.node for k in plan.schedule.kernels for s in k.stores]


def refused(plan, program, message):
    """The checker refuses the program and says so."""
    with pytest.raises(wg.CompileError, match=re.compile("internal error: " + message, re.DOTALL)):
        check_program(plan, program)


# --- what buffers hold ------------------------------------------------------------------------------


def test_exactly_the_pairs_of_values_that_live_at_once_may_not_share_a_buffer():
    """Every pair in turn, against lifetimes that are counted here."""
    ir = training_ir()
    plan, kernels = ir.plan, ir.schedule.kernels
    owned = [n for n in stores_of(plan) if plan.buffers[plan.where(n)[0]].kind == "owned"]
    for node in owned:  # first of all a buffer for each
        plan.buffers.append(BufferSpec(1024, "owned"))
        plan.place[node] = (len(plan.buffers) - 1, 0)
    uses = {
        n: [i for i, k in enumerate(kernels) if n in [*k.loads, *(s.node for s in k.stores)]] for n in owned
    }
    for node in {storage(root) for root in plan.schedule.graph.roots()} & set(owned):
        uses[node].append(len(kernels))
    found = {True: 0, False: 0}
    for a, b in itertools.permutations(owned, 2):
        if uses[a][-1] == uses[b][0] or uses[b][-1] == uses[a][0]:
            continue  # whether a kernel may work in place is decided by its indices
        own, plan.place[b] = plan.place[b], plan.place[a]
        program = with_ranges(plan, ir.program)
        together = uses[a][0] <= uses[b][-1] and uses[b][0] <= uses[a][-1]
        if together:
            refused_values(plan, program, rf".*b{plan.place[a][0]}\[\d+:\d+\] \(owned\)")
        else:
            check.check_values(plan, program, range(len(kernels)))
        plan.place[b] = own
        found[together] += 1
    assert min(found.values()) > 10


def test_a_recycled_buffer_is_told_with_kernel_values_and_bytes():
    ir = forward_ir(lambda x: wg.softmax(x @ x) @ x, x=(32, 32))
    product, weights, _ = stores_of(ir.plan)
    ir.plan.buffers.append(BufferSpec(8192, "owned"))
    for node, offset in ((product, 0), (weights, 128)):
        ir.plan.place[node] = (len(ir.plan.buffers) - 1, offset)
    refused_values(
        ir.plan,
        ir.program,
        rf"kernel 1 \(row 1\) may load %{product.id} from b\d+\[128:4224\] \(owned\) after another thread or "
        rf"loop has stored %{weights.id} there",
    )


def test_kernels_out_of_order_are_found():
    ir = training_ir()
    numbers = range(len(ir.program.kernels))
    for a, b in itertools.pairwise(numbers):
        order = list(numbers)
        order[a], order[b] = b, a
        dependent = bool(set(ir.schedule.kernels[b].loads) & {s.node for s in ir.schedule.kernels[a].stores})
        program = dataclasses.replace(ir.program, entries={"step": tuple(order)})
        if dependent:
            refused(ir.plan, program, rf"kernel {b} .*loads %\d+ .*, but b\d+\[\d+:\d+\] .*holds")
    program = dataclasses.replace(ir.program, entries={"step": tuple(reversed(numbers))})
    refused(ir.plan, program, rf"kernel {len(numbers) - 1} .*loads %\d+ .*param/f32/0|.*holds")


def test_a_kernel_that_is_left_out_is_missed():
    ir = training_ir()
    for number in range(len(ir.program.kernels)):
        kept = tuple(n for n in range(len(ir.program.kernels)) if n != number)
        program = dataclasses.replace(ir.program, entries={"step": kept})
        refused(ir.plan, program, r".*(, but b\d+.* holds|is not there at the end|is not updated)")


def test_a_leaf_overwritten_before_its_last_reader_is_found():
    ir = training_ir()
    kernels = ir.schedule.kernels
    graph = ir.plan.schedule.graph
    weight = graph.params["l2.W"]
    reader = max(i for i, k in enumerate(kernels) if weight in k.loads)
    stray = next(s.node for k in kernels[:reader] for s in k.stores if s.node not in ir.schedule.placed)
    ir.plan.place[stray] = ir.plan.where(weight)
    refused_values(
        ir.plan,
        ir.program,
        rf"kernel \d+ \(\w+ \d+\) loads %{weight.id} \(param\), but b\d+\[\d+:\d+\] "
        rf"\(external param/f32/0\) holds %{stray.id} \({stray.op.name}\)",
    )


def test_a_capture_that_is_recycled_is_found(monkeypatch):
    ir = training_ir()
    plan, node = ir.plan, ir.plan.schedule.graph.captures["h"]
    later = next(
        n
        for k in plan.schedule.kernels
        if node not in k.loads
        for n in (s.node for s in k.stores)
        if n is not node
        and plan.where(n)[0] != plan.where(node)[0]
        and n not in plan.schedule.placed
        and n.nbytes <= node.nbytes
    )
    plan.place[later] = plan.place[node]
    refused(plan, relinked(plan, monkeypatch), rf".*(capture 'h' .*is not there at the end|%{node.id} )")


def test_a_capture_read_from_elsewhere_is_found():
    ir = training_ir()
    r = ir.program.ranges["capture:h"]
    moved = {**ir.program.ranges, "capture:h": dataclasses.replace(r, offset=r.offset + 256)}
    refused(
        ir.plan, dataclasses.replace(ir.program, ranges=moved), r"capture 'h' is read from b\d+\[256:\d+\]"
    )


def test_an_update_that_never_reaches_its_leaf_is_found():
    ir = training_ir()
    graph = ir.plan.schedule.graph
    (leaf, _), *_ = [u for u in graph.updates if u[0].attrs["name"] == "param/f32/0"]
    other = next(v for at, v in graph.updates if at.attrs["name"] == "opt.m/f32/0")
    graph.updates = [(at, other if at is leaf else v) for at, v in graph.updates]
    refused(
        ir.plan,
        ir.program,
        r"'param/f32/0' is not updated with %\d+ .*: b\d+\[0:1024\] \(external param/f32/0\)",
    )


def test_a_value_between_the_parts_of_an_arena_is_found():
    """The padding of the gradients must stay zero: the optimizer reads it."""
    plan = (ir := training_ir()).plan
    graph = plan.schedule.graph
    arena = next(leaf for leaf, _ in graph.updates if leaf.attrs["name"] == "grad/f32/0")
    total = next(s.node for k in plan.schedule.kernels for s in k.stores if s.node.size == 1)
    bias = plan.layout.ranges["l2.b"]
    plan.place[total] = (plan.where(arena)[0], (bias.offset + 3) * 4)
    refused_values(
        plan,
        ir.program,
        rf".*loads %\d+ \(pack\), but b\d+\[\d+:\d+\] \(external grad/f32/0\) holds %{total.id} ",
    )


# --- inside a kernel --------------------------------------------------------------------------------


def test_a_store_over_what_another_thread_loads_is_found():
    ir = forward_ir(lambda x: wg.flip(wg.capture("y", wg.sin(x)), 0) * 2, x=(8,))
    first, second = ir.plan.schedule.graph.captures["y"], ir.plan.schedule.graph.outputs[0]
    assert [s.node for s in ir.schedule.kernels[1].stores] == [second]
    ir.plan.place[second] = ir.plan.place[first]
    refused_values(
        ir.plan, ir.program, rf"kernel 1 \(map 1\) may load %{first.id} from b\d+\[0:32\] \(owned\)"
    )


def test_a_store_in_place_in_too_early_a_loop_is_found():
    class Wide(nn.Module):
        def __init__(self):
            self.w = self.param((64, 200))

    ir = build_training(
        Wide, lambda m, x: wg.sum(m.w * x), {"x": (64, 200)}, wg.optim.SGD(clip_norm=1.0), 0, Target()
    ).ir
    kernel = ir.plan.schedule.kernels[-1]
    assert kernel.kind == "row" and all(s.stage == 1 for s in kernel.stores)
    last = kernel.stores[-1]
    kernel.stores[-1] = dataclasses.replace(last, stage=0)
    refused(ir.plan, ir.program, rf"kernel \d+ .*may load %\d+ from b\d+.*stored %{last.node.id} there")


def test_two_stores_in_one_place_are_found(monkeypatch):
    plan = forward_ir(lambda x: (wg.sin(x), wg.cos(x)), x=(8,)).plan
    one, other = stores_of(plan)
    program = dict(plan.ranges)
    plan.place[other] = plan.place[one]
    plan.ranges = {**program, "output:1": program["output:0"]}
    ir_program = relinked(plan, monkeypatch)
    refused(plan, ir_program, rf"kernel 0 \(map 0\) stores both %{one.id} and %{other.id} in b\d+\[0:32\]")


def test_a_store_of_a_part_is_found():
    ir = forward_ir(lambda x: wg.sin(x) + 1, x=(8,))
    ir.plan.schedule.kernels[0].space = (4,)
    refused(ir.plan, ir.program, r"kernel 0 \(map 0\) stores 4 of the 8 elements of %\d+")


# --- leaves -----------------------------------------------------------------------------------------


def test_inputs_that_overlap_are_found():
    ir = forward_ir(lambda x, y: x + y, x=(100,), y=(100,))
    graph = ir.plan.schedule.graph
    ir.plan.place[graph.inputs["y"]] = (0, ir.plan.where(graph.inputs["x"])[1] + 256)
    refused(ir.plan, ir.program, r"'y' and 'x' overlap at b0\[\d+:\d+\] \(owned upload\)")


def test_an_input_outside_its_buffer_is_found():
    ir = forward_ir(lambda x: x + 1, x=(100,))
    ir.plan.place[ir.plan.schedule.graph.inputs["x"]] = (0, 1 << 20)
    refused(ir.plan, ir.program, r"'x' lies at b0\[1048576:\d+\] \(owned upload\), outside")


def test_a_constant_with_other_bytes_is_found():
    ir = forward_ir(lambda x: x + np.array([1.0, 2.0, 5.0], np.float32), x=(3,))
    ir.plan.blobs[0] = bytes(len(ir.plan.blobs[0]))
    refused(ir.plan, ir.program, r"b\d+\[0:12\] \(constant 0\) is not constant %\d+")


# --- WebGPU's rules ---------------------------------------------------------------------------------


def simple_ir():
    """One kernel: two inputs and a number from the uniform to one output."""
    return forward_ir(lambda x, y: wg.dropout(x, 0.5, always=True) + y, x=(100,), y=(100,))


def at(program, access):
    """The first binding with an access."""
    return next(i for i, b in enumerate(program.kernels[0].bindings) if b.access == access)


BINDINGS = {
    "an odd offset": ("read", {"offset": 272}, r"binds read b0\[272:\d+\] .*offsets are multiples of 256"),
    "a small size": ("read", {"size": 8}, r"binds read b0\[\d+:\d+\] .*sizes are multiples of 16, from 16"),
    "an odd size": ("read", {"size": 404}, r"binds read b0.*sizes are multiples of 16"),
    "beyond the end": (
        "read_write",
        {"offset": 4096},
        r"binds read_write b\d+\[4096:4496\].*beyond the buffer's 400",
    ),
    "another place": (
        "read",
        {"offset": 0},
        r"binds read b0\[0:400\] .*where nothing that it loads or stores lies",
    ),
    "other access": ("read_write", {"access": "read"}, r"stores nothing"),
    "written, unlike declared": (
        "read",
        {"access": "read_write"},
        r"binds read b0\[768:1168\] \(owned upload\), but also writes that buffer: then all its bindings are",
    ),
    "a large uniform": ("uniform", {"size": 1 << 17}, r"binds uniform b0.*from 16 to 65,536"),
}


@pytest.mark.parametrize("name", BINDINGS)
def test_wrong_bindings_are_found(name):
    access, changes, message = BINDINGS[name]
    ir = simple_ir()
    check_program(ir.plan, ir.program)
    program = with_binding(ir.program, 0, at(ir.program, access), **changes)
    refused(ir.plan, program, rf"kernel 0 \(map 0\) ({message})")


def test_a_buffer_that_is_read_and_written_is_found():
    ir = simple_ir()
    written = ir.program.kernels[0].bindings[at(ir.program, "read_write")]
    program = with_binding(ir.program, 0, at(ir.program, "read"), buffer=written.buffer, offset=0, size=400)
    refused(
        ir.plan,
        program,
        r"kernel 0 .*but also writes that buffer: then all its bindings are read_write|.*declares",
    )


def test_written_bindings_that_overlap_are_found():
    ir = simple_ir()
    written = ir.program.kernels[0].bindings[at(ir.program, "read_write")]
    twice = (*ir.program.kernels[0].bindings, written)
    refused(
        ir.plan,
        with_kernel(ir.program, 0, bindings=twice),
        r"kernel 0 .*binds read_write b\d+.*, which overlaps",
    )


def test_a_binding_that_is_missing_is_found():
    ir = simple_ir()
    text = ir.program.modules[0]
    for access in ("read", "uniform"):
        index = at(ir.program, access)
        bindings = tuple(b for i, b in enumerate(ir.program.kernels[0].bindings) if i != index)
        lines = [line for line in text.splitlines() if f"@binding({index}) " not in line]
        program = dataclasses.replace(
            with_kernel(ir.program, 0, bindings=bindings), modules=("\n".join(lines),)
        )
        message = "does not bind b0" if access == "read" else "reads the number '(seed|rng_step)' at byte"
        refused(ir.plan, program, rf"kernel 0 .*{message}")


def test_too_many_bindings_are_found():
    ir = simple_ir()
    ir.plan.target = Target(max_storage_buffers=2)
    refused(ir.plan, ir.program, "kernel 0 .*has 3 storage bindings; the adapter has 2")


@pytest.mark.parametrize("workgroups", [(70_000, 1, 1), (1, 0, 1)])
def test_grids_beyond_the_limits_are_found(workgroups):
    ir = simple_ir()
    program = with_kernel(ir.program, 0, workgroups=workgroups)
    refused(ir.plan, program, rf"kernel 0 .*launches \({workgroups[0]}, .* from 1 to 65,535 in a dimension")


TEXTS = {
    "threads": ("@workgroup_size(16)", "@workgroup_size(32, 16)", "has 512 threads a workgroup.*allows 256"),
    "no entry": ("@compute", "", "has 0 threads a workgroup"),
    "memory": (
        "@compute",
        "var<workgroup> tile: array<array<vec4<f32>, 33>, 32>;\n@compute",
        "needs 16,896 bytes of workgroup memory; the adapter has 16,384",
    ),
    "declared": ("array<f32, 100>", "array<f32, 99>", r"declares \[\('read.*is bound"),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_texts_beyond_the_limits_are_found(name):
    ir = simple_ir()
    old, new, message = TEXTS[name]
    assert old in ir.program.modules[0]
    program = dataclasses.replace(ir.program, modules=(ir.program.modules[0].replace(old, new),))
    refused(ir.plan, program, f"kernel 0 .*{message}")


def test_sizes_of_wgsl_types():
    kinds = [
        "f32",
        "vec2<f32>",
        "vec4<u32>",
        "array<i32, 7>",
        "array<vec4<f32>, 2>",
        "array<array<f32, 3>, 5>",
    ]
    assert [size_of(k) for k in kinds] == [4, 8, 16, 28, 32, 60]
