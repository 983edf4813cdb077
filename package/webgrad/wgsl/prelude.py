"""Numeric functions in WGSL that hold on every adapter: kernels call these, not the built-ins.

WGSL lets a compiler assume that no NaN and no infinity occurs, and its built-ins may be loose: adapters
were seen with tanh(100) = NaN, max(NaN, 0) = 0, log(0) = −88, pow(100, 2) = 9999.998 and x != x never
true. So these functions

- look at bits where NaN, infinities or the sign of zero matter, choose among words of bits, and turn the
  choice into a float last, so that no float constant or float operation has to carry a NaN;
- compute by range reduction and a polynomial of our own (minimax fits, coefficients rounded to f32 one
  after the other), to a few units in the last place;
- choose with ``select`` and do not branch: a software adapter runs both sides of a branch anyway;
- never add and subtract a big number to round, nor need a fused multiply-add, though one may happen.

They rely on this much: +, − and × round correctly and ÷ is good to 2.5 ulp where nothing under- or
overflows; all four pass a NaN on and overflow to infinity; comparisons of numbers are right; ``floor`` is
right below 2²³. Denormal numbers may count as zero, in arguments and results. inf × 0 is NaN at run time,
but a factor written as the literal 0.0 may be folded to 0.

`source_for` gives the text of just the functions named and of those they call, in order of dependency.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

PRELUDE = """
// A quiet NaN. (A constant NaN does not compile; the bits of a variable do.)
fn wg_nan() -> f32 {
    let bits = 0x7fc00000u;
    return bitcast<f32>(bits);
}

// Positive infinity.
fn wg_inf() -> f32 {
    let bits = 0x7f800000u;
    return bitcast<f32>(bits);
}

fn wg_isnan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

fn wg_isinf(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u;
}

fn wg_isfinite(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) < 0x7f800000u;
}

// `value`, but NaN where x is. (Adapters make a maximum of select(x, 1.0, x < 1.0), and lose the NaN.)
fn wg_with_nan_of(x: f32, value: f32) -> f32 {
    return bitcast<f32>(select(bitcast<u32>(value), 0x7fc00000u, wg_isnan(x)));
}

// Whether either is NaN.
fn wg_unordered(a: f32, b: f32) -> bool {
    return max(bitcast<u32>(a) & 0x7fffffffu, bitcast<u32>(b) & 0x7fffffffu) > 0x7f800000u;
}

// a < b; false with a NaN.
fn wg_lt(a: f32, b: f32) -> bool {
    return (a < b) & !wg_unordered(a, b);
}

// a <= b; false with a NaN.
fn wg_le(a: f32, b: f32) -> bool {
    return (a <= b) & !wg_unordered(a, b);
}

// a == b; false with a NaN.
fn wg_eq(a: f32, b: f32) -> bool {
    return (a == b) & !wg_unordered(a, b);
}

// The larger; NaN if either is NaN.
fn wg_max(a: f32, b: f32) -> f32 {
    return bitcast<f32>(select(bitcast<u32>(select(b, a, a > b)), 0x7fc00000u, wg_unordered(a, b)));
}

// The smaller; NaN if either is NaN.
fn wg_min(a: f32, b: f32) -> f32 {
    return bitcast<f32>(select(bitcast<u32>(select(b, a, a < b)), 0x7fc00000u, wg_unordered(a, b)));
}

// max(x, 0), in whole numbers: what lies from -0 to -infinity becomes 0.
fn wg_relu(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    return bitcast<f32>(select(bits, 0u, bits - 0x80000000u <= 0x7f800000u));
}

fn wg_abs(x: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(x) & 0x7fffffffu);
}

// -1, 0 or 1; NaN stays NaN.
fn wg_sign(x: f32) -> f32 {
    return wg_with_nan_of(x, select(select(0.0, 1.0, x > 0.0), -1.0, x < 0.0));
}

// |magnitude| with the sign of the other.
fn wg_copysign(magnitude: f32, sign: f32) -> f32 {
    return bitcast<f32>((bitcast<u32>(magnitude) & 0x7fffffffu) | (bitcast<u32>(sign) & 0x80000000u));
}

