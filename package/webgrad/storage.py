"""Bytes that outlive the program, by namespace and key: compiled programs, and what was measured once.

    await put("programs", key, data)     True when it was kept
    await get("programs", key)           the bytes, or None

In a page or a worker they lie in an IndexedDB database of the page's origin (driven from here, so that no
further script must be served or allowed), elsewhere in files: a folder ``webgrad`` where the platform keeps
caches. The environment variable ``WEBGRAD_CACHE`` names another folder; ``off`` turns the store off, in a
page too.

Nothing may depend on it. What is missing, unreadable, forbidden (a private window, a sandboxed frame) or too
large reads as None, and no function here raises for it. A namespace keeps `MOST_BYTES`; beyond that the
entries that were used longest ago go. An entry is written whole or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

#: what a namespace keeps in all, and the largest value that it takes
MOST_BYTES = 64 << 20
LARGEST = MOST_BYTES // 8
#: seconds after which a database that does not answer counts as absent
PATIENCE = 2.0

VARIABLE = "WEBGRAD_CACHE"
OFF = ("off", "0")
_PARTIAL = ".partial"
_DATABASE = "webgrad"
_STORES = ("values", "uses")  # key → bytes; key → [key, when it was last used, its size]

Value = TypeVar("Value")


async def get(namespace: str, key: str) -> bytes | None:
    """The bytes last put there, or None."""
    if not enabled():
        return None
    if sys.platform == "emscripten":
        return await _patiently(lambda: _get_record(namespace, key))
    return _read_file(_file(namespace, key))


async def put(namespace: str, key: str, value: bytes) -> bool:
    """Keep ``value``; whether that worked."""
    if not enabled() or len(value) > LARGEST:
        return False
    if sys.platform == "emscripten":
        return bool(await _patiently(lambda: _put_record(namespace, key, value)))
    return _write_file(_file(namespace, key), value)


async def clear(namespace: str) -> None:
    """Forget everything in a namespace."""
    if not enabled():
        return
    if sys.platform == "emscripten":
        await _patiently(lambda: _clear_records(namespace))
        return
    for file in _files(folder() / namespace):
        with contextlib.suppress(OSError):
            file.unlink()


def enabled() -> bool:
    """Whether the environment leaves the store on."""
    return os.environ.get(VARIABLE, "").lower() not in OFF


def surplus(entries: list[tuple[float, int, Any]]) -> list[Any]:
    """Of the entries (last use, bytes, what), those that must go for the rest to fit."""
    total, gone = sum(size for _, size, _ in entries), []
    for _, size, what in sorted(entries, key=lambda e: e[:2]):
        if total <= MOST_BYTES:
            break
        gone.append(what)
        total -= size
    return gone


# --- files -----------------------------------------------------------------------------------------


def folder() -> Path:
    """Where the files lie outside a browser."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen)
    home = Path(os.path.expanduser("~"))
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "webgrad"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "webgrad" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "webgrad"


def _file(namespace: str, key: str) -> Path:
    return folder() / namespace / hashlib.sha256(key.encode()).hexdigest()


def _files(place: Path) -> list[Path]:
    try:
        return [entry for entry in place.iterdir() if entry.is_file()]
    except OSError:
        return []


def _read_file(file: Path) -> bytes | None:
    try:
        value = file.read_bytes()
    except OSError:
        return None
    with contextlib.suppress(OSError):  # a folder that is only read
        os.utime(file)
    return value


