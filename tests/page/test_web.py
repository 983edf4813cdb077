"""webgrad.web in the page: canvases and frames."""

from __future__ import annotations

import numpy as np
import pytest

from webgrad.errors import InputError


def test_a_canvas_shows_and_returns_the_array(page_py):
    image = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)
    back = page_py(
        "from webgrad import web; web.draw_image('canvas', x); return web.read_canvas('canvas')", x=image
    )
    assert back.dtype == np.float32
    np.testing.assert_allclose(back, image, atol=1 / 255)
    assert page_py.evaluate("[canvas.width, canvas.height]") == [4, 3]


def test_a_canvas_object_and_colours(page_py):
    def draw(image):
        from webgrad import web

        canvas = js.OffscreenCanvas.new(1, 1)
        web.draw_image(canvas, image)
        return web.read_canvas(canvas, channels=4)

    image = np.array([[[1, 0, 0, 1], [0, 1, 0, 1]], [[0, 0, 1, 1], [1, 1, 1, 1]]], np.float32)
    np.testing.assert_array_equal(page_py(draw, image), image)


def test_a_picture_is_read_at_another_size(page_py):
    def shrink():
        from webgrad import web

        image = np.zeros((64, 64), np.float32)
        image[:, 32:] = 1
        web.draw_image("canvas", image)
        return web.read_canvas("canvas", (4, 8)), web.read_canvas("canvas", (128, 100))

    small, large = page_py(shrink)
    np.testing.assert_allclose(small, np.tile([0, 0, 0, 0, 1, 1, 1, 1], (4, 1)), atol=0.1)
    assert large.shape == (128, 100)
    assert abs(large.mean() - 0.5) < 0.02


def test_an_unknown_canvas_is_named(page_py):
    with pytest.raises(InputError, match="'nowhere'"):
        page_py("from webgrad import web; web.draw_image('nowhere', [[1.0]])")


def test_waiting_for_frames_leaves_no_proxies(page_py, proxy_counts):
    def wait(frames):
        from webgrad import web

        async def loop():
            for _ in range(frames):
                await web.next_frame()

        return loop()

    page_py(wait, 2)
    before = proxy_counts()
    page_py(wait, 10)
    assert set((proxy_counts() - before).values()) == {0}


def test_what_is_published_without_boots_listener_is_an_event(page_py):
    """As under PyScript, where nothing called boot()."""

    def tell():
        from webgrad import web

        listener, web._emit = web._emit, None
        try:
            web.publish("greeting", {"x": np.ones((1, 2), np.float32)})
        finally:
            web._emit = listener

    page_py.evaluate(
        "void addEventListener('webgrad:greeting', ({detail}) => { globalThis.heard = detail.x.shape })"
    )
    page_py(tell)
    assert page_py.evaluate("heard") == [1, 2]


def test_publishing_and_calling_leave_no_proxies(page_py, proxy_counts):
    def tell():
        from webgrad import web

        for i in range(20):
            web.publish("tick", {"i": i, "array": np.ones(3), "list": [None, "text"]})

    page_py(tell)
    before = proxy_counts()
    page_py(tell)
    page_py(tell)
    assert set((proxy_counts() - before).values()) == {0}
