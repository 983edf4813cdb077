"""The prelude as text: complete, ordered, and free of what WGSL compilers refuse or fold away."""

import re

import pytest

from webgrad.wgsl.prelude import FUNCTIONS, PRELUDE, source_for, used_in


def defined_in(text):
    return re.findall(r"^fn (\w+)", text, re.MULTILINE)


def test_nothing_used_is_no_text():
    assert source_for([]) == ""
    assert used_in("let x = y + exp(z); // wg_exp is not called") == set()


def test_calls_are_found_in_a_kernels_text():
    assert used_in("out[i] = wg_exp(wg_max (a, b)) * my_wg_log(2.0);") == {"wg_exp", "wg_max"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_comes_with_all_it_calls_and_after_them(name):
    text = source_for([name])
    order = defined_in(text)
    assert order[-1] == name
    assert len(order) == len(set(order))
    assert used_in(text) == set(order)
    for position, defined in enumerate(order):
        assert used_in(FUNCTIONS[defined]) <= set(order[: position + 1])


def test_the_text_depends_only_on_the_set_of_names():
    assert source_for(["wg_tanh", "wg_log", "wg_tanh"]) == source_for(["wg_log", "wg_tanh"])
    assert sorted(defined_in(source_for(FUNCTIONS))) == sorted(FUNCTIONS)


def test_an_unknown_name_is_named():
    with pytest.raises(KeyError, match="wg_cbrt"):
        source_for(["wg_cbrt"])


def test_each_function_is_declared_once_and_stands_alone():
    assert len(defined_in(PRELUDE)) == len(set(defined_in(PRELUDE))) == len(FUNCTIONS)
    for name, text in FUNCTIONS.items():
        assert defined_in(text) == [name]
        assert text.count("{") == text.count("}")


def test_no_infinity_or_nan_is_a_float_constant():
    assert not re.search(r"\b(inf|nan)\b", re.sub("//.*", "", PRELUDE), re.IGNORECASE)
    assert not re.search(r"/ *-?0\.0\b", PRELUDE)
    for literal in re.findall(r"(?<![\w.])\d+\.\d*(?:e[+-]?\d+)?", PRELUDE):
        assert abs(float(literal)) < 3.4028234e38
    # The bits of a NaN or an infinity become a float only by way of a variable or a choice.
    assert not re.search(r"bitcast<f32>\(0x", PRELUDE)


def test_loose_built_ins_are_not_called():
    code = re.sub("//.*", "", PRELUDE)
    loose = "exp|exp2|log|log2|pow|tanh|sin|cos|tan|inverseSqrt|clamp|fma|sign|trunc|fract|smoothstep"
    assert not re.search(rf"(?<!\w)({loose})\(", code)
