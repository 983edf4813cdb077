"""What a user writes (DESIGN, section 2): inputs, results, ordering, lifetime, devices."""

import asyncio
import gc
import inspect
import warnings
from collections import namedtuple

import numpy as np
import pytest

import webgrad as wg
from tests.unit.helpers import Empty, raises_here
from webgrad import nn
from webgrad.runtime.reference import NumpyExecutor

A, B = np.arange(3.0), np.array([10.0, 20.0, 30.0])


class Weight(nn.Module):
    """One number and a dropout mask to move it by."""

    def __init__(self):
        self.w = self.param((3,), scale=1.0)


def noisy_loss(model, x):
    """A loss whose mask changes with every step."""
    wg.metric("norm", wg.sum(model.w * model.w))
    wg.metric("one element", wg.ones((1,)) * 2)
    return wg.mean((wg.dropout(model.w * x, 0.5) - 1) ** 2)


async def training(device="numpy", optimizer=None, forward=noisy_loss, **options):
    """A training program over ``x [3]``."""
    return await wg.compile_module(
        Weight,
        forward,
        inputs={"x": (3,)},
        optimizer=optimizer or wg.optim.Adam(lr=0.05),
        device=device,
        **options,
    )


# --- inputs by name and by position -----------------------------------------------------------------


async def difference(forward, names=("a", "b"), **given):
    """``forward`` of two inputs, which must come as a − b."""
    program = await wg.compile_forward(Empty, forward, inputs=dict.fromkeys(names, (3,)), device="numpy")
    values = given or dict(zip(names, (A, B), strict=True))
    return (await program.run(values)).tolist()


EXPECTED = (A - B).tolist()


async def test_inputs_bind_by_name_whatever_their_order():
    assert await difference(lambda model, a, b: a - b, ("a", "b")) == EXPECTED
    assert await difference(lambda model, b, a: a - b, ("a", "b")) == EXPECTED
    assert await difference(lambda model, *, b, a: a - b) == EXPECTED
    assert await difference(lambda model, **t: t["a"] - t["b"]) == EXPECTED
    assert await difference(lambda model, b, a, scale=1.0: (a - b) * scale) == EXPECTED


async def test_inputs_bind_by_position_when_no_name_matches():
    assert await difference(lambda model, p, q: p - q) == EXPECTED
    assert await difference(lambda model, *t: t[0] - t[1]) == EXPECTED
    assert await difference(lambda model, p, q, scale=1.0: (p - q) * scale) == EXPECTED


async def test_the_order_of_the_dict_that_is_given_does_not_matter():
    assert await difference(lambda model, p, q: p - q, b=B, a=A) == EXPECTED


@pytest.mark.parametrize(
    "forward",
    [
        lambda model, a, q: a - q,
        lambda model, p, b: p - b,
        lambda model, a: a,
        lambda model, a, b, c: a - b - c,
    ],
)
async def test_a_partial_match_raises(forward):
    with raises_here(wg.InputError, match="only in part"):
        await difference_of(forward)


async def difference_of(forward):
    return await wg.compile_forward(Empty, forward, inputs={"a": (3,), "b": (3,)}, device="numpy")  # here


async def test_a_wrong_number_of_positional_inputs_raises():
    with raises_here(wg.InputError, match=r"takes 1 inputs after the model, but 2 are declared"):
        await difference_of(lambda model, p: p)
    with pytest.raises(wg.InputError, match="takes 3 inputs"):
        await difference_of(lambda model, p, q, r: p)


async def test_methods_and_callable_objects_are_forwards():
    class Forward:
        def __call__(self, model, b, a):
            return a - b

        def method(self, model, b, a):
            return a - b

    assert await difference(Forward()) == EXPECTED
    assert await difference(Forward().method) == EXPECTED


# --- declared inputs --------------------------------------------------------------------------------


async def test_an_input_is_a_shape_an_input_or_an_example():
    declared = {
        "a": (3,),
        "b": wg.Input((3,), "i32"),
        "c": np.zeros((2, 2), np.int64),
        "d": 4,
        "e": wg.Input(3, np.uint32),
        "f": np.zeros(3, bool),
        "g": [3],
        "h": wg.Input(()),
    }
    program = await wg.compile_forward(Empty, lambda model, **t: t["a"], inputs=declared, device="numpy")
    found = {k: (r.shape, r.dtype) for k, r in program.ir.program.inputs.items()}
    assert found == {
        "a": ((3,), "f32"), "b": ((3,), "i32"), "c": ((2, 2), "i32"), "d": ((4,), "f32"),
        "e": ((3,), "u32"), "f": ((3,), "bool"), "g": ((3,), "f32"), "h": ((), "f32"),
    }  # fmt: skip


