/**
 * Drives navigator.gpu for webgrad: buffers by number, programs as JSON, one submit a step.
 *
 *   const bridge = await open(); // or {ok: false, kind, message}; likewise below
 *   const {id} = await bridge.create(json, blobs, externals);
 *   const reads = bridge.readset(id, [[buffer, offset, bytes], ...]);
 *   const {data} = await bridge.run(id, "step", address, bytes, reads);
 *
 * A step is one writeBuffer of the packed upload (straight from the WebAssembly heap), one compute pass, one
 * submit and, if anything is read, one mapAsync of a staging buffer that is used again and again.
 *
 * Nothing throws and no promise rejects: what goes wrong comes back as {ok: false, kind, message, ...}, the kind one
 * of "no-adapter", "lost", "oom", "validation", "wgsl", "internal". An error that the device reports later, for work
 * already queued, comes with the calls that end next, until a read has told it. Once the device is lost, everything
 * pending and later ends with "lost", and open() asks for a new one. Works in pages and workers; knows no tensors.
 */

const VERSION = 1; // of the program's JSON
const STEPS_IN_FLIGHT = 8; // how far steps that read nothing may run ahead
const SHADERS_KEPT = 1024; // compiled texts, for programs to come
const STAGING_KEPT = 16, STAGING_BYTES = 1 << 26; // idle staging buffers, unless it is a single one
const FEATURES = ["shader-f16", "subgroups", "timestamp-query"];
const BINDING_TYPES = { read: "read-only-storage", read_write: "storage", uniform: "uniform" };

const failure = (kind, message, more) => ({ ok: false, kind, message, ...more });
const noCounts = () => ({ dispatches: 0, submissions: 0, maps: 0, pipelines: 0, modules: 0 });
const KINDS = { GPUOutOfMemoryError: "oom", GPUInternalError: "internal", GPUValidationError: "validation" };
const limitsOf = ({ limits }) => Object.fromEntries(Object.keys(Object.getPrototypeOf(limits)).map((k) => [k, limits[k]]));
const aligned = (bytes, unit = 4) => Math.ceil(bytes / unit) * unit;
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
const bytesOf = (buffers) => sum(buffers.map(({ bytes }) => bytes));
const getOrMake = (map, key, make) => map.get(key) ?? map.set(key, make()).get(key);
const accessesOf = ({ bindings }) => bindings.map(({ access }) => access);

const shared = (globalThis.webgradBridge ??= { open, opening: null }); // by Python, and all copies of this file

/** The bridge that this page or worker shares, or a failure; tries anew after a failure or a lost device. */
export async function open(options = {}) {
  if (shared.opening) await new Promise((done) => setTimeout(done)); // a loss just now may be about to be told
  const opening = (shared.opening ??= request(options));
  const bridge = await opening;
  if (!bridge.ok && shared.opening === opening) shared.opening = null;
  return bridge.lost ? open(options) : bridge;
}

async function request(options) {
  if (!globalThis.isSecureContext) return failure("no-adapter", "WebGPU needs https or localhost");
  if (!globalThis.navigator?.gpu) return failure("no-adapter", "this browser has no WebGPU (navigator.gpu)");
  try {
    const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance", ...options });
    if (!adapter) return failure("no-adapter", "WebGPU found no adapter on this machine");
    const requiredFeatures = FEATURES.filter((name) => adapter.features.has(name));
    const device = await adapter.requestDevice({ requiredFeatures, requiredLimits: limitsOf(adapter) });
    return new Bridge(adapter, device);
  } catch (error) {
    return failure("no-adapter", `the WebGPU adapter gave no device: ${error.message}`);
  }
}

class Bridge {
  heap = null; // to be set to Pyodide's `_module`, whose HEAPU8 the addresses given to write() and run() point into
  lost = null; // once the device is lost, the failure that ends every call
  get ok() { return !this.lost; }

