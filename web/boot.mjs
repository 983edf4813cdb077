/**
 * Starts Python with webgrad, in the page or in a worker, and lets the page talk to it:
 *
 *   import { boot } from "./web/boot.mjs";
 *   const app = await boot({ python: "./train.py", worker: true, onProgress: console.log });
 *   app.on("loss", ({ step, loss }) => draw(step, loss));      // webgrad.web.publish("loss", {...})
 *   const fitted = await app.call("predict", new Float32Array([0, 1, 2]));
 *
 * Values cross as `webgrad.web` says: arrays as typed arrays with a `shape` property, dicts as plain
 * objects, None as null. Page and worker behave alike, but for one thing: the buffers of the typed
 * arrays given to a worker's call are transferred, so copy (`.slice()`) one that you go on using.
 *
 * This file runs in both places; worker.mjs is the worker's end of the wire. It holds no model, tensor
 * or GPU knowledge.
 */

export const PYODIDE_VERSION = "0.29.5";
const CDN = `https://cdn.jsdelivr.net/pyodide/v${PYODIDE_VERSION}/full/`;

/** What `onProgress` reports, in order. Python publishes "compile" itself (the event "progress"). */
export const STAGES = ["download", "runtime", "numpy", "webgrad", "program", "compile", "ready"];

/**
 * @typedef {object} BootOptions
 * @property {string|URL} [python] The page's Python program: its text, or its address (a URL object, or a
 *   string without white space that ends in ".py"). It runs in `__main__`; `await` is allowed at its top level.
 * @property {Object<string, string|URL|ArrayBufferView>} [files] What to put on Python's disk before that:
 *   {path: content}. A URL object, or a string that starts with "./", "../", "/" or "http", is fetched; another
 *   string is the content. Relative paths lie in the folder that Python imports from.
 * @property {string[]} [packages] Further packages for micropip to install.
 * @property {boolean} [worker] Run Python in a Web Worker.
 * @property {string|URL} [pyodideURL] The folder of pyodide.mjs. Default: the one that manifest.json names,
 *   else the public CDN.
 * @property {string|URL} [wheel] The address of webgrad's wheel. Default: the one that manifest.json names.
 * @property {(progress: {stage: string, fraction?: number, message: string}) => void} [onProgress]
 *
 * @typedef {object} App
 * @property {(name: string, ...args: any[]) => Promise<any>} call Call a Python function by its (dotted) name;
 *   an asynchronous one is awaited. A Python exception rejects with an Error whose `name` is the exception's
 *   class, `message` its text and `traceback` the whole traceback.
 * @property {(event: string, listener: (value: any) => void) => (() => void)} on Listen to what Python publishes;
 *   returns the function that stops it.
 * @property {() => Promise<void>} terminate Free webgrad's GPU objects and end the worker; later calls reject.
 * @property {any} [pyodide] Pyodide's own API; in the page only.
 */

/**
 * Start Python and webgrad and run the page's program.
 * @param {BootOptions} [options]
 * @returns {Promise<App>}
 */
export async function boot({ worker = false, onProgress = () => {}, ...options } = {}) {
  const hub = new Hub(onProgress);
  const settings = await resolve(options);
  const app = worker ? await bootWorker(settings, hub) : await bootPage(settings, hub);
  hub.progress({ stage: "ready", fraction: 1, message: "ready" });
  return app;
}

async function bootPage(settings, hub) {
  let interpreter = await startInterpreter(settings, hub.progress, hub.emit);
  return {
    pyodide: interpreter.pyodide,
    on: hub.on,
    call: async (name, ...args) => {
      if (!interpreter) throw terminated(name);
      return interpreter.call(name, args);
    },
    terminate: async () => {
      const ending = interpreter;
      interpreter = null;
      hub.close();
      await ending?.stop();
    },
  };
}

async function bootWorker(settings, hub) {
  const worker = new Worker(new URL("./worker.mjs", import.meta.url), { type: "module", name: "webgrad" });
  const pending = new Map(); // call id → {resolve, reject}
  let nextId = 0;
  let ended = null; // the error that later calls reject with

  const end = (error) => {
    ended ??= error;
    worker.terminate();
    for (const { reject } of pending.values()) reject(ended);
    pending.clear();
  };
  const ask = (message) =>
    new Promise((resolve, reject) => {
      if (ended) return reject(ended);
      const id = nextId++;
      pending.set(id, { resolve, reject });
      try {
        const { transfer, ...packed } = pack(message);
        worker.postMessage({ id, ...packed }, transfer);
      } catch (error) {
        pending.delete(id);
        reject(error);
      }
    });

  worker.onmessage = ({ data }) => {
    const message = unpack(data);
    if (message.event !== undefined) return hub.emit(message.event, message.value);
    if (message.progress) return hub.progress(message.progress);
    const waiting = pending.get(data.id);
    pending.delete(data.id);
    if (message.error) waiting?.reject(toError(message.error));
    else waiting?.resolve(message.value);
  };
  worker.onmessageerror = () => end(new Error("webgrad: a message from the worker could not be read"));
  worker.onerror = (event) => {
    event.preventDefault?.();
    end(new Error(`webgrad: the worker failed: ${event.message ?? "its script did not load"}`));
  };

  try {
    await ask({ boot: settings });
  } catch (error) {
    end(error);
    throw error;
  }
  return {
    on: hub.on,
    call: (name, ...args) => (ended ? Promise.reject(terminated(name)) : ask({ call: name, args })),
    terminate: async () => {
      hub.close();
      if (!ended) await Promise.race([ask({ stop: true }).catch(() => {}), sleep(1000)]);
      end(terminated("a call"));
    },
  };
}

