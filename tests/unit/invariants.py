"""What must hold of every compiled program beyond `webgrad.compiler.check`: the WGSL's text."""

from __future__ import annotations

import re

from webgrad.compiler.check import check_program as check_plan


def check_program(ir):
    """The compiler's own checks, and those of the texts, for the stages of one compiled program."""
    check_plan(ir.plan, ir.program)
    for text in ir.program.modules:
        check_text(text)


def check_text(text):
    """No literal that WGSL compilers refuse, no user's name or line, no arena's name."""
    code = re.sub("//.*", "", text)
    assert not re.search(r"(?<![\w.])-?(inf|nan)\b", code, re.IGNORECASE), "an infinite literal"
    assert not re.search(r"/ *-?0(\.0)?f?\b(?!\.)", code), "a division by a literal zero"
    assert not re.search(r"bitcast<f32>\(0x(7f8|ff8|7fc|ffc)", code), "a constant infinity or NaN"
    for literal in re.findall(r"(?<![\w.])\d+(?:\.\d*)?(?:e[+-]?\d+)?f\b", code):
        assert abs(float(literal[:-1])) < 3.4028235e38, literal
    for integer in re.findall(r"(?<![\w.])\d+(?![\w.])", code):
        assert int(integer) < 2**31, integer
    assert code.count("{") == code.count("}") and code.count("(") == code.count(")")
    assert "@compute @workgroup_size(" in code
    assert ".py" not in text and "param/" not in text and "opt." not in text
