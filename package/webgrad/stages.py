"""How compiling is carried out: timed, told of, interruptible, and in pieces that let a page breathe.

A stage is a plain function from data to data. One that takes long is also written as a generator, which
yields at safe points how much of it is done (0 to 1) and returns the same data:

    kernels = emit_kernels(plan)                      straight through
    kernels = finish(emit_steps(plan))                the same

Stages make up a *work*, a generator that yields ``(stage, done)`` and returns what is compiled:

    def work(graph, target):
        small = yield from stage("simplify", simplify_steps(graph, target))
        plan = yield from stage("plan", once(plan_buffers, small))

A `Conductor` carries a work out. In a browser it gives way to the event loop whenever `SLICE` is used up: the
page is painted and answers, a task that was cancelled ends, and the GPU's process begins what it was sent.
Elsewhere it runs straight through. What is safe: no trace is open at a yield, for traces are global and
another compilation may go on meanwhile.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

Steps = Generator[float, None, T]
Work = Generator[tuple[str, float], None, T]

#: every stage in its order, with its usual share of the time: for a bar that moves evenly
STAGES = {
    "trace": 4, "gradient": 3, "optimizer": 1, "recall": 1, "simplify": 4, "schedule": 35, "plan": 1,
    "emit": 30, "program": 2, "tune": 0, "pipelines": 20,
}  # fmt: skip

#: seconds of work between two breaths of the page
SLICE = 0.03


@dataclass(frozen=True)
class Progress:
    """How far a compilation is: ``done`` (0 to 1) of ``stage``, ``seconds`` after it began. The last one's
    stage is ``"ready"``.
    """

    stage: str
    done: float
    seconds: float

    @property
    def fraction(self) -> float:
        """The part of all the work that is done, by the usual shares of the stages."""
        if self.stage not in STAGES:
            return 1.0
        before = list(STAGES).index(self.stage)
        return (sum(list(STAGES.values())[:before]) + self.done * STAGES[self.stage]) / sum(STAGES.values())

    def __str__(self) -> str:
        return f"{self.stage} ({self.fraction:.0%})"


def in_browser() -> bool:
    """Whether this Python runs in a page or a worker of one."""
    return sys.platform == "emscripten"


def finish(work: Generator[Any, None, T]) -> T:
    """Run a generator straight through to what it returns."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value


def once(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Steps[T]:
    """A plain function as the steps of a stage."""
    yield 0.0
    return function(*args, **kwargs)


def stage(name: str, steps: Steps[T]) -> Work[T]:
    """One stage of a work."""
    while True:
        try:
            done = next(steps)
        except StopIteration as end:
            return end.value
        yield name, done


class Conductor:
    """Carries out the work of one compilation; ``seconds`` is the time that each stage took.

    ``on_progress`` is called with a `Progress` when a stage begins, now and then while it goes on, and at the
    end. What it raises ends the compilation.
    """

    def __init__(self, on_progress: Callable[[Progress], Any] | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self._on_progress = on_progress
        self._breathing = in_browser()
        self._begin = self._told = self._breath = time.perf_counter()
        self._stage = ""

    def finish(self, work: Work[T]) -> T:
        """Carry ``work`` out without a pause."""
        return finish(self._measured(work))

    async def run(self, work: Work[T]) -> T:
        """Carry ``work`` out. A task that is cancelled ends at the next breath."""
        measured = self._measured(work)
        try:
            while True:
                try:
                    next(measured)
                except StopIteration as end:
                    return end.value
                if self._breathing and time.perf_counter() - self._breath > SLICE:
                    await asyncio.sleep(0)
                    self._breath = time.perf_counter()
        finally:
            measured.close()

    async def wait(self, name: str, begin: Callable[[], Awaitable[T]]) -> T:
        """Await the stage ``name``, most of whose work is done elsewhere; ``begin()`` starts it."""
        with self.during(name):
            return await begin()

    @contextmanager
    def during(self, name: str) -> Iterator[None]:
        """The block is (part of) the stage ``name``."""
        self._tell(name, 0.0)
        start = time.perf_counter()
        try:
            yield
        finally:
            self._charge(name, start)

    def end(self) -> None:
        """Tell that the program is ready."""
        self._tell("ready", 1.0)

    def _measured(self, work: Work[T]) -> Work[T]:
        """``work``, each of its pieces charged to the stage that had announced itself."""
        try:
            while True:
                start = time.perf_counter()
                try:
                    name, done = next(work)
                except StopIteration as end:
                    return end.value
                finally:
                    self._charge(self._stage, start)
                self._tell(name, done)
                yield name, done
        finally:
            work.close()

    def _charge(self, name: str, start: float) -> None:
        if name:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def _tell(self, name: str, done: float) -> None:
        now = time.perf_counter()
        if self._on_progress is not None and (name != self._stage or now - self._told > SLICE):
            self._told = now
            self._on_progress(Progress(name, done, now - self._begin))
        self._stage = name
