"""Trains a network on handwritten digits while the page watches.

The page starts this file in a worker, calls its functions by name (`choose`, `train`, `pause`, `reset`,
`examples`, `look`) and draws what they return and publish.

MNIST has 60,000 training images. The last 5,000 of them are held out: they show how training goes. The
10,000 test images are used once, when training is done, and for no choice.
"""

import time

import numpy as np

import webgrad as wg
from webgrad import nn, web

BATCH = 128
JUDGED = 250  # images a run when accuracy is measured
HELD_OUT = 5_000
EPOCHS = {"mlp": 3, "cnn": 2}  # of one training, from a high learning rate down to almost none
PEAK_LR = {"mlp": 6e-3, "cnn": 6e-3}  # chosen by the held-out images


class MLP(nn.Module):
    """784 pixels, 128 hidden units, 10 digits."""

    def __init__(self):
        self.hidden = nn.Linear(784, 128, init=nn.init.kaiming_normal())
        self.output = nn.Linear(128, 10, scale=0.05)

    def __call__(self, x):
        h = wg.capture("first layer", wg.relu(self.hidden(x)))
        return self.output(h)


class CNN(nn.Module):
    """8 feature maps of 14×14, then 16 of 7×7, then 10 digits."""

    def __init__(self):
        he = nn.init.kaiming_normal()
        self.kernels1, self.bias1 = self.param((8, 1, 5, 5), init=he), self.param((8,), init="zeros")
        self.kernels2, self.bias2 = self.param((16, 8, 3, 3), init=he), self.param((16,), init="zeros")
        self.output = nn.Linear(16 * 7 * 7, 10, scale=0.05)

    def __call__(self, x):
        x = wg.reshape(x, (-1, 1, 28, 28))
        x = wg.relu(wg.conv2d(x, self.kernels1, self.bias1, stride=2, padding=2))
        x = wg.capture("first layer", x)
        x = wg.relu(wg.conv2d(x, self.kernels2, self.bias2, stride=2, padding=1))
        return self.output(wg.flatten(x, 1))


MODELS = {"mlp": MLP, "cnn": CNN}


def loss_fn(model, x, y):
    logits = model(x)
    wg.metric("accuracy", wg.mean(wg.argmax(logits, axis=-1) == y))
    return wg.cross_entropy(logits, y)


def classify(model, x):
    return wg.softmax(model(x))


# --- the images -------------------------------------------------------------------------------------


def read_idx(name):
    """An array of MNIST's IDX files: two zero bytes, a type, the number of axes, their sizes, the bytes."""
    raw = np.fromfile(f"mnist/{name}", np.uint8)
    sizes = raw[4 : 4 + 4 * raw[3]].view(">u4")
    return raw[4 + 4 * raw[3] :].reshape(sizes)


def pixels(images):
    """Network input: one row an image, 0 (black) to 1."""
    return images.reshape(len(images), 784).astype(np.float32) / 255


images, labels = read_idx("train-images"), read_idx("train-labels")
held_images, held_labels = images[-HELD_OUT:], labels[-HELD_OUT:]
images, labels = images[:-HELD_OUT], labels[:-HELD_OUT]


# --- training ---------------------------------------------------------------------------------------


