"""Random programs: the graph as traced, the simplified graph and the schedule over bytes give one answer."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import webgrad as wg
from tests.unit.helpers import Empty, evaluate, examples
from tests.unit.invariants import check_program
from tests.unit.random_programs import Draw
from webgrad import nn
from webgrad.compile import build_forward, build_training, create_forward_runtime, create_runtime
from webgrad.compiler.target import Target
from webgrad.ir import ArenaRange, Layout
from webgrad.optim import Group, per_step, vectors
from webgrad.runtime.reference import NumpyExecutor

LEVELS = ("graph", "schedule")
SEED = 7
TARGETS = st.sampled_from([Target(), Target(adapter_class="hardware")])
SHAPES = {"x": (3, 4), "y": (4,), "z": (2, 3, 4), "w": (1, 6)}
#: large enough for reductions in several runs and stages, split products, and many workgroups
LARGE = {"x": (33, 64), "y": (64,), "z": (2, 33, 64), "w": (1, 300)}


def quarters(rng, shape):
    """Numbers whose sums and products are exact."""
    return np.round(rng.normal(size=shape) * 4) / 4


def largest(values):
    """The largest finite float anywhere in the program: what rounding errors are measured against."""
    floats = [np.abs(v) for n, v in values.items() if n.dtype == "f32"]
    return max((float(np.max(v, initial=1, where=np.isfinite(v))) for v in floats), default=1.0)


class Oracle:
    """The graph as traced, in float32 for exact values and float64 for the others."""

    def __init__(self, graph, leaves):
        self.graph = graph
        self.single = evaluate(graph, leaves)
        self.double = evaluate(graph, leaves, float64=True)
        self.scale = largest(self.double)

    def check(self, found, node, exact, what, relative=1e-5):
        """``found`` is the value of ``node``: bit for bit when exact, else to a few roundings."""
        expected = self.single[node]
        message = f"{what}\n{self.graph}"
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype), message
        if exact:
            np.testing.assert_array_equal(found, expected, err_msg=message)
        else:
            np.testing.assert_allclose(
                found, self.double[node], rtol=relative, atol=relative * self.scale, err_msg=message
            )


# --- forward programs -------------------------------------------------------------------------------


def draw_forward(data, target, shapes, steps, largest):
    """A random forward program: its parts, and which of its results are exact."""
    exact = {}

    def forward(model, **inputs):
        draw = Draw(data, list(inputs.values()), largest=largest)
        for _ in range(draw.number(1, steps)):
            draw.step()
        made = draw.pool[len(inputs) :] or draw.pool[:1]
        for number, value in enumerate(made):
            if draw.number(0, 2) == 0:
                wg.capture(str(number), value.tensor)
                exact[f"capture {number}"] = value.exact
        outputs = made[-1:] + [v for v in made[:-1] if draw.number(0, 1)]
        exact.update({f"output {k}": v.exact for k, v in enumerate(outputs)})
        return tuple(v.tensor for v in outputs)

    inputs = {k: wg.Input(s) for k, s in shapes.items()}
    parts = build_forward(Empty, forward, inputs, None, SEED, target)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    return parts, exact, {name: quarters(rng, shape) for name, shape in shapes.items()}


def check_forward(data, target, executors, shapes=SHAPES, steps=14, largest=400, relative=1e-5):
    """A random forward program on some executors, against the graph as traced."""
    parts, exact, values = draw_forward(data, target, shapes, steps, largest)
    check_program(parts.ir)
    graph = parts.ir.graph
    oracle = Oracle(graph, {**values, "seed": SEED, "rng_step": 1})
    for executor in executors:
        result, what = asyncio.run(second_run(parts, executor, values)), executor.adapter
        bits = executor.name == "numpy"
        for k, node in enumerate(graph.outputs):
            oracle.check(
                result.output[k], node, exact[f"output {k}"] and bits, f"output {k}, {what}", relative
            )
        for name, node in graph.captures.items():
            oracle.check(
                result.captures[name], node, exact[f"capture {name}"] and bits, f"{name}, {what}", relative
            )


def both_levels(target):
    """The two NumPy executors."""
    return [NumpyExecutor(level, target=target) for level in LEVELS]


@examples(200)
@given(st.data(), TARGETS)
def test_forward_programs_agree_on_all_levels(data, target):
    check_forward(data, target, both_levels(target))


@examples(60)
@given(st.data(), TARGETS)
def test_large_forward_programs_agree_on_all_levels(data, target):
    check_forward(data, target, both_levels(target), LARGE, 8, 12_000)


async def second_run(parts, executor, values):
    """The second of two runs: what the first left in the buffers must not matter."""
    program = await create_forward_runtime(parts, executor)
    wanted = bool(parts.ir.graph.captures)
    await program.run({k: -v for k, v in values.items()}, full=True, with_captures=wanted)
    result = await program.run(values, full=True, with_captures=wanted)
    program.destroy()
    return result


# --- training programs ------------------------------------------------------------------------------


class Model(nn.Module):
    """Parameters of several shapes, one of which does not train."""

    def __init__(self):
        self.a = self.param((3, 4))
        self.b = self.param((4,))
        self.c = self.param((2, 3, 4))
        self.e = self.param(())
        self.n = self.param((3,), dtype="i32")


OPTIMIZERS = [
    None,
    wg.optim.SGD(0.1),
    wg.optim.SGD(0.1, 0.9, weight_decay=0.1, nesterov=True),
    wg.optim.Adam(1e-2),
    wg.optim.AdamW(1e-2),
    wg.optim.SGD(
        0.1, clip_norm=0.5, weight_decay=0.1, groups=[Group(vectors, weight_decay=0), Group("c", lr=2)]
    ),
]


@examples(80)
@given(st.data(), TARGETS, st.sampled_from(OPTIMIZERS))
def test_training_programs_agree_on_all_levels(data, target, optimizer):
    exact = {}

    def loss(model, **inputs):
        start = [*inputs.values(), model.a, model.b, model.c, model.e]
        draw = Draw(data, start, smooth=True)
        for _ in range(draw.number(1, 10)):
            draw.step()
        for number, value in enumerate(draw.pool):
            if draw.number(0, 3) == 0:
                wg.capture(str(number), value.tensor)
                exact[str(number)] = value.exact
        floats = [v.tensor for v in draw.pool[len(start) :] if v.tensor.dtype == "f32"]
        return sum((wg.mean(wg.sin(t)) for t in floats if t.size), wg.sum(model.b * model.b))

    shapes = {"x": (3, 4), "w": (1, 6)}
    parts = build_training(Model, loss, {k: wg.Input(s) for k, s in shapes.items()}, optimizer, SEED, target)
    check_program(parts.ir)
    check_one_update(parts, optimizer)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    values = {name: quarters(rng, shape) for name, shape in shapes.items()}
    start = {n: quarters(rng, node.shape) for n, node in parts.ir.graph.params.items()} | {"n": np.arange(3)}
    oracle = Oracle(parts.ir.graph, leaves_at_start(parts, optimizer, values, start))
    updated = updated_params(parts, oracle.double)
    for level in LEVELS:
        step, grads, params, states = asyncio.run(
            three_steps(parts, NumpyExecutor(level, target=target), values, start)
        )
        oracle.check(np.float32(step.loss), parts.ir.loss, False, f"loss, {level}")
        for name, node in parts.ir.graph.captures.items():
            oracle.check(step.captures[name], node, exact[name], f"capture {name}, {level}")
        assert set(grads) == {"a", "b", "c", "e"}
        for name, found in grads.items():
            oracle.check(found, parts.ir.param_grads[name], False, f"gradient of {name}, {level}")
            if not isinstance(optimizer, wg.optim.Adam):  # whose first step is the gradient's mere sign
                np.testing.assert_allclose(
                    params[name],
                    updated[name],
                    rtol=1e-5,
                    atol=1e-5 * oracle.scale,
                    err_msg=f"{name} {level}",
                )
        np.testing.assert_array_equal(params["n"], np.arange(3))
        assert states["t"] == 3


def check_one_update(parts, optimizer):
    """One dispatch writes every trained parameter, and no copy is made."""
    plan = parts.ir.plan
    trained = [leaf for leaf, _ in plan.schedule.graph.updates if leaf.attrs["name"].startswith("param/f32")]
    assert len(trained) == (optimizer is not None)
    for leaf in trained:
        writers = [
            k for k in plan.schedule.kernels if any(plan.where(s.node) == plan.where(leaf) for s in k.stores)
        ]
        assert len(writers) == 1


def leaves_at_start(parts, optimizer, values, params):
    """Every leaf's value in the first step."""
    leaves = {**values, **params, "seed": SEED, "rng_step": 0}
    if optimizer:
        leaves |= per_step(optimizer.grouped_by(optimizer.grouping(parts.ir.graph.params)), 1)
    for name, node in parts.ir.graph.states.items():
        leaves[name] = np.zeros(node.shape)
        for param, where in parts.layout.ranges.items():
            if where.arena == name:
                leaves[name][where.offset : where.offset + params[param].size] = params[param].ravel()
    return leaves


