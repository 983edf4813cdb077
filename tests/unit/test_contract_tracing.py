"""The contract, lines 1 to 5: tracing."""

import pytest

import webgrad as wg
from tests.unit.helpers import Empty, raises_here


def test_01_trace_returns_a_graph_whose_outputs_are_the_returned_tensors():
    made = []

    def one():
        made.append(wg.tensor_input("x", (2,)) * 2)
        return made[0]

    graph = wg.trace(one)
    assert isinstance(graph, wg.Graph)
    assert len(graph.outputs) == 1 and graph.outputs[0] is made[0]


@pytest.mark.parametrize("kind", [list, tuple])
def test_01_a_sequence_of_tensors_is_a_sequence_of_outputs(kind):
    made = []

    def several():
        x = wg.tensor_input("x", (2,))
        made.extend([x + 1, x, x + 1])
        return kind(made)

    graph = wg.trace(several)
    assert [a is b for a, b in zip(graph.outputs, made, strict=True)] == [True] * 3


@pytest.mark.parametrize("result", [None, 3.0, "x", [1.0], {"a": 1}])
def test_01_anything_else_raises(result):
    with pytest.raises(wg.TraceError, match="must return a tensor"):
        wg.trace(lambda: result)


def test_01_nested_traces_raise():
    def inner():
        return wg.zeros((1,))

    def outer():
        return wg.trace(inner).outputs  # here

    with raises_here(wg.TraceError, match="inside a trace"):
        wg.trace(outer)


def test_01_trace_into_inside_a_trace_raises():
    graph = wg.trace(lambda: wg.zeros((1,)))
    with pytest.raises(wg.TraceError, match="inside a trace"):
        wg.trace(lambda: wg.trace_into(graph, lambda: wg.zeros((1,))))
    with pytest.raises(wg.TraceError, match="inside a trace"):
        wg.trace_into(graph, lambda: wg.trace(lambda: wg.zeros((1,))))
    with pytest.raises(wg.TraceError, match="inside a trace"):
        wg.trace_into(graph, lambda: wg.trace_into(graph, lambda: None))


def test_02_trace_into_appends_and_returns_what_the_function_returns():
    graph = wg.trace(lambda: wg.tensor_input("x", (2,)) * 2)
    outputs, size = graph.outputs, len(graph.nodes)
    found = wg.trace_into(graph, lambda: {"y": wg.exp(graph.outputs[0])})
    assert found["y"] is graph.nodes[-1]
    assert len(graph.nodes) > size
    assert graph.outputs is outputs
    assert wg.trace_into(graph, lambda: 7) == 7


def test_02_captures_are_disabled_in_trace_into():
    graph = wg.trace(lambda: wg.capture("h", wg.tensor_input("x", (2,))))
    wg.trace_into(graph, lambda: wg.capture("later", wg.exp(graph.outputs[0])))
    assert list(graph.captures) == ["h"]


def test_03_an_op_outside_a_trace_says_how_to_start_one():
    with raises_here(wg.TraceError, match=r"webgrad\.exp was called outside .*compile_module.*trace"):
        wg.exp([1.0, 2.0])  # here


@pytest.mark.parametrize(
    "call",
    [
        lambda: wg.zeros((2,)),
        lambda: wg.add(1, 2),
        lambda: wg.arange(3),
        lambda: wg.matmul([[1.0]], [[1.0]]),
        lambda: wg.tensor_input("x", (2,)),
        lambda: wg.param_input("x", (2,)),
        lambda: wg.state_input("x", (2,)),
        lambda: wg.dropout([1.0]),
        lambda: wg.concat([[1.0], [2.0]]),
        lambda: wg.grad(None, []),
    ],
)
def test_03_so_does_every_other_entry(call):
    with pytest.raises(wg.TraceError, match=r"outside a trace.*compile_module"):
        call()


def test_03_a_tensor_cannot_leave_its_trace():
    left = []
    wg.trace(lambda: left.append(wg.tensor_input("x", (2,))) or left[0])
    with pytest.raises(wg.TraceError, match="outside a trace"):
        left[0] + 1
    with raises_here(wg.TraceError, match="belongs to another trace"):
        wg.trace(lambda: left[0] + wg.zeros((2,)))  # here
    with pytest.raises(wg.TraceError, match="belongs to another trace"):
        wg.trace(lambda: left[0])


def test_04_a_failed_trace_leaves_no_trace_behind():
    def broken():
        wg.tensor_input("x", (2,))
        raise KeyError("the user's own")

    for _ in range(2):
        with pytest.raises(KeyError, match="the user's own"):
            wg.trace(broken)
    graph = wg.trace(lambda: wg.tensor_input("x", (2,)))
    assert list(graph.inputs) == ["x"]
    with pytest.raises(KeyError):
        wg.trace_into(graph, broken_into)
    assert wg.trace(lambda: wg.zeros((3,))).outputs[0].shape == (3,)


def broken_into():
    """Raises in mid-trace."""
    raise KeyError


async def test_04_a_forward_that_raises_leaves_compiling_possible():
    def broken(model, x):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await wg.compile_forward(Empty, broken, inputs={"x": (2,)}, device="numpy")
    program = await wg.compile_forward(Empty, lambda model, x: x + 1, inputs={"x": (2,)}, device="numpy")
    assert (await program.run({"x": [1, 2]})).tolist() == [2, 3]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (wg.param_input, wg.param_input),
        (wg.param_input, wg.tensor_input),
        (wg.tensor_input, wg.param_input),
        (wg.tensor_input, wg.tensor_input),
        (wg.state_input, wg.state_input),
    ],
)
def test_05_a_duplicate_name_raises(first, second):
    def twice():
        first("w", (2,))
        return second("w", (3,))  # here

    with raises_here(wg.InputError, match="'w' is declared twice"):
        wg.trace(twice)


def test_05_states_have_a_name_space_of_their_own():
    def both():
        return wg.param_input("w", (2,)), wg.state_input("w", (3,))

    graph = wg.trace(both)
    assert graph.params["w"].shape == (2,)
    assert graph.states["w"].shape == (3,)
