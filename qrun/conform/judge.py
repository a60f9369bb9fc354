"""Gives a runtime's answer a verdict with its cause: one of `qrun.comparing.causes`, or one that only ``qrun conform``
names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from itertools import islice
from math import isfinite

import numpy as np

from qrun.comparing.causes import Cause, Hypothesis, Reason, Suspect, reason
from qrun.comparing.differences import difference_mask, is_integral, same
from qrun.comparing.sides import Unit
from qrun.conform.results import CaseResult, Element
from qrun.conform.runtimes import REFUSED, Response
from qrun.conform.suite import DECISION, Case, CaseHead
from qrun.errors import QrunError
from qrun.ir import Array, Model
from qrun.ir.load import load
from qrun.ir.types import describe

ACCEPTS_INVALID, GARBAGE, ZERO_RANGE = "accepts-invalid", "garbage", "zero-range"


def _accepts_invalid(suspect: Suspect) -> Iterator[Hypothesis]:
    """The specification forbids this model. The runtime does not refuse it, but returns a result.

    To confirm: Run qrun conform --select CASE -v. It prints the model and the sentence that forbids it. In a model of
    your own, qrun check finds the defect.

    To do: Do not rely on the runtime to refuse broken models: run qrun check first. Report the case to the runtime's
    maintainers.
    """
    return iter(())


def _garbage(suspect: Suspect) -> Iterator[Hypothesis]:
    """The same model and inputs give different bits from run to run. The runtime reads uninitialised memory, or its
    threads race.

    To confirm: Run the case several times, both in one process and in separate ones. With one thread a race does not
    show.

    To do: Use the newest version of the runtime, or avoid this form of the operator. Report the bug to the runtime's
    maintainers.
    """
    return iter(())


def _zero_range(suspect: Suspect) -> Iterator[Hypothesis]:
    """The input of DynamicQuantizeLinear is all zeros or empty. The formula divides 0 by 0, and the specification does
    not define the scale. Runtimes return 1, 0 or 1/255.

    To confirm: Run the operator alone on zeros, and print its second output, the scale.

    To do: Do not rely on this scale; the codes stand for 0 in any case. If the scale is 0, dividing by it gives NaN or
    infinity.
    """
    return iter(())


_SPEC = "https://onnx.ai/onnx/operators/"
CAUSES: Mapping[str, Cause] = {
    ACCEPTS_INVALID: Cause(ACCEPTS_INVALID, 0, _SPEC, _accepts_invalid),
    GARBAGE: Cause(GARBAGE, 0, _SPEC, _garbage),
    ZERO_RANGE: Cause(ZERO_RANGE, 0, f"{_SPEC}onnx__DynamicQuantizeLinear.html", _zero_range),
}


NEAR = 6.1e-5
"""The distance in steps from a tie within which the arithmetic decides:
four roundings to float32 can move a quotient of 256 by this much."""
SHOWN = 3
"""The most elements that a result shows."""
ARITHMETIC = ("float32-multiplier", "float32-arithmetic")
SILENT = ("zero-point-before-rounding", "tie-rounding")
"""Causes that a specification without a word about rounding leaves open."""
Again = Callable[[], Response]


def judge_case(case: Case, given: Response, again: Again | None = None) -> CaseResult:
    """Judge an answer. again: runs the case once more, to see if the runtime answers the same."""
    if case.info.rejects and not given.failed:
        got = ", ".join(describe(a) for a in given.outputs.values() if a is not None)
        return _result(
            case, "wrong", ACCEPTS_INVALID, f"returns {got} for a model that the specification forbids", True
        )
    if case.info.rejects:
        return _result(case, "exact" if given.failed == REFUSED else given.failed, text=given.message)
    if given.failed:
        return _result(case, given.failed, text=given.message)
    bad = {name: array for name, array in given.outputs.items() if not _right(case.expected[name], array)}
    if not bad:
        return _result(case, "exact", total=_size(case))
    changes = again is not None and _changes(given, again())
    outputs = given.outputs
    same_as = (a for a in case.alternatives if all(_right(want, outputs[n]) for n, want in a.outputs.items()))
    known = next(same_as, None)
    if known is not None and not changes:
        return _result_of(case, bad, "choice" if known.open else "wrong", known.cause, known.text, True)
    why, proved = _reason(case, bad)
    if changes:
        text = "results change from run to run: uninitialised memory, or a race between threads"
        return _result_of(case, bad, "wrong", why.cause if why.cause == "empty-sum" else GARBAGE, text, True)
    silent = why.cause in SILENT and case.info.basis == DECISION
    verdict = "choice" if silent or all(_near(case, name, got, why) for name, got in bad.items()) else "wrong"
    return _result_of(case, bad, verdict, why.cause, why.text, proved)


def _right(want: Array, got: Array | None) -> bool:
    """Are the values the expected ones? For floats, -0 differs from 0."""
    if got is None or not same(want, got):
        return False
    a, b = np.asarray(want, np.float32), np.asarray(got, np.float32)
    return is_integral(want.dtype) or bool(np.all((np.signbit(a) == np.signbit(b)) | np.isnan(a)))


def _changes(first: Response, second: Response) -> bool:
    """Whether a second run of a case gave another answer."""
    if second.failed or first.outputs.keys() != second.outputs.keys():
        return True
    pairs = [(first.outputs[name], second.outputs[name]) for name in first.outputs]
    return not all(a is b or (a is not None and b is not None and same(a, b)) for a, b in pairs)


def _reason(case: Case, bad: dict[str, Array | None]) -> tuple[Reason, bool]:
    """The reason why the first differing output differs, and whether recomputing proved it."""
    for name, got in bad.items():
        want = case.expected[name]
        try:
            model = load(case.model)
        except QrunError:
            break
        suspect = _suspect(case, model, name, got)
        found = reason(suspect) if suspect is not None else Reason("unknown", "a graph of several nodes")
        proved = found.cause != "unknown" and (found.explained > 0 or got is None or found.cause.startswith("wrong-"))
        if found.cause == "unknown":
            form = _form(want, got)
            found = Reason(*form) if form else found
        return found, proved
    return Reason("unknown", "no known computation reproduces these bits"), False


def _form(want: Array, got: Array | None) -> tuple[str, str] | None:
    """The cause and text for an answer of another type or shape; None if both are right or there is no answer."""
    if got is None or (got.shape == want.shape and got.dtype == want.dtype):
        return None
    kind = "wrong-shape" if got.shape != want.shape else "wrong-type"
    return kind, f"{describe(got)} instead of {describe(want)}"


def _suspect(case: Case, model: Model, name: str, got: Array | None) -> Suspect | None:
    """The single node of the case as a suspect, with all its inputs; None for a graph of several nodes."""
    if len(model.nodes) != 1:
        return None
    node = model.nodes[0]
    values = {**model.constants, **case.inputs}
    return Suspect(model, Unit(node, (node,)), name, values, case.expected[name], got)


def _near(case: Case, name: str, got: Array | None, why: Reason) -> bool:
    """Is every differing element near a tie, or within the difference that the case allows for float sums?"""
    want = case.expected[name]
    if got is None or got.shape != want.shape or got.dtype != want.dtype:
        return False
    wrong = difference_mask(got, want)
    with np.errstate(all="ignore"):
        a, b = want.astype(np.float64)[wrong], got.astype(np.float64)[wrong]
    if case.within and wrong.any():
        return bool(np.all(np.abs(a - b) <= case.within))
    margin = case.margin.get(name)
    if margin is None or not wrong.any() or not is_integral(want.dtype) or np.any(np.abs(a - b) != 1):
        return False
    away = margin[wrong]
    return bool(np.all(away <= NEAR)) and (bool(np.all(away > 0)) or why.cause in ARITHMETIC)


def _size(case: Case) -> int:
    """The number of expected elements."""
    return sum(array.size for array in case.expected.values())


def _result_of(
    case: Case, bad: dict[str, Array | None], verdict: str, cause: str, text: str, proved: bool
) -> CaseResult:
    """The result of a case with wrong outputs `bad` (name, array)."""
    elements = tuple(islice(_elements(case, bad), SHOWN))
    count = 0
    for name, got in bad.items():
        want = case.expected[name]
        alike = got is not None and got.shape == want.shape and got.dtype == want.dtype
        count += int(np.count_nonzero(difference_mask(got, want))) if alike and got is not None else want.size
    return _result(case, verdict, cause, text, proved, count, _size(case), elements)


def _elements(case: Case, bad: dict[str, Array | None]) -> Iterable[Element]:
    """The wrong elements of a case."""
    for name, got in bad.items():
        want = case.expected[name]
        if got is None or got.shape != want.shape:
            continue
        exact, margin = case.exact.get(name), case.margin.get(name)
        with np.errstate(all="ignore"):
            a, b = want.astype(np.float64), got.astype(np.float64)
        for at in map(tuple, np.argwhere((a != b) & ~((a != a) & (b != b)))):
            index = tuple(int(i) for i in at)
            yield Element(
                name,
                index,
                float(a[at]),
                float(b[at]),
                None if exact is None else float(exact[at]),
                None if margin is None or not isfinite(margin[at]) else float(margin[at]),
            )


def _result(
    case: Case,
    verdict: str,
    cause: str = "",
    text: str = "",
    proved: bool = False,
    differing: int = 0,
    total: int = 0,
    elements: tuple[Element, ...] = (),
) -> CaseResult:
    """The result of a case."""
    told = {field.name: getattr(case.info, field.name) for field in fields(CaseHead)}
    told |= {"verdict": verdict, "cause": cause, "proved": proved, "text": text}
    return CaseResult(**told, differing=differing, total=total, elements=elements)
