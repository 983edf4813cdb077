/**
 * All systems behind one interface, in one page; bench/session.py drives it through `bench`.
 *
 * A system is a module of bench/peers:
 *   open?(options)              start the library (not timed)
 *   connect()                   ask for the GPU device
 *   prepare?(name, task)        hand over a workload's arrays (not timed)
 *   create(name, task)          → {step(batch) → loss, destroy()}, or its own {steps(count, budget), stages}
 *   createProduct(product, operands, count, block?)   → {run(wanted), destroy()}; run brings the results to
 *                               the host and, when they are wanted, to JavaScript as Float32Arrays
 *
 * Times are milliseconds. GPU calls are counted by tests/gpu_counts.js, which wraps WebGPU's prototypes.
 */
const SYSTEMS = {
  webgrad: () => import("./peers/webgrad.mjs"),
  "jax-js": () => import("./dist/jax.mjs"),
  tfjs: () => import("./dist/tfjs.mjs"),
  wgsl: () => import("./peers/wgsl.mjs"),
};
const ARRAYS = { float32: Float32Array, int32: Int32Array };

const modules = {}; // system → its module, opened
const tasks = {}; // workload → {params, batches, optimizer, ...}
const products = {}; // product → {name, batch, m, k, n, chained, operands}
const live = {}; // what was created, by its key

const now = () => performance.now();

/** The typed array, with its shape, of what bench/session.py made of an array. */
function decode({ dtype, shape, base64 }) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  return Object.assign(new ARRAYS[dtype](bytes.buffer), { shape });
}

const decodeAll = (arrays) => Object.fromEntries(Object.entries(arrays).map(([name, array]) => [name, decode(array)]));

function gpuSince(before) {
  const after = gpuCounts.snapshot();
  const made = Object.fromEntries(Object.keys(after).map((key) => [key, after[key] - before[key]]));
  return { ...made, live_bytes: after.live_bytes, live_buffers: after.live_buffers };
}

/** Start a system's library. */
async function open(system, options) {
  if (modules[system]) return;
  const module = await SYSTEMS[system]();
  await module.open?.(options);
  modules[system] = module;
}

function giveTask(name, { params, batches, ...rest }) {
  tasks[name] = { ...rest, params: decodeAll(params), batches: batches.map(decodeAll) };
}

/** From nothing to the first loss on the host, by stages. */
async function create(system, name) {
  const [module, task] = [modules[system], tasks[name]];
  await module.prepare?.(name, task);
  const before = gpuCounts.snapshot();
  const start = now();
  await module.connect();
  const connected = now();
  const trainer = await module.create(name, task);
  const created = now();
  live[`${system} ${name}`] = { trainer, batches: task.batches, taken: 0 };
  const { losses } = await steps(system, name, 1, 0);
  const end = now();
  const making = trainer.stages ?? { create: created - connected };
  const stages = { device: connected - start, ...making, step: end - created };
  return { loss: losses[0], ms: end - start, stages, gpu: gpuSince(before) };
}

/** At least one step, at most `count`, until `budget` is over, each awaiting its loss: {ms a step, losses, gpu}. */
async function steps(system, name, count, budget) {
  const entry = live[`${system} ${name}`];
  const before = gpuCounts.snapshot();
  const run = entry.trainer.steps ?? ((...limits) => stepsOf(entry, ...limits));
  const result = await run(count, budget);
  return { ...result, gpu: gpuSince(before) };
}

async function stepsOf(entry, count, budget) {
  const losses = [];
  const start = now();
  while (!losses.length || (losses.length < count && now() - start < budget)) {
    losses.push(await entry.trainer.step(entry.batches[entry.taken++ % entry.batches.length]));
  }
  return { ms: (now() - start) / losses.length, losses };
}

/** Milliseconds of each kernel of a step, dispatched `repeat` times in a row; only webgrad tells. */
const profile = (system, name, repeat) => live[`${system} ${name}`].trainer.profile(repeat);

async function destroy(system, name) {
  const key = `${system} ${name}`;
  await live[key].trainer.destroy();
  delete live[key];
}

function giveProduct(name, { operands, ...product }) {
  products[name] = { ...product, name, operands: operands.map(decode) };
}

/** Make `count` products and run them once: {ms, error}, the greatest error of some elements of the first result. */
async function createProduct(system, name, count, block) {
  const { operands, ...product } = products[name];
  await modules[system].connect();
  const made = await modules[system].createProduct(product, operands, count, block);
  live[`${system} ${block} ${name} ${count}`] = made;
  const start = now();
  const [result] = await made.run(true);
  return { ms: now() - start, error: count === 1 ? productError(product, operands, result) : 0 };
}

/** Against float64, over 64 elements spread over the result. */
function productError({ m, k, n }, [a, b], result) {
  let worst = 0;
  for (let sample = 0; sample < 64; sample++) {
    const at = (sample * 104729) % result.length;
    const [matrix, row, column] = [Math.floor(at / (m * n)), Math.floor(at / n) % m, at % n];
    let exact = 0;
    for (let i = 0; i < k; i++) exact += a[(matrix * m + row) * k + i] * b[(matrix * k + i) * n + column];
    worst = Math.max(worst, Math.abs(exact - result[at]));
  }
  return worst;
}

async function runProduct(system, name, count, block) {
  const start = now();
  await live[`${system} ${block} ${name} ${count}`].run(false);
  return now() - start;
}

async function destroyProduct(system, name, count, block) {
  const key = `${system} ${block} ${name} ${count}`;
  await live[key].destroy();
  delete live[key];
}

globalThis.bench = { open, giveTask, create, steps, profile, destroy, giveProduct, createProduct, runProduct, destroyProduct };