def updated_params(parts, values):
    """The parameters after the step."""
    found = {}
    for leaf, value in parts.ir.graph.updates:
        for name, where in parts.layout.ranges.items():
            if where.arena == leaf.attrs["name"]:
                size = int(np.prod(where.shape))
                found[name] = values[value][where.offset : where.offset + size].reshape(where.shape)
    return found or {n: values[parts.ir.graph.params[n]] for n in parts.ir.graph.params}


async def three_steps(parts, executor, values, start):
    """The first step's result, gradients and parameters, and the state after two more."""
    train = await create_runtime(parts, executor)
    train.upload_params(start)
    step = await train.step(values, full=True, with_captures=bool(parts.ir.graph.captures))
    grads, params = await train.download_param_grads(), await train.download_params()
    await train.step(values), await train.step(values)
    states = await train.state_dict()
    train.destroy()
    return step, grads, params, states


# --- what random programs have found ----------------------------------------------------------------


def agree(forward, **inputs):
    """``forward`` on both levels and targets, against the graph as traced."""
    values = {k: np.asarray(v, np.float32) for k, v in inputs.items()}
    for target in (Target(), Target(adapter_class="hardware")):
        parts = build_forward(
            Empty,
            lambda model, **t: forward(**t),
            {k: wg.Input(v.shape) for k, v in values.items()},
            None,
            SEED,
            target,
        )
        check_program(parts.ir)
        graph = parts.ir.graph
        oracle = Oracle(graph, {**values, "seed": SEED, "rng_step": 1})
        for level in LEVELS:
            result = asyncio.run(second_run(parts, NumpyExecutor(level, target=target), values))
            for found, node in zip(result.output, graph.outputs, strict=True):
                oracle.check(found, node, False, level)


