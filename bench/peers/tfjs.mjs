/** TensorFlow.js with its WebGPU backend: eager, so there is nothing to compile but its shaders. */
import * as tf from "@tensorflow/tfjs";
import "@tensorflow/tfjs-backend-webgpu";

export async function connect() {
  tf.enableProdMode();
  if (!(await tf.setBackend("webgpu"))) throw new Error("TensorFlow.js found no WebGPU");
  await tf.ready();
}

const upload = (typed, shape = typed.shape) =>
  tf.tensor(typed, shape, typed instanceof Int32Array ? "int32" : "float32");

// --- models: p holds the variables by webgrad's paths --------------------------------------------------

function linear(p, path, x) {
  const product = tf.matMul(x, p[`${path}.W`]);
  return `${path}.b` in p ? product.add(p[`${path}.b`]) : product;
}

function layerNorm(p, path, x) {
  const centred = x.sub(x.mean(-1, true));
  const deviation = centred.square().mean(-1, true).add(1e-5).sqrt();
  return centred.div(deviation).mul(p[`${path}.g`]).add(p[`${path}.b`]);
}

function mlp(p, x) {
  let h = linear(p, "l1", x);
  for (let i = 2; `l${i}.W` in p; i++) h = linear(p, `l${i}`, h.relu());
  return h;
}

/** Pooling knows NHWC alone, so the images and (by `arrange`) the kernels are in that order. */
function cnn(p, x) {
  let h = x.reshape([-1, 28, 28, 1]);
  for (const layer of ["conv1", "conv2"]) {
    h = tf.conv2d(h, p[`${layer}.W`], 1, "same").add(p[`${layer}.b`]).relu();
    h = tf.maxPool(h, 2, 2, "valid");
  }
  return linear(p, "fc", h.reshape([x.shape[0], -1]));
}

function arrange(path, tensor) {
  if (/^conv\d\.W$/.test(path)) return tensor.transpose([2, 3, 1, 0]);
  if (path !== "fc.W") return tensor;
  return tensor.reshape([16, 7, 7, 10]).transpose([1, 2, 0, 3]).reshape([784, 10]);
}

/** Activations are matrices [B·T, D], for which matMul is at its best. */
function transformer(p, ids, { heads, mask }, activation) {
  const [batch, length] = ids.shape;
  const width = p.tok.shape[1];
  let x = tf.gather(p.tok, ids).add(p.pos).reshape([batch * length, width]);
  for (let i = 0; `layers.${i}.q.W` in p; i++) {
    const block = `layers.${i}`;
    const h = layerNorm(p, `${block}.ln1`, x);
    const [q, k, v] = [..."qkv"].map((part) =>
      linear(p, `${block}.${part}`, h).reshape([batch, length, heads, width / heads]).transpose([0, 2, 1, 3]),
    );
    const scores = tf.matMul(q, k, false, true).mul(1 / Math.sqrt(width / heads)).add(mask);
    const mixed = tf.matMul(tf.softmax(scores), v).transpose([0, 2, 1, 3]).reshape([batch * length, width]);
    x = x.add(linear(p, `${block}.o`, mixed));
    const inner = activation(linear(p, `${block}.up`, layerNorm(p, `${block}.ln2`, x)));
    x = x.add(linear(p, `${block}.down`, inner));
  }
  return tf.matMul(layerNorm(p, "lnf", x), p.tok, false, true);
}

/** With weights of 0 and 1 it is the mean over the positions of weight 1. */
function crossEntropy(logits, y, weights) {
  return tf.losses.softmaxCrossEntropy(tf.oneHot(y.flatten(), logits.shape.at(-1)), logits, weights);
}

const exactGelu = (x) => x.mul(0.5).mul(x.mul(Math.SQRT1_2).erf().add(1));
const LOSSES = {
  W1: (p, x, y) => mlp(p, x).sub(y).square().mean(),
  W2: (p, x, y) => crossEntropy(mlp(p, x), y),
  W3: (p, x, y, fixed) => crossEntropy(transformer(p, x, fixed, exactGelu), y),
  W4: (p, x, y) => crossEntropy(cnn(p, x), y),
  W6: (p, x, y, fixed) => crossEntropy(transformer(p, x, fixed, tf.relu), y, fixed.weights),
};

// --- training ----------------------------------------------------------------------------------------

/** The causal mask and the weights of the counted positions, made once. */
function fixedTensors({ params, batches, heads, start }) {
  if (!params.pos) return {};
  const [batch, length] = batches[0].x.shape;
  const mask = Float32Array.from({ length: length ** 2 }, (_, i) => (i % length > Math.floor(i / length) ? -1e9 : 0));
  const weights = Float32Array.from({ length: batch * length }, (_, i) => Number(i % length >= start));
  return { heads, mask: tf.tensor(mask, [length, length]), weights: start ? tf.tensor(weights) : undefined };
}

/** Clip, decay the matrices, then Adam: TensorFlow.js has neither AdamW nor clipping of its own. */
function clippedStep(adam, { lr, weight_decay: decay, clip_norm: clip }, loss, variables) {
  const { value, grads } = tf.variableGrads(loss, variables);
  tf.tidy(() => {
    const norm = tf.stack(Object.values(grads).map((g) => g.square().sum())).sum().sqrt();
    const scale = tf.minimum(tf.div(clip, norm.add(1e-6)), 1);
    for (const variable of variables) if (variable.rank === 2) variable.assign(variable.mul(1 - lr * decay));
    adam.applyGradients(Object.fromEntries(Object.entries(grads).map(([name, g]) => [name, g.mul(scale)])));
  });
  tf.dispose(grads);
  return value;
}

let created = 0;

export async function create(name, task) {
  const { optimizer, params } = task;
  const prefix = `${name}.${created++}`; // a variable's name is unique in the whole page
  const p = tf.tidy(() =>
    Object.fromEntries(
      Object.entries(params).map(([path, typed]) => [
        path,
        tf.variable(arrange(path, upload(typed)), true, `${prefix}.${path}`),
      ]),
    ),
  );
  const variables = Object.values(p);
  const fixed = fixedTensors(task);
  const adam = tf.train.adam(optimizer.lr, optimizer.b1, optimizer.b2, optimizer.eps);
  return {
    async step(batch) {
      const [x, y] = [upload(batch.x), upload(batch.y)];
      const loss = () => LOSSES[name](p, x, y, fixed);
      const value = optimizer.clip_norm
        ? clippedStep(adam, optimizer, loss, variables)
        : adam.minimize(loss, true, variables);
      tf.dispose([x, y]);
      const [result] = await value.data();
      value.dispose();
      return result;
    },
    destroy() {
      adam.dispose();
      tf.dispose([variables, fixed.mask, fixed.weights]);
    },
  };
}

// --- products ----------------------------------------------------------------------------------------

export async function createProduct({ chained }, operands, count) {
  const [a, b] = operands.map((typed) => upload(typed));
  const chain = () => {
    let c = a;
    for (let i = 0; i < count; i++) c = tf.matMul(c, b);
    return [c];
  };
  const many = () => Array.from({ length: count }, () => tf.matMul(a, b));
  return {
    async run() {
      const results = tf.tidy(chained ? chain : many);
      const data = await Promise.all(results.map((result) => result.data()));
      tf.dispose(results);
      return data;
    },
    destroy() {
      tf.dispose([a, b]);
    },
  };
}
