"""Optimizers against float64 written out by hand: clipping, parameter groups, and what goes with them."""

from __future__ import annotations

import math

import numpy as np
import pytest

import webgrad as wg
from bench import static
from tests.unit.helpers import raises_here
from tests.unit.invariants import check_program
from webgrad import nn
from webgrad.compile import build_training, create_runtime
from webgrad.compiler.target import Target
from webgrad.groups import Factors, resolve
from webgrad.optim import SGD, Adam, AdamW, Group, vectors

WIDTH = 20


class Model(nn.Module):
    """A matrix, its bias, a second matrix, a scalar and ids that do not train."""

    def __init__(self):
        self.w = self.param((4, WIDTH))
        self.b = self.param((WIDTH,))
        self.head = self.param((WIDTH, 3))
        self.s = self.param(())
        self.n = self.param((2,), dtype="i32", init="zeros")


def loss_fn(model, x, scale):
    """Its gradients are large, and larger by ``scale``."""
    y = wg.tanh(x @ model.w + model.b) @ model.head
    return wg.sum(y * y) * scale + model.s * model.s


INPUTS = {"x": (6, 4), "scale": ()}
RNG = np.random.default_rng(3)
X = RNG.standard_normal((6, 4)).astype(np.float32)
START = {
    name: RNG.standard_normal(shape).astype(np.float32)
    for name, shape in {"w": (4, WIDTH), "b": (WIDTH,), "head": (WIDTH, 3), "s": ()}.items()
} | {"n": np.zeros(2, np.int32)}


def gradients64(p, scale):
    """The loss's gradients in float64."""
    h = np.tanh(X @ p["w"] + p["b"])
    dy = 2 * scale * (h @ p["head"])
    dz = (dy @ p["head"].T) * (1 - h * h)
    return {"w": X.T @ dz, "b": dz.sum(0), "head": h.T @ dy, "s": 2 * p["s"]}


def train64(optimizer, scales, factors):
    """Parameters after a step for each scale, in float64. ``factors`` holds (lr, decay) by name."""
    p = {name: value.astype(np.float64) for name, value in START.items() if name != "n"}
    m, v = ({name: np.zeros_like(value) for name, value in p.items()} for _ in range(2))
    for t, scale in enumerate(scales, 1):
        g = gradients64(p, scale)
        if optimizer.clip_norm is not None:
            norm = math.sqrt(sum((x * x).sum() for x in g.values()))
            g = {name: x * min(1.0, optimizer.clip_norm / (norm + 1e-6)) for name, x in g.items()}
        for name in p:
            lr, decay = (a * b for a, b in zip((optimizer.lr, wd_of(optimizer)), factors[name], strict=True))
            if isinstance(optimizer, SGD):
                total = g[name] + decay * p[name]
                m[name] = optimizer.momentum * m[name] + total
                p[name] = p[name] - lr * m[name]
                continue
            m[name] = optimizer.b1 * m[name] + (1 - optimizer.b1) * g[name]
            v[name] = optimizer.b2 * v[name] + (1 - optimizer.b2) * g[name] ** 2
            mean, square = m[name] / (1 - optimizer.b1**t), v[name] / (1 - optimizer.b2**t)
            p[name] = p[name] * (1 - lr * decay) - lr * mean / (np.sqrt(square) + optimizer.eps)
    return p


def wd_of(optimizer):
    """Its weight decay, 0 where it has none."""
    return getattr(optimizer, "weight_decay", 0.0)


def parts_of(optimizer, target=None, model=Model):
    """A training program of the model."""
    return build_training(model, loss_fn, INPUTS, optimizer, 0, target or Target())


async def training(optimizer, device, target=None):
    """It, loaded, from the start values."""
    parts = parts_of(optimizer, target or device.target)
    check_program(parts.ir)
    train = await create_runtime(parts, device)
    train.upload_params(START)
    return train


