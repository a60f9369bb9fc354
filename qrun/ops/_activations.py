"""Activations of recurrent operators, by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ops._float import single, unary
from qrun.ops._op import Array, find, refuse, require

Activation = Callable[[Array], Array]


@frozen
class Gates:
    """The activation functions of each direction. names: their names, in small letters.

    clip: inputs of the functions are clipped to [-clip, clip]; None: they are not clipped.
    """

    names: tuple[tuple[str, ...], ...]
    functions: tuple[tuple[Activation, ...], ...]
    clip: float | None

    def of(self, direction: int) -> tuple[Activation, ...]:
        """The functions of a direction; each of them clips its input first, if `clip` is given."""
        return tuple(self._clipped(function) for function in self.functions[direction])

    def _clipped(self, function: Activation) -> Activation:
        bound = self.clip
        return function if bound is None else lambda x: function(np.clip(x, x.dtype.type(-bound), x.dtype.type(bound)))


_ALPHA, _BETA = "alpha", "beta"
_OPERATORS: dict[str, tuple[str, tuple[float | None, ...]]] = {
    "relu": ("Relu", ()),
    "tanh": ("Tanh", ()),
    "sigmoid": ("Sigmoid", ()),
    "softsign": ("Softsign", ()),
    "softplus": ("Softplus", ()),
    "leakyrelu": ("LeakyRelu", (0.01,)),
    "thresholdedrelu": ("ThresholdedRelu", (1.0,)),
    "elu": ("Elu", (1.0,)),
    "hardsigmoid": ("HardSigmoid", (0.2, 0.5)),
    "affine": ("", (None, None)),
    "scaledtanh": ("", (None, None)),
}
"""By name in small letters: the operator that it is, and defaults of its alpha and beta;
None where it has no default."""


def activations(
    names: Sequence[str] | None,
    defaults: Sequence[str],
    directions: int,
    alphas: Sequence[float] | None,
    betas: Sequence[float] | None,
    clip: float | None,
) -> Gates:
    """The functions that the attributes name; alpha and beta are taken in order by those that have one."""
    wanted = len(defaults) * directions
    names = list(defaults) * directions if names is None else names
    if len(names) != wanted:
        raise refuse(
            f"{len(names)} activations",
            "activations",
            f"{wanted}: {len(defaults)} for each direction",
            str(len(names)),
            code="QR204",
        )
    rest = {_ALPHA: list(alphas or ()), _BETA: list(betas or ())}
    made = []
    for name in names:
        if name.lower() not in _OPERATORS:
            raise refuse(f"there is no activation {name!r}", "activations", ", ".join(_OPERATORS), name, code="QR204")
        kinds = zip((_ALPHA, _BETA), _OPERATORS[name.lower()][1], strict=False)
        made.append(_function(name.lower(), {kind: _taken(name, kind, rest[kind], default) for kind, default in kinds}))
    require("clip", clip is None or clip > 0, "more than 0", clip)
    own = [slice(first, first + len(defaults)) for first in range(0, wanted, len(defaults))]
    known = tuple(tuple(name.lower() for name in names[part]) for part in own)
    return Gates(known, tuple(tuple(made[part]) for part in own), None if clip is None else single(clip))


def _function(name: str, given: Mapping[str, Any]) -> Activation:
    operator = find("", _OPERATORS[name][0], sys.maxsize)
    if operator is not None:
        return lambda x: np.asarray(operator(x, **given))
    alpha, beta = given[_ALPHA], given[_BETA]
    if name == "affine":
        return lambda x: unary(lambda v: alpha * v + beta, x)
    return lambda x: unary(lambda v: alpha * np.tanh(beta * v), x)


def _taken(name: str, kind: str, rest: list[float], default: float | None) -> float:
    if rest:
        return single(rest.pop(0))
    if default is None:
        raise refuse(
            f"{name} has no {kind}",
            f"activation_{kind}",
            f"a number for {name}: it has no default",
            "nothing",
            code="QR204",
        )
    return single(default)