  #device; #queue; #info; #nextId = 1; #counts = noCounts();
  #fault = null; // an error the device reported, until a call ends with it
  #pending = new Set(); // resolvers of promises that a lost device would leave open
  #buffers = new Map(); // id → {buffer, bytes, label, program}
  #programs = new Map(); // id → {buffers, upload, owned, entries, readsets, counts}
  #shaders = new Map(); // WGSL → {module, pipelines: {accesses → promise}, info}
  #layouts = new Map(); // accesses → {group, pipeline}
  #staging = []; // idle staging buffers, in the order of their last use
  #inFlight = []; // ends of steps that read nothing

  constructor(adapter, device) {
    [this.#device, this.#queue] = [device, device.queue];
    const { vendor, architecture, device: model, description, subgroupMinSize, subgroupMaxSize } = adapter.info;
    const isFallback = Boolean(adapter.info.isFallbackAdapter ?? adapter.isFallbackAdapter);
    const [features, subgroups] = [FEATURES.filter((name) => device.features.has(name)), [subgroupMinSize, subgroupMaxSize]];
    this.#info = { vendor, architecture, device: model, description, isFallback, limits: limitsOf(device), features, subgroups };
    device.onuncapturederror = ({ error }) => (this.#fault ??= failure(KINDS[error.constructor.name], error.message));
    device.lost.then(({ reason, message }) => this.#lose(message || `the device was ${reason || "lost"}`));
  }

  /** The adapter's names, whether it is a fallback, and what the device grants. */
  info() { return this.#info; }

  /** A zeroed buffer; returns its id (a number), or a failure. Out of memory may also show later. */
  allocate(bytes, label = "") {
    const problem = this.lost ?? this.#tooLarge(bytes, label);
    if (problem) return problem;
    const [id, error] = this.#watch("out-of-memory", () => this.#allocate(bytes, label));
    error.then((e) => e && (this.#fault ??= failure("oom", `${label}: no GPU memory for ${bytes} bytes`)));
    return id;
  }

  /** Free a buffer; work already queued still has it. */
  free(id) { this.#buffers.get(id)?.buffer.destroy(); this.#buffers.delete(id); }

  /** Queue a write of `bytes` bytes at a heap address, or of a typed array. Returns undefined or a failure. */
  write(id, offset, source, bytes) { return this.#queued(id, (to) => this.#write(to, offset, source, bytes)); }

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
    const buffer = this.#buffers.get(id)?.buffer;
    const problem = this.#problem() ?? (buffer ? null : failure("validation", `there is no buffer ${id}`));
    const readset = { copies: [[buffer, offset, bytes]], total: aligned(bytes) };
    return this.#attempt(() => problem ?? this.#finish(this.#device.createCommandEncoder(), readset));
  }

  /** Begin to make a pipeline that a program to come will need; create() tells of its failure. */
  prepare(code, name, accesses) { if (!this.lost) this.#pipeline(code, name, accesses); }

  /**
   * Load a program (compiler/program.py): {ok: true, id}. `blobs`: the constants' bytes, in whole words; `externals`:
   * the buffer id of each key. A failure of a kernel tells its index and the places in its WGSL.
   */
  create(json, blobs, externals) {
    const program = { id: this.#nextId++, owned: [], readsets: [], entries: {}, counts: noCounts() };
    return this.#attempt(async () => {
      const parsed = JSON.parse(json);
      const problem = this.lost ?? (await this.#loadBuffers(program, parsed, blobs, externals))
        ?? (await this.#loadKernels(program, parsed)) ?? this.lost;
      if (problem) program.owned.forEach((buffer) => this.free(buffer));
      else this.#programs.set(program.id, program);
      return problem ?? { ok: true, id: program.id };
    });
  }

  /** Register ranges [[buffer index, offset, bytes], ...] to be read in one transfer; returns their index. */
  readset(id, ranges) {
    const program = this.#programs.get(id);
    if (!program) return -1; // gone with its device: run() will tell
    const copies = ranges.map(([index, offset, bytes]) => [program.buffers[index].buffer, offset, bytes]);
    return program.readsets.push({ copies, total: sum(copies.map(([, , bytes]) => aligned(bytes))) }) - 1;
  }

  /** A readset of when a call begins and ends on the GPU: two u64s, in nanoseconds. Needs "timestamp-query". */
  clock(id) {
    const program = this.#programs.get(id);
    if (!program) return -1;
    const times = this.#buffers.get(this.#allocate(16, "times", program, GPUBufferUsage.QUERY_RESOLVE)).buffer;
    const querySet = this.#device.createQuerySet({ type: "timestamp", count: 2 });
    return program.readsets.push({ copies: [[times, 0, 16]], total: 16, querySet }) - 1;
  }

  /**
   * Queue one call of an entry, its upload from a heap address (or a typed array). {ok: true, data}: the readset's
   * ranges in a row, each padded to 4 bytes. With readset -1, {ok: true} once few enough steps are on their way.
   */
  run(id, entry, source, bytes, readset) {
    const program = this.#programs.get(id);
    const steps = program?.entries[entry];
    const problem = this.#problem(readset >= 0) ?? (steps ? null : failure("validation", `there is no entry ${entry}`));
    if (problem) return Promise.resolve(problem);
    return this.#attempt(async () => {
      if (bytes) this.#write(program.upload, 0, source, bytes);
      const encoder = this.#device.createCommandEncoder();
      for (const buffer of steps.cleared) encoder.clearBuffer(buffer);
      if (steps.kernels.length) this.#encode(encoder, steps.kernels, program.readsets[readset]);
      this.#tally(program, "dispatches", steps.kernels.length);
      if (readset >= 0) return this.#finish(encoder, program.readsets[readset], program);
      this.#submit(encoder, program);
      this.#inFlight.push(this.#queue.onSubmittedWorkDone());
      if (this.#inFlight.length > STEPS_IN_FLIGHT) await this.#inFlight.shift();
      return this.#problem(false) ?? { ok: true };
    });
  }

  /** Forget a program and free its own buffers. */
  destroyProgram(id) { this.#programs.get(id)?.owned.forEach((buffer) => this.free(buffer)); this.#programs.delete(id); }

  /** Counts since the device was opened (buffers and bytes: what is alive), or those of one program. */
  stats(id) {
    const alive = [...this.#buffers.values(), ...this.#staging].filter(({ program }) => program === (id ?? program));
    const counts = id === undefined ? this.#counts : this.#programs.get(id)?.counts;
    return { ...counts, buffers: alive.length, bytes: bytesOf(alive) };
  }

  /** Free everything and give the device back; whatever is pending ends as lost. */
  close() { this.#device.destroy(); this.#lose("the bridge was closed"); }

  #tooLarge(bytes, label) {
    const most = this.#info.limits.maxBufferSize;
    return bytes <= most ? null : failure("oom", `${label}: ${bytes} bytes, and this adapter allows ${most} a buffer`);
  }

  #allocate(bytes, label, program, more = 0) {
    const { STORAGE, UNIFORM, COPY_SRC, COPY_DST } = GPUBufferUsage;
    const size = Math.max(16, aligned(bytes));
    const buffer = this.#device.createBuffer({ label, size, usage: STORAGE | UNIFORM | COPY_SRC | COPY_DST | more });
    this.#buffers.set(this.#nextId, { buffer, bytes: size, label, program: program?.id });
    program?.owned.push(this.#nextId);
    return this.#nextId++;
  }

  /** Without a copy on the way: the heap's memory is looked up at each call, for it moves when it grows. */
  #write(buffer, offset, source, bytes) {
    if (typeof source === "number") this.#queue.writeBuffer(buffer, offset, this.heap.HEAPU8.buffer, source, bytes);
    else this.#queue.writeBuffer(buffer, offset, source);
  }

  #queued(id, work) {
    const found = this.#buffers.get(id);
    if (this.lost || !found) return this.lost ?? failure("validation", `there is no buffer ${id}`);
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
  async #finish(encoder, { copies, total }, program) {
    const staging = this.#takeStaging(total);
    let at = 0;
    for (const [buffer, offset, bytes] of copies) {
      if (bytes) encoder.copyBufferToBuffer(buffer, offset, staging.buffer, at, aligned(bytes));
      at += aligned(bytes);
    }
    this.#submit(encoder, program);
    this.#tally(program, "maps");
    try {
      await staging.buffer.mapAsync(GPUMapMode.READ, 0, total);
    } catch (error) {
      staging.buffer.destroy();
      if (error.name === "AbortError") await this.#device.lost; // which is about to be told
      return this.#problem() ?? failure("internal", error.message);
    }
    const data = new Uint8Array(staging.buffer.getMappedRange(0, total).slice(0));
    staging.buffer.unmap();
    const many = this.#staging.push(staging) > STAGING_KEPT || bytesOf(this.#staging) > STAGING_BYTES;
    if (many && this.#staging.length > 1) this.#staging.shift().buffer.destroy();
    return this.#problem() ?? { ok: true, data };
  }

  /** The smallest idle staging buffer that is large enough, else a new one. */
  #takeStaging(bytes) {
    const fitting = this.#staging.filter((idle) => idle.bytes >= bytes).sort((a, b) => a.bytes - b.bytes);
    if (fitting.length) return this.#staging.splice(this.#staging.indexOf(fitting[0]), 1)[0];
    const [size, usage] = [aligned(Math.max(bytes, 1), 256), GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST];
    return { buffer: this.#device.createBuffer({ label: "staging", size, usage }), bytes: size };
  }

  #encode(encoder, kernels, { querySet, copies } = {}) {
    const timestampWrites = querySet && { querySet, beginningOfPassWriteIndex: 0, endOfPassWriteIndex: 1 };
    const pass = encoder.beginComputePass({ timestampWrites });
    let last = null;
    for (const { pipeline, group, workgroups } of kernels) {
      if (pipeline !== last) pass.setPipeline((last = pipeline));
      pass.setBindGroup(0, group);
      pass.dispatchWorkgroups(...workgroups);
    }
    pass.end();
    if (querySet) encoder.resolveQuerySet(querySet, 0, 2, copies[0][0], 0);
  }

  /** What a call must end with: the lost device, or an error reported meanwhile, told until a read ends with it. */
  #problem(reads = true) {
    const problem = this.lost ?? this.#fault;
    if (reads) this.#fault = null;
    return problem;
  }

  /** A promise of what `work` gives; it never rejects, and never stays open on a lost device. */
  #attempt(work) {
    return new Promise((resolve) => {
      const end = (result) => (this.#pending.delete(end), resolve(result));
      const fail = (e) => end(this.lost ?? failure(e instanceof TypeError ? "validation" : "internal", e.message));
      this.#pending.add(end);
      (async () => work())().then(end, fail); // work starts at once, and what it throws rejects
    });
  }

  /** What `work` returns, and a promise of the first error of this kind that it causes, or null. */
  #watch(kind, work) {
    const { promise: error, resolve: tell } = Promise.withResolvers();
    this.#device.pushErrorScope(kind);
    try {
      return [work(), error];
    } finally {
      this.#device.popErrorScope().then(tell, () => tell(null));
    }
  }

  #lose(message) {
    if (this.lost) return;
    this.lost = failure("lost", `the GPU device was lost: ${message}`);
    [...this.#pending].forEach((end) => end(this.lost));
    for (const { buffer } of [...this.#buffers.values(), ...this.#staging]) buffer.destroy();
    for (const held of [this.#buffers, this.#programs, this.#shaders, this.#layouts]) held.clear();
    this.#staging.length = this.#inFlight.length = 0;
  }

  /** Make the pipelines and bind groups. Returns a failure, or null. */
  async #loadKernels(program, json) {
    const made = await Promise.all(json.kernels.map((kernel) =>
      this.#pipeline(json.modules[kernel.module], kernel.name, accessesOf(kernel))));
    const broken = made.findIndex(({ ok }) => !ok);
    if (broken >= 0) return { ...made[broken], kernel: broken };
    const kernels = made.map(({ pipeline }, i) => ({ pipeline, workgroups: json.kernels[i].workgroups }));
    const errors = await Promise.all(json.kernels.map((kernel, i) => this.#bind(program, kernel, kernels[i])));
    const invalid = errors.findIndex(Boolean);
    if (invalid >= 0) return failure("validation", errors[invalid].message, { kernel: invalid });
    program.counts.pipelines = new Set(made).size;
    program.counts.modules = new Set(json.kernels.map(({ module }) => json.modules[module])).size;
    for (const [name, order] of Object.entries(json.entries)) {
      const used = [...new Set(order.flatMap((i) => json.kernels[i].bindings.map(({ buffer }) => buffer)))];
      const cleared = used.filter((i) => json.buffers[i].zero === "each_step").map((i) => program.buffers[i].buffer);
      program.entries[name] = { kernels: order.map((i) => kernels[i]), cleared };
    }
    return null;
  }

  /** Make and fill the buffers. Returns a failure, or null. */
  async #loadBuffers(program, json, blobs, externals) {
    if (json.version !== VERSION) return failure("validation", `program version ${json.version}, not ${VERSION}`);
    const missing = json.features.find((name) => !this.#info.features.includes(name));
    if (missing) return failure("validation", `this adapter lacks ${missing}`);
    const externalBuffer = ({ kind, key }) => kind === "external" && this.#buffers.get(externals[key]);
    const absent = json.buffers.find((buffer) => buffer.kind === "external" && !externalBuffer(buffer));
    const sizes = json.buffers.map(({ bytes, kind }) => (kind === "external" ? 0 : bytes));
    const large = this.#tooLarge(Math.max(0, ...sizes), "the program");
    if (absent || large) return large ?? failure("validation", `there is no buffer for the external "${absent.key}"`);
    const [buffers, error] = this.#watch("out-of-memory", () => json.buffers.map((buffer, i) => {
      if (buffer.kind === "external") return externalBuffer(buffer);
      const made = this.#buffers.get(this.#allocate(buffer.bytes, buffer.key || `buffer ${i}`, program));
      if (buffer.kind === "constant") this.#queue.writeBuffer(made.buffer, 0, blobs[buffer.key]);
      return made;
    }));
    Object.assign(program, { buffers, upload: buffers[json.upload.buffer]?.buffer });
    return (await error) && failure("oom", `no GPU memory for the program's ${sum(sizes)} bytes`);
  }

  /** {ok: true, pipeline} or a failure; equal text with equal accesses is compiled once. */
  #pipeline(code, name, accesses) {
    if (this.#shaders.size > SHADERS_KEPT) this.#shaders.clear();
    const shader = getOrMake(this.#shaders, code, () => {
      this.#counts.modules++;
      const [module] = this.#watch("validation", () => this.#device.createShaderModule({ code }));
      return { module, pipelines: new Map(), info: null }; // errors are for the pipeline to tell
    });
    return getOrMake(shader.pipelines, accesses.join(), async () => {
      try {
        const { pipeline: layout } = getOrMake(this.#layouts, accesses.join(), () => this.#layout(accesses));
        const compute = { module: shader.module, entryPoint: "main" };
        const pipeline = await this.#device.createComputePipelineAsync({ label: name, layout, compute });
        this.#counts.pipelines++;
        return { ok: true, pipeline };
      } catch (error) {
        this.#shaders.delete(code);
        shader.info ??= shader.module.getCompilationInfo(); // once: Chromium's second answer never comes
        const places = (await shader.info).messages.filter(({ type }) => type === "error")
          .map(({ lineNum: line, linePos: column, message }) => ({ line, column, message }));
        return failure(error.reason === "internal" ? "internal" : "wgsl", error.message, { places });
      }
    });
  }

  #layout(accesses) {
    const entries = accesses.map((access, binding) => (
      { binding, visibility: GPUShaderStage.COMPUTE, buffer: { type: BINDING_TYPES[access] } }));
    return this.#watch("validation", () => {
      const group = this.#device.createBindGroupLayout({ entries });
      return { group, pipeline: this.#device.createPipelineLayout({ bindGroupLayouts: [group] }) };
    })[0];
  }

  /** Make a kernel's bind group and encode it once without submitting, so that errors name the kernel. */
  #bind(program, spec, kernel) {
    const entries = spec.bindings.map(({ buffer, offset, size }, binding) => (
      { binding, resource: { buffer: program.buffers[buffer].buffer, offset, size } }));
    return this.#watch("validation", () => {
      const { group: layout } = this.#layouts.get(accessesOf(spec).join());
      kernel.group = this.#device.createBindGroup({ layout, entries });
      const encoder = this.#device.createCommandEncoder();
      this.#encode(encoder, [kernel]);
      encoder.finish();
    })[1];
  }
}