// Floats from 2^23 on (and infinities and NaN) are integers already.
fn wg_floor(x: f32) -> f32 {
    return bitcast<f32>(select(bitcast<u32>(floor(x)), bitcast<u32>(x), wg_is_big(x)));
}

fn wg_ceil(x: f32) -> f32 {
    return bitcast<f32>(select(bitcast<u32>(ceil(x)), bitcast<u32>(x), wg_is_big(x)));
}

// To the nearest integer, halves to the even one.
fn wg_round(x: f32) -> f32 {
    return bitcast<f32>(select(bitcast<u32>(round(x)), bitcast<u32>(x), wg_is_big(x)));
}

fn wg_is_big(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) >= 0x4b000000u;
}

// Whether x counts as true: all but zero.
fn wg_to_bool(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) != 0u;
}

// Truncated; what does not fit becomes the nearest that does; NaN becomes 0.
fn wg_to_i32(x: f32) -> i32 {
    let low = select(i32(x), -2147483647i - 1i, x <= -2147483648.0);
    return select(select(low, 2147483647i, x >= 2147483648.0), 0i, wg_isnan(x));
}

fn wg_to_u32(x: f32) -> u32 {
    let low = select(u32(x), 0u, x < 1.0);
    return select(select(low, 4294967295u, x >= 4294967296.0), 0u, wg_isnan(x));
}

// a / b; x/0 is infinite, 0/0 NaN.
fn wg_div(a: f32, b: f32) -> f32 {
    let size_a = bitcast<u32>(a) & 0x7fffffffu;
    let size_b = bitcast<u32>(b) & 0x7fffffffu;
    let shrink = select(1.0, 0.25, size_b >= 0x7e800000u); // so that no reciprocal is denormal
    let quotient = bitcast<u32>((shrink * a) / (shrink * b));
    let by_zero = select(0x7f800000u, 0x7fc00000u, size_a - 0x00800000u > 0x7f000000u);
    let by_infinity = select(0u, 0x7fc00000u, size_a >= 0x7f800000u);
    let edge = select(select(by_zero, by_infinity, size_b == 0x7f800000u), 0x7fc00000u, size_b > 0x7f800000u);
    let sign = (bitcast<u32>(a) ^ bitcast<u32>(b)) & 0x80000000u;
    return bitcast<f32>(select(sign | edge, quotient, size_b - 0x00800000u < 0x7f000000u));
}

// The first 12 of x's 24 significant bits, so that products of two such numbers are exact.
fn wg_head(x: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(x) & 0xfffff000u);
}

// |a| - |b| * trunc(|a / b|), exactly, for finite a and |b| >= 2^-102: 12 bits of the quotient a turn.
fn wg_fmod_size(a: f32, b: f32) -> f32 {
    var rest = wg_abs(a);
    let unit = wg_abs(b);
    let far = unit * 8.507059173023462e37; // 2^126 units, so that no quotient overflows
    for (var turn = 0; (turn < 32) && (rest >= unit); turn++) {
        let step = select(unit, far, rest >= far);
        let guess = wg_head(0.9999997 * (rest / step)); // never above the quotient
        let part = max(select(guess, floor(guess), guess < 4096.0), 1.0);
        let head = wg_head(step);
        rest = (rest - part * head) - part * (step - head);
    }
    return rest;
}

// a - b * floor(a / b): the sign is b's, as in Python and NumPy.
fn wg_mod(a: f32, b: f32) -> f32 {
    let size_b = bitcast<u32>(b) & 0x7fffffffu;
    if (!wg_isfinite(a) || (size_b < 0x00800000u) || (size_b > 0x7f800000u)) {
        return wg_nan();
    }
    var size = wg_abs(a);
    if (size_b < 0x7f800000u) {
        size = wg_fmod_size(a, b);
    }
    if (size == 0.0) {
        return wg_copysign(0.0, b);
    }
    let rest = wg_copysign(size, a);
    return select(rest, rest + b, (a < 0.0) != (b < 0.0));
}