ONE = {"w": (1, 1), "b": (1, 1), "head": (1, 1), "s": (1, 1)}
MATRICES = {"w": (1, 1), "b": (1, 0), "head": (1, 1), "s": (1, 0)}
NO_DECAY = Group(vectors, weight_decay=0)
CASES = {
    "clipped Adam": (Adam(0.05, clip_norm=0.5), ONE),
    "clipped SGD": (SGD(0.05, momentum=0.9, weight_decay=0.1, clip_norm=0.5), ONE),
    "never clipped": (Adam(0.05, clip_norm=1e6), ONE),
    "decay of matrices": (AdamW(0.05, weight_decay=0.3, groups=[NO_DECAY]), MATRICES),
    "clipped, decay of matrices": (
        AdamW(0.05, weight_decay=0.3, clip_norm=1.0, groups=[NO_DECAY]),
        MATRICES,
    ),
    "all in one group": (
        AdamW(0.05, weight_decay=0.3, groups=[Group("*", lr=0.5)]),
        dict.fromkeys(ONE, (0.5, 1)),
    ),
    "factors multiply": (
        SGD(0.01, 0.5, 0.2, groups=[NO_DECAY, Group("head", lr=3), Group("[bh]*", lr=0.5)]),
        {"w": (1, 1), "b": (0.5, 0), "head": (1.5, 1), "s": (1, 0)},
    ),
    "a frozen parameter": (
        AdamW(0.05, weight_decay=0.3, groups=[Group("w", lr=0)]),
        {**ONE, "w": (0, 1)},
    ),
}  # fmt: skip
SCALES = (1.0, 0.01, 3.0, 1e-4, 0.5)


@pytest.mark.parametrize("adapter_class", ["software", "hardware"])
@pytest.mark.parametrize("name", CASES)
async def test_five_steps_agree_with_float64(name, device, adapter_class):
    optimizer, factors = CASES[name]
    train = await training(optimizer, device, Target(adapter_class))
    for scale in SCALES:
        await train.step({"x": X, "scale": scale})
    found = await train.download_params()
    np.testing.assert_array_equal(found.pop("n"), START["n"])
    for key, expected in train64(optimizer, SCALES, factors).items():
        np.testing.assert_allclose(found[key], expected, rtol=3e-5, atol=3e-6, err_msg=key)


async def test_a_frozen_parameter_keeps_its_bits(device):
    train = await training(CASES["a frozen parameter"][0], device)
    await train.step({"x": X, "scale": 1.0})
    np.testing.assert_array_equal((await train.download_params())["w"], START["w"])


async def test_gradients_are_read_as_they_were_before_clipping(device):
    train = await training(SGD(0.05, clip_norm=1e-3), device)
    await train.step({"x": X, "scale": 1.0})
    p = {name: value.astype(np.float64) for name, value in START.items()}
    found = await train.download_param_grads()
    for name, expected in gradients64(p, 1.0).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-4)


async def test_clip_norm_and_the_rest_are_hot(device):
    optimizer, factors = CASES["clipped, decay of matrices"]
    train = await training(optimizer, device)
    program = train.ir.program
    changed = {"clip_norm": 0.125, "lr": 0.2, "weight_decay": 0.05}
    train.set(**changed)
    await train.step({"x": X, "scale": 1.0})
    assert train.ir.program is program and train.optimizer == optimizer.set(**changed)
    found = await train.download_params()
    for key, expected in train64(train.optimizer, [1.0], factors).items():
        np.testing.assert_allclose(found[key], expected, rtol=3e-5, atol=3e-6, err_msg=key)


# --- gradients that are not finite ------------------------------------------------------------------


class Two(nn.Module):
    """Two numbers, whose gradients are the inputs."""

    def __init__(self):
        self.a, self.b = self.param((2,), init="ones"), self.param((), init="ones")


async def after_one_step(device, a, b):
    """Parameters after a step of SGD with lr 1 and clip_norm 1 with these gradients."""
    train = await wg.compile_module(
        Two,
        lambda m, x, y: wg.sum(m.a * x) + m.b * y,
        inputs={"x": (2,), "y": ()},
        optimizer=SGD(1.0, clip_norm=1.0),
        device=device,
    )
    await train.step({"x": np.array(a), "y": b})
    found = await train.download_params()
    return [*found["a"], found["b"]]


