"""Fits a curve with a small network while the page watches.

The page starts this file in a worker, calls its functions by name (`train`, `pause`, `reset`, `set_lr`,
`set_curve`) and draws what they publish.
"""

import time

import numpy as np

import webgrad as wg
from webgrad import nn, web

BATCH, HIDDEN = 256, 64
GRID = np.linspace(-1, 1, 241, dtype=np.float32)[:, None]  # where the fit is drawn

CURVES = {
    "sine": lambda x: np.sin(1.5 * np.pi * x),
    "chirp": lambda x: np.sin(3 * np.pi * x * np.abs(x) + 1),
    "triangle": lambda x: np.arcsin(np.sin(3 * np.pi * x)) * 2 / np.pi,
    "square": lambda x: 0.8 * np.sign(np.sin(2.5 * np.pi * x)),
}


class MLP(nn.Module):
    """One number in, two hidden layers, one number out."""

    def __init__(self):
        self.l1 = nn.Linear(1, HIDDEN, scale=2.0)
        self.l2 = nn.Linear(HIDDEN, HIDDEN, scale=0.17)
        self.l3 = nn.Linear(HIDDEN, 1, scale=0.1)

    def __call__(self, x):  # plain Python, traced once
        h = wg.gelu(self.l1(x))
        h = wg.capture("hidden", wg.tanh(self.l2(h)))
        return self.l3(h)


def loss_fn(model, x, y):
    return wg.mean((model(x) - y) ** 2)


training = await wg.compile_module(
    MLP, loss_fn,
    inputs={"x": (BATCH, 1), "y": (BATCH, 1)},
    optimizer=wg.optim.Adam(lr=5e-3),
    on_progress=web.show_progress,
)  # fmt: skip
drawing = await wg.compile_forward(
    MLP, lambda model, x: model(x),
    inputs={"x": GRID.shape},
    shared_params=training.params,  # the same buffers on the GPU: no copies
)  # fmt: skip

curve = CURVES["sine"]
running = False
step = 0
random = np.random.default_rng(0)


def about():
    """What computes, how large the network is, and how fast it learns."""
    parameters = sum(np.prod(handle.shape) for handle in training.params.values())
    return {
        "device": training.device, "adapter": training.adapter,
        "parameters": int(parameters), "lr": training.optimizer.lr,
    }  # fmt: skip


async def train():
    """Train until `pause`: for about two frames' time, then show, again and again."""
    global running, step
    running = True
    while running:
        began, first = time.perf_counter(), step
        while running and time.perf_counter() - began < 0.03:
            x = random.uniform(-1, 1, (BATCH, 1))
            loss = await training.step({"x": x, "y": curve(x)})
            step += 1
        speed = (step - first) / (time.perf_counter() - began)
        await show(loss, speed)
        await web.next_frame()


async def show(loss=None, speed=None):
    """Publish the target, the network's fit of it, and its second layer's activations."""
    result = await drawing.run({"x": GRID}, with_captures=True)
    web.publish("fit", {
        "step": step, "loss": loss, "speed": speed,
        "x": GRID[:, 0], "target": curve(GRID)[:, 0], "fit": result.output[:, 0],
        "hidden": result.captures["hidden"].T,  # one row a unit
    })  # fmt: skip


def pause():
    global running
    running = False


async def reset():
    """Back to the first weights."""
    global step
    step = 0
    training.upload_initial_params()
    training.reset_optimizer_state()
    await show()


def set_lr(lr):
    training.set(lr=lr)  # from the next step on; nothing is compiled again


async def set_curve(name):
    global curve
    curve = CURVES[name]
    if not running:
        await show()
