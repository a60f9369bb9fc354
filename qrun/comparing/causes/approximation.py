"""Functions of floats that onnxruntime approximates, and formulas that it computes in float32 steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qrun.comparing.causes._approximations import STEPS, Step, approximations, ways
from qrun.comparing.causes._bounds import ULPS, ErrorBound
from qrun.comparing.causes._cause import Hypothesis, Suspect, cause, computed, in_known_order, part
from qrun.comparing.causes._formulas import bounded
from qrun.comparing.differences import differing
from qrun.comparing.tensors import NARROW
from qrun.ir import Array
from qrun.ir.types import type_name


@cause("approximation", rank=41, source="onnxruntime core/mlas/lib: logistic, tanh, erf, exp and gelu in float32 steps")
def approximation(s: Suspect) -> Iterator[Hypothesis]:
    """A function such as Sigmoid, Tanh, Exp, Erf or Gelu is approximated by polynomials in float32, where the real
    value rounded once is due.

    To confirm: Away from 0 the absolute difference is small, below 1e-6, but where the function comes near 0 (Sigmoid
    below -14, Gelu below -4) the relative one is not: more than the value itself.

    To do: Nothing is wrong with the model: compare with --atol 1e-6. Where small values decide, as they do in front of
    a quantizer whose range is small, keep the target's own function in mind.
    """
    if s.theirs is None or s.theirs.shape != s.mine.shape or s.theirs.dtype != s.mine.dtype:
        return
    made: list[tuple[Array, str]] = []
    for said, step in STEPS.items():
        for formula in range(max(map(ways, s.unit.group))):
            found = _computed(s, step, formula)
            if found is not None:
                made.append((found[0], f"computes {found[1]}, {said}"))
                yield Hypothesis(*made[-1])
    if made and s.alone and not any(s.explained(array) for array, _ in made):
        mixed, text = made[0]
        for array, _ in made[1:]:
            mixed = np.where(differing(mixed, s.theirs), array, mixed)
        yield Hypothesis(mixed, f"{text}, some elements in another way")


def _computed(s: Suspect, step: Step, formula: int) -> tuple[Array, str] | None:
    """The unit's tensor with approximations in place of functions, and which; None if it has none."""
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
            outputs = computed(node, args)
            if outputs is None:
                return None
            values.update((name, array) for name, array in zip(node.outputs, outputs, strict=False) if name)
    return (values[s.tensor], " and ".join(dict.fromkeys(texts))) if texts else None


@cause(
    "float-steps",
    rank=49,
    source="Higham 2002, Accuracy and Stability of Numerical Algorithms, sections 2.2 and 3.3: running error bounds",
)
def float_steps(s: Suspect) -> Iterator[Hypothesis]:
    """A formula (normalization, activation, softmax, power) is computed in float32 steps that each round, where the
    real value rounded once is due. The steps and their order are the runtime's, so none are recomputed: every element
    must lie within the bound on the formula's rounding errors, with functions within 8 units in the last place, or
    Sigmoid, Tanh and Erf of rounded values within 2^-21.

    To confirm: The difference changes with the CPU or the library. It is largest where the formula subtracts what is
    nearly equal: a variance far smaller than the square of the mean, Elu or Softplus near their bends.

    To do: Nothing is wrong with the model: compare floats with a tolerance (--rtol, --atol), integers after it with
    --lsb 1.
    """
    if s.theirs is None or (s.theirs.dtype, s.theirs.shape) != (s.mine.dtype, s.mine.shape) or in_known_order(s):
        return
    if s.mine.dtype != np.float32 and (s.mine.dtype not in NARROW or not s.alone):
        return
    start = ErrorBound.nearly if s.mine.dtype in NARROW else ErrorBound.of
    values = {
        name: start(array)
        for name, array in {**s.model.constants, **s.values}.items()
        if array.dtype.kind in "fiu" or array.dtype in NARROW
    }
    for node in s.unit.group:
        made = bounded(node, [values.get(name) if name else None for name in node.inputs])
        if made is None:
            return
        values[node.outputs[0]] = made
    if s.mine.dtype in NARROW:
        if s.tensor in values and values[s.tensor].rounds_to(s.theirs):
            kind = type_name(s.mine.dtype)
            yield Hypothesis(
                None, f"float32 steps of its formula, rounded to {kind} at the end; all within their bound"
            )
        return
    share = values[s.tensor].share(s.mine, s.theirs) if s.tensor in values else None
    if share is not None:
        one = "its formula" if s.alone else "these nodes"
        yield Hypothesis(
            None,
            f"float32 steps of {one}, functions within {ULPS} units in the last place; "
            f"the largest difference is {part(share)} of the bound on rounding errors",
        )
