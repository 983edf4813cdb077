"""The benchmark measures what it says: its workloads' numbers, its checks, and the shape of its output."""

from __future__ import annotations

import base64
import json
import re

import numpy as np
import pytest

from bench import native as bench_native
from bench import phases, report, static, yardstick
from bench.__main__ import options
from bench.session import product, task
from bench.workloads import PRODUCTS, WORKLOADS, Product, Random, batches, initial_params
from demo.serve import ROOT
from tests.unit.native import native
from webgrad.errors import NoAdapterError


def test_the_generator_is_mulberry32():
    assert (Random(1234).uniform(3) * 2**32).tolist() == [314799534, 3021131492, 3877737075]


def test_its_normal_numbers_are_box_and_mullers():
    found = Random(99).normal(3, 1.0)
    np.testing.assert_allclose(found, [0.2623287141, -0.4575481117, 0.0196557771], rtol=1e-6)


def test_drawing_one_by_one_or_many_at_once_is_the_same():
    one_by_one = Random(5)
    assert [one_by_one.one() for _ in range(4)] == Random(5).uniform(4).tolist()


@pytest.mark.parametrize("name", WORKLOADS)
def test_weights_and_batches_fit_the_models(name):
    w = WORKLOADS[name]
    ir = static.build_training(w.model, w.loss, w.inputs, w.optimizer, 0, static.Target()).ir
    assert {k: v.shape for k, v in initial_params(name).items()} == {
        k: v.shape for k, v in ir.graph.params.items()
    }
    for batch in batches(name):
        assert {k: v.shape for k, v in batch.items()} == {k: v.shape for k, v in ir.graph.inputs.items()}


def test_additions_add_up():
    for row, following in zip(*(batches("W6")[0][key] for key in "xy"), strict=True):
        digits = [*row, following[-1]]
        assert digits[2] == 10 and digits[5] == 11
        a, b = (10 * digits[i] + digits[i + 1] for i in (0, 3))
        assert a + b == int("".join(map(str, digits[6:])))


def test_arrays_reach_the_page_unchanged():
    given, sent = initial_params("W4")["conv2.W"], task("W4")["params"]["conv2.W"]
    assert (sent["dtype"], sent["shape"]) == ("float32", [16, 8, 3, 3])
    assert base64.b64decode(sent["base64"]) == given.tobytes()


def test_only_square_products_are_chained():
    assert {name: product(name)["chained"] for name in PRODUCTS if "1024" not in name} == {
        "256³": True,
        "512³": True,
        "8×128×64×128": False,
    }
    assert PRODUCTS["8×128×64×128"].flops == 2 * 8 * 128 * 64 * 128


def test_every_system_takes_each_turn():
    orders = [phases.turns(["a", "b", "c"], number) for number in range(6)]
    assert orders[:3] == [["a", "b", "c"], ["a", "c", "b"], ["c", "a", "b"]]
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)


def test_losses_that_differ_are_told():
    assert phases.disagreement({"a": [1.0, 0.5], "b": [1.0005, 0.501]}) is None
    assert "first losses differ" in phases.disagreement({"a": [1.0, 0.5], "b": [1.01, 0.5]})
    assert "first losses differ" in phases.disagreement({"a": [1.0, 0.5], "b": [np.nan, 0.5]})
    assert "second losses differ" in phases.disagreement({"a": [1.0, 0.5], "b": [1.0, 0.6]})


def test_the_static_counts_have_their_documented_shape(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["bench.static", "--json"])
    static.main()
    table = json.loads(capsys.readouterr().out)
    assert list(table) == ["W1", "W2", "W3", "W4", "W6"]
    keys = ["dispatches", "modules", "pipelines", "peak_bytes", "bytes_moved", "flops", "compile_s"]
    for row in table.values():
        assert list(row) == keys
        assert all(value > 0 for value in row.values())