@pytest.mark.parametrize("declared", [("B", 3), ("B",)])
def test_named_dimensions_say_that_they_are_not_there_yet(declared):
    with raises_here(wg.InputError, match="named dimensions are not supported yet.*'B'"):
        wg.Input(declared, "i32")  # here


@pytest.mark.parametrize("shape", [(-1,), (2.5,), (None,), ((2,), 3)])
def test_a_shape_that_is_none_raises(shape):
    with raises_here(wg.ShapeError, match="non-negative ints"):
        wg.Input(shape)  # here


@pytest.mark.parametrize("declared", ["x", None, object(), {1: 2}, np.array(["a"])])
async def test_a_declaration_that_is_none_raises(declared):
    with pytest.raises(wg.InputError, match="input 'x': expected a shape"):
        await wg.compile_forward(Empty, lambda model, x: x, inputs={"x": declared}, device="numpy")


# --- the model --------------------------------------------------------------------------------------


async def test_a_factory_is_called_once_and_an_instance_is_copied():
    calls = []

    def factory():
        calls.append(1)
        return Weight()

    await wg.compile_module(factory, noisy_loss, inputs={"x": (3,)}, device="numpy")
    assert len(calls) == 1

    model = Weight()
    spec = model.w
    await wg.compile_module(model, noisy_loss, inputs={"x": (3,)}, device="numpy")
    assert model.w is spec


async def test_the_forward_may_leave_things_on_the_model_without_harm():
    def forward(model, x):
        assert not hasattr(model, "seen")
        model.seen = x
        return x

    model = Weight()
    for _ in range(2):
        await wg.compile_forward(model, forward, inputs={"x": (3,)}, device="numpy")
    assert not hasattr(model, "seen")


@pytest.mark.parametrize("factory", [lambda: None, lambda: 3, dict, lambda: Weight])
async def test_a_factory_that_returns_no_module_raises(factory):
    with raises_here(wg.InputError, match=r"returned \w+, not a webgrad\.nn\.Module"):
        await wg.compile_module(factory, noisy_loss, inputs={"x": (3,)}, device="numpy")  # here


@pytest.mark.parametrize("factory", [None, 3, "Weight"])
async def test_what_is_no_factory_raises(factory):
    with raises_here(wg.InputError, match="expected a Module class"):
        await wg.compile_module(factory, noisy_loss, inputs={"x": (3,)}, device="numpy")  # here


# --- results ----------------------------------------------------------------------------------------

Pair = namedtuple("Pair", "left right")


@pytest.mark.parametrize(
    ("build", "check"),
    [
        (lambda x: x * 2, lambda r: isinstance(r, np.ndarray)),
        (lambda x: (x, x + 1), lambda r: type(r) is tuple and len(r) == 2),
        (lambda x: [x, x + 1, x], lambda r: type(r) is list and len(r) == 3),
        (lambda x: {"b": x, "a": x + 1}, lambda r: list(r) == ["b", "a"]),
        (lambda x: Pair(x, x + 1), lambda r: type(r) is Pair and r.right[0] == r.left[0] + 1),
        (lambda x: (x,), lambda r: type(r) is tuple and len(r) == 1),
        (lambda x: wg.sum(x), lambda r: r.shape == ()),
        (lambda x: (x, x), lambda r: r[0] is not r[1]),
    ],
)
async def test_run_returns_the_structure_that_the_forward_returned(device, build, check):
    program = await wg.compile_forward(Empty, lambda model, x: build(x), inputs={"x": (3,)}, device=device)
    result = await program.run({"x": A})
    assert check(result)


@pytest.mark.parametrize("result", [None, 3.0, (1, 2), {"a": None}, "x"])
async def test_a_forward_that_returns_no_tensors_raises(result):
    with pytest.raises(wg.TraceError, match="must return a tensor"):
        await wg.compile_forward(Empty, lambda model, x: result, inputs={"x": (3,)}, device="numpy")


async def test_results_own_their_memory_and_are_contiguous(device):
    program = await wg.compile_forward(
        Empty, lambda model, x: (wg.transpose(x), x > 0), inputs={"x": (2, 3)}, device=device
    )
    first = await program.run({"x": np.ones((2, 3))})
    for array in first:
        assert array.flags.c_contiguous and array.flags.owndata and array.flags.writeable
    kept = first[0].copy()
    await program.run({"x": np.zeros((2, 3))})
    np.testing.assert_array_equal(first[0], kept)


