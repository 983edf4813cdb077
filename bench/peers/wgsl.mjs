/** The yardstick of the products: plain WGSL with register blocking and nothing else (bench/yardstick.py). */
let device;

export async function connect() {
  const adapter = await navigator.gpu.requestAdapter();
  device ??= await adapter.requestDevice();
}

const range = (count, make) => Array.from({ length: count }, (_, i) => make(i));

/** `count` products; like the other systems it reads the last one when they are chained, else all of them. */
export async function createProduct(product, operands, count, block) {
  const { batch, m, n, chained } = product;
  const { code, workgroups } = product.yardstick[block];
  const { STORAGE, COPY_DST, COPY_SRC, MAP_READ } = GPUBufferUsage;
  const bytes = batch * m * n * 4;
  const reads = chained ? 1 : count;
  const inputs = operands.map((typed) => {
    const buffer = device.createBuffer({ size: typed.byteLength, usage: STORAGE | COPY_DST });
    device.queue.writeBuffer(buffer, 0, typed);
    return buffer;
  });
  const result = device.createBuffer({ size: bytes, usage: STORAGE | COPY_SRC });
  const staging = device.createBuffer({ size: reads * bytes, usage: MAP_READ | COPY_DST });
  const module = device.createShaderModule({ code });
  const pipeline = await device.createComputePipelineAsync({ layout: "auto", compute: { module } });
  const group = device.createBindGroup({
    layout: pipeline.getBindGroupLayout(0),
    entries: [...inputs, result].map((buffer, binding) => ({ binding, resource: { buffer } })),
  });

  return {
    async run() {
      const encoder = device.createCommandEncoder();
      for (let i = 0; i < count; i++) {
        const pass = encoder.beginComputePass();
        pass.setPipeline(pipeline);
        pass.setBindGroup(0, group);
        pass.dispatchWorkgroups(...workgroups);
        pass.end();
        if (!chained || i === count - 1) encoder.copyBufferToBuffer(result, 0, staging, chained ? 0 : i * bytes, bytes);
      }
      device.queue.submit([encoder.finish()]);
      await staging.mapAsync(GPUMapMode.READ);
      const data = range(reads, (i) => new Float32Array(staging.getMappedRange(i * bytes, bytes).slice(0)));
      staging.unmap();
      return data;
    },
    destroy() {
      [...inputs, result, staging].forEach((buffer) => buffer.destroy());
    },
  };
}
