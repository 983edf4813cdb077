/**
 * Drives navigator.gpu for webgrad: buffers by number, programs as JSON, one submit a step.
 *
 *   const bridge = await open();                         // or {ok: false, kind, message}
 *   const {id} = await bridge.create(json, blobs, externals);
 *   const reads = bridge.readset(id, [[buffer, offset, bytes], ...]);
 *   const {data} = await bridge.run(id, "step", address, bytes, reads);
 *
 * A step is one writeBuffer of the packed upload (straight from the WebAssembly heap), one compute pass,
 * one submit and, if anything is read, one mapAsync of a staging buffer that is used again and again.
 *
 * Nothing throws and no promise rejects: what goes wrong comes back as {ok: false, kind, message, ...}, the
 * kind one of "no-adapter", "lost", "oom", "validation", "wgsl" and "internal". An error that the device
 * reports later, for work already queued, comes with the next run() or read() to end. Once the device
 * is lost, everything pending and everything later ends with "lost"; open() then asks for a new device.
 *
 * No dependency; works in pages and workers. Nothing here knows tensors, models or gradients.
 */

const LIMITS = [
  "maxBufferSize", "maxStorageBufferBindingSize", "maxUniformBufferBindingSize", "maxStorageBuffersPerShaderStage",
  "maxComputeWorkgroupStorageSize", "maxComputeInvocationsPerWorkgroup", "maxComputeWorkgroupSizeX",
  "maxComputeWorkgroupSizeY", "maxComputeWorkgroupSizeZ", "maxComputeWorkgroupsPerDimension",
];
const FEATURES = ["shader-f16", "subgroups", "timestamp-query"];
const VERSION = 1; // of the program's JSON
const STEPS_IN_FLIGHT = 8; // how far steps that read nothing may run ahead
const SHADERS_KEPT = 1024; // compiled texts kept for programs to come
const STAGING_KEPT = 16; // idle staging buffers kept
const BINDING_TYPES = { read: "read-only-storage", read_write: "storage", uniform: "uniform" };

const failure = (kind, message, more) => ({ ok: false, kind, message, ...more });
const kindOf = (error) =>
  error instanceof GPUOutOfMemoryError ? "oom" : error instanceof GPUInternalError ? "internal" : "validation";
const aligned = (bytes, unit = 4) => Math.ceil(bytes / unit) * unit;
const getOrMake = (map, key, make) => map.get(key) ?? map.set(key, make()).get(key);

// One device per page or worker, however many copies of this file are loaded.
const shared = (globalThis[Symbol.for("webgrad.bridge")] ??= { opening: null });

/**
 * The bridge of this page or worker; all callers share it. After its device was lost, or when the last
 * attempt failed, the next call tries anew.
 * @param {GPURequestAdapterOptions} [options]
 * @returns {Promise<Bridge | {ok: false, kind: string, message: string}>}
 */
export async function open(options = {}) {
  const opening = (shared.opening ??= request(options));
  const bridge = await opening;
  if (bridge.ok) return bridge;
  if (shared.opening === opening) shared.opening = null;
  return bridge.lost ? open(options) : bridge;
}

async function request(options) {
  if (!globalThis.isSecureContext) {
    return failure("no-adapter", "WebGPU needs a secure context: serve the page over https or from localhost");
  }
  if (!globalThis.navigator?.gpu) {
    return failure("no-adapter", "this browser has no WebGPU (navigator.gpu): use Chrome or Edge 113, Safari 26, " +
      "Firefox 141, or newer; on Linux, Chrome needs --enable-unsafe-webgpu");
  }
  try {
    const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance", ...options });
    if (!adapter) {
      return failure("no-adapter", "WebGPU is there but found no adapter: look at the browser's GPU page " +
        "(chrome://gpu), update the graphics driver, or start Chrome with --enable-unsafe-webgpu " +
        "--use-webgpu-adapter=swiftshader to compute on the processor");
    }
    const device = await adapter.requestDevice({
      requiredFeatures: FEATURES.filter((name) => adapter.features.has(name)),
      requiredLimits: Object.fromEntries(LIMITS.filter((n) => n in adapter.limits).map((n) => [n, adapter.limits[n]])),
    });
    return new Bridge(adapter, device);
  } catch (error) {
    return failure("no-adapter", `the WebGPU adapter gave no device: ${error.message}`);
  }
}

