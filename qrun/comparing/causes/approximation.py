"""Causes in float functions: onnxruntime approximates them by polynomials and their quotients, or computes formulas in
float32 steps.

Polynomials use Horner's scheme. A multiply-add rounds once or twice, depending on the CPU: `step` says which.
Coefficients from onnxruntime core/mlas/lib: logistic.cpp, tanh.cpp, erf.cpp, compute.cpp (exp), gelu.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qrun.comparing.causes._cause import Hypothesis, Suspect, cause, compute_node, in_known_order, part
from qrun.comparing.causes._formulas import ULPS, ErrorBound, bound_of
from qrun.comparing.differences import NARROW, difference_mask
from qrun.ir import Array, Node
from qrun.ir.types import type_name
from qrun.ops._rounding import fma32
from qrun.ops.qlinearbinary import logistic32

Step = Callable[[Any, Any, Any], Array]
"""a * b + c in float32."""
_F32 = np.float32
_LOG2_E, _LN2_HIGH, _LN2_LOW, _WHOLE = _F32(1.44269504), _F32(-6.93145752e-1), _F32(-1.42860677e-6), _F32(1.5 * 2**23)
"""Adding and subtracting `_WHOLE` rounds to an integer."""
_EXP = tuple(
    map(float.fromhex, ("0x1.694p-10", "0x1.125edcp-7", "0x1.555b5ap-5", "0x1.55545p-3", "0x1.fffff6p-2", "1"))
)
_EXP_ENDS = _F32(-103.9720840454), _F32(88.7762626647950)
_TANH = (
    (
        -2.76076847742355e-16,
        2.00018790482477e-13,
        -8.60467152213735e-11,
        5.12229709037114e-08,
        1.48572235717979e-05,
        6.37261928875436e-04,
        4.89352455891786e-03,
    ),
    (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03),
)
_ERF_SMALL = (-5.99104969e-4, 4.99339588e-3, -2.67667342e-2, 1.12818025e-1, -3.76124859e-1, 1.28379151e-1)
_ERF_LARGE = (1.72948930e-5, -3.83208680e-4, 3.88393435e-3, -2.42545605e-2, 1.06777847e-1, 6.34846687e-1, 1.28717512e-1)
_ERF_EXP = (1.38319808e-3, 8.37550033e-3, 4.16689515e-2, 1.66664466e-1, 4.99999851e-1, 1.0, 1.0)
_ERF_SPLIT, _ERF_ENDS = _F32(0.921875), (_F32(3.925), _F32(3.725))
"""The magnitude above which erf uses its second polynomial;
and the magnitudes at which it becomes 1, in newer and in older versions."""


def in_two_roundings(a: Any, b: Any, c: Any) -> Array:
    """float32(float32(a * b) + c)."""
    return np.asarray(np.asarray(a, _F32) * np.asarray(b, _F32) + np.asarray(c, _F32))


STEPS: Mapping[str, Step] = {"multiplied and added at once, as with FMA": fma32, "without FMA": in_two_roundings}


def ways(node: Node) -> int:
    """The number of approximations of a node's function in different versions of onnxruntime; 0 for other nodes."""
    return 0 if node.domain or node.op_type not in _KNOWN else len(_ERF_ENDS) if node.op_type in ("Erf", "Gelu") else 1


def approximations(node: Node, x: Array, step: Step) -> Iterator[tuple[str, Array]]:
    """Yield the formulas with which onnxruntime may compute a function of one float32 tensor:
    a description of each, and its result for x.

    Yields nothing for other operators and types.
    """
    function = _KNOWN.get(node.op_type) if not node.domain and x.dtype == _F32 else None
    yield from function(node, x, step) if function is not None else ()


def _horner(coefficients: Sequence[float], x: Array, step: Step) -> Array:
    """A polynomial by Horner's scheme, highest coefficient first; `step` is the multiply-add."""
    made: Array = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        made = step(made, x, _F32(c))
    return made


def _tanh(x: Array, step: Step) -> Array:
    """tanh as a quotient of two polynomials."""
    v = np.clip(x, _F32(-9), _F32(9))
    odd, even = (_horner(part, v * v, step) for part in _TANH)
    return np.asarray(odd * v / even)


def _reduce_argument(x: Array, step: Step) -> tuple[Array, Array]:
    """Split x into n * ln 2 + rest. Returns n and the rest."""
    whole = step(x, _LOG2_E, _WHOLE) - _WHOLE
    return whole, step(whole, _LN2_LOW, step(whole, _LN2_HIGH, x))