@pytest.mark.parametrize(
    "move",
    [
        lambda x: x[:0],
        lambda x: wg.transpose(x[:0]),
        lambda x: wg.flip(x[:, :0], 0),
        lambda x: wg.broadcast_to(x[:1], (0, 6)),
    ],
)
def test_an_output_of_size_zero_that_only_moves(move):
    agree(lambda x: (move(x), x), x=np.ones((4, 6)))


@pytest.mark.parametrize("rows", [1, 64])
def test_reductions_of_a_stored_value_of_size_zero(rows):
    def forward(x):
        y = wg.capture("y", wg.sin(x[:, :0]))
        return wg.sum(y, 1), wg.sum(y, 1) * 2 + 1, wg.sum(y) + wg.sum(x), wg.softmax(y)

    agree(forward, x=np.ones((rows, 6)))


def test_a_product_read_through_a_reshape_that_fits_no_axis():
    def forward(x):
        y = x @ x
        return y, -wg.reshape(y, (9, 2, 2)), wg.reshape(y * 0.5, (9, 4)) + 1

    agree(forward, x=np.arange(36).reshape(6, 6) / 8)


def test_a_matrix_products_operand_read_twice_is_two_bindings():
    class Two(nn.Module):
        def __init__(self):
            self.b, self.e = self.param((4,), scale=1.0), self.param((), scale=1.0)

    def loss(model, x):
        s = wg.where(model.b > 0.25, model.b, model.e)
        y = wg.capture("y", wg.sin(s) @ wg.tanh(s))
        z = wg.capture("z", wg.softmax(s))
        return wg.sum(model.b * model.b) + wg.sum(wg.sin(s)) + wg.sin(y) + wg.sum(wg.sin(z))

    check_program(build_training(Two, loss, {"x": (3, 4)}, wg.optim.Adam(), SEED, Target()).ir)


# --- plans ------------------------------------------------------------------------------------------


def forward_parts(function, target=None, **shapes):
    """A forward program's parts."""
    return build_forward(
        Empty,
        lambda model, **t: function(**t),
        {k: wg.Input(s) for k, s in shapes.items()},
        None,
        SEED,
        target or Target(),
    )


def test_buffers_are_recycled():
    def deep(x):
        for _ in range(12):
            x = wg.softmax(x @ x)
        return x

    program = forward_parts(deep, x=(16, 16)).ir.program
    owned = [b for b in program.buffers if b.kind == "owned"]
    assert len(owned) <= 5 and len(program.kernels) >= 12


