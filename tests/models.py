"""Three small models and, for each, the same training in float64 NumPy, written out by hand.

The unit tests run them on the NumPy executor, the page's tests on its GPU; all must give the losses of
`reference_losses`. The file needs NumPy and webgrad alone, so that the page can execute its text.
"""

import math

import numpy as np

import webgrad as wg
from webgrad import nn

STEPS = 20
LR, B1, B2, EPS = 1e-2, 0.9, 0.999, 1e-8


class Adam64:
    """Adam in float64, the formula of the optimizer's docstring."""

    def __init__(self, params):
        self.params = {name: value.astype(np.float64) for name, value in params.items()}
        self.m = {name: np.zeros(value.shape) for name, value in params.items()}
        self.v = {name: np.zeros(value.shape) for name, value in params.items()}
        self.t = 0

    def step(self, grads):
        """Move the parameters once."""
        assert grads.keys() == self.params.keys()
        self.t += 1
        correction = math.sqrt(1 - B2**self.t)
        lrt = LR * correction / (1 - B1**self.t)
        for name, g in grads.items():
            assert g.shape == self.params[name].shape, name
            self.m[name] = B1 * self.m[name] + (1 - B1) * g
            self.v[name] = B2 * self.v[name] + (1 - B2) * g * g
            step = self.m[name] / (np.sqrt(self.v[name]) + EPS * correction)
            self.params[name] = self.params[name] - lrt * step


def linear_back(x, w, dy):
    """Cotangents of x, W and b in y = x @ W + b, over all leading axes."""
    flat_x, flat_dy = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
    return dy @ w.T, flat_x.T @ flat_dy, flat_dy.sum(0)


