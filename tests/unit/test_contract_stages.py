"""The contract, line 21: every stage is public and needs no browser."""

import json

import numpy as np
import pytest

import webgrad as wg
from webgrad import nn
from webgrad.compile import build_forward, build_training
from webgrad.compiler.target import DEFAULT
from webgrad.runtime.reference import NumpyExecutor

NAMES = [
    "trace", "trace_into", "append_grad", "append_adam", "schedule", "plan_buffers", "emit_kernels",
    "make_program", "create_runtime", "create_forward_runtime", "materialize_params", "Graph", "Schedule",
    "Plan", "Kernel", "Program", "Target",
]  # fmt: skip


class Line(nn.Module):
    """y = a·x + b."""

    def __init__(self):
        self.a = self.param((3,), scale=1.0)
        self.b = self.param((), init="zeros")


def test_21_the_stages_are_public():
    assert set(NAMES) <= set(wg.__all__)
    assert all(getattr(wg, name).__doc__ for name in NAMES)


def by_hand(target=DEFAULT):
    """One training graph, stage by stage."""
    model = Line()

    def forward():
        table = wg.materialize_params(model)
        assert list(table) == ["a", "b"]
        x = wg.tensor_input("x", (4, 3))
        return wg.mean((wg.capture("y", x * model.a + model.b)) ** 2)

    graph = wg.trace(forward)
    grads = wg.append_grad(graph)
    layout = wg.append_adam(graph, grads, lr=0.1)
    return graph, grads, layout


def test_21_each_stage_hands_plain_data_to_the_next():
    graph, grads, layout = by_hand()
    assert list(grads) == ["a", "b"] and grads["a"].shape == (3,) and grads["b"].shape == ()
    assert isinstance(layout, wg.Layout) and list(layout.ranges) == ["a", "b"]
    schedule = wg.schedule(graph, wg.Target())
    assert isinstance(schedule, wg.Schedule)
    plan = wg.plan_buffers(schedule)
    assert isinstance(plan, wg.Plan) and plan.schedule is schedule
    assert list(plan.captures) == ["y"] and plan.captures["y"][2:] == ((4, 3), "f32")
    kernels = wg.emit_kernels(plan)
    assert kernels and all(isinstance(k, wg.Kernel) for k in kernels)
    program = wg.make_program(plan, kernels)
    assert isinstance(program, wg.Program)


def test_21_plan_buffers_takes_a_graph_a_layout_and_a_target():
    graph, _, layout = by_hand()
    target = wg.Target(adapter_class="hardware")
    plan = wg.plan_buffers(graph, layout=layout, target=target)
    assert plan.target is target and plan.layout is layout and plan.schedule.graph.params.keys() == {"a", "b"}


def test_21_a_program_is_json_and_blobs():
    graph, _, _ = by_hand()
    plan = wg.plan_buffers(graph)
    program = wg.make_program(plan, wg.emit_kernels(plan))
    data = json.loads(program.to_json())
    assert data["version"] == 1
    assert {"modules", "kernels", "buffers", "entries", "ranges", "inputs", "scalars", "params"} <= set(data)
    assert all(isinstance(blob, bytes) for blob in program.blobs)


@pytest.mark.parametrize("stage", ["graph", "schedule", "plan", "program"])
def test_21_every_stage_prints(stage):
    graph, _, _ = by_hand()
    schedule = wg.schedule(graph)
    plan = wg.plan_buffers(schedule)
    program = wg.make_program(plan, wg.emit_kernels(plan))
    text = str({"graph": graph, "schedule": schedule, "plan": plan, "program": program}[stage])
    assert len(text.splitlines()) > 3 and "object at 0x" not in text


async def test_21_runtimes_are_made_of_parts_and_an_executor():
    def loss(model, x):
        return wg.mean((x * model.a + model.b) ** 2)

    executor = NumpyExecutor()
    inputs = {"x": (4, 3)}
    train = await wg.create_runtime(
        build_training(Line, loss, inputs, wg.optim.SGD(), 0, executor.target), executor
    )
    infer = await wg.create_forward_runtime(
        build_forward(Line, loss, inputs, train.params, 0, executor.target), executor, train.params
    )
    x = {"x": np.ones((4, 3))}
    assert await infer.run(x) == np.float32(await train.step(x))


async def test_21_a_compiled_program_keeps_its_stages():
    train = await wg.compile_module(
        Line, lambda model, x: wg.mean((x * model.a) ** 2), inputs={"x": (4, 3)}, device="numpy"
    )
    ir = train.ir
    assert isinstance(ir.graph, wg.Graph) and ir.graph.outputs == (ir.loss,)
    assert list(ir.param_grads) == ["a", "b"]
    assert ir.plan.schedule is ir.schedule
    assert isinstance(ir.kernels, list) and isinstance(ir.program, wg.Program)
    infer = await wg.compile_forward(Line, lambda model, x: x * model.a, inputs={"x": (4, 3)}, device="numpy")
    assert infer.ir.loss is None and infer.ir.param_grads == {}
