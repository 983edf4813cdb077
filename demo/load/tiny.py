"""Fits a curve with a tiny network. The pages beside it load this same file in three different ways."""

import numpy as np
from webgrad import web

RNG = np.random.default_rng(0)
X = np.linspace(-1, 1, 64)[:, None]
Y = np.sin(3 * X)
MODEL = {"w": RNG.normal(0, 2, (1, 32)), "b": RNG.normal(0, 1, 32), "v": np.zeros((32, 1))}


def predict(x):
    """The curve at the points ``x``, any shape."""
    hidden = np.tanh(np.reshape(x, (-1, 1)) @ MODEL["w"] + MODEL["b"])
    return (hidden @ MODEL["v"]).astype(np.float32).reshape(np.shape(x))


async def train(steps=400):
    """Train, telling the page how it goes; returns the last loss."""
    loss = np.inf
    for step in range(steps + 1):
        hidden = np.tanh(X @ MODEL["w"] + MODEL["b"])
        error = hidden @ MODEL["v"] - Y
        loss = float(np.mean(error**2))
        MODEL["v"] -= 0.05 * hidden.T @ error / len(X)
        if step % 20 == 0:
            web.publish(
                "fit", {"step": step, "steps": steps, "loss": loss, "x": X[:, 0], "y": predict(X[:, 0])}
            )
            await web.next_frame()
    return loss