def cross_entropy64(logits, targets):
    """The mean loss over all rows, and its gradient for the logits."""
    rows = logits.reshape(-1, logits.shape[-1])
    shifted = rows - rows.max(-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    at = np.arange(len(rows)), targets.reshape(-1)
    slope = np.exp(log_p)
    slope[at] -= 1
    return -log_p[at].mean(), (slope / len(rows)).reshape(logits.shape)


# --- an MLP with a regression loss ------------------------------------------------------------------


class MLP(nn.Module):
    """8 - 24 - 16 - 3, ReLU and tanh."""

    def __init__(self):
        self.l1, self.l2, self.l3 = nn.Linear(8, 24), nn.Linear(24, 16), nn.Linear(16, 3)

    def __call__(self, x):
        return self.l3(wg.tanh(self.l2(wg.relu(self.l1(x)))))


def mlp_loss(model, x, y):
    """Mean square error."""
    return wg.mean((model(x) - y) ** 2)


def mlp_back(p, x, y):
    """Loss and gradients."""
    a = x @ p["l1.W"] + p["l1.b"]
    h = np.maximum(a, 0)
    u = np.tanh(h @ p["l2.W"] + p["l2.b"])
    error = u @ p["l3.W"] + p["l3.b"] - y
    g = {}
    du, g["l3.W"], g["l3.b"] = linear_back(u, p["l3.W"], 2 * error / error.size)
    dh, g["l2.W"], g["l2.b"] = linear_back(h, p["l2.W"], du * (1 - u * u))
    _, g["l1.W"], g["l1.b"] = linear_back(x, p["l1.W"], dh * (a > 0))
    return np.mean(error**2), g


def mlp_batch(rng):
    """32 points of a smooth function."""
    x = rng.normal(size=(32, 8)).astype(np.float32)
    return {"x": x, "y": np.sin(x[:, :3]) + x[:, 3:6] * x[:, 5:8]}


# --- a convolutional classifier ---------------------------------------------------------------------


class CNN(nn.Module):
    """Convolution 3x3 of 1 to 6 channels, ReLU, max pool 2, linear to 10 classes."""

    def __init__(self):
        self.W, self.b = self.param((6, 1, 3, 3)), self.param((6,))
        self.head = nn.Linear(6 * 5 * 5, 10)

    def __call__(self, x):
        h = wg.max_pool2d(wg.relu(wg.conv2d(x, self.W, self.b, padding=1)), 2)
        return self.head(wg.reshape(h, h.shape[0], -1))


def class_loss(model, x, t):
    """Cross-entropy of the classes."""
    return wg.cross_entropy(model(x), t)


def cnn_back(p, x, t):
    """Loss and gradients."""
    n, _, height, width = x.shape
    padded = np.pad(x[:, 0].astype(np.float64), ((0, 0), (1, 1), (1, 1)))
    taps = [(i, j) for i in range(3) for j in range(3)]
    patches = np.stack([padded[:, i : i + height, j : j + width] for i, j in taps], -1)
    kernel = p["W"].reshape(6, 9)
    a = patches @ kernel.T + p["b"]  # [n, height, width, 6]
    h = np.maximum(a, 0)
    quads = h.reshape(n, height // 2, 2, width // 2, 2, 6).transpose(0, 5, 1, 3, 2, 4).reshape(n, 6, 5, 5, 4)
    best = quads.argmax(-1)
    flat = np.take_along_axis(quads, best[..., None], -1).reshape(n, -1)
    loss, slope = cross_entropy64(flat @ p["head.W"] + p["head.b"], t)
    g = {}
    dflat, g["head.W"], g["head.b"] = linear_back(flat, p["head.W"], slope)
    dquads = np.zeros(quads.shape)
    np.put_along_axis(dquads, best[..., None], dflat.reshape(n, 6, 5, 5, 1), -1)
    dh = dquads.reshape(n, 6, height // 2, width // 2, 2, 2).transpose(0, 2, 4, 3, 5, 1)
    da = dh.reshape(n, height, width, 6) * (a > 0)
    g["W"] = np.einsum("nhwc,nhwk->ck", da, patches).reshape(6, 1, 3, 3)
    g["b"] = da.sum((0, 1, 2))
    return loss, g


def cnn_batch(rng):
    """16 images with a bright spot whose place is the class."""
    t = rng.integers(0, 10, 16).astype(np.int32)
    x = rng.normal(size=(16, 1, 10, 10)).astype(np.float32) * 0.3
    x[np.arange(16), 0, t, 9 - t] += 2
    return {"x": x, "t": t}


# --- a causal transformer ---------------------------------------------------------------------------

VOCABULARY, LENGTH, WIDTH, HEADS = 13, 8, 16, 2


class Transformer(nn.Module):
    """Token and position embeddings, one pre-norm block (causal attention, GELU), a norm and a head."""

    def __init__(self):
        self.tok, self.pos = self.param((VOCABULARY, WIDTH)), self.param((LENGTH, WIDTH))
        self.n1, self.n2, self.n3 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def __call__(self, ids):
        x = wg.embedding(self.tok, ids) + self.pos
        h = self.n1(x)
        split = lambda y: wg.transpose(wg.reshape(y, *ids.shape, HEADS, -1), 0, 2, 1, 3)  # noqa: E731
        q, k, v = split(self.q(h)), split(self.k(h)), split(self.v(h))
        weights = wg.softmax_causal(q @ wg.swapaxes(k, -1, -2) / math.sqrt(WIDTH // HEADS))
        x = x + self.o(wg.reshape(wg.transpose(weights @ v, 0, 2, 1, 3), x.shape))
        x = x + self.down(wg.gelu(self.up(self.n2(x))))
        return self.head(self.n3(x))


def norm_forward(x, g, b):
    """LayerNorm, and what its gradient needs."""
    centred = x - x.mean(-1, keepdims=True)
    scale = 1 / np.sqrt(np.mean(centred**2, -1, keepdims=True) + 1e-5)
    return centred * scale * g + b, (centred * scale, scale)


def norm_back(saved, g, dy):
    """Cotangents of x, g and b."""
    y, scale = saved
    dn = dy * g
    dx = scale * (dn - dn.mean(-1, keepdims=True) - y * np.mean(dn * y, -1, keepdims=True))
    axes = tuple(range(dy.ndim - 1))
    return dx, (dy * y).sum(axes), dy.sum(axes)


def transformer_back(p, x, t):
    """Loss and gradients; x are ids."""
    erf = np.vectorize(math.erf, otypes=[np.float64])
    batch = len(x)

    def split(y):
        return y.reshape(batch, LENGTH, HEADS, -1).transpose(0, 2, 1, 3)

    def joined(y):
        return y.transpose(0, 2, 1, 3).reshape(batch, LENGTH, WIDTH)

    root = math.sqrt(WIDTH // HEADS)
    x0 = p["tok"][x] + p["pos"]
    h, saved1 = norm_forward(x0, p["n1.g"], p["n1.b"])
    q, k, v = (split(h @ p[f"{n}.W"]) for n in "qkv")
    scores = np.where(np.tril(np.ones((LENGTH, LENGTH), bool)), q @ k.swapaxes(-1, -2) / root, -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    weights = e / e.sum(-1, keepdims=True)
    mixed = joined(weights @ v)
    x1 = x0 + mixed @ p["o.W"]
    h2, saved2 = norm_forward(x1, p["n2.g"], p["n2.b"])
    a = h2 @ p["up.W"] + p["up.b"]
    phi = 0.5 * (1 + erf(a / math.sqrt(2)))
    x2 = x1 + (a * phi) @ p["down.W"] + p["down.b"]
    h3, saved3 = norm_forward(x2, p["n3.g"], p["n3.b"])
    loss, slope = cross_entropy64(h3 @ p["head.W"], t)

    g = {}
    dh3, g["head.W"], _ = linear_back(h3, p["head.W"], slope)
    dx2, g["n3.g"], g["n3.b"] = norm_back(saved3, p["n3.g"], dh3)
    du, g["down.W"], g["down.b"] = linear_back(a * phi, p["down.W"], dx2)
    da = du * (phi + a * np.exp(-a * a / 2) / math.sqrt(2 * math.pi))
    dh2, g["up.W"], g["up.b"] = linear_back(h2, p["up.W"], da)
    dx1, g["n2.g"], g["n2.b"] = norm_back(saved2, p["n2.g"], dh2)
    dx1 = dx1 + dx2
    dmixed, g["o.W"], _ = linear_back(mixed, p["o.W"], dx1)
    dout = split(dmixed)
    dweights = dout @ v.swapaxes(-1, -2)
    dscores = weights * (dweights - np.sum(dweights * weights, -1, keepdims=True)) / root
    cotangents = {"q": dscores @ k, "k": dscores.swapaxes(-1, -2) @ q, "v": weights.swapaxes(-1, -2) @ dout}
    dh = 0
    for n in "qkv":
        part, g[f"{n}.W"], _ = linear_back(h, p[f"{n}.W"], joined(cotangents[n]))
        dh = dh + part
    dx0, g["n1.g"], g["n1.b"] = norm_back(saved1, p["n1.g"], dh)
    dx0 = dx0 + dx1
    g["pos"] = dx0.sum(0)
    g["tok"] = np.zeros(p["tok"].shape)
    np.add.at(g["tok"], x, dx0)
    return loss, {name: g[name] for name in p}


def transformer_batch(rng):
    """Four sequences that count upwards in steps of 1 to 3, and their next tokens."""
    start, pace = rng.integers(0, VOCABULARY, 4), rng.integers(1, 4, 4)
    ids = (start[:, None] + pace[:, None] * np.arange(LENGTH + 1)) % VOCABULARY
    return {"x": ids[:, :-1].astype(np.int32), "t": ids[:, 1:].astype(np.int32)}


# --- running them -----------------------------------------------------------------------------------

#: name -> (factory, loss, loss and gradients in NumPy, a batch from a generator)
MODELS = {
    "mlp": (MLP, mlp_loss, mlp_back, mlp_batch),
    "cnn": (CNN, class_loss, cnn_back, cnn_batch),
    "transformer": (Transformer, class_loss, transformer_back, transformer_batch),
}


def batches(name):
    """The batches of the run, the same everywhere."""
    rng = np.random.default_rng(5)
    return [MODELS[name][3](rng) for _ in range(STEPS)]


def initial_params(shapes):
    """First values by name: small normal numbers; gains about 1."""
    rng = np.random.default_rng(6)
    gains = {"n1.g", "n2.g", "n3.g"}
    return {
        name: (rng.normal(size=shape) * 0.3 + (name in gains)).astype(np.float32)
        for name, shape in shapes.items()
    }


def reference_losses(name, shapes):
    """The losses of the steps in float64."""
    optimizer = Adam64(initial_params(shapes))
    losses = []
    for batch in batches(name):
        loss, grads = MODELS[name][2](optimizer.params, **batch)
        losses.append(float(loss))
        optimizer.step(grads)
    return losses


async def train(name, device, seed=0):
    """Compile the model on a device; returns the program with its initial parameters written."""
    factory, loss, _, _ = MODELS[name]
    program = await wg.compile_module(
        factory,
        loss,
        inputs=batches(name)[0],
        optimizer=wg.optim.Adam(lr=LR, b1=B1, b2=B2, eps=EPS),
        seed=seed,
        device=device,
    )
    program.upload_params(initial_params({n: p.shape for n, p in program.params.items()}))
    return program


async def losses_of(name, device):
    """The losses of the steps by webgrad, and the shapes of the parameters."""
    async with await train(name, device) as program:
        losses = [await program.step(batch) for batch in batches(name)]
        return losses, {n: p.shape for n, p in program.params.items()}