def _exp(x: Array, step: Step) -> Array:
    """exp(x). The power of 2 is multiplied in two parts, because one alone may exceed float32's exponents."""
    whole, rest = _reduce_argument(np.clip(x, *_EXP_ENDS), step)
    p = _horner(_EXP, rest, step)
    power = np.nan_to_num(whole).astype(np.int32)
    inner = np.clip(power, -126, 127)
    first, second = (np.ldexp(_F32(1), part) for part in (power - inner, inner))
    return np.asarray(step(p, rest * first, first) * second)


def _erf(x: Array, step: Step, end: np.float32) -> Array:
    """erf as two polynomials; magnitudes above `end` count as `end`."""
    size = np.minimum(np.abs(x), end)
    small = step(_horner(_ERF_SMALL, size * size, step), size, size)
    power = np.maximum(-step(_horner(_ERF_LARGE, size, step), size, size), _F32(-88.3762626647949))
    whole, rest = _reduce_argument(power, step)
    large = 1 - np.ldexp(_horner(_ERF_EXP, rest, step), np.nan_to_num(whole).astype(np.int32))
    return np.asarray(np.copysign(np.where(size > _ERF_SPLIT, large, small), x))


def _of_erf(node: Node, x: Array, step: Step) -> Iterator[tuple[str, Array]]:
    """Hypotheses of how another runtime approximates Erf."""
    for end in _ERF_ENDS:
        yield f"erf as two polynomials, inside an exponential for magnitudes above {_ERF_SPLIT:g}", _erf(x, step, end)


def _of_gelu(node: Node, x: Array, step: Step) -> Iterator[tuple[str, Array]]:
    """Hypotheses of how another runtime approximates Gelu."""
    half, one = _F32(0.5), _F32(1)
    if node.attributes.get("approximate", "none") == "tanh":
        slope, cube = _F32(0.7978845608028654), _F32(0.7978845608028654 * 0.044715)
        yield "tanh as the quotient of two polynomials", half * x * (_tanh(x * (cube * x * x + slope), step) + one)
        return
    for end in _ERF_ENDS:
        yield "erf as two polynomials", half * x * (_erf(x * _F32(0.7071067811865476), step, end) + one)


def _of_swish(node: Node, x: Array, step: Step) -> Iterator[tuple[str, Array]]:
    """Hypotheses of how another runtime approximates Swish."""
    alpha = node.attributes.get("alpha", 1.0)
    assert isinstance(alpha, float)
    yield _LOGISTIC, x * logistic32(_F32(alpha) * x, step)


_LOGISTIC = "the logistic function as a quotient of two polynomials, cut off at -18 and 18"
_KNOWN: Mapping[str, Callable[[Node, Array, Step], Iterator[tuple[str, Array]]]] = {
    "Sigmoid": lambda node, x, step: iter([(_LOGISTIC, logistic32(x, step))]),
    "Tanh": lambda node, x, step: iter(
        [("tanh as a quotient of two polynomials, cut off at -9 and 9", _tanh(x, step))]
    ),
    "Exp": lambda node, x, step: iter([("exp as a polynomial of degree 6 times a power of 2", _exp(x, step))]),
    "Erf": _of_erf,
    "Gelu": _of_gelu,
    "Swish": _of_swish,
}


@cause("approximation", rank=41, source="onnxruntime core/mlas/lib: logistic, tanh, erf, exp and gelu in float32 steps")
def approximation(s: Suspect) -> Iterator[Hypothesis]:
    """The runtime approximates a function such as Sigmoid, Tanh, Exp, Erf or Gelu by polynomials in float32. qrun
    rounds the exact value once.

    To confirm: The absolute difference is small, below 1e-6. The relative difference is large where the function
    approaches 0, as for Sigmoid below -14 or Gelu below -4.

    To do: Nothing is wrong with the model: compare with --atol 1e-6. If small values matter, for example before a
    QuantizeLinear with a small scale, check the model on the target.
    """
    if s.theirs is None or s.theirs.shape != s.mine.shape or s.theirs.dtype != s.mine.dtype:
        return
    made: list[tuple[Array, str]] = []
    for said, step in STEPS.items():
        for formula in range(max(map(ways, s.unit.group))):
            found = _compute_approximately(s, step, formula)
            if found is not None:
                made.append((found[0], f"computes {found[1]}, {said}"))
                yield Hypothesis(*made[-1])
    if made and s.alone and not any(s.is_explained_by(array) for array, _ in made):
        mixed, text = made[0]
        for array, _ in made[1:]:
            mixed = np.where(difference_mask(mixed, s.theirs), array, mixed)
        yield Hypothesis(mixed, f"{text}, and some elements in a different way")