class Network:
    """A model, the three programs that share its parameters, and how far its training got."""

    def __init__(self, name, seed, steps):
        self.name, self.seed = name, seed
        self.planned = steps or EPOCHS[name] * (len(images) // BATCH)
        self.restart()

    def restart(self):
        self.step, self.goal = 0, self.planned
        self.random = np.random.default_rng(self.seed)
        self.order = np.empty(0, int)

    async def compile(self):
        model = MODELS[self.name]
        self.training = await wg.compile_module(
            model, loss_fn,
            inputs={"x": (BATCH, 784), "y": wg.Input((BATCH,), "i32")},
            optimizer=wg.optim.Adam(), seed=self.seed, on_progress=web.show_progress,
        )  # fmt: skip
        shared = self.training.params
        self.judge = await wg.compile_forward(
            model, classify, inputs={"x": (JUDGED, 784)}, shared_params=shared
        )
        self.eye = await wg.compile_forward(model, classify, inputs={"x": (1, 784)}, shared_params=shared)

    def batch(self):
        """The next images of an order that is drawn anew for each epoch."""
        if len(self.order) < BATCH:
            self.order = self.random.permutation(len(images))
        chosen, self.order = self.order[:BATCH], self.order[BATCH:]
        return {"x": pixels(images[chosen]), "y": labels[chosen]}

    async def advance(self, steps):
        """Train some steps, and read the loss and the accuracy of the last one."""
        for i in range(steps):
            done = 1 - (self.goal - self.step) / self.planned
            self.lr = PEAK_LR[self.name] * (0.51 + 0.49 * np.cos(np.pi * done))
            self.training.set(lr=self.lr)
            last = i == steps - 1
            result = await self.training.step(self.batch(), full=last, read_loss=last)
            self.step += 1
        return result

    async def accuracy(self, images, labels):
        """The share that is classified right."""
        right = 0
        for i in range(0, len(images), JUDGED):
            guess = await self.judge.run({"x": pixels(images[i : i + JUDGED])})
            right += int(np.sum(guess.argmax(1) == labels[i : i + JUDGED]))
        return right / len(images)


networks = {}
network = None
running = False


async def choose(name, seed=0, steps=None):
    """Make the network `name` the one that trains; it is compiled once."""
    global network
    if name not in networks:
        made = Network(name, seed, steps)
        await made.compile()
        networks[name] = made
    network = networks[name]
    await guess_examples()
    parameters = sum(np.prod(handle.shape) for handle in network.training.params.values())
    return {
        "device": network.training.device, "adapter": network.training.adapter,
        "parameters": int(parameters), "step": network.step, "goal": network.goal,
    }  # fmt: skip


async def train():
    """Train until `pause` or the end; at the end, test. Returns whether the end came."""
    global running
    running = True
    if network.step == network.goal:
        network.goal += network.planned
    spent, first, looked = 0.0, network.step, -np.inf
    while running and network.step < network.goal:
        began, before = time.perf_counter(), network.step
        while running and network.step < network.goal and time.perf_counter() - began < 0.03:
            result = await network.advance(min(5, network.goal - network.step))
        spent += time.perf_counter() - began
        report = {
            "step": network.step, "goal": network.goal, "epoch": network.step * BATCH / len(images),
            "loss": result.loss, "accuracy": result.metrics["accuracy"], "lr": network.lr,
            "speed": (network.step - first) / spent,
        }  # fmt: skip
        if network.step // 100 > before // 100:
            report["held_out"] = await network.accuracy(held_images[:1000], held_labels[:1000])
        web.publish("step", report)
        if time.perf_counter() - looked > 0.7:
            await guess_examples()
            looked = time.perf_counter()
        await web.next_frame()
    if network.step < network.goal:
        return False
    await guess_examples()
    held_out = await network.accuracy(held_images, held_labels)
    test = await network.accuracy(read_idx("test-images"), read_idx("test-labels"))
    web.publish("done", {"step": network.step, "held_out": held_out, "test": test})
    return True


def pause():
    global running
    running = False


async def reset():
    """Back to the first weights."""
    network.training.upload_initial_params()
    network.training.reset_optimizer_state()
    network.restart()
    await guess_examples()


# --- what the network sees --------------------------------------------------------------------------


def examples():
    """The held-out images that the page shows, and what they are."""
    return {"images": held_images[:JUDGED], "labels": held_labels[:JUDGED]}


async def guess_examples():
    """Publish what the network takes the examples for."""
    guesses = await network.judge.run({"x": pixels(held_images[:JUDGED])})
    web.publish("guesses", guesses.argmax(1))


async def look(drawing):
    """What the network makes of a drawing: the ten probabilities and its first layer's activations."""
    image = like_mnist(drawing / 255)
    seen = await network.eye.run({"x": image.reshape(1, 784)}, with_captures=True)
    layer = seen.captures["first layer"][0]
    return {"image": image, "probabilities": seen.output[0], "layer": layer}


def like_mnist(drawing):
    """Scale a drawing into 20×20 pixels and put its centre of mass into the middle of 28×28, as in MNIST."""
    image = np.zeros((28, 28), np.float32)
    rows, columns = np.nonzero(drawing.max(1) > 0.05)[0], np.nonzero(drawing.max(0) > 0.05)[0]
    if not rows.size:
        return image
    ink = drawing[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    scale = 20 / max(ink.shape)
    height, width = (max(1, round(size * scale)) for size in ink.shape)
    small = averaging(ink.shape[0], height) @ ink @ averaging(ink.shape[1], width).T
    weight = small.sum()
    top = round(14 - (small.sum(1) @ (np.arange(height) + 0.5)) / weight)
    left = round(14 - (small.sum(0) @ (np.arange(width) + 0.5)) / weight)
    top, left = np.clip(top, 0, 28 - height), np.clip(left, 0, 28 - width)
    image[top : top + height, left : left + width] = small
    return image


def averaging(size, smaller):
    """The matrix that averages `size` pixels into `smaller` ones, each pixel by its overlap."""
    edges = np.linspace(0, size, smaller + 1)
    pixel = np.arange(size)
    overlap = np.minimum(edges[1:, None], pixel + 1) - np.maximum(edges[:-1, None], pixel)
    overlap = np.maximum(overlap, 0)
    return overlap / overlap.sum(1, keepdims=True)
