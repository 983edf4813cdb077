"""The store in a page: IndexedDB, over page loads, and none where the browser has none."""

from __future__ import annotations


def test_what_was_put_comes_back_after_a_reload(page_py):
    async def fill():
        import os

        from webgrad import storage

        os.environ.pop(storage.VARIABLE, None)
        await storage.clear("test")
        before = await storage.get("test", "key")
        kept = await storage.put("test", "key", b"\0\xff value")
        return before, kept, await storage.put("test2", "key", b"other")

    async def look():
        import os

        from webgrad import storage

        os.environ.pop(storage.VARIABLE, None)
        found = [await storage.get(n, "key") for n in ("test", "test2")]
        await storage.clear("test")
        return found, [await storage.get(n, "key") for n in ("test", "test2")]

    assert page_py(fill) == (None, True, True)
    page_py.evaluate("new Promise((done) => setTimeout(done, 50))")
    page_py.reload()
    assert page_py(look) == ([b"\0\xff value", b"other"], [None, b"other"])


def test_it_is_bounded_and_leaves_no_proxies(page_py, proxy_counts):
    async def fill():
        import asyncio
        import os

        from webgrad import storage

        os.environ.pop(storage.VARIABLE, None)
        most, storage.MOST_BYTES = storage.MOST_BYTES, 30
        try:
            await storage.clear("test")
            for number in range(3):
                await storage.put("test", str(number), bytes(10))
                await asyncio.sleep(0.005)
            await storage.get("test", "0")
            await asyncio.sleep(0.005)
            await storage.put("test", "3", bytes(10))
            return [n for n in range(4) if await storage.get("test", str(n)) is not None]
        finally:
            storage.MOST_BYTES = most
            await storage.clear("test")

    assert page_py(fill) == [0, 2, 3]
    before = proxy_counts()
    assert page_py(fill) == [0, 2, 3]
    assert not any((proxy_counts() - before).values())


def test_a_browser_without_it_is_no_error(page_py):
    async def without():
        import os

        from webgrad import storage

        os.environ.pop(storage.VARIABLE, None)
        found = []
        own = js.Object.getOwnPropertyDescriptor(js.globalThis, "indexedDB")  # the window's, not inherited
        refused = "r.onerror({type: 'error', preventDefault() {}})"
        databases = [
            "undefined",
            "{open() { throw new DOMException('denied', 'SecurityError'); }}",
            f"{{open() {{ const r = {{}}; setTimeout(() => {refused}); return r; }}}}",
        ]
        for database in databases:
            options = f"{{value: {database}, configurable: true}}"
            js.eval(f"Object.defineProperty(globalThis, 'indexedDB', {options})")
            try:
                found += [await storage.put("test", "key", b"x"), await storage.get("test", "key")]
                await storage.clear("test")
            finally:
                js.Object.defineProperty(js.globalThis, "indexedDB", own)
        return found, await storage.put("test", "key", b"x"), await storage.get("test", "key")

    assert page_py(without) == ([False, None] * 3, True, b"x")