// The largest integer not above a / b.
fn wg_floordiv(a: f32, b: f32) -> f32 {
    let size_b = bitcast<u32>(b) & 0x7fffffffu;
    if (size_b < 0x00800000u) {
        return wg_div(a, b);
    }
    let zero = bitcast<f32>((bitcast<u32>(a) ^ bitcast<u32>(b)) & 0x80000000u);
    if ((size_b == 0x7f800000u) && wg_isfinite(a)) {
        return select(zero, -1.0, (a != 0.0) & ((a < 0.0) != (b < 0.0)));
    }
    let quotient = wg_div(a - wg_mod(a, b), b); // an integer, but for rounding
    let whole = wg_floor(quotient);
    return select(select(whole, whole + 1.0, quotient - whole > 0.5), zero, quotient == 0.0);
}

// As in NumPy, an integer divided by 0 is 0. (% of negative numbers is wrong on some adapters.)
fn wg_floordiv_i32(a: i32, b: i32) -> i32 {
    let divisor = select(b, 1i, b == 0i);
    let quotient = a / divisor;
    let below = (a != quotient * divisor) & ((a ^ divisor) < 0i);
    return select(select(quotient, quotient - 1i, below), 0i, b == 0i);
}

fn wg_mod_i32(a: i32, b: i32) -> i32 {
    let divisor = select(b, 1i, b == 0i);
    let rest = a - (a / divisor) * divisor;
    return select(rest, rest + divisor, (rest != 0i) & ((rest ^ divisor) < 0i));
}

fn wg_floordiv_u32(a: u32, b: u32) -> u32 {
    return select(a / max(b, 1u), 0u, b == 0u);
}

fn wg_mod_u32(a: u32, b: u32) -> u32 {
    return a % max(b, 1u);
}

// NaN below 0; zeros and +infinity are their own roots.
fn wg_sqrt(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    let itself = (bits == 0x7f800000u) | ((bits & 0x7fffffffu) < 0x00800000u);
    let ordinary = bits - 0x00800000u < 0x7f000000u;
    return bitcast<f32>(select(select(0x7fc00000u, bits, itself), bitcast<u32>(sqrt(x)), ordinary));
}

// 1 / sqrt(x): infinite at 0, with its sign.
fn wg_rsqrt(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    var edge = select(0x7fc00000u, 0u, bits == 0x7f800000u);
    edge = select(edge, (bits & 0x80000000u) | 0x7f800000u, (bits & 0x7fffffffu) < 0x00800000u);
    let ordinary = bits - 0x00800000u < 0x7f000000u;
    return bitcast<f32>(select(edge, bitcast<u32>(1.0 / sqrt(x)), ordinary));
}

// (n, e^r - 1) with x = n ln 2 + r and |r| <= ln(2) / 2, for |x| < 150.
fn wg_exp_parts(x: f32) -> vec2<f32> {
    let n = floor(x * 1.4426950408889634 + 0.5);
    let r = (x - n * 0.693359375) - n * -2.1219444e-4; // the first product is exact
    var p = 0.0013871879;
    p = p * r + 0.008366876;
    p = p * r + 0.04166743;
    p = p * r + 0.16666542;
    p = p * r + 0.49999997;
    return vec2<f32>(n, r + r * r * p);
}

// 2^n for an integer n in -127 .. 127.
fn wg_two_to(n: i32) -> f32 {
    return bitcast<f32>((n + 127i) << 23u);
}

// e^x for -87.33654 <= x <= 88.
fn wg_exp_between(x: f32) -> f32 {
    let parts = wg_exp_parts(x);
    return (1.0 + parts.y) * wg_two_to(i32(parts.x));
}

fn wg_exp(x: f32) -> f32 {
    let low = select(x, -104.0, x < -104.0);
    let parts = wg_exp_parts(select(low, 89.0, x > 89.0));
    let n = i32(parts.x);
    let half = n >> 1u;
    let value = ((1.0 + parts.y) * wg_two_to(half)) * wg_two_to(n - half); // under- and overflows by itself
    return wg_with_nan_of(x, value);
}

// e^x - 1.
fn wg_expm1(x: f32) -> f32 {
    let low = select(x, -20.0, x < -20.0);
    let parts = wg_exp_parts(select(low, 89.0, x > 89.0));
    let half = wg_two_to(i32(parts.x) - 1i);
    let value = 2.0 * (half * parts.y + (half - 0.5));
    return wg_with_nan_of(x, select(value, x, (bitcast<u32>(x) & 0x7fffffffu) < 0x33000000u)); // keeps -0
}

