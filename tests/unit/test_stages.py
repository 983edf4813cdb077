"""Compiling in stages: timed, told of, cancelled between two pieces, interleaved with another compilation."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

import webgrad as wg
from webgrad import compile as compiling
from webgrad import nn, stages, web
from webgrad.compile import build_training
from webgrad.compiler.simplify import simplify
from webgrad.lowering import lowering
from webgrad.runtime.reference import NumpyExecutor
from webgrad.stages import Conductor, finish, once, stage

STAGES = [name for name in stages.STAGES if name not in ("recall", "tune")]


class Net(nn.Module):
    def __init__(self, width=8):
        self.layers = [nn.Linear(width, width) for _ in range(4)]

    def __call__(self, x):
        for layer in self.layers:
            x = wg.relu(layer(x))
        return x


def loss(net, x):
    return wg.mean(net(x) ** 2)


def compile_net(**options):
    """A program of some forty kernels."""
    settings = {"optimizer": wg.optim.Adam(), "inputs": {"x": (4, 8)}, "device": NumpyExecutor()}
    return wg.compile_module(Net, loss, **(settings | options))


@pytest.fixture
def breathless(monkeypatch):
    """Breathe after every piece of work, as a page would after a long one."""
    monkeypatch.setattr(stages, "SLICE", -1.0)
    monkeypatch.setattr(stages, "in_browser", lambda: True)


async def test_each_stage_is_timed():
    program = await compile_net()
    assert list(program.timings) == list(STAGES)
    assert all(seconds > 0 for seconds in program.timings.values())


async def test_a_forward_program_has_no_gradient_to_time():
    program = await wg.compile_forward(Net, lambda net, x: net(x), inputs={"x": (4, 8)}, device="numpy")
    assert list(program.timings) == [s for s in STAGES if s not in ("gradient", "optimizer")]


def test_parts_know_their_times():
    parts = build_training(Net, loss, {"x": (4, 8)}, None, 0, wg.Target())
    assert list(parts.timings) == [s for s in STAGES if s != "pipelines"]


def test_time_is_charged_to_the_stage_that_spent_it(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(stages.time, "perf_counter", lambda: next(clock))
    conductor = Conductor()

    def work():
        yield "first", 0.0
        [stages.time.perf_counter() for _ in range(100)]
        result = yield from stage("second", once(lambda: [stages.time.perf_counter() for _ in range(10)]))
        return len(result)

    assert conductor.finish(work()) == 10
    assert list(conductor.seconds) == ["first", "second"]
    assert 100 < conductor.seconds["first"] < 105 and 10 < conductor.seconds["second"] < 15


async def test_progress_goes_through_the_stages_in_order(breathless):
    told = []
    await compile_net(on_progress=told.append)
    assert list(dict.fromkeys(p.stage for p in told)) == [*STAGES, "ready"]
    fractions = [p.fraction for p in told]
    assert fractions[0] == 0 and fractions[-1] == 1 and fractions == sorted(fractions)
    assert sum(p.stage == "schedule" for p in told) > 3, "told within a stage too"
    seconds = [p.seconds for p in told]
    assert seconds == sorted(seconds) and seconds[0] >= 0
    with pytest.raises(FrozenInstanceError):
        told[0].done = 1


async def test_progress_within_a_stage_is_told_sparingly(monkeypatch):
    monkeypatch.setattr(stages, "SLICE", 1000.0)
    told = []
    await compile_net(on_progress=told.append)
    assert [p.stage for p in told] == [*STAGES, "ready"]


@pytest.mark.parametrize("where", [*STAGES, "ready"])
async def test_what_on_progress_raises_ends_the_compilation_and_leaves_nothing(where):
    executor = NumpyExecutor()

    def stop(progress):
        if progress.stage == where:
            raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        await compile_net(device=executor, on_progress=stop)
    assert not executor.heap
    program = await compile_net(device=executor)
    assert np.isfinite(await program.step({"x": np.ones((4, 8))}))


@pytest.mark.parametrize("where", [s for s in STAGES if s != "pipelines"])
async def test_a_cancelled_task_ends_between_two_pieces_and_leaves_nothing(breathless, where):
    executor = NumpyExecutor()
    reached = []

    def cancel(progress):
        reached.append(progress.stage)
        if progress.stage == where:
            task.cancel()

    task = asyncio.ensure_future(compile_net(device=executor, on_progress=cancel))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reached[-1] == where
    assert not executor.heap
    program = await compile_net(device=executor)
    assert np.isfinite(await program.step({"x": np.ones((4, 8))}))


async def test_cancelled_while_the_device_works_it_frees_the_arenas():
    class Slow(NumpyExecutor):
        async def load(self, program, plan, externals):
            await asyncio.sleep(60)

    executor = Slow()
    task = asyncio.ensure_future(compile_net(device=executor))
    while not executor.heap:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not executor.heap


async def test_compilations_interleave(breathless):
    order = []

    async def one(name, width):
        program = await wg.compile_module(
            lambda: Net(width),
            loss,
            inputs={"x": (4, width)},
            optimizer=wg.optim.Adam(),
            device=NumpyExecutor(),
            on_progress=lambda progress: order.append((name, progress.stage)),
        )
        return program.ir.program

    both = await asyncio.gather(one("a", 8), one("b", 16))
    alone = [
        build_training(lambda w=w: Net(w), loss, {"x": (4, w)}, wg.optim.Adam(), 0, wg.Target()).ir
        for w in (8, 16)
    ]
    assert [p.modules for p in both] == [ir.program.modules for ir in alone]
    assert [p.kernels for p in both] != [] and [len(p.kernels) for p in both] == [
        len(ir.kernels) for ir in alone
    ]
    names = [name for name, stage in order if stage == "schedule"]
    assert sum(a != b for a, b in itertools.pairwise(names)) > 10, "they took turns"


async def test_without_a_page_compiling_never_pauses():
    pauses = []

    async def watch():
        while True:
            pauses.append(1)
            await asyncio.sleep(0)

    watching = asyncio.ensure_future(watch())
    await asyncio.sleep(0)
    before = len(pauses)
    traced = finish(compiling.trace_training(Net, loss, {"x": (4, 8)}, None, 0, wg.Target()))
    await Conductor().run(lowering(traced))
    assert len(pauses) == before
    watching.cancel()


async def test_the_device_is_given_each_text_as_soon_as_it_is_written():
    given = []

    class Eager(NumpyExecutor):
        def prepare(self, kernel):
            given.append((kernel.wgsl, reached[-1]))

    reached = []
    program = await compile_net(device=Eager(), on_progress=lambda progress: reached.append(progress.stage))
    assert [text for text, _ in given] == list(program.ir.program.modules)
    assert {stage for _, stage in given} == {"emit"}


@pytest.mark.parametrize("name", ["simplify", "schedule", "emit"])
def test_long_stages_come_in_pieces(name):
    found = []

    def noted(work):
        while True:
            try:
                found.append(next(work))
            except StopIteration as end:
                return end.value
            yield found[-1]

    traced = finish(compiling.trace_training(Net, loss, {"x": (4, 8)}, wg.optim.Adam(), 0, wg.Target()))
    finish(noted(lowering(traced)))
    assert [stage for stage, _ in found].count(name) >= {"simplify": 2, "schedule": 50, "emit": 10}[name]
    done = [done for stage, done in found if stage == name]
    assert done == sorted(done) and done[0] >= 0 and done[-1] <= 1


async def test_the_debug_variable_prints_the_times(monkeypatch, capsys):
    monkeypatch.setenv("WEBGRAD_DEBUG", "1")
    await compile_net()
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("webgrad: step, ") and all(f"{name} " in line for name in STAGES)
    monkeypatch.setenv("WEBGRAD_DEBUG", "3")
    await compile_net()
    assert "@compute" in capsys.readouterr().out
    monkeypatch.setenv("WEBGRAD_DEBUG", "2")
    await compile_net()
    printed = capsys.readouterr().out
    assert "Schedule: " in printed and "@compute" not in printed


def test_show_progress_speaks_boots_language(monkeypatch):
    said = []
    monkeypatch.setattr(web, "publish", lambda name, value: said.append((name, value)))
    web.show_progress(stages.Progress("schedule", 0.5, 1.0))
    ((name, value),) = said
    assert name == "progress" and value["stage"] == "compile" and "schedule" in value["message"]
    assert 0 < value["fraction"] < 1


def test_simplify_leaves_no_builder_when_a_rule_fails(monkeypatch):
    graph = wg.trace(lambda: wg.tensor_input("x", (3,)) + 1.0)

    def fail(*args):
        raise ZeroDivisionError

    monkeypatch.setattr("webgrad.compiler.simplify._fold", fail)
    with pytest.raises(ZeroDivisionError):
        simplify(graph, wg.Target())
    with pytest.raises(wg.TraceError):
        wg.exp(graph.outputs[0])
