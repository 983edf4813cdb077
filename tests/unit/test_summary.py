"""`Plan.summary()`: every byte has a kind, and every value a lifetime."""

from __future__ import annotations

from itertools import pairwise

import pytest

import webgrad as wg
from bench import static
from bench.workloads import WORKLOADS
from webgrad import nn
from webgrad.compile import build_training
from webgrad.compiler.summary import KINDS
from webgrad.compiler.target import Target


class Model(nn.Module):
    """Two layers and a table that does not train."""

    def __init__(self):
        self.l1, self.l2 = nn.Linear(4, 64), nn.Linear(64, 3)
        self.ids = self.param((5,), dtype="i32", init="zeros")


def loss_fn(model, x, t):
    """With a capture, a metric and a constant table."""
    h = wg.capture("h", wg.tanh(model.l1(x)))
    table = wg.sin(h) * [[float(k * k) for k in range(64)]]
    wg.metric("size", wg.mean(h * h))
    return wg.cross_entropy(model.l2(table), t)


def plan_of(optimizer=None):
    """The plan of its training program."""
    inputs = {"x": (16, 4), "t": wg.Input((16,), "i32")}
    return build_training(Model, loss_fn, inputs, optimizer, 0, Target()).ir.plan


def test_bytes_by_kind():
    plan = plan_of(wg.optim.Adam())
    found = plan.summary().bytes
    trained = sum(-(-4 * n // 256) * 256 for n in (4 * 64, 64, 64 * 3, 3))
    arena = -(-trained // 1024) * 1024
    assert tuple(found) == KINDS
    assert found["parameters"] == arena + 1024, "those that train and those that do not"
    assert found["gradients"] == arena and found["optimizer state"] == 2 * arena
    assert found["inputs"] == 256 + 16 * 4 * 4 + 64
    assert found["constants"] == 64 * 4
    assert found["captures"] == 16 * 64 * 4, "its buffer holds nothing larger"
    assert found["outputs"] == 2 * 16, "loss and metric"
    assert found["staging"] == 16 * 64 * 4 + 4 + 4
    assert found["other state"] == 0 and found["activations"] > 0


def test_the_total_is_all_buffers_and_one_transfer():
    plan = plan_of(wg.optim.Adam())
    summary = plan.summary()
    assert summary.total == sum(b.bytes for b in plan.buffers) + summary.bytes["staging"]
    assert plan_of().summary().bytes["optimizer state"] == 0


@pytest.mark.parametrize("target", static.TARGETS)
@pytest.mark.parametrize("name", WORKLOADS)
def test_values_of_one_recycled_buffer_live_one_after_the_other(name, target):
    summary = static.measure(name, target)[1].plan.summary()
    recycled = 0
    for kind, size, values in summary.buffers:
        assert kind in KINDS and all(v.offset + v.bytes <= size for v in values)
        if kind in ("activations", "captures", "outputs"):
            assert all(a.last < b.first for a, b in pairwise(values))
            recycled += len(values) - 1
    assert recycled > 0


def test_values_have_names_and_lifetimes():
    plan = plan_of(wg.optim.SGD())
    summary = plan.summary()
    end = len(plan.schedule.kernels)
    values = {v.value: v for _, _, of in summary.buffers for v in of}
    assert (values["l1.W"].first, values["l1.W"].last) == (0, end)
    assert (values["x"].first, values["x"].last < end) == (0, True)
    assert values["h"].last == values["size"].last == end
    gradient = values["gradient of l2.W"]
    assert 0 < gradient.first < gradient.last == end and gradient.bytes == 64 * 3 * 4
    writers = [
        i
        for i, k in enumerate(plan.schedule.kernels)
        for s in k.stores
        if s.node is plan.schedule.graph.captures["h"]
    ]
    assert [values["h"].first] == writers


def test_it_prints_as_a_table():
    plan = plan_of(wg.optim.SGD())
    summary = plan.summary()
    head, columns, *rows = str(summary).splitlines()
    assert head == summary.line and head.startswith(f"{summary.total:,} bytes: parameters ")
    assert "other state" not in head
    assert columns.split()[:3] == ["buffer", "bytes", "kind"]
    assert len(rows) == len(plan.buffers)
    (row,) = [r for r in rows if "captures" in r]
    assert f"h {summary.buffers[int(row[1:6])][2][-1].first}–{len(plan.schedule.kernels)}" in row
    assert str(plan).startswith(f"Plan: {summary.line}\n")