/** The page's listeners. */
class Hub {
  #listeners = new Map();
  #onProgress;

  constructor(onProgress) {
    this.#onProgress = onProgress;
  }

  on = (event, listener) => {
    if (typeof listener !== "function") throw new TypeError(`app.on(${JSON.stringify(event)}): no listener`);
    if (!this.#listeners.has(event)) this.#listeners.set(event, new Set());
    this.#listeners.get(event).add(listener);
    return () => this.#listeners.get(event)?.delete(listener);
  };

  emit = (event, value) => {
    if (event === "progress") this.progress(value);
    for (const listener of this.#listeners.get(event) ?? []) guard(() => listener(value));
  };

  progress = (progress) => guard(() => this.#onProgress(progress));

  close() {
    this.#listeners.clear();
    this.#onProgress = () => {};
  }
}

/** A listener's own mistake is the page's error, not Python's: report it and go on. */
function guard(listener) {
  try {
    listener();
  } catch (error) {
    reportError(error);
  }
}

// --- what is where ------------------------------------------------------------------------------------

/** Make every address absolute, and name the interpreter and the wheel. */
async function resolve({ python = "", files = {}, packages = [], pyodideURL, wheel, ...unknown }) {
  const names = Object.keys(unknown);
  if (names.length) throw new TypeError(`boot(): unknown option ${names.join(", ")}`);
  const base = globalThis.document?.baseURI ?? globalThis.location.href;
  const absolute = (address) => new URL(address, base).href;

  const manifest = pyodideURL && wheel ? {} : await readManifest();
  const isAddress = python instanceof URL || /^\S+\.py([?#]\S*)?$/.test(python);
  return {
    pyodideURL: folder(pyodideURL ? absolute(pyodideURL) : (manifest.pyodide ?? CDN)),
    wheel: wheel ? absolute(wheel) : manifest.wheel,
    packages: [...packages],
    python: isAddress ? { url: absolute(python) } : { text: String(python) },
    files: Object.entries(files).map(([path, content]) => ({
      path,
      ...(content instanceof URL || (typeof content === "string" && /^(\.{0,2}\/|https?:)\S*$/.test(content))
        ? { url: absolute(content) }
        : { content }),
    })),
  };
}

const folder = (address) => (address.endsWith("/") ? address : `${address}/`);

/** `manifest.json` names what was set up beside this file (web/setup.py writes it). */
async function readManifest() {
  const address = new URL("./vendor/manifest.json", import.meta.url);
  const response = await fetch(address);
  if (!response.ok) return {};
  const { pyodide, webgrad } = await response.json();
  return {
    pyodide: pyodide && new URL(pyodide.url, address).href,
    wheel: webgrad && new URL(webgrad.wheel, address).href,
  };
}

async function download(address) {
  const response = await fetch(address);
  if (!response.ok) throw new Error(`boot(): ${address} answered ${response.status} ${response.statusText}`);
  return new Uint8Array(await response.arrayBuffer());
}

// --- the interpreter (in the page or in the worker) ---------------------------------------------------

/**
 * Load Pyodide, NumPy and webgrad and run the program.
 * @returns {Promise<{pyodide: any, call: (name: string, args: any[]) => Promise<any>, stop: () => Promise<void>}>}
 */
export async function startInterpreter({ pyodideURL, wheel, packages, python, files }, progress, emit) {
  const stopWatching = watchDownloads(pyodideURL, progress);
  const texts = Promise.all([python, ...files].map(async (file) => (file.url ? download(file.url) : null)));
  texts.catch(() => {}); // reported below, where it is awaited
  const { loadPyodide } = await import(/* webpackIgnore: true */ `${pyodideURL}pyodide.mjs`);
  const viaMicropip = wheel ? packages : ["webgrad", ...packages];
  const pyodide = await loadPyodide({
    indexURL: pyodideURL,
    packages: viaMicropip.length ? ["numpy", "micropip"] : ["numpy"],
  });
  stopWatching();

  progress({ stage: "numpy", message: "starting NumPy" });
  pyodide.pyimport("numpy").destroy();

  progress({ stage: "webgrad", message: "installing webgrad" });
  if (wheel) await pyodide.loadPackage(wheel, { messageCallback: () => {} });
  if (viaMicropip.length) {
    const micropip = pyodide.pyimport("micropip");
    try {
      await micropip.install(viaMicropip);
    } finally {
      micropip.destroy();
    }
  }

  const web = pyodide.pyimport("webgrad.web"); // lives as long as the interpreter
  web._connect(emit);

  progress({ stage: "program", message: "starting the page's Python" });
  const [programBytes, ...fileBytes] = await texts;
  files.forEach((file, i) => writeFile(pyodide, file.path, fileBytes[i] ?? file.content));
  const text = programBytes ? new TextDecoder().decode(programBytes) : python.text;
  const filename = python.url ? decodeURIComponent(new URL(python.url).pathname.split("/").pop()) : "<page>";
  await answer(web._run_program(text, filename));

  return {
    pyodide,
    call: (name, args) => answer(web._call(name, args)),
    stop: async () => {
      try {
        const webgrad = pyodide.pyimport("webgrad");
        webgrad.destroy_all?.();
        webgrad.destroy();
      } finally {
        web.destroy();
      }
    },
  };
}

/** Await the coroutine of `webgrad.web._reply`, destroy its proxy, and return the value or throw the error. */
async function answer(coroutine) {
  let reply;
  try {
    reply = await coroutine;
  } finally {
    coroutine.destroy();
  }
  if (reply.error) throw toError(reply.error);
  return reply.value;
}

function writeFile(pyodide, path, content) {
  const parent = path.split("/").slice(0, -1).join("/");
  if (parent) pyodide.FS.mkdirTree(parent);
  pyodide.FS.writeFile(path, typeof content === "string" ? content : new Uint8Array(content.buffer ?? content));
}

// What each download weighs, roughly, in MB: enough for a bar that moves evenly.
const DOWNLOADS = [
  [/pyodide\.asm\.wasm/, 8.6],
  [/python_stdlib\.zip/, 2.4],
  [/pyodide\.asm\.m?js/, 1.1],
  [/numpy-[^/]*\.whl/, 6],
];

/** Report downloads as they finish, without touching them; returns the function that stops it. */
function watchDownloads(pyodideURL, progress) {
  const total = DOWNLOADS.reduce((sum, [, weight]) => sum + weight, 0);
  const missing = new Map(DOWNLOADS);
  const report = () => {
    const left = [...missing.values()].reduce((sum, weight) => sum + weight, 0);
    if (left) progress({ stage: "download", fraction: 1 - left / total, message: "downloading Python and NumPy" });
    else progress({ stage: "runtime", message: "starting Python" });
  };
  report();
  const observer = new PerformanceObserver((list) => {
    for (const { name } of list.getEntries()) {
      const found = name.startsWith(pyodideURL) && [...missing.keys()].find((pattern) => pattern.test(name));
      if (found && missing.delete(found)) report();
    }
  });
  observer.observe({ type: "resource" });
  return () => {
    observer.disconnect();
    if (!missing.size) return;
    missing.clear(); // all of it is there, even if an entry is still on its way
    report();
  };
}

// --- errors and the wire ------------------------------------------------------------------------------

/** An Error from a Python exception or from an error that came over the wire. */
function toError({ name, message, traceback, stack }) {
  const error = new Error(message);
  error.name = name;
  if (traceback) error.traceback = traceback;
  error.stack = traceback ?? stack ?? error.stack;
  return error;
}

function terminated(name) {
  const error = new Error(`webgrad: ${name} came after terminate()`);
  error.name = "TerminatedError";
  return error;
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const MOVED = ["OffscreenCanvas", "ImageBitmap", "MessagePort"]; // only transfer, or dear to copy

/**
 * Prepare a message: its typed arrays' buffers are transferred, and their `shape`s, which structured cloning
 * would lose, travel beside them. (Cloning keeps identity, so `unpack` finds the very arrays again.)
 */
export function pack(message) {
  const transfer = new Set();
  const shapes = [];
  const walk = (value) => {
    if (value === null || typeof value !== "object") return;
    if (ArrayBuffer.isView(value)) {
      if (value.shape) shapes.push([value, [...value.shape]]);
      if (value.buffer instanceof ArrayBuffer) transfer.add(value.buffer);
    } else if (MOVED.some((name) => globalThis[name] && value instanceof globalThis[name])) transfer.add(value);
    else if (value instanceof ArrayBuffer) transfer.add(value);
    else if (Array.isArray(value)) value.forEach(walk);
    else if (Object.getPrototypeOf(value) === Object.prototype) Object.values(value).forEach(walk);
  };
  walk(message);
  return { message, shapes, transfer: [...transfer] };
}

/** The message of `pack`, its arrays with their shapes. */
export function unpack({ message, shapes }) {
  for (const [array, shape] of shapes) array.shape = shape;
  return message;
}
