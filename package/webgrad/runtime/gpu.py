"""What the GPU executors share, in a page and outside: what a device's description and its failures mean.

A description is a mapping as WebGPU spells it (``limits``, ``features``, names). A failure is a mapping with
``kind`` (the bridge's: "no-adapter", "lost", "oom", "validation", "wgsl", "internal"), ``message`` and, where
a kernel is at fault, its number ``kernel`` and the ``places`` in its WGSL.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from webgrad.compiler.target import Target
from webgrad.errors import CompileError, DeviceLostError, NoAdapterError, OutOfMemoryError, WebgradError

if TYPE_CHECKING:
    from webgrad.compiler.program import Program

#: how adapters that compute on the processor call themselves
SOFTWARE_NAMES = ("swiftshader", "llvmpipe", "lavapipe", "softpipe", "basic render")
#: every device grants this many; more would shut some adapters out
STORAGE_BUFFERS = 8

NO_ADAPTER_REMEDY = (
    "WebGPU needs a page served over https or from localhost, a recent Chrome, Edge, Safari or Firefox, and "
    "a graphics driver that the browser trusts (see chrome://gpu; Chrome on Linux needs the flag "
    "--enable-unsafe-webgpu, and --use-webgpu-adapter=swiftshader to compute on the processor). "
    "Or use device='numpy', without a GPU"
)


def target_of(info: Mapping[str, Any]) -> Target:
    """What the compiler must know of the device that ``info`` describes."""
    names = " ".join(str(info[key]) for key in ("architecture", "description", "device")).lower()
    software = info["isFallback"] or any(name in names for name in SOFTWARE_NAMES)
    limits = info["limits"]
    return Target(
        adapter_class="software" if software else "hardware",
        quads=software and "subgroups" in info["features"] and list(info["subgroups"]) == [4, 4],
        max_storage_buffers=STORAGE_BUFFERS,
        max_binding_bytes=int(limits["maxStorageBufferBindingSize"]),
        max_buffer_bytes=int(limits["maxBufferSize"]),
        max_workgroups=int(limits["maxComputeWorkgroupsPerDimension"]),
        max_workgroup_size=int(limits["maxComputeInvocationsPerWorkgroup"]),
        features=frozenset(info["features"]),
    )


def error_from(failure: Mapping[str, Any], program: Program | None = None) -> WebgradError:
    """The exception for a failure that the bridge reports."""
    kind, message = failure["kind"], failure["message"]
    if kind == "no-adapter":
        return NoAdapterError(f"{message}. {NO_ADAPTER_REMEDY}")
    if kind == "lost":
        return DeviceLostError(f"{message}. Compile again, from a checkpoint, to go on")
    if kind == "oom":
        return OutOfMemoryError(f"{message}. Free programs with destroy(), or use a smaller batch or model")
    if program is not None and "kernel" in failure:
        return CompileError(_kernel_report(program, failure))
    if kind in ("validation", "wgsl"):
        return CompileError(f"the GPU refused work: {message}")
    return WebgradError(f"the GPU driver failed: {message}")


def _kernel_report(program: Program, failure: Mapping[str, Any]) -> str:
    """What a kernel computes, for which lines of the user, and the WGSL at the first error."""
    kernel = program.kernels[failure["kernel"]]
    lines = [f"kernel {kernel.name!r} (number {failure['kernel']}) could not be built"]
    if kernel.nodes:
        lines.append(f"  it computes {', '.join(kernel.nodes)}")
    if kernel.sites:
        lines.append(f"  from {'; '.join(kernel.sites)}")
    places = failure.get("places") or []
    lines += [f"  WGSL line {p['line']}:{p['column']}: {p['message']}" for p in places]
    if not places:
        lines.append(f"  {failure['message']}")
    elif places[0]["line"]:
        lines += quoted(program.modules[kernel.module], places[0]["line"], places[0]["column"])
    return "\n".join(lines)


def quoted(text: str, line: int, column: int, around: int = 3) -> list[str]:
    """The numbered lines about ``line`` (from 1), with a mark under ``column`` (from 1)."""
    first = max(1, line - around)
    shown = text.split("\n")[first - 1 : line + around]
    numbered = [f"  {number:4} | {code}" for number, code in enumerate(shown, first)]
    numbered.insert(line - first + 1, f"       | {'^':>{max(1, column)}}")
    return numbered


def whole_words(data: NDArray[Any]) -> NDArray[Any]:
    """``data``'s bytes in order, padded with zeros to WebGPU's four."""
    data = np.ascontiguousarray(data)
    if data.nbytes % 4 == 0:
        return data
    return np.frombuffer(data.tobytes() + bytes(-data.nbytes % 4), np.uint8)
