"""Every function of the WGSL prelude, on the adapter, against tables in float64."""

import math

import numpy as np
import pytest

from webgrad import rng
from webgrad.compiler.program import Binding, BufferSpec, KernelSpec, Program, Range
from webgrad.wgsl.prelude import FUNCTIONS, source_for, used_in

NAN, INF, TINY, HUGE = np.nan, np.inf, np.float32(2.0**-126), np.finfo(np.float32).max


def kernel_text(expression, arguments, result="f32"):
    """WGSL that stores ``expression`` over a, b, c: arrays of one length, stored one after the other."""
    size, kinds = len(arguments[0]), {"f": "f32", "i": "i32", "u": "u32"}
    loads = "\n".join(
        f"let {name} = bitcast<{kinds[array.dtype.kind]}>(x[i + {k * size}u]);"
        for k, (name, array) in enumerate(zip("abc", arguments, strict=False))
    )
    value = f"select(0u, 1u, {expression})" if result == "bool" else f"bitcast<u32>({expression})"
    return f"""
    {source_for(used_in(expression))}
    @group(0) @binding(0) var<storage, read> x: array<u32>;
    @group(0) @binding(1) var<storage, read_write> y: array<u32>;
    @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
        let i = id.x;
        if (i >= {size}u) {{ return; }}
        {loads}
        y[i] = {value};
    }}"""


def decoded(words, result):
    return words != 0 if result == "bool" else words.view({"f32": "f4", "i32": "i4", "u32": "u4"}[result])