def _write_file(file: Path, value: bytes) -> bool:
    """Write beside the file, then move: a reader meets the old bytes or the new ones."""
    partial = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(suffix=_PARTIAL, dir=file.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(value)
        os.replace(partial, file)
    except OSError:
        if partial is not None:
            with contextlib.suppress(OSError):
                os.unlink(partial)
        return False
    _evict_files(file.parent)
    return True


def _evict_files(place: Path) -> None:
    entries: list[tuple[float, int, Path]] = []
    for file in _files(place):
        with contextlib.suppress(OSError):  # another process may be evicting too
            status = file.stat()
            if file.suffix == _PARTIAL and status.st_mtime < time.time() - 3600:
                file.unlink()  # of a process that was killed
            else:
                entries.append((status.st_mtime, status.st_size, file))
    for file in surplus(entries):
        with contextlib.suppress(OSError):
            file.unlink()


# --- IndexedDB -------------------------------------------------------------------------------------


async def _patiently(work: Callable[[], Any]) -> Any:
    """What ``work()`` gives, or None when the database refuses or does not answer."""
    from pyodide.ffi import JsException

    try:
        return await asyncio.wait_for(work(), PATIENCE)
    except (JsException, OSError, AttributeError, TimeoutError):
        return None


async def _get_record(namespace: str, key: str) -> bytes | None:
    from pyodide.ffi import to_js

    database = await _open()
    try:
        name = f"{namespace}/{key}"
        found = await _answer(database.transaction("values").objectStore("values").get(name))
        if found is None:
            return None
        value: bytes = found.to_bytes()
        # the note of this use need not be waited for: close() lets it end
        uses = database.transaction("uses", "readwrite").objectStore("uses")
        uses.put(to_js([name, time.time(), len(value)]), name)
        return value
    finally:
        database.close()


async def _put_record(namespace: str, key: str, value: bytes) -> bool:
    from pyodide.ffi import to_js

    database = await _open()
    try:
        name = f"{namespace}/{key}"
        writing = database.transaction(to_js(_STORES), "readwrite")
        writing.objectStore("values").put(to_js(value), name)
        writing.objectStore("uses").put(to_js([name, time.time(), len(value)]), name)
        await _answer(writing, "oncomplete", "onabort")
        notes = database.transaction("uses").objectStore("uses").getAll(_within(namespace))
        gone = surplus([(used, size, name) for name, used, size in (await _answer(notes)).to_py()])
        await _delete(database, gone)
        return True
    finally:
        database.close()


async def _clear_records(namespace: str) -> None:
    database = await _open()
    try:
        await _delete(database, [_within(namespace)])
    finally:
        database.close()


async def _delete(database: Any, keys: list[Any]) -> None:
    """Delete keys or ranges of keys."""
    from pyodide.ffi import to_js

    if not keys:
        return
    writing = database.transaction(to_js(_STORES), "readwrite")
    for key in keys:
        for store in _STORES:
            writing.objectStore(store).delete(key)
    await _answer(writing, "oncomplete", "onabort")


def _within(namespace: str) -> Any:
    """The range of a namespace's keys."""
    import js

    return js.IDBKeyRange.bound(f"{namespace}/", f"{namespace}/\uffff")


async def _open() -> Any:
    """A connection; its stores are made at the first one."""
    import js
    from pyodide.ffi import create_proxy

    request = js.indexedDB.open(_DATABASE, 1)

    def create(event: Any) -> None:
        for name in _STORES:
            request.result.createObjectStore(name)

    creator = create_proxy(create)
    request.onupgradeneeded = creator
    try:
        database = await _answer(request)
    finally:
        request.onupgradeneeded = None
        creator.destroy()
    database.onversionchange = database.close  # never in the way of a later webgrad
    return database


async def _answer(request: Any, good: str = "onsuccess", bad: str = "onerror") -> Any:
    """The result of a request, or the end of a transaction; `OSError` when it fails."""
    from pyodide.ffi import create_proxy

    answered = asyncio.get_running_loop().create_future()

    def end(event: Any) -> None:
        if answered.done():
            return
        if f"on{event.type}" == good:
            answered.set_result(getattr(request, "result", None))
        else:
            event.preventDefault()  # told here; the console need not hear of it
            answered.set_exception(OSError(str(getattr(request, "error", None))))

    listener = create_proxy(end)
    setattr(request, good, listener)
    setattr(request, bad, listener)
    try:
        return await answered
    finally:
        setattr(request, good, None)
        setattr(request, bad, None)
        listener.destroy()
