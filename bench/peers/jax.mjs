/**
 * jax-js: a whole step (loss, gradients, clipping, Adam) is one jit().
 *
 * Its functions consume the arrays they are given; `.ref` is one more use. Its optimizers are no npm package,
 * so Adam is written out here.
 */
import { defaultDevice, init, jit, lax, nn, numpy as np, valueAndGrad } from "@jax-js/jax";

export async function connect() {
  const devices = await init("webgpu");
  if (!devices.includes("webgpu")) throw new Error("jax-js found no WebGPU");
  defaultDevice("webgpu");
}

const upload = (typed, shape = typed.shape) =>
  np.array(typed, { shape, dtype: typed instanceof Int32Array ? np.int32 : np.float32 });
const scalar = (value) => np.array(new Float32Array([value]), { shape: [], dtype: np.float32 });

// --- models: p holds the parameters by webgrad's paths -------------------------------------------------

function linear(p, path, x) {
  const product = np.matmul(x, p[`${path}.W`].ref);
  return `${path}.b` in p ? product.add(p[`${path}.b`].ref) : product;
}

function layerNorm(p, path, x) {
  return nn.standardize(x, -1, { epsilon: 1e-5 }).mul(p[`${path}.g`].ref).add(p[`${path}.b`].ref);
}

function mlp(p, x) {
  let h = linear(p, "l1", x);
  for (let i = 2; `l${i}.W` in p; i++) h = linear(p, `l${i}`, nn.relu(h));
  return h;
}

function cnn(p, x) {
  const batch = x.shape[0];
  let h = x;
  for (const layer of ["conv1", "conv2"]) {
    const channels = p[`${layer}.b`].shape[0];
    const bias = p[`${layer}.b`].ref.reshape([1, channels, 1, 1]);
    h = nn.relu(lax.conv(h, p[`${layer}.W`].ref, [1, 1], "SAME").add(bias));
    h = lax.reduceWindow(h, (window) => np.max(window), [2, 2], [2, 2]);
  }
  return linear(p, "fc", h.reshape([batch, p["fc.W"].shape[0]]));
}

function transformer(p, ids, heads, activation) {
  const [batch, length] = ids.shape;
  const [vocabulary, width] = p.tok.shape;
  let x = np.matmul(nn.oneHot(ids, vocabulary), p.tok.ref).add(p.pos.ref);
  for (let i = 0; `layers.${i}.q.W` in p; i++) {
    const block = `layers.${i}`;
    const h = layerNorm(p, `${block}.ln1`, x.ref);
    const [q, k, v] = [..."qkv"].map((part) =>
      linear(p, `${block}.${part}`, h.ref).reshape([batch, length, heads, width / heads]),
    );
    h.dispose();
    const mixed = nn.dotProductAttention(q, k, v, { isCausal: true }).reshape([batch, length, width]);
    x = x.add(linear(p, `${block}.o`, mixed));
    const inner = activation(linear(p, `${block}.up`, layerNorm(p, `${block}.ln2`, x.ref)));
    x = x.add(linear(p, `${block}.down`, inner));
  }
  return np.matmul(layerNorm(p, "lnf", x), np.transpose(p.tok.ref));
}

/** Negative log-likelihoods of the ids `y`. */
function surprise(logits, y) {
  const classes = logits.shape.at(-1);
  return np.sum(nn.logSoftmax(logits).mul(nn.oneHot(y, classes)), -1).mul(-1);
}

/** The mean over the positions from `start` on. */
function meanFrom(values, start) {
  const [batch, length] = values.shape;
  const counted = np.arange(length).greaterEqual(start).astype(np.float32);
  return np.sum(values.mul(counted)).mul(1 / (batch * (length - start)));
}

const exactGelu = (x) => nn.gelu(x, { approximate: false });
const LOSSES = {
  W1: (p, x, y) => np.mean(np.square(mlp(p, x).sub(y))),
  W2: (p, x, y) => np.mean(surprise(mlp(p, x), y)),
  W3: (p, x, y, { heads }) => np.mean(surprise(transformer(p, x, heads, exactGelu), y)),
  W4: (p, x, y) => np.mean(surprise(cnn(p, x), y)),
  W6: (p, x, y, { heads, start }) => meanFrom(surprise(transformer(p, x, heads, nn.relu), y), start),
};

