"""``make bench`` (or ``python -m bench``): webgrad against jax-js and TensorFlow.js in one Chromium.

    python -m bench [--quick] [--only=static,warm,cold,matmul] [--workloads=W1,W2,W3,W4,W5,W6]
                    [--systems=webgrad,jax-js,tfjs] [--rounds=N] [--out=FILE.json] [--allow-busy]

Prints a table for each phase and writes the figures as JSON, with the same tables in Markdown beside it. How
it measures: `bench.phases`; the workloads: `bench.workloads`. Exit status: 0; 1 when something failed or
first losses differ; 2 when the machine is too busy to measure; 130 after Ctrl+C.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from playwright.async_api import Error

from bench import bundle, machine, phases, report
from bench.session import PageError, Session
from bench.workloads import WORKLOADS
from demo.serve import DevServer, load_config, load_setup

config = load_config()
PHASES = ("static", "warm", "cold", "matmul")
SYSTEMS = ("webgrad", "jax-js", "tfjs")
NAMES = (*WORKLOADS, "W5")
ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "bench" / "results.json"


class TooBusy(RuntimeError):
    """Other work would disturb the figures."""


def some_of(known: tuple[str, ...]) -> Any:
    """A parser of comma-separated names."""

    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown {', '.join(unknown)}; there are: {', '.join(known)}")
        return [name for name in known if name in names]

    return parse


def options(arguments: list[str] | None) -> argparse.Namespace:
    """The command line's."""
    parser = argparse.ArgumentParser(prog="bench", description="webgrad against its peers in one Chromium.")
    parser.add_argument("--quick", action="store_true", help="few and short rounds; warns of a busy machine")
    parser.add_argument("--only", type=some_of(PHASES), default=list(PHASES), help="some of the phases")
    parser.add_argument("--workloads", type=some_of(NAMES), default=list(NAMES), help="W5 is the products")
    parser.add_argument("--systems", type=some_of(SYSTEMS), default=list(SYSTEMS))
    parser.add_argument(
        "--rounds", type=int, help="stretches that each system is timed (default 7; quick: 2)"
    )
    parser.add_argument("--out", type=Path, default=OUT, help="the JSON file")
    parser.add_argument("--allow-busy", action="store_true", help="measure on a busy machine, too")
    return parser.parse_args(arguments)


async def measure(chosen: argparse.Namespace, results: dict[str, Any], run: phases.Run) -> None:
    """Run the phases, keeping the results after each."""
    environment = results["environment"]
    work = {"warm": phases.warm, "cold": phases.cold, "matmul": phases.matmul}
    for phase in chosen.only:
        if not ("W5" in chosen.workloads if phase == "matmul" else run.workloads):
            continue
        environment["busy"][phase] = busy = await asyncio.to_thread(machine.busy_share)
        if busy is not None and busy > machine.BUSY:
            text = f"the machine is {busy:.0%} busy before the phase {phase!r}"
            if not chosen.quick and not chosen.allow_busy:
                raise TooBusy(f"{text}: stop what runs, or pass --allow-busy")
            run.say(f"warning: {text}; the figures will be off")
        run.say(f"--- {phase}")
        if phase == "static":
            results[phase] = phases.count_statically(run)
        else:
            results[phase] = await work[phase](run)
        write(results, chosen.out)


async def look(run: phases.Run, environment: dict[str, Any]) -> None:
    """Note which browser and adapter measure."""
    async with run.open_session() as page:
        environment |= {"chromium": page.browser, "adapter": page.adapter}


def write(results: dict[str, Any], out: Path) -> None:
    """Keep the results as JSON and Markdown."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n")
    out.with_suffix(".md").write_text(report.as_markdown(results))


def main(arguments: list[str] | None = None) -> int:
    """Measure, print and write."""
    chosen = options(arguments)
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - started:5.0f} s] {text}", flush=True)

    try:
        bundle.ensure_bundles()
        wheel = bundle.copy_wheel()
        rounds = chosen.rounds or (2 if chosen.quick else 7)
        environment: dict[str, Any] = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "revision": machine.revision(),
            **bundle.versions(),
            "processor": machine.processor(),
            "cores": os.cpu_count(),
            "rounds": rounds,
            "busy": {},
        }
        with DevServer() as server:
            run = phases.Run(
                open_session=lambda: Session(server.url, wheel),
                say=say,
                systems=chosen.systems,
                workloads=[name for name in chosen.workloads if name != "W5"],
                rounds=rounds,
                stretch=400 if chosen.quick else 1500,
                cold_repetitions=1 if chosen.quick else 3,
            )
            results: dict[str, Any] = {
                "environment": environment,
                "systems": chosen.systems,
                "problems": run.problems,
            }

            async def everything() -> None:
                await look(run, environment)
                await measure(chosen, results, run)

            asyncio.run(everything())
    except TooBusy as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except (load_setup().SetupError, config.BrowserNotFound, PageError, Error, ValueError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: stopped", file=sys.stderr)
        return 130
    print("\n" + report.as_text(results))
    shown = chosen.out.relative_to(ROOT) if chosen.out.is_relative_to(ROOT) else chosen.out
    print(f"written: {shown} and {chosen.out.with_suffix('.md').name}")
    return 1 if run.problems else 0


if __name__ == "__main__":
    sys.exit(main())