async def test_metrics_come_with_the_loss(device):
    train = await training(device)
    w = (await train.download_params())["w"].astype(np.float64)
    result = await train.step({"x": A}, full=True)
    assert isinstance(result, wg.StepResult) and result.captures == {}
    assert list(result.metrics) == ["norm", "one element"]
    assert type(result.metrics["norm"]) is float
    assert result.metrics["norm"] == pytest.approx(np.sum(w * w), rel=1e-6)
    assert result.metrics["one element"] == 2
    loss, metrics, captures = result
    assert isinstance(loss, float) and metrics is result.metrics and captures == {}


async def test_integer_and_bool_metrics_are_numbers(device):
    def forward(model, x):
        wg.metric("count", wg.sum(x > 0))
        wg.metric("any", wg.any(x > 0))
        return x

    program = await wg.compile_forward(Empty, forward, inputs={"x": (3,)}, device=device)
    assert (await program.run({"x": A}, full=True)).metrics == {"count": 2.0, "any": 1.0}


def test_a_metric_of_many_elements_and_one_used_twice_raise():
    def large():
        return wg.metric("large", wg.zeros((2,)))  # here

    def twice():
        x = wg.metric("m", wg.zeros(()))
        return wg.metric("m", x)  # here

    with raises_here(wg.ShapeError, match=r"'large' must be a scalar, found shape \(2,\)"):
        wg.trace(large)
    with raises_here(wg.TraceError, match="'m' is used twice"):
        wg.trace(twice)


async def test_full_without_captures_or_metrics(device):
    train = await training(device, forward=lambda model, x: wg.sum(model.w * x))
    result = await train.step({"x": A}, full=True)
    assert result.metrics == {} and result.captures == {}


# --- step at the call -------------------------------------------------------------------------------


def test_step_and_run_are_plain_functions():
    assert not inspect.iscoroutinefunction(wg.CompiledModule.step)
    assert not inspect.iscoroutinefunction(wg.CompiledForward.run)
    for name in ("set", "upload_params", "upload_initial_params", "reset_optimizer_state", "destroy"):
        assert not inspect.iscoroutinefunction(getattr(wg.CompiledModule, name)), name
    for name in ("download_params", "download_param_grads", "state_dict"):
        assert inspect.iscoroutinefunction(getattr(wg.CompiledModule, name)), name


async def test_errors_raise_at_the_call_not_at_the_await(device):
    train = await training(device)
    with raises_here(wg.InputError, match="missing"):
        train.step({})  # here
    assert train.t == 0


async def test_inputs_are_copied_at_the_call(device):
    program = await wg.compile_forward(Empty, lambda model, x: x * 1, inputs={"x": (3,)}, device=device)
    x = np.ones(3, np.float32)
    pending = program.run({"x": x})
    x[:] = 7
    assert (await pending).tolist() == [1, 1, 1]


async def test_calls_take_effect_in_call_order_even_when_awaited_together(device):
    train, other = await training(device), await training(device)
    pending = [train.step({"x": A}), train.step({"x": B})]
    train.set(lr=0.0)
    pending += [train.step({"x": A}), train.step({"x": A})]
    together = await asyncio.gather(*reversed(pending))
    one_by_one = [await other.step({"x": A}), await other.step({"x": B})]
    other.set(lr=0.0)
    one_by_one += [await other.step({"x": A}), await other.step({"x": A})]
    assert together[::-1] == one_by_one


async def test_a_step_may_be_awaited_twice_gathered_or_never(device):
    train, other = await training(device), await training(device)
    pending = train.step({"x": A})
    first = await pending
    assert await pending is first
    assert await asyncio.gather(pending, pending) == [first, first]
    train.step({"x": B})  # never
    await other.step({"x": A}), await other.step({"x": B})
    assert await train.step({"x": A}) == await other.step({"x": A})


async def test_a_step_can_be_a_task_and_have_a_timeout(device):
    train = await training(device)
    assert isinstance(await asyncio.wait_for(train.step({"x": A}), 5), float)


async def test_read_loss_false_only_queues(device):
    train, other = await training(device), await training(device)
    assert await train.step({"x": A}, read_loss=False) is None
    await other.step({"x": A})
    assert train.t == 1
    assert await train.step({"x": A}) == await other.step({"x": A})


# --- set --------------------------------------------------------------------------------------------


async def test_set_takes_effect_at_the_next_step_without_recompiling(device):
    train = await training(
        device, optimizer=wg.optim.SGD(lr=0.5), forward=lambda model, x: wg.sum(model.w * x)
    )
    program = train.ir.program
    before = (await train.download_params())["w"]
    await train.step({"x": B})
    middle = (await train.download_params())["w"]
    train.set(lr=0.25)
    await train.step({"x": B})
    after = (await train.download_params())["w"]
    np.testing.assert_allclose(before - middle, 0.5 * B, rtol=1e-5)
    np.testing.assert_allclose(middle - after, 0.25 * B, rtol=1e-5)
    assert train.ir.program is program and train.optimizer.lr == 0.25


