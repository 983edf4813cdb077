"""Every exception webgrad raises on purpose.

Each is a `WebgradError` and also the builtin a caller would guess, so both ``except ShapeError`` and
``except ValueError`` work. A message says what was expected, what was found and one remedy; the user's line
is added here, so no message needs to find it.
"""

from __future__ import annotations

from webgrad.sites import Site, user_site


class WebgradError(Exception):
    """Base of all webgrad errors. ``site`` is the user's line: by default the one that is running."""

    def __init__(self, message: str = "", site: Site | None = None) -> None:
        super().__init__(message)
        self.site = site or user_site()

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message} (at {self.site})" if self.site else message


class TraceError(WebgradError, RuntimeError):
    """An operation, capture or trace was used where it cannot be."""


class ShapeError(WebgradError, ValueError):
    """Shapes that do not fit an operation or a declared input."""


class DtypeError(WebgradError, TypeError):
    """A dtype that an operation or a declared input does not accept."""


class InputError(WebgradError, ValueError):
    """A missing, unknown or unusable input, parameter or option."""


class CompileError(WebgradError, RuntimeError):
    """A program could not be built; carries the kernel, its WGSL lines and the user's lines."""


class NoAdapterError(WebgradError, RuntimeError):
    """WebGPU was asked for and there is no adapter."""


class DeviceLostError(WebgradError, RuntimeError):
    """The GPU device is gone; compile again (from a checkpoint) to go on."""


class OutOfMemoryError(WebgradError, MemoryError):
    """The GPU could not allocate a buffer, or one exceeds the adapter's limits."""


class CheckpointError(WebgradError, ValueError):
    """A checkpoint that does not fit the program it is loaded into."""


class NonFiniteError(WebgradError, ArithmeticError):
    """A NaN or an infinity where the caller asked for finite numbers."""