async def test_zero_gradients_stay_zero(device):
    assert await after_one_step(device, [0, 0], 0) == [1, 1, 1]


async def test_at_the_norm_itself_almost_nothing_is_clipped(device):
    np.testing.assert_allclose(await after_one_step(device, [0.6, 0], 0.8), [0.4, 1, 0.2], atol=2e-6)


async def test_an_infinite_gradient_is_nan_and_stops_the_finite_ones(device):
    found = await after_one_step(device, [3, np.inf], 5)
    assert found[0] == 1 and math.isnan(found[1]) and found[2] == 1


async def test_a_sum_of_squares_that_overflows_is_an_infinite_norm(device):
    assert await after_one_step(device, [1e30, 1], 2) == [1, 1, 1]


async def test_a_nan_makes_everything_nan(device):
    assert all(map(math.isnan, await after_one_step(device, [3, np.nan], 5)))


# --- kernels ----------------------------------------------------------------------------------------


class Wide(nn.Module):
    """Some hundred thousand parameters."""

    def __init__(self):
        self.w, self.b = self.param((300, 301)), self.param((301,))


def wide_parts(optimizer, target):
    """Its training program."""
    return build_training(
        Wide, lambda m, x: wg.mean((x @ m.w + m.b) ** 2), {"x": (8, 300)}, optimizer, 0, target
    )


@pytest.mark.parametrize("adapter_class", ["software", "hardware"])
def test_clipping_is_one_kernel_more_and_groups_are_none(adapter_class):
    def kernels(**options):
        parts = wide_parts(AdamW(**options), Target(adapter_class))
        check_program(parts.ir)
        return len(parts.ir.program.kernels)

    plain = kernels()
    assert kernels(groups=[NO_DECAY]) == plain
    assert kernels(clip_norm=1.0) == plain + 1
    assert kernels(clip_norm=1.0, groups=[NO_DECAY, Group("w", lr=2)]) == plain + 1


@pytest.mark.parametrize("target", static.TARGETS)
def test_the_addition_transformer_with_clipping_stays_within_its_dispatches(target):
    counts, ir = static.measure("W6", target)
    assert counts["dispatches"] <= 110
    assert {"clip_norm", "decay", "decay/1", "lrt"} <= set(ir.program.scalars)


async def test_the_norm_spans_all_arenas(device):
    """Parameters beyond one binding lie in several arenas."""
    found = []
    for target in (Target(), Target(max_binding_bytes=1024)):
        train = await training(CASES["clipped, decay of matrices"][0], device, target)
        arenas = [a for a in train.params.layout.arenas if a.startswith("param/f32")]
        assert len(arenas) == (1 if target.max_binding_bytes > 1024 else 2)
        found.append(await losses(train))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)


async def losses(train):
    """Of five steps."""
    return [await train.step({"x": X, "scale": scale}) for scale in SCALES]


def test_an_update_in_rows_stores_in_the_last_loop():
    """Earlier loops may still read what it overwrites."""
    kernel = wide_parts(AdamW(clip_norm=1.0), Target()).ir.schedule.kernels[-1]
    assert kernel.kind == "row" and {s.stage for s in kernel.stores} == {1}


def test_no_row_is_updated_twice_where_the_grid_has_more_workgroups_than_rows():
    target = Target("hardware", max_workgroups=100)
    kernel = wide_parts(SGD(clip_norm=1.0), target).ir.kernels[-1]
    rows = wide_parts(SGD(clip_norm=1.0), target).ir.schedule.kernels[-1].body.rows
    assert math.prod(kernel.workgroups) > rows
    assert f"if (i >= {rows}) {{ return; }}" in kernel.wgsl


# --- errors -----------------------------------------------------------------------------------------


