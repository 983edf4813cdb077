"""The NumPy generator: known answers of Threefry-2x32-20, and what `uniform` promises."""

import numpy as np
import pytest

from webgrad import rng

# The known-answer vectors published with Random123: key, counter, result.
KNOWN = [
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize(("key", "counter", "expected"), KNOWN)
def test_known_answers(key, counter, expected):
    assert tuple(int(word) for word in rng.threefry2x32(*key, *counter)) == expected


def test_an_empty_counter_gives_empty_words():
    x0, x1 = rng.threefry2x32(1, 2, np.zeros(0, np.uint32), 3)
    assert x0.shape == x1.shape == (0,)
    assert x0.dtype == x1.dtype == np.uint32


def test_arrays_broadcast_and_agree_with_one_word_at_a_time():
    counters = np.arange(5, dtype=np.uint32)
    x0, x1 = rng.threefry2x32(7, 9, counters[:, None], counters[None, :])
    assert x0.shape == (5, 5)
    for i in range(5):
        for j in range(5):
            assert (x0[i, j], x1[i, j]) == rng.threefry2x32(7, 9, i, j)


def test_the_arguments_are_left_alone():
    counters = np.arange(4, dtype=np.uint32)
    rng.threefry2x32(1, 2, counters, counters)
    assert counters.tolist() == [0, 1, 2, 3]


def test_uniform_spans_zero_to_one_without_one():
    values = rng.uniform(np.array([0, 0xFF, 0x100, 0xFFFFFFFF], np.uint32))
    assert values.dtype == np.float32
    assert values.tolist() == [0.0, 0.0, 2.0**-24, 1 - 2.0**-24]


def test_uniform_has_the_right_moments():
    bits, _ = rng.threefry2x32(1, 2, np.arange(200_000, dtype=np.uint32), 0)
    values = rng.uniform(bits).astype(np.float64)
    assert abs(values.mean() - 0.5) < 0.003
    assert abs(values.var() - 1 / 12) < 0.001
    assert abs(np.corrcoef(values[1:], values[:-1])[0, 1]) < 0.01