def test_the_native_benchmark_has_its_documented_shape(capsys, monkeypatch):
    native()  # skips where there is no adapter
    small = {name: PRODUCTS[name] for name in ("256³", "8×128×64×128")}
    monkeypatch.setattr(bench_native.machine, "busy_share", lambda: 0.9)
    monkeypatch.setattr(bench_native, "PRODUCTS", small)
    assert bench_native.main(["--json", "--workloads=W1,W5", "--rounds=2", "--stretch=0.02"]) == 0
    printed = capsys.readouterr()
    results = json.loads(printed.out)
    assert list(results) == ["environment", "workloads", "products", "problems"]
    assert "90% busy" in printed.err
    found = results["workloads"]["W1"]
    assert list(found["stages_s"]) == ["compile", "pipelines", "first step"]
    assert found["steps_per_second"]["n"] == found["steps_per_second_ahead"]["n"] == 2
    assert 0 < found["pipelines"] <= found["dispatches"] and found["bytes"] > 0
    assert list(results["products"]) == list(small)
    for systems in results["products"].values():
        assert set(systems) <= {"webgrad", *yardstick.BLOCKS}
    shown = "\n".join(report.text_of(table) for table in bench_native.tables(results))
    assert "W1 MLP regression" in shown and "256³" in shown
    assert "kernels for" in bench_native.headline(results["environment"])


def test_a_native_figure_of_a_wrong_result_is_a_problem(capsys, monkeypatch):
    native()
    monkeypatch.setattr(bench_native.machine, "busy_share", lambda: 0.0)
    monkeypatch.setattr(bench_native, "LOSS_TOLERANCE", -1.0)
    assert bench_native.main(["--workloads=W1", "--rounds=1", "--stretch=0.01", "--target=hardware"]) == 1
    out = capsys.readouterr().out
    assert "PROBLEM: W1: the first loss is" in out and "kernels for hardware" in out


def test_the_native_benchmark_says_that_there_is_no_adapter(capsys, monkeypatch):
    def none():
        raise NoAdapterError("no adapter here")

    monkeypatch.setattr(bench_native.machine, "busy_share", lambda: None)
    monkeypatch.setattr(bench_native, "request_device", none)
    assert bench_native.main(["--workloads=W1"]) == 1
    assert "no adapter here" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        bench_native.options(["--workloads=W7"])
    assert "there are: W1, W2, W3, W4, W5, W6" in capsys.readouterr().err


def test_blocks_that_do_not_divide_a_product_are_refused():
    a, b = np.zeros((100, 64), np.float32), np.zeros((64, 128), np.float32)
    with pytest.raises(ValueError, match="do not divide"):
        yardstick.program(Product(1, 100, 64, 128), (8, 2), a, b)


def test_options_name_what_there_is(capsys):
    assert options(["--only=matmul,warm"]).only == ["warm", "matmul"]
    with pytest.raises(SystemExit):
        options(["--workloads=W7"])
    assert "there are: W1, W2, W3, W4, W6, W5" in capsys.readouterr().err


def test_the_report_compares_with_the_best_peer():
    def speed(value: float) -> dict:
        return {
            "steps_per_second": {"median": value, "min": value, "max": 2 * value, "n": 3},
            "dispatches": 9.0,
        }

    systems = {"webgrad": speed(50.0), "jax-js": speed(20.0), "tfjs": speed(4.0)}
    assert report.speed_ratio(systems) == (2.5, "jax-js")
    (table,) = report.tables({"systems": list(systems), "warm": {"W1": {"systems": systems}}})
    assert table.rows == [
        ["W1 MLP regression", "50 (50–100)", "20 (20–40)", "4 (4–8)", "2.50× jax-js ✗ ≥ 3", "9/9/9"]
    ]


def test_the_lock_of_the_peers_names_no_host():
    text = (ROOT / "bench/package-lock.json").read_text()
    assert not re.findall(r'"[^"]*://[^"]*"', text)