@pytest.mark.parametrize(
    ("hyper", "message"),
    [
        (
            {"rate": 1.0},
            r"SGD has no hyperparameter 'rate' to set: it has \['lr', 'momentum', 'weight_decay'\]",
        ),
        ({"nesterov": True}, "no hyperparameter 'nesterov'"),
        ({"lr": "fast"}, "lr must be a number"),
        ({"lr": 0.5, "betas": (0.9, 0.99)}, "'betas'"),
    ],
)
async def test_set_refuses_what_it_cannot_change(hyper, message):
    train = await training(optimizer=wg.optim.SGD(lr=0.5))
    with raises_here(wg.InputError, match=message):
        train.set(**hyper)  # here
    assert train.optimizer == wg.optim.SGD(lr=0.5)


async def test_set_takes_numpy_numbers_and_needs_an_optimizer():
    train = await training()
    train.set(lr=np.float32(0.5), b1=np.int64(0))
    assert train.optimizer == wg.optim.Adam(lr=0.5, b1=0.0)
    without = await wg.compile_module(Weight, noisy_loss, inputs={"x": (3,)}, device="numpy")
    with pytest.raises(wg.InputError, match="no optimizer"):
        without.set(lr=0.1)


# --- params and stats -------------------------------------------------------------------------------


async def test_params_are_handles_not_values():
    train = await training()
    (handle,) = train.params.values()
    assert isinstance(train.params, wg.Params) and isinstance(handle, wg.ParamHandle)
    assert (handle.name, handle.shape, handle.dtype, handle.nbytes) == ("w", (3,), "f32", 12)
    assert handle.offset % 256 == 0
    assert repr(train.params) == "Params(w f32[3])"
    assert len(train.params) == 1 and "w" in train.params and "v" not in train.params
    with pytest.raises(KeyError):
        train.params["v"]


async def test_stats_count(device):
    train = await training(device)
    start = train.stats()
    for _ in range(3):
        await train.step({"x": A})
    await train.step({"x": A}, read_loss=False)
    stats = train.stats()
    kernels = len(train.ir.program.kernels)
    assert stats.dispatches - start.dispatches == 4 * kernels
    assert stats.submissions - start.submissions == 4
    assert (stats.buffers, stats.bytes) == (start.buffers, start.bytes)
    assert stats.pipelines <= kernels and 0 < stats.modules <= stats.pipelines
    assert stats.bytes > 4 * 3 * 4


# --- lifetime ---------------------------------------------------------------------------------------


async def test_destroy_frees_everything_and_later_calls_say_so():
    executor = NumpyExecutor()
    train = await training(executor)
    infer = await wg.compile_forward(
        Weight, lambda model, x: model.w * x, inputs={"x": (3,)}, shared_params=train.params
    )
    assert executor.stats().buffers > 0
    infer.destroy()
    train.destroy()
    train.destroy()
    assert executor.stats().buffers == 0
    for call in (train.step, infer.run):
        with raises_here(wg.InputError, match="destroyed"):
            call({"x": A})  # here
    for call in (train.stats, train.reset_optimizer_state, train.upload_initial_params):
        with pytest.raises(wg.InputError, match="destroyed"):
            call()
    with pytest.raises(wg.InputError, match="destroyed"):
        await train.download_params()


async def test_async_with_destroys():
    executor = NumpyExecutor()
    async with await training(executor) as train:
        await train.step({"x": A})
    assert executor.stats().buffers == 0
    with pytest.raises(KeyError):
        async with await training(executor):
            raise KeyError
    assert executor.stats().buffers == 0


async def test_a_forgotten_program_frees_itself():
    """Running a notebook's cell again leaks nothing."""
    executor = NumpyExecutor()
    counts = []
    for _ in range(3):
        train = await training(executor)
        await train.step({"x": A}, full=True)
        del train
        gc.collect()
        counts.append(executor.stats().buffers)
    assert counts == [0, 0, 0]


async def test_a_failed_load_frees_what_it_took(monkeypatch):
    executor = NumpyExecutor()

    async def fails(*args):
        raise wg.CompileError("no")

    monkeypatch.setattr(executor, "load", fails)
    with pytest.raises(wg.CompileError):
        await training(executor)
    assert executor.stats().buffers == 0