fn wg_tanh(x: f32) -> f32 {
    let size = wg_abs(x);
    let parts = wg_exp_parts(2.0 * select(size, 10.0, size > 10.0));
    let scale = wg_two_to(i32(parts.x));
    let t = scale * parts.y + (scale - 1.0); // e^(2|x|) - 1
    return wg_with_nan_of(x, wg_copysign(t / (t + 2.0), x));
}

// 1 / (1 + e^-x).
fn wg_sigmoid(x: f32) -> f32 {
    let size = wg_abs(x);
    let t = wg_exp_between(-select(size, 87.33654, size > 87.33654));
    let upper = 1.0 / (1.0 + t);
    return wg_with_nan_of(x, select(select(t * upper, upper, x >= 0.0), 0.0, x < -87.33654));
}

// log(1 + e^x).
fn wg_softplus(x: f32) -> f32 {
    return wg_relu(x) + wg_log1p(wg_exp(-wg_abs(x)));
}

// log(2^k (1 + f)) for sqrt(1/2) <= 1 + f <= sqrt(2).
fn wg_log_sum(k: f32, f: f32) -> f32 {
    var p = -0.0764511;
    p = p * f + 0.12778337;
    p = p * f - 0.13164231;
    p = p * f + 0.14199834;
    p = p * f - 0.16622774;
    p = p * f + 0.20001285;
    p = p * f - 0.25000837;
    p = p * f + 0.3333333;
    let square = f * f;
    return k * 0.693359375 + (f + (square * (f * p - 0.5) + k * -2.1219444e-4));
}

// -infinity at 0, NaN below.
fn wg_log(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    let shifted = bits + 0x004afb0du; // the exponent's field changes at sqrt(1/2)
    let k = f32(i32(shifted >> 23u) - 127i);
    let f = bitcast<f32>((shifted & 0x007fffffu) + 0x3f3504f3u) - 1.0;
    var value = bitcast<u32>(wg_log_sum(k, f));
    value = select(value, select(0x7fc00000u, bits, bits == 0x7f800000u), bits >= 0x7f800000u);
    return bitcast<f32>(select(value, 0xff800000u, (bits & 0x7fffffffu) < 0x00800000u));
}

// log(1 + x).
fn wg_log1p(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    let size = bits & 0x7fffffffu;
    let shifted = bitcast<u32>(1.0 + x) + 0x004afb0du;
    let near = (x > -0.29289) & (x < 0.41421);
    let k = select(f32(i32(shifted >> 23u) - 127i), 0.0, near);
    let f = select(bitcast<f32>((shifted & 0x007fffffu) + 0x3f3504f3u) - 1.0, x, near);
    var value = bitcast<u32>(wg_log_sum(k, f));
    value = select(value, bits, (size < 0x33000000u) | (size >= 0x7f800000u)); // keeps -0
    let edge = select(0x7fc00000u, 0xff800000u, bits == 0xbf800000u);
    return bitcast<f32>(select(value, edge, bits >= 0xbf800000u));
}

// 2 / sqrt(pi) times the integral of e^(-t^2) from 0 to x.
fn wg_erf(x: f32) -> f32 {
    let whole = wg_abs(x);
    let a = select(whole, 4.0, whole > 4.0);
    let z = a * a;
    var s = -0.0006052059;
    s = s * z + 0.0050041103;
    s = s * z - 0.02677327;
    s = s * z + 0.11281976;
    s = s * z - 0.37612507;
    s = s * z + 0.12837915;
    var t = -0.0012526123; // log(1 - erf a)
    t = t * a + 0.015587095;
    t = t * a - 0.09113325;
    t = t * a - 0.6507201;
    t = t * a - 1.1202159;
    t = t * a - 0.0018706605;
    let value = select(1.0 - wg_exp_between(t), a * (1.0 + s), a < 0.9);
    return wg_with_nan_of(x, wg_copysign(value, x));
}

// (r, n mod 4) with x = n pi/2 + r and |r| <= pi/4. Right to 1e-7 for |x| <= 4e5; with more, digits get lost.
fn wg_quarter_turns(x: f32) -> vec2<f32> {
    let n = floor(x * 0.6366197723675814 + 0.5);
    let near = (x - n * 1.5625) - n * 0.008056640625; // these products are exact: 18 bits times 6
    let r = (near - n * 0.00023651123046875) - n * 3.1749394e-6;
    return vec2<f32>(select(0.0, r, abs(r) < 0.9), f32(i32(n) & 3i));
}

