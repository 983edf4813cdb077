"""The parts of webgrad.web that need no browser."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from webgrad import web
from webgrad.errors import DtypeError, InputError, ShapeError, WebgradError


@pytest.mark.parametrize(
    "call",
    [
        lambda: web.publish("loss", 1.0),
        lambda: web.draw_image("canvas", np.zeros((2, 2))),
        lambda: web.read_canvas("canvas"),
        lambda: asyncio.run(web.next_frame()),
        lambda: web.to_js(1),
        lambda: web.from_js(1),
    ],
    ids=["publish", "draw_image", "read_canvas", "next_frame", "to_js", "from_js"],
)
def test_outside_a_browser_each_function_says_so(call):
    assert not web.in_browser()
    with pytest.raises(WebgradError, match="only in a browser"):
        call()


def test_grey_floats_are_clipped_to_bytes():
    pixels = web.rgba_pixels([[0.0, 0.5, 1.0], [-1.0, 2.0, np.nan]])
    assert pixels[:, :, 0].tolist() == [[0, 128, 255], [0, 255, 0]]
    assert (pixels[:, :, :3] == pixels[:, :, :1]).all()
    assert (pixels[:, :, 3] == 255).all()


def test_colours_and_transparency_keep_their_channels():
    rgba = np.arange(16, dtype=np.uint8).reshape(2, 2, 4)
    assert web.rgba_pixels(rgba).tolist() == rgba.tolist()
    assert web.rgba_pixels(rgba[:, :, :3])[:, :, :3].tolist() == rgba[:, :, :3].tolist()
    assert web.rgba_pixels(np.array([[True, False]]))[0, :, 0].tolist() == [255, 0]
    assert web.rgba_pixels(np.zeros((0, 3))).shape == (0, 3, 4)


@pytest.mark.parametrize("shape", [(3,), (2, 2, 2), (1, 2, 2, 3), ()])
def test_an_image_of_another_shape_is_refused(shape):
    with pytest.raises(ShapeError, match="draw_image"):
        web.rgba_pixels(np.zeros(shape))


def test_an_image_of_another_dtype_is_refused():
    with pytest.raises(DtypeError, match="int64"):
        web.rgba_pixels(np.zeros((2, 2), np.int64))


def test_transparent_pixels_read_as_black():
    pixels = np.array([[[255, 255, 255, 0], [255, 0, 0, 255]]], np.uint8)
    assert web.from_rgba(pixels, 1).tolist() == [[0.0, pytest.approx(0.299)]]
    assert web.from_rgba(pixels, 3).tolist() == [[[0, 0, 0], [1, 0, 0]]]
    assert web.from_rgba(pixels, 4).tolist() == [[[1, 1, 1, 0], [1, 0, 0, 1]]]


def test_channels_must_be_known():
    with pytest.raises(InputError, match="channels"):
        web.read_canvas("canvas", channels=2)


@pytest.mark.parametrize(
    ("dtype", "becomes"),
    [
        (np.bool_, np.uint8), (np.float16, np.float32), (np.float32, np.float32), (np.float64, np.float64),
        (np.int64, np.int32), (np.uint64, np.int32), (np.int8, np.int8), (">f4", np.float32),
    ],
)  # fmt: skip
def test_dtypes_become_ones_that_javascript_has(dtype, becomes):
    array = np.array([[1, 0], [1, 1]]).astype(dtype).T
    plain = web.plain_array(array)
    assert plain.dtype == becomes
    assert plain.dtype.isnative
    assert plain.flags.c_contiguous
    assert plain.tolist() == [[1, 1], [0, 1]]


def test_wide_integers_that_do_not_fit_become_floats():
    assert web.plain_array(np.array([2**40])).dtype == np.float64


@pytest.mark.parametrize("array", [np.array(["text"]), np.array([1j]), np.array([object()])])
def test_other_arrays_are_refused(array):
    with pytest.raises(DtypeError, match="to JavaScript"):
        web.plain_array(array)
