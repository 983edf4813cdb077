"""The machine's own adapters for the tests: programs run on them with kernels for either class of adapters,
from buffers that hold NaN wherever nothing was written.

SwiftShader lies beside Chromium, where the system's Vulkan does not look. It is added here, before anything
asks for an adapter: it makes pipelines many times faster than Mesa's lavapipe, and the pages' tests run on
it, through another compiler.
"""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pytest

from demo.serve import load_config
from webgrad.errors import NoAdapterError
from webgrad.runtime.native import NativeExecutor, open_native
from webgrad.runtime.native_device import request_device

#: the classes of adapters that kernels are written for
CLASSES = ("software", "hardware")


def _add_swiftshader() -> None:
    chromium = load_config().find_chromium()
    folders = [chromium.resolve().parent, chromium.parent.parent / "lib/chromium"] if chromium else []
    for folder in folders:
        if (folder / "vk_swiftshader_icd.json").is_file():
            os.environ.setdefault("VK_ADD_DRIVER_FILES", str(folder / "vk_swiftshader_icd.json"))


_add_swiftshader()


def native(adapter_class="software", executor=None):
    """The process's executor (or another) for a class of adapters; the test is skipped without an adapter."""
    try:
        return Poisoned(executor or open_native(), adapter_class)
    except NoAdapterError as error:
        pytest.skip(str(error))


def others():
    """Executors of the adapters that ``device="native"`` does not take, by name; none through OpenGL."""
    import wgpu

    taken = native().adapter["device"]
    found = {}
    for adapter in wgpu.gpu.enumerate_adapters_sync():
        name = adapter.info["device"]
        if name != taken and adapter.info["backend_type"] != "OpenGL":
            found[name] = NativeExecutor(request_device(adapter))
    return found


class Poisoned:
    """An executor whose sessions begin each run with NaN in what they own and do not clear."""

    def __init__(self, executor: NativeExecutor, adapter_class):
        self.executor = executor
        quads = executor.target.quads and adapter_class == "software"
        self.target = dataclasses.replace(executor.target, adapter_class=adapter_class, quads=quads)

    def __getattr__(self, name):
        return getattr(self.executor, name)

    def prepare(self, kernel):
        pass

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