def test_a_chain_of_elementwise_operations_is_one_kernel():
    def chain(x, y):
        for _ in range(10):
            x = wg.tanh(x * y + 1)
        return x

    assert len(forward_parts(chain, x=(64, 3), y=(3,)).ir.program.kernels) == 1


def test_equal_layers_share_modules():
    class Deep(nn.Module):
        def __init__(self):
            self.layers = [nn.Linear(32, 32) for _ in range(6)]

    def forward(model, x):
        for layer in model.layers:
            x = wg.relu(layer(x))
        return x

    program = build_forward(Deep, forward, {"x": (64, 32)}, None, SEED, Target()).ir.program
    assert len(program.kernels) == 6 and len(program.modules) == 1


@pytest.mark.parametrize("size", [1, 2, 5])
def test_many_inputs_stay_within_the_bindings(size):
    names = [f"x{k}" for k in range(25)]
    parts = forward_parts(
        lambda **t: wg.sin(sum(t[n] * (k + 1.0) for k, n in enumerate(names))),
        **dict.fromkeys(names, (size, 3)),
    )
    check_program(parts.ir)
    values = {n: np.full((size, 3), k / 8, np.float32) for k, n in enumerate(names)}
    expected = np.sin(sum(values[n].astype(float) * (k + 1) for k, n in enumerate(names)))
    for level in LEVELS:
        found = asyncio.run(second_run(parts, NumpyExecutor(level), values)).output
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_a_tensor_over_the_binding_limit_is_refused_by_name():
    small = Target(max_binding_bytes=1024)
    with pytest.raises(wg.OutOfMemoryError, match=r"input 'x' f32\[300\].*1,200 bytes.*1,024"):
        forward_parts(lambda x: x * 2, small, x=(300,))
    with pytest.raises(wg.OutOfMemoryError, match=r"add|multiply"):
        forward_parts(lambda x: wg.broadcast_to(x, (300, 2)) * 2 + 1, small, x=(2,))

    class Wide(nn.Module):
        def __init__(self):
            self.w = self.param((300,))

    with pytest.raises(wg.OutOfMemoryError, match=r"parameter 'w' of shape \(300,\)"):
        build_forward(Wide, lambda model, x: model.w * x, {"x": ()}, None, SEED, small)


def test_texts_hold_no_arena_offset():
    """The same kernels over a layout that lies elsewhere."""
    graph = forward_graph()
    low = wg.plan_buffers(graph)
    ranges = {n: ArenaRange(r.arena, r.offset + 1024, r.shape, r.dtype) for n, r in low.layout.ranges.items()}
    arenas = {name: size + 1024 for name, size in low.layout.arenas.items()}
    high = wg.plan_buffers(graph, Layout(arenas, ranges))
    assert low.place != high.place
    assert [k.wgsl for k in wg.emit_kernels(low)] == [k.wgsl for k in wg.emit_kernels(high)]


def forward_graph():
    """A small graph with parameters."""

    def forward():
        x, w, b = wg.tensor_input("x", (8, 4)), wg.param_input("w", (4, 16)), wg.param_input("b", (16,))
        return wg.softmax(x @ w + b)

    return wg.trace(forward)


def test_parameters_beyond_one_binding_are_sharded_and_train():
    class Wide(nn.Module):
        def __init__(self):
            self.layers = [nn.Linear(8, 8, scale=0.5) for _ in range(5)]

    def loss(model, x):
        for layer in model.layers:
            x = wg.tanh(layer(x))
        return wg.mean(x * x)

    results = []
    for target in (Target(), Target(max_binding_bytes=1024)):
        parts = build_training(Wide, loss, {"x": (4, 8)}, wg.optim.Adam(lr=0.1), SEED, target)
        check_program(parts.ir)
        arenas = [n for n in parts.layout.arenas if n.startswith("param/")]
        assert len(arenas) == (1 if target.max_binding_bytes > 1024 else 3)
        for level in LEVELS:
            results.append(asyncio.run(three_losses(parts, NumpyExecutor(level, target=target))))
    np.testing.assert_allclose(results, [results[0]] * 4, rtol=1e-5)


async def three_losses(parts, executor):
    """Losses of three steps on ones."""
    train = await create_runtime(parts, executor)
    return [await train.step({"x": np.ones((4, 8))}) for _ in range(3)]
