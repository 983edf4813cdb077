"""An executor on the machine's own adapter, through the ``wgpu`` package: a second WGSL compiler (naga) and a
second driver run the very programs that the page runs. A test tool: no speed, no back-pressure, no recovery.
"""

from __future__ import annotations

import numpy as np
import pytest

from webgrad.compiler.target import Target
from webgrad.runtime.executor import Stats
from webgrad.runtime.reference import Ready


def open_native(target=None):
    """The executor, or a skipped test where there is no adapter."""
    wgpu = pytest.importorskip("wgpu")
    try:
        device = wgpu.gpu.request_adapter_sync().request_device_sync()
    except Exception as error:
        pytest.skip(f"no adapter for wgpu: {error}")
    return NativeExecutor(device, target)


class NativeExecutor:
    """Buffers of one wgpu device."""

    name = "native"
    adapter = {"vendor": "wgpu"}  # noqa: RUF012

    def __init__(self, device, target=None):
        import wgpu

        self.device, self.target = device, target or Target()
        use = wgpu.BufferUsage
        self.usage = use.STORAGE | use.COPY_SRC | use.COPY_DST | use.UNIFORM
        self.buffers, self.count, self.pipelines = {}, 0, {}

    def allocate(self, nbytes, label):
        self.count += 1
        self.buffers[self.count] = self.device.create_buffer(size=nbytes, usage=self.usage, label=label)
        return self.count

    def free(self, handle):
        buffer = self.buffers.pop(handle, None)
        if buffer is not None:
            buffer.destroy()

    def write(self, handle, offset, data):
        raw = np.ascontiguousarray(data)
        if raw.size:
            self.device.queue.write_buffer(self.buffers[handle], offset, raw)

    def clear(self, handle, offset, nbytes):
        self.write(handle, offset, np.zeros(nbytes, np.uint8))

    def read(self, handle, offset, nbytes):
        raw = self.device.queue.read_buffer(self.buffers[handle], offset, nbytes) if nbytes else b""
        return Ready(np.frombuffer(bytes(raw), np.uint8).copy())

    async def load(self, program, plan, externals):
        return NativeSession(self, program, externals)

    def pipeline(self, text):
        """Compiled once for equal texts."""
        if text not in self.pipelines:
            module = self.device.create_shader_module(code=text)
            compute = {"module": module, "entry_point": "main"}
            self.pipelines[text] = self.device.create_compute_pipeline(layout="auto", compute=compute)
        return self.pipelines[text]

    def stats(self):
        return Stats(buffers=len(self.buffers))

    def close(self):
        for handle in list(self.buffers):
            self.free(handle)


class NativeSession:
    """A program's pipelines and bind groups."""

    def __init__(self, owner, program, externals):
        self.owner, self.program, self.own = owner, program, []
        self.handles = []
        for spec in program.buffers:
            if spec.kind == "external":
                self.handles.append(externals[spec.key])
                continue
            self.handles.append(owner.allocate(spec.bytes, spec.key))
            self.own.append(self.handles[-1])
            if spec.kind == "constant":
                owner.write(self.handles[-1], 0, np.frombuffer(program.blobs[int(spec.key)], np.uint8))
        self.steps = [self.step(kernel) for kernel in program.kernels]

    def step(self, kernel):
        """(pipeline, bind group, grid) of one kernel."""
        pipeline = self.owner.pipeline(self.program.modules[kernel.module])
        entries = [
            {"binding": n, "resource": {"buffer": self.buffer(b.buffer), "offset": b.offset, "size": b.size}}
            for n, b in enumerate(kernel.bindings)
        ]
        layout = pipeline.get_bind_group_layout(0)
        return (
            pipeline,
            self.owner.device.create_bind_group(layout=layout, entries=entries),
            kernel.workgroups,
        )

    def buffer(self, number):
        return self.owner.buffers[self.handles[number]]

    def run(self, entry, upload, reads):
        device, program = self.owner.device, self.program
        self.owner.write(self.handles[program.upload_buffer], 0, upload)
        poison = np.full(1, 0xFFFFFFFF, np.uint32)
        for number, spec in enumerate(program.buffers):
            if spec.kind == "owned" and spec.zero == "never":
                self.owner.write(self.handles[number], 0, np.resize(poison, spec.bytes // 4))
        encoder = device.create_command_encoder()
        encoding = encoder.begin_compute_pass()
        for kernel in program.entries[entry]:
            pipeline, group, grid = self.steps[kernel]
            encoding.set_pipeline(pipeline)
            encoding.set_bind_group(0, group)
            encoding.dispatch_workgroups(*grid)
        encoding.end()
        device.queue.submit([encoder.finish()])
        found = {}
        for name in reads:
            where = program.ranges[name]
            found[name] = self.owner.read(self.handles[where.buffer], where.offset, where.bytes).value
        return Ready(found)

    def stats(self):
        return Stats(buffers=len(self.own))

    def destroy(self):
        while self.own:
            self.owner.free(self.own.pop())
