"""The program cache: which programs count as the same, what is kept of them, and what comes back."""

from __future__ import annotations

import json
import textwrap
import zlib
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest

import webgrad as wg
from bench.static import TARGETS
from bench.workloads import WORKLOADS
from webgrad import cache, nn, storage
from webgrad.compile import build_forward, build_training, create_runtime
from webgrad.compiler.program import Program
from webgrad.lowering import Traced, recalled
from webgrad.runtime.reference import NumpyExecutor

TARGET = wg.Target()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A cache of the test's own."""
    monkeypatch.setenv(storage.VARIABLE, str(tmp_path))
    return tmp_path


class Nothing:
    """A session that never runs."""

    def destroy(self):
        pass


class Gpu(NumpyExecutor):
    """An executor that, like a GPU, gets by with the program; it keeps what it was given."""

    name = "gpu"
    needs_plan = False

    def __init__(self, **options):
        super().__init__(**options)
        self.loaded = []

    async def load(self, program, plan, externals):
        assert plan is None
        self.loaded.append(program)
        return Nothing()


class Net(nn.Module):
    def __init__(self):
        self.hidden = nn.Linear(3, 8)
        self.out = nn.Linear(8, 1)

    def __call__(self, x):
        return self.out(wg.capture("hidden", wg.relu(self.hidden(x))))


def loss(net, x, y):
    return wg.mean((net(x) - y) ** 2)


INPUTS = {"x": (4, 3), "y": (4, 1)}


def compile_net(executor, **options):
    settings = {"inputs": INPUTS, "optimizer": wg.optim.Adam(), "device": executor}
    return wg.compile_module(Net, loss, **(settings | options))


def place(parts, target=TARGET, entry="step", tune=""):
    """Where the program of these parts is kept."""
    return cache.place_of(parts.ir.graph, parts.layout, (target, entry, tune))


def key(model=Net, forward=loss, inputs=INPUTS, optimizer=None, target=TARGET):
    """The key of a training program."""
    return place(build_training(model, forward, inputs, optimizer or wg.optim.Adam(), 0, target), target).key


# --- what is compiled once --------------------------------------------------------------------------


async def test_the_second_visit_skips_the_compiler():
    first, second = [await compile_net(Gpu()) for _ in range(2)]
    assert "schedule" in first.timings
    assert list(second.timings) == ["trace", "gradient", "optimizer", "recall", "pipelines"]
    assert second.ir.program == first.ir.program
    assert second.ir.kernels == first.ir.kernels
    assert list(second.ir.graph.captures) == ["hidden"] and second.ir.loss is second.ir.graph.outputs[0]


async def test_what_was_not_compiled_is_made_when_it_is_looked_at():
    first, second = [await compile_net(Gpu()) for _ in range(2)]
    assert "plan" not in vars(second.ir)
    assert str(second.ir.schedule) == str(first.ir.schedule)
    assert str(second.ir.plan) == str(first.ir.plan)
    assert second.ir.plan is second.ir.plan


async def test_forward_programs_are_kept_too_and_apart():
    async def compile_both():
        train = await compile_net(Gpu())
        forward = await wg.compile_forward(
            Net, lambda net, x: net(x), inputs={"x": (4, 3)}, shared_params=train.params
        )
        return train, forward

    train, forward = await compile_both()
    again, forward_again = await compile_both()
    assert "emit" not in again.timings and "emit" not in forward_again.timings
    assert forward_again.ir.program == forward.ir.program != train.ir.program


async def test_it_can_be_left_out(folder):
    await compile_net(Gpu(), cache=False)
    assert not list(folder.rglob("*"))
    await compile_net(Gpu())
    assert "schedule" in (await compile_net(Gpu(), cache=False)).timings
    with pytest.raises(wg.InputError, match="cache must be True or False"):
        await compile_net(Gpu(), cache="yes")


async def test_numpy_interprets_the_plan_and_remembers_nothing(folder):
    await compile_net(NumpyExecutor())
    assert not list(folder.rglob("*"))


async def test_a_program_that_does_not_load_is_not_kept(folder):
    class Broken(Gpu):
        async def load(self, program, plan, externals):
            raise wg.CompileError("no")

    with pytest.raises(wg.CompileError):
        await compile_net(Broken())
    assert not list(folder.rglob("*"))