// sin(r + n pi/2) for |r| <= pi/4.
fn wg_sine_of(r: f32, n: u32) -> f32 {
    let z = r * r;
    let sine = r + r * z * ((-0.00019505629 * z + 0.008332096) * z - 0.16666654);
    let cosine = 1.0 + z * (((2.4412086e-5 * z - 0.001388713) * z + 0.04166664) * z - 0.5);
    let value = bitcast<u32>(select(sine, cosine, (n & 1u) == 1u));
    return bitcast<f32>(value ^ ((n & 2u) << 30u));
}

fn wg_sin(x: f32) -> f32 {
    let turns = wg_quarter_turns(x);
    let value = select(wg_sine_of(turns.x, u32(turns.y)), x, (bitcast<u32>(x) & 0x7fffffffu) < 0x39000000u);
    return bitcast<f32>(select(0x7fc00000u, bitcast<u32>(value), wg_isfinite(x)));
}

fn wg_cos(x: f32) -> f32 {
    let turns = wg_quarter_turns(x);
    let value = wg_sine_of(turns.x, u32(turns.y) + 1u);
    return bitcast<f32>(select(0x7fc00000u, bitcast<u32>(value), wg_isfinite(x)));
}

// log2(x) for a positive normal x, as a sum of 12 bits and a small rest; good to about 2^-31.
fn wg_log2_parts(x: f32) -> vec2<f32> {
    let shifted = bitcast<u32>(x) + 0x004afb0du;
    let k = f32(i32(shifted >> 23u) - 127i);
    let m = bitcast<f32>((shifted & 0x007fffffu) + 0x3f3504f3u);
    // log m = 2 artanh s, s = (m - 1) / (m + 1), here as s_head + s_tail.
    let f = m - 1.0;
    let d = m + 1.0;
    let d_head = wg_head(d);
    let d_tail = f - (d_head - 2.0);
    let s = f / d;
    let s_head = wg_head(s);
    let s_tail = ((f - s_head * d_head) - s_head * d_tail) / d;
    // times 2 / ln 2 = 2.8847656 + 0.0006244568
    let z = s * s;
    let series = s * z * ((0.43133608 * z + 0.5767411) * z + 0.96179837);
    let main = s_head * 2.884765625;
    let rest = s_head * 0.0006244568 + (s_tail * 2.88539 + series);
    let head = wg_head(k + (main + rest));
    return vec2<f32>(head, ((k - head) + main) + rest);
}

// 2^(head + tail), for a small tail.
fn wg_exp2_sum(head: f32, tail: f32) -> f32 {
    let whole = head + tail;
    let p = select(select(whole, -200.0, whole < -200.0), 200.0, whole > 200.0);
    let n = floor(p + 0.5);
    let r = select((head - n) + tail, 0.0, abs(p) == 200.0);
    var q = 0.00015464134;
    q = q * r + 0.0013392066;
    q = q * r + 0.00961806;
    q = q * r + 0.055503577;
    q = q * r + 0.2402265;
    q = q * r + 0.6931472;
    let half = i32(n) >> 1u;
    return ((1.0 + r * q) * wg_two_to(half)) * wg_two_to(i32(n) - half);
}

// x to the power y, with the special cases of C's pow. A power that f32 can hold exactly is exact.
fn wg_pow(x: f32, y: f32) -> f32 {
    let size_x = bitcast<u32>(x) & 0x7fffffffu;
    let size_y = bitcast<u32>(y) & 0x7fffffffu;
    let flat = (size_x < 0x00800000u) | (size_x >= 0x7f800000u); // zero, infinity, NaN
    let log2_x = wg_log2_parts(bitcast<f32>(select(size_x, 0x3f800000u, flat)));
    let times = select(select(y, -4294967296.0, y < -4294967296.0), 4294967296.0, y > 4294967296.0);
    let times_head = wg_head(times);
    let tail = (times - times_head) * log2_x.x + times * log2_x.y;
    let ordinary = bitcast<u32>(wg_exp2_sum(times_head * log2_x.x, tail));
    let magnitude = select(ordinary, select(0u, 0x7f800000u, (size_x >= 0x7f800000u) == (y > 0.0)), flat);

    let negative = bitcast<u32>(x) >> 31u;
    let whole = (size_y >= 0x4b000000u) | (floor(y) == y);
    let odd = select(0u, bitcast<u32>(i32(y)) & 1u, whole & (size_y < 0x4b800000u));
    let invalid = (negative == 1u) & !flat & !whole;
    let bits = select(magnitude | ((negative & odd) << 31u), 0x7fc00000u, invalid | wg_unordered(x, y));
    let one = (size_y == 0u) | (bitcast<u32>(x) == 0x3f800000u);
    return bitcast<f32>(select(bits, 0x3f800000u, one));
}

