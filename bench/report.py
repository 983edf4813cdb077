"""The results as tables: for the terminal, and in Markdown.

`tables` turns the results (see `bench.phases`) into rows of text; `as_text` and `as_markdown` print them.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.workloads import WORKLOADS

#: webgrad's goals: steps per second against the best peer, and dispatches a step
SPEED_GOALS = {"W1": 3.0, "W2": 2.2, "W3": 4.0, "W4": 5.0, "W6": 3.0}
DISPATCH_GOALS = {"W1": 12, "W2": 14, "W3": 75, "W4": 24, "W6": 110}
#: share of the best hand-written kernel's speed
PRODUCT_GOALS = {"256³": 0.5, "512³": 0.9, "1024³": 0.9, "8×128×64×128": 0.5}
#: milliseconds above the fastest peer that the first loss may take
FIRST_LOSS_ALLOWANCE = {"W1": 1200.0}


@dataclass
class Table:
    """Rows of text under a title."""

    title: str
    columns: list[str]
    rows: list[list[str]]


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median and range."""
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "n": len(values),
    }


def number(value: float) -> str:
    """Three significant digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def ranged(values: dict[str, float]) -> str:
    """Median (min-max)."""
    text = number(values["median"])
    return text if values["n"] == 1 else f"{text} ({number(values['min'])}–{number(values['max'])})"


def against_goal(text: str, met: bool, goal: str) -> str:
    """A figure, whether it is good enough, and what would be."""
    return f"{text} {'✓' if met else '✗'} {goal}"


def speed_ratio(systems: dict[str, Any]) -> tuple[float, str] | None:
    """webgrad's steps per second over the best peer's, and that peer."""
    speeds = {name: result["steps_per_second"]["median"] for name, result in systems.items()}
    ours = speeds.pop("webgrad", None)
    if ours is None or not speeds:
        return None
    best = max(speeds, key=lambda name: speeds[name])
    return ours / speeds[best], best


def tables(results: dict[str, Any]) -> list[Table]:
    """A table for each phase that ran."""
    made = []
    systems = results["systems"]
    if found := results.get("warm"):
        made.append(_warm(found, systems))
    if found := results.get("cold"):
        made += [_cold(found, systems), _stages(found, systems), _bytes(found, systems)]
    if found := results.get("matmul"):
        made.append(_matmul(found))
    if found := results.get("static"):
        made.append(_static(found))
    return made


def _cells(systems: list[str], found: dict[str, Any], show: Any) -> list[str]:
    return [show(found[name]) if name in found else "–" for name in systems]


def _warm(found: dict[str, Any], systems: list[str]) -> Table:
    rows = []
    for name, result in found.items():
        measured = result["systems"]
        ratio = "–"
        if pair := speed_ratio(measured):
            goal = SPEED_GOALS[name]
            ratio = against_goal(f"{pair[0]:.2f}× {pair[1]}", pair[0] >= goal, f"≥ {goal:g}")
        dispatches = "/".join(_cells(systems, measured, lambda r: f"{r['dispatches']:.0f}"))
        speeds = _cells(systems, measured, lambda r: ranged(r["steps_per_second"]))
        rows.append([f"{name} {WORKLOADS[name].title}", *speeds, ratio, dispatches])
    return Table(
        "Training, steps per second, each loss awaited: median (min–max)",
        ["workload", *systems, "webgrad against the best peer", "dispatches a step"],
        rows,
    )


def _cold(found: dict[str, Any], systems: list[str]) -> Table:
    rows = []
    for name, measured in found.items():
        verdict = "–"
        peers = [result["ms"]["median"] for system, result in measured.items() if system != "webgrad"]
        if "webgrad" in measured and peers:
            goal = min(peers) + FIRST_LOSS_ALLOWANCE.get(name, 0.0)
            ours = measured["webgrad"]["ms"]["median"]
            verdict = against_goal(f"{ours / min(peers):.2f}×", ours <= goal, f"≤ {number(goal)} ms")
        rows.append([name, *_cells(systems, measured, lambda r: ranged(r["ms"])), verdict])
    return Table(
        "From nothing to the first loss in a fresh profile, ms (device request included, imports not)",
        ["workload", *systems, "webgrad against the fastest peer"],
        rows,
    )


def _stages(found: dict[str, Any], systems: list[str]) -> Table:
    def show(result: dict[str, Any]) -> str:
        stages = ", ".join(f"{stage} {ms:.0f}" for stage, ms in result["stages"].items())
        return f"{stages}; {result['pipelines']} pipelines"

    rows = [[name, *_cells(systems, measured, show)] for name, measured in found.items()]
    return Table("Of that, ms by stage", ["workload", *systems], rows)


def _bytes(found: dict[str, Any], systems: list[str]) -> Table:
    rows = []
    for name, measured in found.items():
        verdict = "–"
        peers = [result["live_bytes"] for system, result in measured.items() if system != "webgrad"]
        if "webgrad" in measured and peers:
            ours = measured["webgrad"]["live_bytes"]
            verdict = against_goal(f"{ours / min(peers):.2f}×", ours <= min(peers), "≤ 1")
        rows.append([name, *_cells(systems, measured, lambda r: f"{r['live_bytes'] / 1024:,.0f}"), verdict])
    return Table(
        "Live GPU memory in training, KiB", ["workload", *systems, "webgrad against the least"], rows
    )


def _matmul(found: dict[str, Any]) -> Table:
    names = list(dict.fromkeys(system for measured in found.values() for system in measured))
    rows = []
    for name, measured in found.items():
        verdict = "–"
        best = max((r["median"] for s, r in measured.items() if s.startswith("wgsl")), default=0.0)
        if "webgrad" in measured and best:
            share = measured["webgrad"]["median"] / best
            goal = PRODUCT_GOALS[name]
            verdict = against_goal(f"{share:.0%}", share >= goal, f"≥ {goal:.0%}")
        rows.append([name, *_cells(names, measured, ranged), verdict])
    return Table("W5: products, GFLOP/s", ["product", *names, "webgrad against the best wgsl"], rows)


def _static(found: dict[str, Any]) -> Table:
    columns = [
        "modules",
        "pipelines",
        "peak KiB",
        "moved KiB a step",
        "MFLOP a step",
        "compile s in CPython",
    ]
    rows = []
    for target, measured in found.items():
        for name, r in measured.items():
            goal = DISPATCH_GOALS[name]
            kib = [f"{r[key] / 1024:,.0f}" for key in ("peak_bytes", "bytes_moved")]
            dispatches = against_goal(f"{r['dispatches']}", r["dispatches"] <= goal, f"≤ {goal}")
            rest = [f"{r['flops'] / 1e6:,.1f}", f"{r['compile_s']:.2f}"]
            rows.append([name, target, dispatches, f"{r['modules']}", f"{r['pipelines']}", *kib, *rest])
    return Table("webgrad's programs", ["workload", "adapter class", "dispatches a step", *columns], rows)


def headline(results: dict[str, Any]) -> str:
    """What ran where, in one line."""
    e = results["environment"]
    adapter = (
        " ".join(e["adapter"].get(key, "") for key in ("vendor", "architecture")).strip() or "no browser"
    )
    busy = ", ".join(f"{phase} {share:.0%}" for phase, share in e["busy"].items() if share is not None)
    return (
        f"webgrad {e['revision']}, jax-js {e['jax-js']}, TensorFlow.js {e['tfjs']}; "
        f"Chromium {e['chromium']}, {adapter}; {e['processor']}, {e['cores']} cores; {e['rounds']} rounds; "
        f"machine busy before each phase: {busy}"
    )


def notes(results: dict[str, Any]) -> list[str]:
    """What a reader must know beside the tables."""
    return [f"PROBLEM: {text}" for text in results["problems"]]


def text_of(table: Table) -> str:
    """One table for the terminal."""
    lines = [table.columns, *table.rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.columns))]
    shown = [
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines
    ]
    return "\n".join([table.title, "", *shown])


def as_text(results: dict[str, Any]) -> str:
    """For the terminal."""
    parts = [headline(results), *(text_of(table) for table in tables(results))]
    return "\n\n".join([*parts, *notes(results)]) + "\n"


def as_markdown(results: dict[str, Any]) -> str:
    """For a document."""
    parts = [f"# webgrad benchmark, {results['environment']['date']}", headline(results)]
    for table in tables(results):
        lines = [table.columns, ["---"] * len(table.columns), *table.rows]
        parts += [f"## {table.title}", "\n".join("| " + " | ".join(line) + " |" for line in lines)]
    return "\n\n".join([*parts, *notes(results)]) + "\n"