async def test_a_graph_that_no_text_stands_for_is_compiled_anew(folder, monkeypatch):
    def strange(value):
        raise TypeError("strange")

    monkeypatch.setattr(cache, "canonical", strange)
    program = await compile_net(Gpu())
    assert "schedule" in program.timings and not list(folder.rglob("*"))


@pytest.mark.parametrize("level", ["graph", "schedule"])
@pytest.mark.parametrize("name", ["W1", "W4"])
async def test_what_comes_back_computes_the_same(name, level):
    w = WORKLOADS[name]

    def parts():
        return build_training(w.model, w.loss, w.inputs, w.optimizer, 0, TARGET)

    async def losses(parts):
        program = await create_runtime(parts, NumpyExecutor(level))
        rng = np.random.default_rng(0)
        batch = {
            n: rng.integers(0, 2, node.shape) if node.dtype == "i32" else rng.normal(size=node.shape)
            for n, node in program.ir.graph.inputs.items()
        }
        return [await program.step(batch) for _ in range(2)]

    fresh, again = parts(), parts()
    here = place(fresh)
    program = cache.unpacked(cache.packed(fresh.ir.program, here), place(again))
    traced = Traced(again.ir.graph, again.ir.param_grads, again.ir.loss, again.layout, TARGET, "step", None)
    again.ir = recalled(traced, program)
    assert await losses(again) == await losses(fresh)


# --- keys -------------------------------------------------------------------------------------------


def test_the_same_model_has_the_same_key():
    assert key() == key()


def test_what_is_told_at_each_step_is_not_part_of_it():
    assert key(optimizer=wg.optim.Adam(lr=1e-3)) == key(optimizer=wg.optim.Adam(lr=1.0, b1=0.5))


class Wider(Net):
    def __init__(self):
        self.hidden = nn.Linear(3, 9)
        self.out = nn.Linear(9, 1)


class Renamed(nn.Module):
    def __init__(self):
        self.inside = nn.Linear(3, 8)
        self.out = nn.Linear(8, 1)

    def __call__(self, x):
        return self.out(wg.capture("hidden", wg.relu(self.inside(x))))


class Uncaptured(Net):
    def __call__(self, x):
        return self.out(wg.relu(self.hidden(x)))


class CapturedElsewhere(Net):
    def __call__(self, x):
        return self.out(wg.relu(wg.capture("hidden", self.hidden(x))))


class Masked(Net):
    mask = np.arange(8, dtype=np.float32)

    def __call__(self, x):
        return self.out(wg.capture("hidden", wg.relu(self.hidden(x)) * self.mask))


class OtherMask(Masked):
    mask = np.arange(8, dtype=np.float32)[::-1]


def with_metric(net, x, y):
    return wg.metric("error", loss(net, x, y))


def scaled(factor):
    return lambda net, x, y: loss(net, x, y) * factor


DIFFERENT = {
    "a model": {},
    "a width": {"model": Wider},
    "a parameter's name": {"model": Renamed},
    "no capture": {"model": Uncaptured},
    "a capture elsewhere": {"model": CapturedElsewhere},
    "a constant array": {"model": Masked},
    "another constant array": {"model": OtherMask},
    "a batch": {"inputs": {"x": (5, 3), "y": (5, 1)}},
    "a dtype": {"inputs": {"x": (4, 3), "y": wg.Input((4, 1), "i32")}},
    "a metric": {"forward": with_metric},
    "a factor": {"forward": scaled(2.0)},
    "another factor": {"forward": scaled(np.nextafter(np.float32(2), np.float32(3)))},
    "plus zero": {"forward": scaled(0.0)},
    "minus zero": {"forward": scaled(-0.0)},
    "not a number": {"forward": scaled(float("nan"))},
    "an optimizer": {"optimizer": wg.optim.SGD()},
    "an adapter class": {"target": replace(TARGET, adapter_class="hardware")},
    "quads": {"target": replace(TARGET, quads=True)},
    "a limit": {"target": replace(TARGET, max_storage_buffers=10)},
    "a feature": {"target": replace(TARGET, features=frozenset({"subgroups"}))},
}