@pytest.fixture
def evaluate(page_py):
    """``evaluate(expression, a, b, ..., result="f32")`` on the page's GPU."""

    async def run(program, upload):
        from webgrad.runtime.webgpu import open_webgpu

        session = await (await open_webgpu()).load(program, None, {})
        result = await session.run("run", upload, ("y",))
        session.destroy()
        return result["y"]

    def call(expression, *arguments, result="f32"):
        upload = np.concatenate([np.ascontiguousarray(array).view(np.uint8) for array in arguments])
        size, nbytes = len(arguments[0]), 4 * len(arguments[0])
        bindings = (Binding(0, 0, upload.nbytes, "read"), Binding(1, 0, nbytes, "read_write"))
        program = Program(
            buffers=(BufferSpec(upload.nbytes, "owned"), BufferSpec(nbytes, "owned")),
            modules=(kernel_text(expression, arguments, result),),
            kernels=(KernelSpec(expression, 0, bindings, (-(-size // 64), 1, 1)),),
            entries={"run": (0,)},
            upload_buffer=0,
            inputs={},
            scalars={},
            ranges={"y": Range(1, 0, nbytes, (size,), result)},
        )
        return decoded(page_py(run, program, upload).view(np.uint32), result)

    return call


def points(low=-HUGE, high=HUGE, dense=(-20.0, 20.0)):
    """Specials, both signs' whole range in equal ratios, and a dense stretch; those within low .. high."""
    special = [
        0.0,
        -0.0,
        INF,
        -INF,
        NAN,
        1.0,
        -1.0,
        TINY,
        -TINY,
        HUGE,
        -HUGE,
        0.5,
        -0.5,
        2.0,
        -2.0,
        3.0,
        -3.0,
    ]
    ratios = np.logspace(-126 * math.log10(2) + 1e-6, math.log10(HUGE), 6000)
    values = np.concatenate([special, ratios, -ratios, np.linspace(*dense, 20_001)]).astype(np.float32)
    near = np.float32([1, -1, 0.5, math.pi, math.e, 88.7, -87.3])[:, None]
    values = np.concatenate([values, np.ravel(near.view(np.int32) + np.arange(-50, 50)).view(np.float32)])
    with np.errstate(invalid="ignore"):
        return values[~((values < low) | (values > high))]


def pairs():
    """Arguments of two-operand functions: every pair of specials, and random ones over the whole range."""
    special = np.float32(
        [0, -0.0, INF, -INF, NAN, 1, -1, 2, -2, 3, -3, 0.5, -0.5, 7.25, -1e10, 1e30, TINY, -HUGE, HUGE]
    )
    random = np.random.default_rng(0)
    wide = np.exp2(random.uniform(-126, 127.9, (2, 4000))) * random.choice([-1, 1], (2, 4000))
    close = random.uniform(-100, 100, (2, 4000))
    grid = np.stack(np.meshgrid(special, special)).reshape(2, -1)
    return np.concatenate([grid, wide, close, np.round(close)], axis=1).astype(np.float32)


def ulps(found, wanted):
    """How many units in wanted's last place f32 results are off; inf where a NaN or a sign is wrong.

    What f32 cannot hold as a normal number may be flushed.
    """
    found, wanted = found.astype(np.float64), np.asarray(wanted, np.float64)
    with np.errstate(all="ignore"):
        rounded = wanted.astype(np.float32).astype(np.float64)
        unit = np.exp2(np.floor(np.log2(np.clip(np.abs(wanted), 2.0**-126, HUGE))) - 23)
        off = np.abs(found - wanted) / unit
        off[np.isinf(rounded) & (found == rounded)] = 0.0
        off[(np.abs(wanted) < TINY) & (np.abs(found) <= TINY)] = 0.0
        off[np.isnan(wanted) != np.isnan(found)] = np.inf
        off[np.isnan(wanted) & np.isnan(found)] = 0.0
        off[(wanted == 0) & (np.signbit(wanted) != np.signbit(found))] = np.inf
        off[np.isnan(off)] = np.inf
    return off


def reference(function):
    def table(*arguments):
        with np.errstate(all="ignore"):
            return function(*[a.astype(np.float64) for a in arguments])

    return table


def by_element(function):
    return lambda x: np.array([function(v) for v in x.tolist()])


def sigmoid(x):
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


def same_bits(found, wanted):
    """Equal, with the sign of zeros; NaN equals NaN."""
    found, wanted = np.asarray(found), np.asarray(wanted, np.float32)
    return (found.view(np.uint32) == wanted.view(np.uint32)) | (np.isnan(found) & np.isnan(wanted))


# name: (float64 reference, greatest error in ulp, points)
UNARY = {
    "wg_exp": (np.exp, 1.5, points()),
    "wg_expm1": (np.expm1, 2.5, points()),
    "wg_log": (np.log, 1.5, points()),
    "wg_log1p": (np.log1p, 3, points()),
    "wg_tanh": (np.tanh, 3, points()),
    "wg_sigmoid": (sigmoid, 3, points(dense=(-90.0, 90.0))),
    "wg_softplus": (lambda x: np.logaddexp(0, x), 3, points(dense=(-90.0, 90.0))),
    "wg_erf": (by_element(math.erf), 3, points(dense=(-4.5, 4.5))),
    "wg_sqrt": (np.sqrt, 4, points()),
    "wg_rsqrt": (lambda x: 1 / np.sqrt(x), 4, points()),
    "wg_abs": (np.abs, 0, points()),
    "wg_relu": (lambda x: np.where(x <= 0, 0.0, x), 0, points()),
    "wg_sign": (lambda x: np.sign(x) + 0.0, 0, points()),
    "wg_floor": (np.floor, 0, points()),
    "wg_ceil": (np.ceil, 0, points()),
    "wg_round": (np.round, 0, points()),
}

BINARY = {
    "wg_div": (np.divide, 2.5, pairs()),
    "wg_pow": (np.power, 2, pairs()),
    "wg_copysign": (np.copysign, 0, pairs()),
}


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_number(evaluate, name):
    function, limit, x = UNARY[name]
    check(evaluate(f"{name}(a)", x), reference(function)(x), limit, x)


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_numbers(evaluate, name):
    function, limit, (a, b) = BINARY[name]
    check(evaluate(f"{name}(a, b)", a, b), reference(function)(a, b), limit, a, b)


def check(found, wanted, limit, *arguments):
    off = ulps(found, wanted)
    worst = [
        (tuple(float(a[i]) for a in arguments), float(found[i]), float(wanted[i]))
        for i in np.argsort(-off)[:5]
    ]
    print(f"{off.max():.3g} ulp; worst: {worst}")
    assert off.max() <= limit


@pytest.mark.parametrize(("name", "function"), [("wg_sin", np.sin), ("wg_cos", np.cos)])
def test_sine_and_cosine(evaluate, name, function):
    x = np.concatenate([points(dense=(-1e4, 1e4)), np.arange(0, 4e5, 7, dtype=np.float32)])
    found, wanted = evaluate(f"{name}(a)", x), reference(function)(x)
    assert (np.isnan(found) == np.isnan(wanted)).all()
    assert np.nanmax(np.abs(found)) <= 1
    off = np.abs(found - wanted)
    assert off[np.abs(x) <= 4e5].max() < 2e-7
    if name == "wg_sin":
        assert ulps(found, wanted)[np.abs(x) < 1].max() < 2  # small angles keep their digits, -0 its sign


def test_the_remainder_and_the_floored_quotient_are_numpys(evaluate):
    a, b = pairs()
    fits = (np.abs(b) >= 2.0**-102) | (b == 0) | np.isnan(b)
    a, b = a[fits], b[fits]
    check(evaluate("wg_mod(a, b)", a, b), reference(np.remainder)(a, b), 0.5, a, b)
    check(evaluate("wg_floordiv(a, b)", a, b), reference(np.floor_divide)(a, b), 1, a, b)


def test_a_power_that_f32_holds_is_exact(evaluate):
    cases = [
        (x, n, float(x) ** n)
        for x in (-10, *range(-7, 8), 0.5, -1.5, 10, 12, 100)
        for n in range(13)
        if x or n
    ]
    x, n, wanted = np.array([c for c in cases if float(np.float32(c[2])) == c[2]]).T
    x, wanted = x.astype(np.float32), wanted.astype(np.float32)
    assert (evaluate("wg_pow(a, b)", x, n.astype(np.float32)) == wanted).all()
    assert (evaluate("wg_powi(a, b)", x, n.astype(np.int32)) == wanted).all()


def test_integer_powers_of_any_number(evaluate):
    x = np.repeat(points(-50, 50, dense=(-50.0, 50.0))[::40], 9)
    n = np.resize(np.int32([-3, -2, -1, 0, 1, 2, 3, 5, 8]), x.size)
    with np.errstate(all="ignore"):
        wanted = x.astype(np.float64) ** n
    held = (np.abs(wanted) < 2.0**120) & (np.abs(wanted) > 2.0**-120)
    found = evaluate("wg_powi(a, b)", x, n)
    assert ulps(found, wanted)[held | (n == 0)].max() < 6
    assert np.isnan(found[np.isnan(wanted)]).all()


def test_the_larger_and_the_smaller_keep_nan(evaluate):
    a, b = pairs()
    for name, function in [("wg_max", np.maximum), ("wg_min", np.minimum)]:
        found, wanted = evaluate(f"{name}(a, b)", a, b), function(a, b)
        assert ((found == wanted) | (np.isnan(found) & np.isnan(wanted))).all()  # zeros of either sign


def test_comparisons_know_nan(evaluate):
    a, b = pairs()
    assert (evaluate("wg_lt(a, b)", a, b, result="bool") == (a < b)).all()
    assert (evaluate("wg_le(a, b)", a, b, result="bool") == (a <= b)).all()
    assert (evaluate("wg_eq(a, b)", a, b, result="bool") == (a == b)).all()
    assert (evaluate("wg_unordered(a, b)", a, b, result="bool") == (np.isnan(a) | np.isnan(b))).all()


def test_kinds_of_numbers_and_truth(evaluate):
    x = points()
    assert (evaluate("wg_isnan(a)", x, result="bool") == np.isnan(x)).all()
    assert (evaluate("wg_isinf(a)", x, result="bool") == np.isinf(x)).all()
    assert (evaluate("wg_isfinite(a)", x, result="bool") == np.isfinite(x)).all()
    assert (evaluate("wg_is_big(a)", x, result="bool") == ~(np.abs(x) < 2.0**23)).all()
    assert (evaluate("wg_to_bool(a)", x, result="bool") == (x != 0)).all()


def test_constants_have_their_bits(evaluate):
    x = np.zeros(1, np.float32)
    assert same_bits(evaluate("wg_inf()", x), [INF]).all()
    assert same_bits(evaluate("-wg_inf()", x), [-INF]).all()
    assert same_bits(evaluate("wg_nan()", x), [NAN]).all()


@pytest.mark.parametrize(("dtype", "low", "high"), [("i32", -(2**31), 2**31 - 1), ("u32", 0, 2**32 - 1)])
def test_floats_to_integers_truncate_and_saturate(evaluate, dtype, low, high):
    x = np.concatenate(
        [points(), np.float32([2.0**31, -(2.0**31), 2.0**32, 2147483520, 4294967040, 0.99, -0.99])]
    )
    wanted = np.clip(np.trunc(np.nan_to_num(x.astype(np.float64), nan=0)), low, high).astype(np.int64)
    assert (evaluate(f"wg_to_{dtype}(a)", x, result=dtype).astype(np.int64) == wanted).all()


def test_integer_division_floors_and_by_zero_gives_zero(evaluate):
    edges = np.int32([0, 1, -1, 2, -2, 7, -7, 100, 2**31 - 1, -(2**31)])
    a, b = np.stack(np.meshgrid(edges, edges)).reshape(2, -1)
    with np.errstate(all="ignore"):
        for kind, a_, b_ in [("i32", a, b), ("u32", a.view(np.uint32), b.view(np.uint32))]:
            assert (evaluate(f"wg_floordiv_{kind}(a, b)", a_, b_, result=kind) == a_ // b_).all()
            assert (evaluate(f"wg_mod_{kind}(a, b)", a_, b_, result=kind) == a_ % b_).all()


def test_random_words_are_those_of_numpy(evaluate):
    key, index = np.full(4096, 0xDEADBEEF, np.uint32), np.arange(4096, dtype=np.uint32)
    for part, wanted in zip("xy", rng.threefry2x32(key, 17, index, 3), strict=True):
        call = f"wg_threefry(vec2<u32>(a, 17u), vec2<u32>(b, 3u)).{part}"
        assert (evaluate(call, key, index, result="u32") == wanted).all()
    bits = np.concatenate([wanted, np.uint32([0, 255, 256, 0xFFFFFFFF])])
    assert (evaluate("wg_uniform(a)", bits) == rng.uniform(bits)).all()


def test_every_function_compiles_alone_and_all_together(page_py):
    async def problems(texts):
        from webgrad.runtime.webgpu import open_webgpu

        await open_webgpu()
        adapter = await js.navigator.gpu.requestAdapter()
        device = await adapter.requestDevice()
        found = []
        for text in texts:
            module = device.createShaderModule(code=text)
            found += [m.message for m in (await module.getCompilationInfo()).messages]
        device.destroy()
        return found

    texts = [source_for([name]) for name in FUNCTIONS] + [source_for(FUNCTIONS)]
    assert page_py(problems, texts) == []
