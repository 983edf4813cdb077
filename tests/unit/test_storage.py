"""The store outside a browser: files in a folder, written whole, bounded, and never in the way."""

from __future__ import annotations

import os
import sys

import pytest

from webgrad import storage


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder of the test's own."""
    monkeypatch.setenv(storage.VARIABLE, str(tmp_path / "store"))
    return tmp_path / "store"


async def test_what_was_put_comes_back():
    assert await storage.get("a", "key") is None
    assert await storage.put("a", "key", b"\0\xff value")
    assert await storage.put("b", "key", b"")
    assert await storage.get("a", "key") == b"\0\xff value"
    assert await storage.get("b", "key") == b""
    assert await storage.put("a", "key", b"another")
    assert await storage.get("a", "key") == b"another"


async def test_any_text_is_a_key(place):
    await storage.put("a", "../../è/" + "long" * 100, b"x")
    assert await storage.get("a", "../../è/" + "long" * 100) == b"x"
    assert [p.parent for p in place.parent.rglob("*") if p.is_file()] == [place / "a"]


async def test_a_namespace_is_cleared_alone():
    await storage.put("a", "key", b"x")
    await storage.put("b", "key", b"y")
    await storage.clear("a")
    await storage.clear("never used")
    assert await storage.get("a", "key") is None
    assert await storage.get("b", "key") == b"y"


async def test_what_was_used_longest_ago_goes_first(place, monkeypatch):
    monkeypatch.setattr(storage, "MOST_BYTES", 30)
    for number in range(3):
        await storage.put("a", str(number), bytes(10))
        os.utime(storage._file("a", str(number)), (number, number))
    assert await storage.get("a", "0")  # used now
    await storage.put("a", "3", bytes(10))
    kept = [number for number in range(4) if await storage.get("a", str(number)) is not None]
    assert kept == [0, 2, 3]


async def test_too_large_a_value_is_refused(monkeypatch):
    monkeypatch.setattr(storage, "LARGEST", 10)
    assert not await storage.put("a", "key", bytes(11))
    assert await storage.get("a", "key") is None


async def test_a_folder_that_cannot_be_made_is_no_error(place):
    place.write_text("a file is in the way")
    assert not await storage.put("a", "key", b"x")
    assert await storage.get("a", "key") is None
    await storage.clear("a")


async def test_a_write_that_fails_leaves_the_old_value_and_no_litter(place, monkeypatch):
    await storage.put("a", "key", b"old")

    def full(source, target):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full)
    assert not await storage.put("a", "key", b"new")
    assert await storage.get("a", "key") == b"old"
    assert len(list((place / "a").iterdir())) == 1


async def test_litter_of_a_killed_process_is_swept(place):
    await storage.put("a", "key", b"x")
    litter = place / "a" / "dead.partial"
    litter.write_bytes(b"half")
    os.utime(litter, (1, 1))
    await storage.put("a", "other", b"y")
    assert not litter.exists()


@pytest.mark.parametrize("word", ["off", "OFF", "0"])
async def test_the_environment_turns_it_off(monkeypatch, word):
    monkeypatch.setenv(storage.VARIABLE, word)
    assert not await storage.put("a", "key", b"x")
    assert await storage.get("a", "key") is None
    await storage.clear("a")


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/webgrad"),
        ("linux", {"XDG_CACHE_HOME": ""}, "/home/me/.cache/webgrad"),
        ("darwin", {}, "/home/me/Library/Caches/webgrad"),
        ("win32", {"LOCALAPPDATA": "/l"}, "/l/webgrad/Cache"),
        ("linux", {storage.VARIABLE: "/mine", "XDG_CACHE_HOME": "/x"}, "/mine"),
    ],
)
def test_the_folder_is_the_platforms(monkeypatch, platform, variables, expected):
    monkeypatch.delenv(storage.VARIABLE)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(os.path, "expanduser", lambda path: "/home/me")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert storage.folder().as_posix() == expected
