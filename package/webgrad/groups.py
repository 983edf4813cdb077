"""Parameter groups: factors on the learning rate and the weight decay of some parameters.

A parameter's factors are the products of those of every `Group` that matches it. Parameters with equal
factors lie side by side in their arena, so that an element's factor follows from its index: an update stays
one kernel, whatever the groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from webgrad.errors import InputError
from webgrad.ir import Shape

Matcher = str | Callable[[str, Shape], bool]


def vectors(name: str, shape: Shape) -> bool:
    """Whether a parameter has fewer than two axes: biases, gains, scalars. ``Group(vectors, weight_decay=0)``
    lets only matrices decay.
    """
    return len(shape) < 2


@dataclass(frozen=True)
class Group:
    """Factors for the parameters that ``match``: ``lr_p = lr · factor``, ``weight_decay_p = weight_decay ·
    factor``. They multiply whatever `CompiledModule.set` makes of the hyperparameters.

    ``match`` is a pattern of parameter names, as in a shell (``"*.b"``, ``"head.*"``), or a function
    ``(name, shape) -> bool`` such as `vectors`. Raises `InputError` for a factor that is negative or not
    finite.
    """

    match: Matcher
    lr: float = 1.0
    weight_decay: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.match, str) and not callable(self.match):
            raise InputError(
                f"Group: match must be a name pattern such as '*.b' or a function (name, shape) -> bool, "
                f"found {self.match!r}"
            )
        for what, factor in (("lr", self.lr), ("weight_decay", self.weight_decay)):
            number = isinstance(factor, int | float) and not isinstance(factor, bool)
            if not number or not math.isfinite(factor) or factor < 0:
                raise InputError(
                    f"Group: {what} must be a finite factor that is not negative, found {factor!r}"
                )

    def matches(self, name: str, shape: Shape) -> bool:
        """Whether a parameter is in the group."""
        if isinstance(self.match, str):
            return fnmatchcase(name, self.match)
        return bool(self.match(name, shape))


@dataclass(frozen=True)
class Factors:
    """What some parameters' hyperparameters are multiplied by."""

    lr: float = 1.0
    weight_decay: float = 1.0


@dataclass(frozen=True)
class Grouping:
    """Distinct factors, and for each parameter the number of its own."""

    factors: tuple[Factors, ...]
    member: Mapping[str, int]


def resolve(groups: Sequence[Group], params: Mapping[str, Shape]) -> Grouping:
    """Factors of every parameter. Raises `InputError` for a group that matches none."""
    for group in groups:
        if not any(group.matches(name, shape) for name, shape in params.items()):
            raise InputError(f"{group} matches no parameter: there are {list(params)}")
    numbers: dict[Factors, int] = {}
    member = {}
    for name, shape in params.items():
        mine = [g for g in groups if g.matches(name, shape)]
        factors = Factors(math.prod(g.lr for g in mine), math.prod(g.weight_decay for g in mine))
        member[name] = numbers.setdefault(factors, len(numbers))
    return Grouping(tuple(numbers) or (Factors(),), member)