async def test_destroy_all():
    executor = NumpyExecutor()
    programs = [await training(executor) for _ in range(3)]
    wg.destroy_all()
    assert executor.stats().buffers == 0
    with pytest.raises(wg.InputError, match="destroyed"):
        programs[0].step({"x": A})


# --- state_dict -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "optimizer", [wg.optim.Adam(0.05), wg.optim.SGD(0.05, momentum=0.9), wg.optim.SGD(0.05)]
)
async def test_training_goes_on_exactly_from_a_state_dict(device, optimizer):
    train = await training(device, optimizer)
    for _ in range(3):
        await train.step({"x": A})
    state = await train.state_dict()
    expected = [await train.step({"x": B}) for _ in range(4)]
    again = await training(device, optimizer, seed=99)
    again.load_state_dict(state)
    assert (again.t, again.ir.program.buffers) == (3, train.ir.program.buffers)
    assert [await again.step({"x": B}) for _ in range(4)] == expected
    train.load_state_dict(state)
    assert [await train.step({"x": B}) for _ in range(4)] == expected, "the state was a copy"


async def test_a_state_dict_is_plain_data(device):
    train = await training(device)
    await train.step({"x": A})
    state = await train.state_dict()
    assert set(state) == {"params", "optimizer", "hyper", "t", "rng_step", "seed"}
    assert state["hyper"]["lr"] == train.optimizer.lr
    assert state["t"] == state["rng_step"] == 1
    assert set(state["optimizer"]) == {"m", "v"}
    assert state["optimizer"]["m"]["w"].shape == (3,)


async def test_a_checkpoint_that_does_not_fit_changes_nothing(device):
    train = await training(device)
    await train.step({"x": A})
    state = await train.state_dict()
    other = await (await training(device, wg.optim.SGD(0.1, momentum=0.5))).state_dict()
    bad = [
        {k: v for k, v in state.items() if k != "t"},
        other,
        {**state, "params": {}},
        {**state, "params": {"w": np.ones(4)}},
        {**state, "optimizer": {"m": state["optimizer"]["m"], "v": {"w": np.ones(2)}}},
    ]
    expected = await train.step({"x": A})
    train.load_state_dict(state)
    for checkpoint in bad:
        with raises_here(wg.CheckpointError, match="the checkpoint"):
            train.load_state_dict(checkpoint)  # here
    assert await train.step({"x": A}) == expected


# --- dropout and the run counter --------------------------------------------------------------------


async def test_dropout_is_active_in_training_programs_only(device):
    def forward(model, x):
        return wg.dropout(x, 0.5), wg.dropout(x, 0.5, always=True)

    program = await wg.compile_forward(Empty, forward, inputs={"x": (1000,)}, device=device)
    idle, active = await program.run({"x": np.ones(1000)})
    np.testing.assert_array_equal(idle, np.ones(1000))
    assert set(np.unique(active)) == {0.0, 2.0}


async def test_forward_programs_count_their_runs_and_a_seed_pins_them(device):
    program = await wg.compile_forward(
        Empty, lambda model, x: wg.dropout(x, 0.5, always=True), inputs={"x": (64,)}, device=device, seed=3
    )
    x = {"x": np.ones(64)}
    first, second = await program.run(x), await program.run(x)
    assert not np.array_equal(first, second)
    pinned = [await program.run(x, seed=11) for _ in range(2)]
    np.testing.assert_array_equal(*pinned)
    assert not np.array_equal(pinned[0], await program.run(x, seed=12))


# --- devices ----------------------------------------------------------------------------------------


async def test_auto_outside_a_browser_is_numpy_without_noise():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train = await training("auto")
    assert train.device == "numpy" and train.adapter["vendor"] == "numpy"


async def test_webgpu_outside_a_browser_raises():
    with raises_here(wg.NoAdapterError, match='WebGPU needs a browser.*device="numpy"'):
        await wg.compile_module(Weight, noisy_loss, inputs={"x": (3,)}, device="webgpu")  # here


async def test_an_unknown_device_is_refused_with_those_there_are():
    with pytest.raises(wg.InputError, match=r"device must be one of \('auto', 'webgpu', 'numpy', 'native'\)"):
        await training("cuda")


async def test_all_programs_share_one_numpy_device():
    a, b = await training("numpy"), await training("auto")
    assert a.params.owner.executor is b.params.owner.executor


def test_run_runs_a_coroutine_where_no_loop_runs():
    async def main():
        train = await training()
        return await train.step({"x": A})

    assert isinstance(wg.run(main()), float)


async def test_run_is_a_task_where_a_loop_runs():
    async def main():
        return 5

    assert await wg.run(main()) == 5
