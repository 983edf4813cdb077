"""What the compiler must know of the adapter: its limits and which kernels it rewards."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """Adapter limits and class; the defaults are what every WebGPU device grants.

    ``adapter_class`` is ``"software"`` (SwiftShader, lavapipe: barriers are dear, few cores) or
    ``"hardware"``. ``quads`` tells that its threads run four abreast and may hand values round (WGSL's
    subgroups, of exactly four consecutive threads).
    """

    adapter_class: str = "software"
    max_storage_buffers: int = 8
    max_binding_bytes: int = 128 * 1024 * 1024
    max_buffer_bytes: int = 256 * 1024 * 1024
    max_workgroups: int = 65_535
    max_workgroup_size: int = 256
    max_workgroup_bytes: int = 16_384
    max_uniform_bytes: int = 65_536
    quads: bool = False
    features: frozenset[str] = frozenset()


DEFAULT = Target()