def _compute_approximately(s: Suspect, step: Step, formula: int) -> tuple[Array, str] | None:
    """The unit's tensor with approximated functions, and their description; None if no node has an approximation."""
    values, texts = {**s.model.constants, **s.values}, list[str]()
    for node in s.unit.group:
        args = [values.get(name) if name else None for name in node.inputs]
        x = args[0] if args else None
        known = list(approximations(node, x, step)) if x is not None else []
        if known:
            text, array = known[min(formula, len(known) - 1)]
            texts.append(text)
            values[node.outputs[0]] = array
        else:
            outputs = compute_node(node, args)
            if outputs is None:
                return None
            values.update((name, array) for name, array in zip(node.outputs, outputs, strict=False) if name)
    return (values[s.tensor], " and ".join(dict.fromkeys(texts))) if texts else None


def _rounds_within(s: Suspect, quantize: Node, x: ErrorBound | None) -> bool:
    """Is each code of the other side the rounding of a value within the bound?"""
    rest = [s.model.constants.get(name, s.values.get(name)) if name else None for name in quantize.inputs[1:]]
    if x is None or s.theirs is None:
        return False
    ends = [np.nextafter((x.value + sign * x.error).astype(_F32), _F32(sign * np.inf)) for sign in (-1, 1)]
    made = [compute_node(quantize, [end, *rest]) for end in ends]
    if made[0] is None or made[1] is None:
        return False
    low, high = made[0][0], made[1][0]
    return low.shape == s.theirs.shape and bool(((low <= s.theirs) & (s.theirs <= high)).all())


@cause(
    "float-steps",
    rank=49,
    source="Higham 2002, Accuracy and Stability of Numerical Algorithms, sections 2.2 and 3.3: running error bounds",
)
def float_steps(s: Suspect) -> Iterator[Hypothesis]:
    """The runtime computes a formula (normalization, activation, softmax, power) in several float32 steps and rounds
    each. qrun rounds the exact value once. qrun does not know the runtime's steps, so it cannot recompute them. It
    checks that every element is within the bound on their rounding errors. The bound allows an error of 8 units in the
    last place for functions, and of 2^-21 for Sigmoid, Tanh and Erf of rounded values.

    To confirm: The difference changes with the CPU or the library. It is largest where the formula subtracts nearly
    equal numbers: a variance far smaller than the squared mean, or Elu and Softplus near 0.

    To do: Nothing is wrong with the model: compare floats with a tolerance (--rtol, --atol), and later integers with
    --lsb 1.
    """
    if s.theirs is None or (s.theirs.dtype, s.theirs.shape) != (s.mine.dtype, s.mine.shape) or in_known_order(s):
        return
    last = s.unit.group[-1]
    rounds = last.op_type == "QuantizeLinear" and s.tensor == last.outputs[0] and not s.alone
    if s.mine.dtype != np.float32 and (s.mine.dtype not in NARROW or not s.alone) and not rounds:
        return
    start = ErrorBound.nearly if s.mine.dtype in NARROW else ErrorBound.of
    values = {
        name: start(array)
        for name, array in {**s.model.constants, **s.values}.items()
        if array.dtype.kind in "fiu" or array.dtype in NARROW
    }
    for node in s.unit.group[:-1] if rounds else s.unit.group:
        made = bound_of(node, [values.get(name) if name else None for name in node.inputs])
        if made is None:
            return
        values[node.outputs[0]] = made
    if rounds:
        if _rounds_within(s, last, values.get(last.inputs[0])):
            yield Hypothesis(None, "computes these nodes in float32; every code is within the rounding-error bound")
        return
    if s.mine.dtype in NARROW:
        if s.tensor in values and values[s.tensor].rounds_to(s.theirs):
            kind = type_name(s.mine.dtype)
            yield Hypothesis(
                None, f"computes the formula in float32 and rounds to {kind} at the end; all within the error bound"
            )
        return
    share = values[s.tensor].share(s.mine, s.theirs) if s.tensor in values else None
    if share is not None:
        one = "its formula" if s.alone else "these nodes"
        yield Hypothesis(
            None,
            f"computes {one} in float32; the largest difference is {part(share)} of the rounding-error bound "
            f"(functions within {ULPS} ulp)",
        )
