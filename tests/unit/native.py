"""The machine's own adapters for the tests: programs run on them with kernels for either class of adapters,
from buffers that hold NaN wherever nothing was written.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from webgrad.errors import NoAdapterError
from webgrad.runtime.native import NativeExecutor, open_native


def native(**target):
    """The process's executor, its target changed so, or a skipped test where there is no adapter."""
    try:
        return Poisoned(open_native(), **target)
    except NoAdapterError as error:
        pytest.skip(str(error))


class Poisoned:
    """An executor whose sessions begin each run with NaN in what they own and do not clear."""

    def __init__(self, executor: NativeExecutor, **target):
        self.executor = executor
        self.target = dataclasses.replace(executor.target, **target)

    def __getattr__(self, name):
        return getattr(self.executor, name)

    async def load(self, program, plan, externals):
        return PoisonedSession(self, program, await self.executor.load(program, plan, externals))


class PoisonedSession:
    """Spoils the session's recycled buffers before each run."""

    def __init__(self, owner, program, session):
        self.owner, self.session = owner, session
        own = [spec for spec in program.buffers if spec.kind != "external"]
        self.recycled = [
            (handle, np.full(spec.bytes // 4, 0xFFFFFFFF, np.uint32))
            for handle, spec in zip(session._owned, own, strict=True)
            if spec.kind == "owned" and spec.zero == "never"
        ]

    def __getattr__(self, name):
        return getattr(self.session, name)

    def run(self, entry, upload, reads):
        for handle, poison in self.recycled:
            self.owner.write(handle, 0, poison)
        return self.session.run(entry, upload, reads)
