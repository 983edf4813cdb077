"""Each way to load webgrad, with nothing but this machine; and everything that boot() promises."""

from __future__ import annotations

import json

import pytest
from playwright.async_api import Page, expect

from demo.serve import ROOT
from tests.browser import PageLog

PROGRAM = """
import asyncio
from collections import namedtuple

import numpy as np
from helper import GREETING
from webgrad import web

Point = namedtuple("Point", "x y")
web.publish("early", GREETING)

def echo(value):
    return value

def describe(value):
    return [type(value).__name__, str(getattr(value, "dtype", "")), list(getattr(value, "shape", []))]

async def double(array):
    await asyncio.sleep(0)
    return 2 * array

def mixed():
    return {"point": Point(1, 2.5), "flags": np.array([True, False]), "ids": np.arange(3), "none": None,
            "half": np.ones((1, 2), np.float16), "scalar": np.float32(0.5), "nested": [{"a": (1, "two")}]}

def tell(n):
    for i in range(n):
        web.publish("tick", {"i": i, "image": np.full((2, 2), i, np.float32)})

def broken():
    raise ValueError("a bad value")  # here

class Group:
    @staticmethod
    def inner(x):
        return x + 1

def unsendable():
    return object()

async def frames():
    await web.next_frame()
    return "painted"
"""

# Evaluated in a page: boots PROGRAM and returns what every promise of boot() came to.
SCENARIO = """async ({worker, program}) => {
  const { boot } = await import("/web/boot.mjs");
  const out = {stages: [], ticks: [], messages: []};
  const app = await boot({
    python: program, worker,
    files: {"helper.py": "GREETING = 'hello'", "data/from_disk.txt": new TextEncoder().encode("bytes")},
    onProgress: ({stage, fraction, message}) => { out.stages.push(stage); out.messages.push(message); },
  });
  const plain = (array) => ({type: array.constructor.name, shape: array.shape, values: Array.from(array)});
  const failure = async (promise) => {
    try {
      return {value: await promise};
    } catch ({name, message, traceback}) {
      return {name, message, traceback};
    }
  };

  const sent = new Float32Array([1, 2, 3, 4, 5, 6]);
  sent.shape = [2, 3];
  out.doubled = plain(await app.call("double", sent));
  out.sentLength = sent.length;
  out.flat = await app.call("describe", new Int16Array(4));
  out.shaped = await app.call("describe", Object.assign(new Uint8Array(6), {shape: [3, 2]}));
  out.types = [];
  for (const value of [null, undefined, true, 3, 2.5, "text", [1], {a: 1}]) {
    out.types.push((await app.call("describe", value))[0]);
  }
  out.echo = await app.call("echo", {list: [1, "two", {three: null}], no: false});

  const mixed = await app.call("mixed");
  out.mixed = {...mixed, flags: plain(mixed.flags), ids: plain(mixed.ids), half: plain(mixed.half)};
  out.dotted = await app.call("Group.inner", 1);
  out.module = await app.call("os.path.join", "a", "b");
  out.painted = await app.call("frames");

  const stop = app.on("tick", ({i, image}) => {
    out.ticks.push([i, image.constructor.name, image.shape, image[0]]);
  });
  await app.call("tell", 2);
  stop();
  await app.call("tell", 1);

  out.error = await failure(app.call("broken"));
  out.unknown = await failure(app.call("nowhere"));
  out.unsendable = await failure(app.call("unsendable"));
  out.together = await Promise.all([1, 2, 3].map((n) => app.call("echo", n)));
  out.crossed = Array.from(await app.call("double", Float32Array.of(21)));

  const pending = failure(app.call("echo", 1));
  await pending;
  await app.terminate();
  out.after = await failure(app.call("echo", 1));
  return out;
}"""


async def open_blank(page: Page, base_url: str) -> None:
    await page.goto(base_url + "tests/demo/blank.html")