// x to an integer power by products, 1 over them for a negative one.
fn wg_powi(x: f32, n: i32) -> f32 {
    var product = 1.0;
    var square = x;
    for (var left = bitcast<u32>(abs(n)); left != 0u; left = left >> 1u) {
        product = select(product, product * square, (left & 1u) == 1u);
        square = square * square;
    }
    if (n < 0i) {
        return wg_div(1.0, product);
    }
    return product;
}

fn wg_threefry_round(x: vec2<u32>, turn: u32) -> vec2<u32> {
    let sum = x.x + x.y;
    return vec2<u32>(sum, sum ^ ((x.y << turn) | (x.y >> (32u - turn))));
}

fn wg_threefry_even(x: vec2<u32>) -> vec2<u32> {
    let y = wg_threefry_round(wg_threefry_round(x, 13u), 15u);
    return wg_threefry_round(wg_threefry_round(y, 26u), 6u);
}

fn wg_threefry_odd(x: vec2<u32>) -> vec2<u32> {
    let y = wg_threefry_round(wg_threefry_round(x, 17u), 29u);
    return wg_threefry_round(wg_threefry_round(y, 16u), 24u);
}

// Threefry-2x32-20: two words of random bits for a key and a counter; webgrad.rng is the same in NumPy.
fn wg_threefry(key: vec2<u32>, counter: vec2<u32>) -> vec2<u32> {
    let third = key.x ^ key.y ^ 0x1bd11bdau;
    var x = wg_threefry_even(counter + key) + vec2<u32>(key.y, third + 1u);
    x = wg_threefry_odd(x) + vec2<u32>(third, key.x + 2u);
    x = wg_threefry_even(x) + vec2<u32>(key.x, key.y + 3u);
    x = wg_threefry_odd(x) + vec2<u32>(key.y, third + 4u);
    return wg_threefry_even(x) + vec2<u32>(third, key.x + 5u);
}

// A float in [0, 1) from the top 24 bits.
fn wg_uniform(bits: u32) -> f32 {
    return f32(bits >> 8u) * 5.9604644775390625e-8;
}
"""

_CALL = re.compile(r"\b(wg_\w+)\s*\(")


def _functions(text: str) -> dict[str, str]:
    """Each function by its name: the text between blank lines before ``fn`` or its comment."""
    chunks = re.split(r"\n\n(?=//|fn )", text.strip())
    return {re.findall(r"^fn (\w+)", chunk, re.MULTILINE)[0]: chunk for chunk in chunks}


#: name → WGSL of that function alone
FUNCTIONS = _functions(PRELUDE)


def used_in(text: str) -> set[str]:
    """The ``wg_`` functions that a piece of WGSL calls."""
    return set(_CALL.findall(text))


#: name → the functions it calls itself
CALLS = {name: used_in(text) - {name} for name, text in FUNCTIONS.items()}


def source_for(names_used: Iterable[str]) -> str:
    """WGSL of these functions and of all that they call, each once, callees first.

    The text depends only on the set of names. Raises `KeyError` for a name the prelude does not have.
    """
    order: list[str] = []

    def add(name: str) -> None:
        if name not in FUNCTIONS:
            raise KeyError(f"the WGSL prelude has no {name!r}; it has {', '.join(sorted(FUNCTIONS))}")
        if name in order:
            return
        for callee in sorted(CALLS[name]):
            add(callee)
        order.append(name)

    for name in sorted(set(names_used)):
        add(name)
    return "".join(f"{FUNCTIONS[name]}\n\n" for name in order)