// --- training ----------------------------------------------------------------------------------------

/** Scale the gradients, in place, to a global norm of at most `clip`. */
function clipNorm(grads, clip) {
  const squares = Object.values(grads).map((g) => np.sum(np.square(g.ref)));
  const norm = np.sqrt(squares.reduce((a, b) => a.add(b)));
  const scale = np.minimum(np.reciprocal(norm.add(1e-6)).mul(clip), 1);
  for (const name in grads) grads[name] = grads[name].mul(scale.ref);
  scale.dispose();
}

/** jit((p, m, v, b1ᵗ⁻¹, b2ᵗ⁻¹, x, y) → [loss, the new p, m, v, b1ᵗ, b2ᵗ]). */
function trainingStep(loss, task) {
  const { lr, b1, b2, eps, weight_decay: decay, clip_norm: clip } = task.optimizer;
  const lossAndGrads = valueAndGrad((p, x, y) => {
    const value = loss(p, x, y, task);
    for (const name in p) p[name].dispose(); // each use above was a .ref
    return value;
  });
  return jit((p, m, v, power1, power2, x, y) => {
    const kept = Object.fromEntries(Object.entries(p).map(([name, array]) => [name, array.ref]));
    const [value, grads] = lossAndGrads(kept, x, y);
    if (clip) clipNorm(grads, clip);
    const next1 = power1.mul(b1);
    const next2 = power2.mul(b2);
    const unbias1 = np.reciprocal(np.subtract(1, next1.ref));
    const unbias2 = np.reciprocal(np.subtract(1, next2.ref));
    const [newP, newM, newV] = [{}, {}, {}];
    for (const name in p) {
      newM[name] = m[name].mul(b1).add(grads[name].ref.mul(1 - b1));
      newV[name] = v[name].mul(b2).add(np.square(grads[name]).mul(1 - b2));
      const root = np.sqrt(newV[name].ref.mul(unbias2.ref)).add(eps);
      const old = decay && p[name].ndim === 2 ? p[name].mul(1 - lr * decay) : p[name];
      newP[name] = old.sub(newM[name].ref.mul(unbias1.ref).div(root).mul(lr));
    }
    unbias1.dispose();
    unbias2.dispose();
    return [value, newP, newM, newV, next1, next2];
  });
}

export async function create(name, task) {
  const zeros = (typed) => upload(Object.assign(new Float32Array(typed.length), { shape: typed.shape }));
  const all = (make) => Object.fromEntries(Object.entries(task.params).map(([path, typed]) => [path, make(typed)]));
  const inputShape = name === "W4" ? [task.batches[0].x.shape[0], 1, 28, 28] : task.batches[0].x.shape;
  const step = trainingStep(LOSSES[name], task);
  let state = [all((typed) => upload(typed)), all(zeros), all(zeros), scalar(1), scalar(1)];
  return {
    async step({ x, y }) {
      const [loss, ...next] = step(...state, upload(x, inputShape), upload(y));
      state = next;
      return (await loss.data())[0];
    },
    destroy() {
      for (const group of state) for (const array of group.dispose ? [group] : Object.values(group)) array.dispose();
      step.dispose();
    },
  };
}

// --- products ----------------------------------------------------------------------------------------

export async function createProduct({ chained }, [left, right], count) {
  const pairs = Array.from({ length: chained ? 1 : count }, () => [upload(left), upload(right)]);
  const multiply = jit((pairs) => {
    if (!chained) return pairs.map(([a, b]) => np.matmul(a, b));
    let [[c, b]] = pairs;
    for (let i = 0; i < count; i++) c = np.matmul(c, b.ref);
    b.dispose();
    return [c];
  });
  return {
    async run() {
      const results = multiply(pairs.map((pair) => pair.map((array) => array.ref)));
      return Promise.all(results.map((result) => result.data()));
    },
    destroy() {
      pairs.flat().forEach((array) => array.dispose());
      multiply.dispose();
    },
  };
}