@pytest.mark.parametrize("worker", [False, True], ids=["page", "worker"])
async def test_boot_keeps_its_promises(page: Page, base_url: str, worker: bool):
    await open_blank(page, base_url)
    out = await page.evaluate(SCENARIO, {"worker": worker, "program": PROGRAM})

    assert list(dict.fromkeys(out["stages"])) == [
        "download",
        "runtime",
        "numpy",
        "webgrad",
        "program",
        "ready",
    ]
    assert out["doubled"] == {"type": "Float32Array", "shape": [2, 3], "values": [2, 4, 6, 8, 10, 12]}
    assert out["sentLength"] == (0 if worker else 6), "a worker's call transfers, the page's copies"
    assert out["flat"] == ["ndarray", "int16", [4]]
    assert out["shaped"] == ["ndarray", "uint8", [3, 2]]
    assert out["types"] == ["NoneType", "NoneType", "bool", "int", "float", "str", "list", "dict"]
    assert out["echo"] == {"list": [1, "two", {"three": None}], "no": False}

    assert out["mixed"]["point"] == {"x": 1, "y": 2.5}
    assert out["mixed"]["flags"] == {"type": "Uint8Array", "shape": [2], "values": [1, 0]}
    assert out["mixed"]["ids"] == {"type": "Int32Array", "shape": [3], "values": [0, 1, 2]}
    assert out["mixed"]["half"] == {"type": "Float32Array", "shape": [1, 2], "values": [1, 1]}
    assert out["mixed"]["none"] is None
    assert out["mixed"]["scalar"] == 0.5
    assert out["mixed"]["nested"] == [{"a": [1, "two"]}]
    assert out["dotted"] == 2
    assert out["module"] == "a/b"
    assert out["painted"] == "painted"

    assert out["ticks"] == [[0, "Float32Array", [2, 2], 0], [1, "Float32Array", [2, 2], 1]]

    assert out["error"]["name"] == "ValueError"
    assert out["error"]["message"] == "a bad value"
    assert 'raise ValueError("a bad value")  # here' in out["error"]["traceback"]
    assert "webgrad/web.py" not in out["error"]["traceback"]
    assert out["unknown"]["name"] == "InputError"
    assert "nowhere" in out["unknown"]["message"]
    assert "double" in out["unknown"]["message"]
    assert out["unsendable"]["name"] == "InputError"
    assert out["together"] == [1, 2, 3]
    assert out["crossed"] == [42]
    assert out["after"]["name"] == "TerminatedError"


@pytest.mark.parametrize("worker", [False, True], ids=["page", "worker"])
async def test_a_program_that_fails_rejects_boot_with_its_error(
    page: Page, page_log: PageLog, base_url: str, worker: bool
):
    await open_blank(page, base_url)
    found = await page.evaluate(
        """async (worker) => {
          const { boot } = await import("/web/boot.mjs");
          const failure = async (options) => {
            try {
              await boot({worker, ...options});
            } catch ({name, message, traceback}) {
              return {name, message, traceback};
            }
          };
          return [
            await failure({python: "x = 1\\nraise RuntimeError(f'x is {x}')"}),
            await failure({python: "nowhere.py"}),
            await failure({pithon: ""}),
          ];
        }""",
        worker,
    )
    error, missing, misspelt = found
    assert (error["name"], error["message"]) == ("RuntimeError", "x is 1")
    assert "line 2" in error["traceback"]
    assert "nowhere.py answered 404" in missing["message"]
    assert "unknown option pithon" in misspelt["message"]
    page_log.take_errors("nowhere.py")  # the browser tells of the 404 itself


@pytest.mark.parametrize("way", ["plain", "worker", "pyscript"])
async def test_each_way_to_load_trains(page: Page, base_url: str, way: str):
    await page.goto(f"{base_url}demo/load/{way}.html")
    status = page.get_by_role("status")
    await expect(status).to_contain_text("done, loss 0.0", timeout=90_000)
    assert await page.locator("#fit").get_attribute("points")


def test_the_pyscript_page_names_the_wheel_that_is_built():
    config = json.loads((ROOT / "demo/load/pyscript.json").read_text())
    manifest = json.loads((ROOT / "web/vendor/manifest.json").read_text())
    assert f"/web/vendor/{manifest['webgrad']['wheel']}" in config["packages"]
