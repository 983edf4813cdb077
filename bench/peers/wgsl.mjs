/**
 * The yardstick of the products: plain WGSL with register blocking and nothing else.
 *
 * A thread computes `rows` rows of `vectors` vec4 columns of C = A·B. Along k it takes four steps at a time: a
 * vec4 of each of its rows of A, and its vectors of four rows of B. No workgroup memory, no guards: the shapes
 * divide.
 */
let device;

export async function connect() {
  const adapter = await navigator.gpu.requestAdapter();
  device ??= await adapter.requestDevice();
}

const range = (count, make) => Array.from({ length: count }, (_, i) => make(i));
const lines = (count, make) => range(count, make).join("\n");

function kernel({ m, k, n }, rows, vectors) {
  const multiplyAdds = (j) =>
    lines(vectors, (v) => `let b${j}_${v} = b[first + (4u * i + ${j}u) * ${n / 4}u + ${v}u];`) +
    lines(rows, (r) => lines(vectors, (v) => `c${r}_${v} += a${r}[${j}] * b${j}_${v};`));
  return `
    @group(0) @binding(0) var<storage, read> a: array<vec4f>;         // [batch, ${m}, ${k} / 4]
    @group(0) @binding(1) var<storage, read> b: array<vec4f>;         // [batch, ${k}, ${n} / 4]
    @group(0) @binding(2) var<storage, read_write> c: array<vec4f>;   // [batch, ${m}, ${n} / 4]

    @compute @workgroup_size(8, 8)
    fn main(@builtin(global_invocation_id) thread: vec3u) {
      let row = thread.z * ${m}u + thread.y * ${rows}u;
      let column = thread.x * ${vectors}u;
      let first = thread.z * ${(k * n) / 4}u + column;
      ${lines(rows, (r) => lines(vectors, (v) => `var c${r}_${v} = vec4f(0);`))}
      for (var i = 0u; i < ${k / 4}u; i++) {
        ${lines(rows, (r) => `let a${r} = a[(row + ${r}u) * ${k / 4}u + i];`)}
        ${lines(4, multiplyAdds)}
      }
      ${lines(rows, (r) => lines(vectors, (v) => `c[(row + ${r}u) * ${n / 4}u + column + ${v}u] = c${r}_${v};`))}
    }`;
}

/** `count` products; like the other systems it reads the last one when they are chained, else all of them. */
export async function createProduct(product, operands, count, [rows, vectors]) {
  const { batch, m, n, chained } = product;
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
  const module = device.createShaderModule({ code: kernel(product, rows, vectors) });
  const pipeline = await device.createComputePipelineAsync({ layout: "auto", compute: { module } });
  const group = device.createBindGroup({
    layout: pipeline.getBindGroupLayout(0),
    entries: [...inputs, result].map((buffer, binding) => ({ binding, resource: { buffer } })),
  });
  const workgroups = [n / (4 * vectors) / 8, m / rows / 8, batch];
  if (!workgroups.every(Number.isInteger)) throw new Error(`${rows}x${vectors} blocks do not divide ${m}x${n}`);

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