class Bridge {
  /** Whether calls can work; false once the device is lost. */
  ok = true;
  /** The failure that ends every call once the device is lost. */
  lost = null;

  #device;
  #queue;
  #info;
  #module = null; // Pyodide's Emscripten module: its HEAPU8 changes whenever the memory grows
  #fault = null; // an error the device reported, until a call ends with it
  #pending = new Set(); // resolvers of promises that a lost device would leave open
  #buffers = new Map(); // id → {buffer, bytes, label, program}
  #programs = new Map(); // id → see #load
  #shaders = new Map(); // WGSL → {module, pipelines: {layout → promise}}, the least recently used first
  #layouts = new Map(); // accesses → {group, pipeline}
  #staging = []; // idle staging buffers, the one used last at the end
  #inFlight = []; // ends of steps that read nothing
  #nextId = 1;
  #counts = { dispatches: 0, submissions: 0, maps: 0, pipelines: 0, modules: 0 };

  constructor(adapter, device) {
    this.#device = device;
    this.#queue = device.queue;
    const { vendor, architecture, device: model, description, isFallbackAdapter } = adapter.info;
    this.#info = {
      vendor, architecture, device: model, description,
      isFallback: Boolean(isFallbackAdapter ?? adapter.isFallbackAdapter),
      limits: Object.fromEntries(LIMITS.map((name) => [name, device.limits[name]])),
      features: FEATURES.filter((name) => device.features.has(name)),
    };
    device.onuncapturederror = ({ error }) => (this.#fault ??= failure(kindOf(error), error.message));
    device.lost.then(({ reason, message }) => this.#lose(message || `the device was ${reason || "lost"}`));
  }

  /** Tell where addresses given to write() and run() point: Pyodide's `_module`. */
  attach(module) {
    this.#module = module;
  }

  /** The adapter's names, whether it is a fallback, and what the device grants. */
  info() {
    return this.#info;
  }

  /** A zeroed buffer; returns its id (a number), or a failure. Out of memory may also show later. */
  allocate(bytes, label = "") {
    if (this.lost) return this.lost;
    const most = this.#info.limits.maxBufferSize;
    if (bytes > most) {
      return failure("oom", `${label}: ${bytes} bytes are more than this adapter's largest buffer (${most} bytes)`);
    }
    this.#device.pushErrorScope("out-of-memory");
    const id = this.#allocate(bytes, label);
    this.#device.popErrorScope().then(
      (error) => error && (this.#fault ??= failure("oom", `${label}: no GPU memory for ${bytes} bytes`)),
      () => {},
    );
    return id;
  }

  /** Free a buffer; work already queued still has it. */
  free(id) {
    this.#buffers.get(id)?.buffer.destroy();
    this.#buffers.delete(id);
  }

  /** Queue a write of `bytes` bytes at a heap address, or of a typed array. Returns undefined or a failure. */
  write(id, offset, source, bytes = source.byteLength) {
    return this.#queued(id, (buffer) => this.#write(buffer, offset, source, bytes));
  }

  /** Queue a fill with zeros. Returns undefined or a failure. */
  clear(id, offset, bytes) {
    return this.#queued(id, (buffer) => {
      const encoder = this.#device.createCommandEncoder();
      encoder.clearBuffer(buffer, offset, aligned(bytes));
      this.#submit(encoder);
    });
  }

  /** The bytes as they are after all work queued so far: {ok: true, data}. */
  read(id, offset, bytes) {
    const source = this.#buffers.get(id);
    const problem = this.#problem() ?? (source ? null : failure("validation", `there is no buffer ${id}`));
    if (problem) return Promise.resolve(problem);
    return this.#attempt(() => {
      const encoder = this.#device.createCommandEncoder();
      return this.#finish(encoder, [[source.buffer, offset, bytes]], aligned(bytes));
    });
  }

  /**
   * Load a program (compiler/program.py): {ok: true, id}. `blobs` are the constants' bytes; `externals`
   * gives the buffer id of each key. A failure names the kernel's index and quotes its WGSL.
   */
  create(json, blobs, externals) {
    if (this.lost) return Promise.resolve(this.lost);
    const program = { id: this.#nextId++, owned: [], readsets: [], counts: { dispatches: 0, submissions: 0, maps: 0 } };
    return this.#attempt(async () => {
      const problem = await this.#load(program, JSON.parse(json), blobs, externals);
      if (problem || this.lost) {
        program.owned.forEach((id) => this.free(id));
        return this.lost ?? problem;
      }
      this.#programs.set(program.id, program);
      return { ok: true, id: program.id };
    });
  }

  /** Register ranges [[buffer index, offset, bytes], ...] to be read in one transfer; returns their index. */
  readset(id, ranges) {
    const program = this.#programs.get(id);
    const copies = ranges.map(([index, offset, bytes]) => [program.buffers[index].buffer, offset, bytes]);
    const total = copies.reduce((sum, [, , bytes]) => sum + aligned(bytes), 0);
    return program.readsets.push({ copies, total }) - 1;
  }

  /**
   * Queue one call of an entry, its upload from a heap address (or a typed array, then `bytes` is ignored).
   * {ok: true, data}: the readset's ranges one after the other, each padded to 4 bytes. With a readset
   * below 0 nothing is read, and the promise ends as soon as few enough steps are on their way.
   */
  run(id, entry, source, bytes, readset) {
    const program = this.#programs.get(id);
    const steps = program?.entries[entry];
    const problem = this.#problem() ?? (steps ? null : failure("validation", `program ${id} has no entry "${entry}"`));
    if (problem) return Promise.resolve(problem);
    return this.#attempt(() => {
      if (bytes) this.#write(program.upload, 0, source, bytes);
      const encoder = this.#device.createCommandEncoder();
      for (const buffer of steps.cleared) encoder.clearBuffer(buffer);
      if (steps.kernels.length) this.#encode(encoder, steps.kernels);
      this.#tally(program, "dispatches", steps.kernels.length);
      const reads = program.readsets[readset];
      if (reads) return this.#finish(encoder, reads.copies, reads.total, program);
      this.#submit(encoder, program);
      return this.#backPressure();
    });
  }

  /** Forget a program and free its own buffers. */
  destroyProgram(id) {
    this.#programs.get(id)?.owned.forEach((owned) => this.free(owned));
    this.#programs.delete(id);
  }

  /** Counts since the device was opened (buffers and bytes: what is alive), or those of one program. */
  stats(id) {
    const program = this.#programs.get(id);
    const alive = [...this.#buffers.values()].filter((b) => id === undefined || b.program === id);
    const made = program && { pipelines: program.pipelines, modules: program.modules };
    return {
      ...(id === undefined ? this.#counts : { dispatches: 0, submissions: 0, maps: 0, pipelines: 0, modules: 0 }),
      ...program?.counts, ...made,
      buffers: alive.length + (id === undefined ? this.#staging.length : 0),
      bytes: [...alive, ...(id === undefined ? this.#staging : [])].reduce((sum, { bytes }) => sum + bytes, 0),
    };
  }

  /** Free everything and give the device back; whatever is pending ends as lost. */
  close() {
    this.#device.destroy();
    this.#lose("the bridge was closed");
  }

  // --- buffers and the queue --------------------------------------------------------------------------

  #allocate(bytes, label, program) {
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
    const size = Math.max(16, aligned(bytes));
    const buffer = this.#device.createBuffer({ label, size, usage });
    this.#buffers.set(this.#nextId, { buffer, bytes: size, label, program });
    return this.#nextId++;
  }

  /** Without a copy on the way: the heap's memory is looked up at each call, for it moves when it grows. */
  #write(buffer, offset, source, bytes) {
    if (typeof source !== "number") return this.#queue.writeBuffer(buffer, offset, source, 0);
    this.#queue.writeBuffer(buffer, offset, this.#module.HEAPU8.buffer, source, bytes);
  }

  #queued(id, work) {
    if (this.lost) return this.lost;
    const found = this.#buffers.get(id);
    if (!found) return failure("validation", `there is no buffer ${id}`);
    try {
      work(found.buffer);
    } catch (error) {
      return failure("validation", `${found.label}: ${error.message}`);
    }
  }

  #tally(program, key, number = 1) {
    this.#counts[key] += number;
    if (program) program.counts[key] += number;
  }

  #submit(encoder, program) {
    this.#queue.submit([encoder.finish()]);
    this.#tally(program, "submissions");
  }

  /** Copy the ranges into a staging buffer, submit, and bring the bytes home. */
  async #finish(encoder, copies, total, program) {
    const staging = this.#takeStaging(total);
    let at = 0;
    for (const [buffer, offset, bytes] of copies) {
      const length = aligned(bytes);
      if (length) encoder.copyBufferToBuffer(buffer, offset, staging.buffer, at, length);
      at += length;
    }
    this.#submit(encoder, program);
    this.#tally(program, "maps");
    try {
      await staging.buffer.mapAsync(GPUMapMode.READ, 0, total);
    } catch (error) {
      staging.buffer.destroy();
      await Promise.race([this.#device.lost, new Promise((resolve) => setTimeout(resolve, 100))]); // told after maps fail
      return this.#problem() ?? failure("internal", error.message);
    }
    const data = new Uint8Array(staging.buffer.getMappedRange(0, total).slice(0));
    staging.buffer.unmap();
    this.#staging.push(staging);
    while (this.#staging.length > STAGING_KEPT) this.#staging.shift().buffer.destroy();
    return this.#problem() ?? { ok: true, data };
  }

  /** The smallest idle staging buffer that is large enough, else a new one. */
  #takeStaging(bytes) {
    let best = -1;
    this.#staging.forEach((idle, i) => {
      if (idle.bytes >= bytes && (best < 0 || idle.bytes < this.#staging[best].bytes)) best = i;
    });
    if (best >= 0) return this.#staging.splice(best, 1)[0];
    const size = aligned(Math.max(bytes, 4), 256);
    const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
    return { buffer: this.#device.createBuffer({ label: "staging", size, usage }), bytes: size };
  }

  async #backPressure() {
    this.#inFlight.push(this.#queue.onSubmittedWorkDone());
    if (this.#inFlight.length > STEPS_IN_FLIGHT) await this.#inFlight.shift();
    return this.#problem() ?? { ok: true };
  }

  #encode(encoder, kernels) {
    const pass = encoder.beginComputePass();
    let last = null;
    for (const { pipeline, group, workgroups } of kernels) {
      if (pipeline !== last) pass.setPipeline((last = pipeline));
      pass.setBindGroup(0, group);
      pass.dispatchWorkgroups(...workgroups);
    }
    pass.end();
  }

  // --- errors -----------------------------------------------------------------------------------------

  /** What a call must end with: the lost device, or an error reported meanwhile (told once). */
  #problem() {
    const problem = this.lost ?? this.#fault;
    this.#fault = null;
    return problem;
  }

  /** Run `work`; its promise never rejects, and never stays open on a lost device. */
  #attempt(work) {
    return new Promise((resolve) => {
      const end = (result) => {
        this.#pending.delete(end);
        resolve(result);
      };
      this.#pending.add(end);
      const fail = (error) => end(this.lost ?? failure(error instanceof TypeError ? "validation" : "internal", error.message));
      try {
        Promise.resolve(work()).then(end, fail);
      } catch (error) {
        fail(error);
      }
    });
  }

  #lose(message) {
    if (this.lost) return;
    this.ok = false;
    this.lost = failure("lost", `the GPU device was lost: ${message}`);
    [...this.#pending].forEach((end) => end(this.lost));
    for (const { buffer } of [...this.#buffers.values(), ...this.#staging]) buffer.destroy();
    for (const held of [this.#buffers, this.#programs, this.#shaders, this.#layouts]) held.clear();
    this.#staging.length = this.#inFlight.length = 0;
  }

  // --- programs ---------------------------------------------------------------------------------------

  /** Make a program's buffers, pipelines and bind groups. Returns a failure, or null. */
  async #load(program, json, blobs, externals) {
    if (json.version !== VERSION) return failure("validation", `program version ${json.version}, expected ${VERSION}`);
    const missing = json.features.filter((name) => !this.#device.features.has(name));
    if (missing.length) return failure("validation", `this adapter lacks ${missing.join(", ")}`);
    const problem = await this.#loadBuffers(program, json, blobs, externals);
    if (problem) return problem;

    const made = await Promise.all(json.kernels.map((kernel) => this.#pipeline(json.modules[kernel.module], kernel)));
    const broken = made.findIndex(({ ok }) => !ok);
    if (broken >= 0) return { ...made[broken], kernel: broken };
    program.pipelines = new Set(made.map(({ pipeline }) => pipeline)).size;
    program.modules = new Set(json.kernels.map(({ module }) => json.modules[module])).size;

    const kernels = json.kernels.map((kernel, i) => ({ pipeline: made[i].pipeline, workgroups: kernel.workgroups }));
    const checks = await Promise.all(json.kernels.map((kernel, i) => this.#bind(program, kernel, kernels[i])));
    const invalid = checks.findIndex(Boolean);
    if (invalid >= 0) return failure("validation", checks[invalid].message, { kernel: invalid });

    program.entries = {};
    for (const [name, order] of Object.entries(json.entries)) {
      const used = new Set(order.flatMap((i) => json.kernels[i].bindings.map(({ buffer }) => buffer)));
      const cleared = [...used].filter((i) => json.buffers[i].zero === "each_step").map((i) => program.buffers[i].buffer);
      program.entries[name] = { kernels: order.map((i) => kernels[i]), cleared };
    }
    return null;
  }

  async #loadBuffers(program, json, blobs, externals) {
    for (const [i, { bytes, kind, key }] of json.buffers.entries()) {
      const most = this.#info.limits.maxBufferSize;
      if (kind !== "external" && bytes > most) {
        return failure("oom", `${bytes} bytes are more than this adapter's largest buffer (${most} bytes)`, { buffer: i });
      }
      if (kind === "external" && !this.#buffers.has(externals[key])) {
        return failure("validation", `there is no buffer for the external "${key}"`, { buffer: i });
      }
    }
    this.#device.pushErrorScope("validation");
    this.#device.pushErrorScope("out-of-memory");
    program.buffers = json.buffers.map(({ bytes, kind, key }, i) => {
      if (kind === "external") return this.#buffers.get(externals[key]);
      const id = this.#allocate(bytes, key || `buffer ${i}`, program.id);
      program.owned.push(id);
      const made = this.#buffers.get(id);
      if (kind === "constant" && blobs[key].byteLength) this.#queue.writeBuffer(made.buffer, 0, padded(blobs[key]));
      return made;
    });
    program.upload = program.buffers[json.upload.buffer]?.buffer;
    const [oom, invalid] = await Promise.all([this.#device.popErrorScope(), this.#device.popErrorScope()]);
    const total = json.buffers.reduce((sum, { bytes, kind }) => sum + (kind === "external" ? 0 : bytes), 0);
    if (oom) return failure("oom", `no GPU memory for the program's ${total} bytes`);
    return invalid && failure("validation", invalid.message);
  }

  /** {ok: true, pipeline} or a failure; equal text with equal layouts is compiled once. */
  #pipeline(wgsl, { name, bindings }) {
    const shader = this.#shaders.get(wgsl) ?? this.#shader(wgsl);
    this.#shaders.delete(wgsl); // and to the end: it is the one used last
    this.#shaders.set(wgsl, shader);
    if (this.#shaders.size > SHADERS_KEPT) this.#shaders.delete(this.#shaders.keys().next().value);
    const accesses = bindings.map(({ access }) => access).join();
    return getOrMake(shader.pipelines, accesses, async () => {
      try {
        const layout = getOrMake(this.#layouts, accesses, () => this.#layout(bindings)).pipeline;
        const compute = { module: shader.module, entryPoint: "main" };
        const pipeline = await this.#device.createComputePipelineAsync({ label: name, layout, compute });
        this.#counts.pipelines++;
        return { ok: true, pipeline };
      } catch (error) {
        shader.pipelines.delete(accesses);
        return failure(error.reason === "internal" ? "internal" : "wgsl", error.message, await quote(shader.module, wgsl));
      }
    });
  }

  #shader(wgsl) {
    this.#device.pushErrorScope("validation"); // the pipeline's own error tells more
    const module = this.#device.createShaderModule({ code: wgsl });
    this.#device.popErrorScope().catch(() => {});
    this.#counts.modules++;
    return { module, pipelines: new Map() };
  }

  #layout(bindings) {
    const entries = bindings.map(({ access }, binding) => (
      { binding, visibility: GPUShaderStage.COMPUTE, buffer: { type: BINDING_TYPES[access] } }));
    const group = this.#device.createBindGroupLayout({ entries });
    return { group, pipeline: this.#device.createPipelineLayout({ bindGroupLayouts: [group] }) };
  }

  /** Make a kernel's bind group and encode it once without submitting, so that errors name the kernel. */
  #bind(program, { bindings }, kernel) {
    const { group } = this.#layouts.get(bindings.map(({ access }) => access).join());
    const entries = bindings.map(({ buffer, offset, size }, binding) => (
      { binding, resource: { buffer: program.buffers[buffer].buffer, offset, size } }));
    this.#device.pushErrorScope("validation");
    try {
      kernel.group = this.#device.createBindGroup({ layout: group, entries });
      const encoder = this.#device.createCommandEncoder();
      this.#encode(encoder, [kernel]);
      encoder.finish();
    } catch (error) {
      this.#device.popErrorScope().catch(() => {});
      return error;
    }
    return this.#device.popErrorScope();
  }
}

function padded(bytes) {
  if (bytes.byteLength % 4 === 0) return bytes;
  const copy = new Uint8Array(aligned(bytes.byteLength));
  copy.set(bytes);
  return copy;
}

/** A module's compilation messages, and the WGSL lines around its first error. */
async function quote(module, wgsl) {
  const { messages } = await module.getCompilationInfo();
  const errors = messages.filter(({ type }) => type === "error");
  if (!errors.length) return {};
  const { lineNum, linePos } = errors[0];
  const first = Math.max(1, lineNum - 3);
  const lines = wgsl.split("\n").slice(first - 1, lineNum + 2).map((text, i) => `${String(first + i).padStart(4)} | ${text}`);
  if (lineNum) lines.splice(lineNum - first + 1, 0, `     | ${" ".repeat(Math.max(0, linePos - 1))}^`);
  return { messages: errors.map((e) => `line ${e.lineNum}:${e.linePos}: ${e.message}`), wgsl: lines.join("\n") };
}
