/**
 * Counts WebGPU calls from outside webgrad, by wrapping the prototypes before any page script runs.
 * `gpuCounts.snapshot()` is a plain object of totals since the page loaded (`live_*`: what exists now);
 * `gpuCounts.loseDevices()` destroys every device; `gpuCounts.settle()` waits until every device's queued work and errors have arrived. An error that no
 * error scope caught becomes a console error, so the harness sees it.
 */
(() => {
  if (!globalThis.GPUDevice || globalThis.gpuCounts) return;
  const counts = {
    devices: 0,
    buffers_created: 0,
    buffers_destroyed: 0,
    live_buffers: 0,
    live_bytes: 0,
    modules: 0,
    pipelines: 0,
    bind_groups: 0,
    encoders: 0,
    passes: 0,
    dispatches: 0,
    copies: 0,
    clears: 0,
    submits: 0,
    writes: 0,
    write_bytes: 0,
    maps: 0,
    map_bytes: 0,
    errors: 0,
  };
  const live = new WeakMap(); // buffer → bytes, until it is destroyed
  const lost = new WeakSet(); // devices that are gone
  const devices = new Set(); // WeakRefs

  /** Replace `prototype[name]`, calling `after(result, args, self)` when it returned. */
  const wrap = (type, name, after) => {
    const prototype = globalThis[type]?.prototype;
    const original = prototype?.[name];
    if (!original) return;
    prototype[name] = function (...args) {
      const result = original.apply(this, args);
      after.call(this, result, args);
      return result;
    };
  };
  const count = (type, name, key) => wrap(type, name, () => counts[key]++);

  wrap("GPUAdapter", "requestDevice", (promise) => {
    promise.then(
      (device) => {
        counts.devices++;
        devices.add(new WeakRef(device));
        device.lost.then(() => lost.add(device));
        device.addEventListener("uncapturederror", ({ error }) => {
          counts.errors++;
          console.error(`uncaptured ${error.constructor.name}: ${error.message}`);
        });
      },
      () => {},
    );
  });
  wrap("GPUDevice", "createBuffer", (buffer) => {
    counts.buffers_created++;
    counts.live_buffers++;
    counts.live_bytes += buffer.size;
    live.set(buffer, buffer.size);
  });
  wrap("GPUBuffer", "destroy", function () {
    if (!live.has(this)) return;
    counts.buffers_destroyed++;
    counts.live_buffers--;
    counts.live_bytes -= live.get(this);
    live.delete(this);
  });
  wrap("GPUBuffer", "mapAsync", function (_promise, [, offset = 0, size]) {
    counts.maps++;
    counts.map_bytes += size ?? this.size - offset;
  });
  wrap("GPUQueue", "writeBuffer", (_result, [, , data, from = 0, size]) => {
    const unit = data.BYTES_PER_ELEMENT ?? 1;
    counts.writes++;
    counts.write_bytes += size === undefined ? data.byteLength - from * unit : size * unit;
  });
  count("GPUQueue", "submit", "submits");
  count("GPUDevice", "createShaderModule", "modules");
  count("GPUDevice", "createComputePipeline", "pipelines");
  count("GPUDevice", "createComputePipelineAsync", "pipelines");
  count("GPUDevice", "createBindGroup", "bind_groups");
  count("GPUDevice", "createCommandEncoder", "encoders");
  count("GPUCommandEncoder", "beginComputePass", "passes");
  count("GPUCommandEncoder", "copyBufferToBuffer", "copies");
  count("GPUCommandEncoder", "clearBuffer", "clears");
  count("GPUComputePassEncoder", "dispatchWorkgroups", "dispatches");
  count("GPUComputePassEncoder", "dispatchWorkgroupsIndirect", "dispatches");

  const settle = async () => {
    const waits = [];
    for (const reference of devices) {
      const device = reference.deref();
      if (!device || lost.has(device)) devices.delete(reference);
      else waits.push(device.queue.onSubmittedWorkDone().catch(() => {}));
    }
    const limit = new Promise((resolve) => setTimeout(resolve, 5000));
    await Promise.race([Promise.all(waits), limit]);
    await new Promise((resolve) => setTimeout(resolve)); // let error events be delivered
  };
  /** Lose every device, as a driver's crash would. */
  const loseDevices = () => devices.forEach((reference) => reference.deref()?.destroy());
  globalThis.gpuCounts = { snapshot: () => ({ ...counts }), settle, loseDevices };
})();
