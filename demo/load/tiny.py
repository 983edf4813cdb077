"""Fits a curve with a tiny network. The pages beside it load this same file in three different ways."""

import numpy as np

import webgrad as wg
from webgrad import nn, web

X = np.linspace(-1, 1, 64)[:, None]
Y = np.sin(3 * X)


class Net(nn.Module):
    def __init__(self):
        self.hidden = nn.Linear(1, 32, scale=2.0)
        self.output = nn.Linear(32, 1, scale=0.1)

    def __call__(self, x):
        return self.output(wg.tanh(self.hidden(x)))


async def train(steps=400):
    """Train, telling the page how it goes; returns the last loss."""
    training = await wg.compile_module(
        Net,
        lambda net, x, y: wg.mse(net(x), y),
        inputs={"x": X, "y": Y},
        optimizer=wg.optim.Adam(lr=0.02),
        on_progress=web.show_progress,
    )
    fit = await wg.compile_forward(Net, lambda net, x: net(x), inputs={"x": X}, shared_params=training.params)
    for step in range(1, steps + 1):
        loss = await training.step({"x": X, "y": Y})
        if step % 20 == 0:
            y = await fit.run({"x": X})
            report = {"step": step, "steps": steps, "loss": loss, "x": X[:, 0], "y": y[:, 0]}
            web.publish("fit", report)
            await web.next_frame()
    return loss
