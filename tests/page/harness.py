"""The page's end of ``page_py``: runs pickled requests and pickles what comes of them.

Each request runs in a namespace of its own with ``np``, ``wg``, ``nn``, ``js`` and ``keep``, a dict that
lives until the end of the test.
"""

import base64
import gc
import inspect
import linecache
import os
import pickle
import traceback

import js
import numpy as np

import webgrad as wg

keep = {}


def forget():
    """No test meets what another one left in the cache."""
    os.environ["WEBGRAD_CACHE"] = "off"


forget()


async def run_request(request):
    """``request`` is a pickled (file name, source, name, args, kwargs); the reply is pickled likewise."""
    filename, source, name, args, kwargs = pickle.loads(base64.b64decode(request))
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace = {
        "__name__": "page_test",
        "np": np,
        "wg": wg,
        "nn": getattr(wg, "nn", None),
        "js": js,
        "keep": keep,
    }
    try:
        exec(compile(source, filename, "exec"), namespace)
        value = namespace[name](*args, **kwargs)
        if inspect.isawaitable(value):
            value = await value
        reply = {"value": value}
    except BaseException as error:
        frames = error.__traceback__.tb_next or error.__traceback__
        reply = {"error": error, "traceback": "".join(traceback.format_exception(type(error), error, frames))}
        error.__traceback__ = None
    return base64.b64encode(_pickled(reply)).decode()


def _pickled(reply):
    try:
        data = pickle.dumps(reply)
        pickle.loads(data)  # some exceptions pickle and cannot be read back
        return data
    except Exception as why:
        if "error" in reply:
            reply["error"] = RuntimeError(f"{type(reply['error']).__name__}: {reply['error']}")
        else:
            what = type(reply["value"]).__name__
            reply = {"error": TypeError(f"cannot send back a {what}: {why}"), "traceback": ""}
        return pickle.dumps(reply)


def end_test():
    """Drop what the test kept and free webgrad's GPU objects."""
    keep.clear()
    forget()
    if hasattr(wg, "destroy_all"):
        wg.destroy_all()
    gc.collect()