def test_whatever_makes_another_program_makes_another_key():
    keys = {name: key(**options) for name, options in DIFFERENT.items()}
    alike = [(a, b) for a in keys for b in keys if a < b and keys[a] == keys[b]]
    assert not alike


def test_entry_layout_tuning_and_sources_are_part_of_it(monkeypatch):
    parts = build_training(Net, loss, INPUTS, None, 0, TARGET)
    moved = replace(parts.layout, arenas={"elsewhere": 1})
    keys = {
        place(parts).key,
        place(parts, entry="run").key,
        place(parts, tune="this adapter").key,
        place(replace(parts, layout=moved)).key,
    }
    monkeypatch.setattr(cache, "sources_digest", lambda: "edited")
    keys.add(place(parts).key)
    assert len(keys) == 5


def test_a_forward_program_has_a_key_of_its_own():
    def forward(net, x):
        return net(x)

    found = [build_forward(Net, forward, {"x": (4, 3)}, None, 0, TARGET) for _ in range(2)]
    first, second = (place(parts, entry="run").key for parts in found)
    assert first == second != key()


def test_texts_stand_for_one_value_only():
    values = [
        1, 1.0, True, "1", None, (1,), [[1]], (1, (2,)), ((1, 2),), 0.0, -0.0, np.float32(1), np.int32(1),
        np.ones(1, np.float32), np.ones((1, 1), np.float32), np.arange(99), np.arange(99)[::-1], {"a": 1},
        {"b": 1}, {"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a"}, frozenset({"a", "b"}), TARGET,
    ]  # fmt: skip
    texts = [cache.canonical(value) for value in values]
    assert len(set(texts)) == len(values)
    assert cache.canonical(frozenset("abc")) == cache.canonical(frozenset("cba"))
    for strange in (object(), lambda: 0, np.array(["text"]), [object()]):
        with pytest.raises(TypeError):
            cache.canonical(strange)


def test_an_edit_of_webgrads_sources_forgets_everything(tmp_path, monkeypatch):
    source = tmp_path / "webgrad"
    (source / "compiler").mkdir(parents=True)
    (source / "a.py").write_text("x = 1")
    (source / "compiler" / "b.py").write_text("y = 1")
    monkeypatch.setattr(cache, "files", lambda name: source)

    def digest():
        return cache.sources_digest.__wrapped__()

    before = digest()
    (source / "notes.txt").write_text("no source")
    assert digest() == before
    (source / "compiler" / "b.py").write_text("y = 2")
    assert digest() != before


# --- the user's lines -------------------------------------------------------------------------------

MODEL = textwrap.dedent(
    """
    import webgrad as wg
    from webgrad import nn

    class Net(nn.Module):
        def __init__(self):
            self.hidden = nn.Linear(3, 8)

        def __call__(self, x):
            h = wg.exp(self.hidden(x))
            return wg.mean(wg.tanh(h) * x[:, :1]) ** 2
    """
)


def program_of(text, filename):
    """Compile the text's model on a device; (the program, the device's)."""
    space = {}
    exec(compile(text, filename, "exec"), space)
    return wg.compile_module(
        space["Net"], lambda net, x: net(x), inputs={"x": (4, 3)}, optimizer=wg.optim.Adam(), device=Gpu()
    )


def new_lines(kernel):
    return [site for site in kernel.sites if site.startswith("new.py")]


async def test_after_an_edit_above_the_lines_are_those_of_today():
    before = await program_of(MODEL, "old.py")
    moved = MODEL.replace("class Net", "# a comment\n\n\nclass Net")
    after = await program_of(moved, "new.py")
    assert "schedule" not in after.timings, "the same program"
    fresh = build_training_of(moved, "new.py").ir.program
    assert [new_lines(k) for k in after.ir.program.kernels] == [new_lines(k) for k in fresh.kernels]
    lines = {site for k in after.ir.program.kernels for site in k.sites}
    assert any(site.startswith("new.py:14 in __call__") for site in lines)
    assert not any(site.startswith("old.py") for site in lines)
    assert before.ir.program.modules == after.ir.program.modules


