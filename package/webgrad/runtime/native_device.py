"""What webgrad must know of the package ``wgpu``: adapters, features, what naga takes, what errors mean."""

from __future__ import annotations

import re
from typing import Any

from webgrad.errors import NoAdapterError

Failure = dict[str, Any]

#: WebGPU's names of the features that programs may use, and the package's
FEATURES = {"shader-f16": "shader-f16", "subgroups": "subgroup", "timestamp-query": "timestamp-query"}

PACKAGE_REMEDY = "install it with: pip install 'webgrad[native]'. Or use device=\"numpy\""
ADAPTER_REMEDY = (
    "it needs a driver for Vulkan, Metal or DirectX 12; without a graphics card Mesa's lavapipe computes on "
    'the processor (Debian and Ubuntu: apt install mesa-vulkan-drivers). Or use device="numpy"'
)


def request_device(adapter: Any = None) -> Any:
    """A wgpu device with all that its adapter grants; by default of the fastest adapter that there is.

    Raises `NoAdapterError` with what is missing: the package, an adapter, or a device of it.
    """
    try:
        import wgpu
    except ImportError as error:
        raise NoAdapterError(
            f'device="native" needs the Python package wgpu ({error}): {PACKAGE_REMEDY}'
        ) from None
    try:
        adapter = adapter or wgpu.gpu.request_adapter_sync(power_preference="high-performance")
        features = [name for name in FEATURES.values() if name in adapter.features]
        return adapter.request_device_sync(required_features=features, required_limits=dict(adapter.limits))
    except Exception as error:  # the package raises RuntimeError, ValueError and others of its own
        raise NoAdapterError(
            f"the package wgpu found no usable GPU adapter ({' '.join(str(error).split())}): {ADAPTER_REMEDY}"
        ) from None


def adapter_info(device: Any) -> dict[str, Any]:
    """The adapter's names, whether it computes on the processor, and what the device grants."""
    info = device.adapter.info
    names = {key: str(info.get(key, "")) for key in ("vendor", "architecture", "device", "description")}
    sizes = [int(info.get(f"stackgroup_{end}_size", 0)) for end in ("min", "max")]  # the package's spelling
    if "swiftshader" in f"{names['vendor']} {names['device']}".lower():
        sizes = [4, 4]  # it does not tell the package, which then says 4 to 128
    return {
        **names,
        "backend": str(info.get("backend_type", "")),
        "isFallback": info.get("adapter_type") == "CPU",
        "limits": {_camel(name): value for name, value in device.limits.items()},
        "features": [name for name, theirs in FEATURES.items() if theirs in device.features],
        "subgroups": sizes,
    }


def _camel(name: str) -> str:
    """``max-buffer-size`` as WebGPU spells it."""
    head, *rest = name.split("-")
    return head + "".join(part.capitalize() for part in rest)


def accepted(text: str) -> str:
    """WGSL as naga takes it: it has subgroup operations but refuses the line that enables them. Line numbers
    stay.
    """
    return re.sub(r"^enable subgroups;", "", text, count=1, flags=re.MULTILINE)


def failure(kind: str, message: str) -> Failure:
    """What `webgrad.runtime.gpu.error_from` takes."""
    return {"kind": kind, "message": message}


def failure_of(error: Exception, label: str = "") -> Failure:
    """What an error of the package means; ``label`` names the buffer that it concerns."""
    message = re.sub(r"^(Validation Error)?\s*(Caused by:)?\s*(In wgpu[^\n]*)?\s*", "", str(error)).strip()
    if "device is lost" in message.lower():
        return failure("lost", "the GPU device was lost: the driver gave it up")
    if isinstance(error, MemoryError):
        return failure("oom", f"{label}: no GPU memory" if label else message)
    return failure("validation" if type(error).__name__ == "GPUValidationError" else "internal", message)


def places_of(message: str) -> list[dict[str, Any]]:
    """Where in the WGSL naga finds fault: [{line, column, message}], from 1."""
    found = re.search(r"([^\n]*)\n\s*┌─ [^\n]*:(\d+):(\d+)\n", message)
    if found is None:
        return []
    said = re.sub(r"^Shader ('[^']*' )?\w+ error: ", "", found[1].strip())
    more = re.findall(r"^\d* *│ *\^+ ([^\n]+)|^ *= ([^\n]+)", message[found.end() :], re.MULTILINE)
    text = "; ".join(dict.fromkeys([said, *(a or b for a, b in more)]))
    return [{"line": int(found[2]), "column": int(found[3]), "message": text}]