def test_groups_that_match_nothing_are_refused():
    optimizer = AdamW(groups=[Group("bias.*", lr=0)])
    with raises_here(wg.InputError, match=r"Group\(match='bias\.\*'.*matches no parameter.*'w', 'b', 'head'"):
        build_training(Model, loss_fn, INPUTS, optimizer, 0, Target())  # here


def test_ids_do_not_count_as_parameters_that_train():
    with pytest.raises(wg.InputError, match="matches no parameter"):
        parts_of(AdamW(groups=[Group("n", lr=0)]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Adam(clip_norm=-1.0), "clip_norm must be a finite number that is not negative"),
        (lambda: Adam(clip_norm=0), "clip_norm must be positive.*None"),
        (lambda: Adam(clip_norm=float("inf")), "clip_norm must be a finite number"),
        (lambda: Adam(clip_norm="1"), "clip_norm must be a finite number"),
        (lambda: Group("b", lr=-1), "lr must be a finite factor"),
        (lambda: Group("b", weight_decay=float("nan")), "weight_decay must be a finite factor"),
        (lambda: Group("b", weight_decay=True), "weight_decay must be a finite factor"),
        (lambda: Group(3), r"match must be a name pattern such as '\*\.b' or a function"),
        (lambda: AdamW(groups={"*.b": 0}), "groups must be webgrad.optim.Group values"),
        (lambda: AdamW(groups=["*.b"]), "groups must be webgrad.optim.Group values"),
        (lambda: Adam(groups=[NO_DECAY]), "Adam has no weight_decay for Group.*AdamW and SGD have"),
        (lambda: Adam().set(clip_norm=1.0), "Adam has no hyperparameter 'clip_norm' to set"),
        (lambda: Adam().set(groups=()), "Adam has no hyperparameter 'groups' to set"),
    ],
)
def test_bad_options_are_refused(make, message):
    with pytest.raises(wg.InputError, match=message):
        make()


def test_one_group_needs_no_list():
    assert AdamW(groups=NO_DECAY).groups == AdamW(groups=[NO_DECAY]).groups == (NO_DECAY,)


def test_factors_of_several_groups_multiply():
    shapes = {"a.W": (2, 3), "a.b": (3,), "c.W": (3, 3)}
    found = resolve([Group("a.*", lr=2), NO_DECAY, Group("*.b", lr=0.25, weight_decay=3)], shapes)
    assert {n: found.factors[k] for n, k in found.member.items()} == {
        "a.W": Factors(2, 1),
        "a.b": Factors(0.5, 0),
        "c.W": Factors(1, 1),
    }


# --- checkpoints ------------------------------------------------------------------------------------


async def test_training_goes_on_exactly_from_a_checkpoint(device):
    optimizer = CASES["clipped, decay of matrices"][0]
    train = await training(optimizer, device)
    await losses(train)
    train.set(clip_norm=0.25)
    state = await train.state_dict()
    assert state["hyper"]["clip_norm"] == 0.25
    expected = await losses(train)
    again = await training(optimizer, device)
    again.load_state_dict(state)
    assert again.optimizer == optimizer.set(clip_norm=0.25)
    assert await losses(again) == expected


async def test_groups_may_differ_from_those_of_the_checkpoint(device):
    """Values are kept by name, wherever the groups put them."""
    train = await training(AdamW(0.1), device)
    await losses(train)
    state = await train.state_dict()
    again = await training(AdamW(0.1, groups=[Group("*", lr=1.0), NO_DECAY]), device)
    again.load_state_dict(state)
    for name, value in (await again.state_dict())["optimizer"]["m"].items():
        np.testing.assert_array_equal(value, state["optimizer"]["m"][name], err_msg=name)


async def test_a_checkpoint_without_clipping_is_refused_by_a_program_that_clips(device):
    state = await (await training(Adam(), device)).state_dict()
    train = await training(Adam(clip_norm=1.0), device)
    with raises_here(wg.CheckpointError, match=r"hyperparameters \['b1', .*compile with the optimizer"):
        train.load_state_dict(state)  # here