def build_training_of(text, filename):
    space = {}
    exec(compile(text, filename, "exec"), space)
    return build_training(
        space["Net"], lambda net, x: net(x), {"x": (4, 3)}, wg.optim.Adam(), 0, Gpu().target
    )


async def test_a_line_that_was_split_is_compiled_anew():
    await program_of(MODEL, "model.py")
    split = MODEL.replace("h = wg.exp(self.hidden(x))", "h = self.hidden(x)\n        h = wg.exp(h)")
    after = await program_of(split, "model.py")
    assert "schedule" in after.timings
    lines = {site for k in after.ir.program.kernels for site in k.sites}
    assert {"model.py:10 in __call__", "model.py:11 in __call__"} <= lines


# --- what is kept -----------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", WORKLOADS)
def test_nothing_is_lost_on_the_way(name, target):
    w, t = WORKLOADS[name], TARGETS[target]
    parts = build_training(w.model, w.loss, w.inputs, w.optimizer, 0, t)
    here = place(parts, t)
    stored = cache.packed(parts.ir.program, here)
    assert cache.unpacked(stored, here) == parts.ir.program
    assert len(stored) < 100_000


def test_blobs_bounds_and_numbers_survive():
    def forward(model, ids):
        table = np.arange(40, dtype=np.float32).reshape(10, 4)
        return wg.embedding(table, ids) * np.array([np.inf, -0.0, np.nan, 1e-30], np.float32)

    parts = build_forward(nn.Module, forward, {"ids": wg.Input((3,), "i32")}, None, 0, TARGET)
    program, here = parts.ir.program, place(parts)
    assert program.blobs and any(r.bounds for r in program.inputs.values())
    assert cache.unpacked(cache.packed(program, here), here) == program


def test_a_program_is_its_dict():
    program = build_training(Net, loss, INPUTS, None, 0, TARGET).ir.program
    assert Program.from_dict(json.loads(program.to_json()), program.blobs) == program
    with pytest.raises(ValueError, match="version"):
        Program.from_dict({**program.to_dict(), "version": 0}, ())


def sealed(head, blobs=b""):
    """An entry with a right digest."""
    raw = json.dumps(head).encode() + b"\0" + blobs
    return sha256(raw).digest() + zlib.compress(raw)


def damaged(good, here):
    """Entries that must count as missing."""
    head = json.loads(zlib.decompress(good[32:]).partition(b"\0")[0])
    without = {k: v for k, v in head["program"].items() if k != "kernels"}
    kernel = head["program"]["kernels"][0]
    yield "empty", b""
    yield "short", good[:20]
    yield "truncated", good[:-5]
    yield "a flipped bit", good[:100] + bytes([good[100] ^ 1]) + good[101:]
    yield "a flipped bit of the digest", bytes([good[0] ^ 1]) + good[1:]
    yield "text", b"something else entirely, and long enough for a digest"
    yield "no table", sealed([1, 2])
    yield "a number", sealed(3)
    yield "another format", sealed({**head, "format": 0})
    yield "another key", sealed({**head, "key": "0" * 64})
    yield "another version", sealed({**head, "program": {**head["program"], "version": 0}})
    yield "a part that is missing", sealed({**head, "program": without})
    yield (
        "an unknown field",
        sealed({**head, "program": {**head["program"], "kernels": [{**kernel, "new": 1}]}}),
    )
    yield (
        "an unknown line",
        sealed({**head, "program": {**head["program"], "kernels": [{**kernel, "sites": [999]}]}}),
    )


def test_a_damaged_entry_counts_as_missing():
    parts = build_training(Net, loss, INPUTS, None, 0, TARGET)
    here = place(parts)
    good = cache.packed(parts.ir.program, here)
    assert cache.unpacked(good, here) == parts.ir.program
    accepted = [name for name, entry in damaged(good, here) if cache.unpacked(entry, here) is not None]
    assert not accepted


async def test_a_damaged_entry_is_compiled_and_written_anew(folder):
    await compile_net(Gpu())
    (file,) = [p for p in folder.rglob("*") if p.is_file()]
    good = file.read_bytes()
    file.write_bytes(good[:-7])
    assert "schedule" in (await compile_net(Gpu())).timings
    assert file.read_bytes() == good
    assert "schedule" not in (await compile_net(Gpu())).timings
