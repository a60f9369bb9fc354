"""Gives a runtime's answer a verdict with its cause: one of `qrun.comparing.causes`, or one that only ``qrun conform``
names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import islice
from math import isfinite

import numpy as np

from qrun.comparing.causes import UNKNOWN, Cause, Hypothesis, Reason, Suspect, partial_reason, reason
from qrun.comparing.differences import difference_mask, is_integral, same
from qrun.conform.results import CaseResult, Element
from qrun.conform.runtimes import REFUSED, Response
from qrun.conform.suite import DECISION, EITHER, REFUSAL, Case, CaseHead, near_tie
from qrun.conform.suspects import graph_suspects, node_suspect
from qrun.errors import QrunError
from qrun.ir import Array, Model
from qrun.ir.load import load
from qrun.ir.types import describe

ACCEPTS_INVALID, GARBAGE, ZERO_RANGE = "accepts-invalid", "garbage", "zero-range"
FLOAT_ROUNDING, ZERO_SIGN = "float-rounding", "zero-sign"


def _accepts_invalid(suspect: Suspect) -> Iterator[Hypothesis]:
    """The specification forbids this model. The runtime does not refuse it, but returns a result.

    To confirm: Run qrun conform --select CASE -v. It prints the model and the sentence that forbids it. In a model of
    your own, qrun check finds the defect.

    To do: Do not rely on the runtime to refuse broken models: run qrun check first. Report the case to the runtime's
    maintainers.
    """
    return iter(())


def _garbage(suspect: Suspect) -> Iterator[Hypothesis]:
    """The same model and inputs produce different bits from run to run. The runtime reads uninitialised memory, or its
    threads race.

    To confirm: Run the case several times, both in one process and in separate ones. A race does not show with one
    thread.

    To do: Use the newest version of the runtime, or avoid this form of the operator. Report the bug to the runtime's
    maintainers.
    """
    return iter(())


def _zero_range(suspect: Suspect) -> Iterator[Hypothesis]:
    """The input of DynamicQuantizeLinear is all zeros or empty. The formula divides 0 by 0, and the specification does
    not define the scale. Runtimes return 1, 0 or 1/255.

    To confirm: Run the operator alone on zeros, and print its second output, the scale.

    To do: Do not rely on this scale; the codes represent 0 in any case. If the scale is 0, dividing by it returns NaN
    or infinity.
    """
    return iter(())


def _float_rounding(suspect: Suspect) -> Iterator[Hypothesis]:
    """The runtime rounds the float result in a different place or order. It is off by a few units in the last place
    (ULP), which is within the tolerance of ONNX's own tests (0.1 % of the value).

    To confirm: qrun conform --select CASE -v shows both numbers.

    To do: Compare floats with a tolerance. Codes that are computed from them can differ by one at ties.
    """
    return iter(())


def _zero_sign(suspect: Suspect) -> Iterator[Hypothesis]:
    """A zero has the opposite sign; all numbers are equal.

    To confirm: Divide 1 by the output: +0 returns inf, -0 returns -inf.

    To do: Nothing, unless a later node divides by the result or takes its sign.
    """
    return iter(())


_SPEC = "https://onnx.ai/onnx/operators/"
CAUSES: Mapping[str, Cause] = {
    ACCEPTS_INVALID: Cause(ACCEPTS_INVALID, 0, _SPEC, _accepts_invalid),
    GARBAGE: Cause(GARBAGE, 0, _SPEC, _garbage),
    ZERO_RANGE: Cause(ZERO_RANGE, 0, f"{_SPEC}onnx__DynamicQuantizeLinear.html", _zero_range),
    FLOAT_ROUNDING: Cause(FLOAT_ROUNDING, 0, _SPEC, _float_rounding),
    ZERO_SIGN: Cause(ZERO_SIGN, 0, _SPEC, _zero_sign),
}


RTOL, ATOL = 1e-3, 1e-7
"""The tolerance of onnx.backend.test, by which ONNX compares the floats of its own node cases."""


def absolute_tolerance(want: Array) -> float:
    """ATOL, or less where all expected values are below 1: it then counts in the largest of them, so that small results
    are judged too."""
    values = np.abs(want.astype(np.float64))
    return ATOL * min(1.0, float(np.max(values, where=np.isfinite(values), initial=0.0)))


SHOWN_BY_ANSWER = ("wrong-shape", "wrong-type")
"""Causes that the answer alone shows, so that nothing is recomputed."""
NUMERIC = "biufV"
"""Kinds of numpy types that are numbers, those of ml_dtypes included."""
RIVALS = 3
"""The most other hypotheses that a text names."""
SHOWN = 3
"""The most elements that a result shows."""


Again = Callable[[], Iterable[Response]]


@np.errstate(all="ignore")  # answers may have signaling NaN
def judge_case(case: Case, given: Response, again: Again | None = None) -> CaseResult:
    """Judge an answer. again: runs the case some more times, to see if the runtime answers the same."""
    if case.info.expects == REFUSAL and not given.failed:
        got = ", ".join(describe(a) for a in given.outputs.values() if a is not None)
        return _result(case, ACCEPTS_INVALID, "", f"returns {got} for a model that the specification forbids", True)
    if given.failed:
        right = given.failed == REFUSED and case.info.expects in (REFUSAL, EITHER)
        return _result(case, "exact" if right else given.failed, text=given.message)
    bad = {name: array for name, array in given.outputs.items() if not _right(case.expected[name], array)}
    if not bad:
        return _result(case, "exact", total=_size(case))
    if again is not None and any(_changes(given, other) for other in again()):
        text = "results change from run to run: uninitialised memory, or a race between threads"
        return _result_of(case, bad, "unstable", GARBAGE, text, True)
    open_ = case.info.basis == DECISION or case.info.expects == EITHER
    same_as = (a for a in case.alternatives if all(_right(want, given.outputs[n]) for n, want in a.outputs.items()))
    known = next(same_as, None)
    if known is not None:
        return _result_of(case, bad, "choice" if known.open or open_ else "wrong", known.cause, known.text, True)
    ulps = _ulps(case, bad)
    if ulps is not None:
        cause, text = (FLOAT_ROUNDING, f"up to {ulps} ULP away") if ulps else (ZERO_SIGN, "the sign of a zero differs")
        return _result_of(case, bad, "ulp", cause, text, True)
    why, proved = _reason(case, bad)
    near = all(_near(case, name, got) for name, got in bad.items())
    return _result_of(case, bad, "choice" if open_ or near else "wrong", why.cause, why.text, proved)


def _ulps(case: Case, bad: Mapping[str, Array | None]) -> int | None:
    """The largest distance in units in the last place, if all bad outputs are floats within the tolerance; else None.

    The tolerance of an element is the greatest of ONNX's own for its tests, what the case allows, and 1 ULP.
    """
    largest = 0
    for name, got in bad.items():
        want = case.expected[name]
        if got is None or (got.shape, got.dtype) != (want.shape, want.dtype) or want.dtype.name not in ULP_TYPES:
            return None
        distance = _ulp_distance(want, got)
        a, b = want.astype(np.float64), got.astype(np.float64)
        within = np.abs(a - b) <= np.maximum(case.within, absolute_tolerance(want) + RTOL * np.abs(a))
        unlike = (np.isnan(a) != np.isnan(b)) | ((np.isinf(a) | np.isinf(b)) & (a != b))
        if np.any(unlike | ~(within | (distance <= 1) | np.isnan(a))):
            return None
        largest = max(largest, int(distance.max(initial=0)))
    return largest


ULP_TYPES = ("float16", "bfloat16", "float32", "float64")
"""Types whose results are real numbers, not codes."""


def _ulp_distance(want: Array, got: Array) -> Array:
    """The number of representable values between two float arrays of one type, element by element; 0 between two NaN.

    The bits of floats, read as integers with a sign and a magnitude, are in the order of the numbers.
    """
    bits = np.dtype(f"u{want.dtype.itemsize}")
    top = 1 << (8 * bits.itemsize - 1)

    def ordered(values: Array) -> Array:
        raw = np.ascontiguousarray(values).view(bits).astype(object)
        return np.where(raw >= top, top - raw, raw)

    both_nan = np.isnan(want.astype(np.float64)) & np.isnan(got.astype(np.float64))
    return np.where(both_nan, 0, np.abs(ordered(want) - ordered(got)))


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
    if all(got is not None and same(case.expected[name], got) for name, got in bad.items()):
        return Reason(ZERO_SIGN, "the sign of a zero differs"), True
    for name, got in bad.items():
        want = case.expected[name]
        if got is not None and got.dtype.kind not in NUMERIC:
            return Reason("wrong-type", f"{describe(got)} instead of {describe(want)}"), True
        try:
            model = load(case.model)
        except QrunError:
            break
        suspect = node_suspect(case, model, name, got)
        found = None if suspect is None else reason(suspect)
        if found is None or found.cause == UNKNOWN:
            found = _reason_of_graph(case, model, name, got) or found
        if found is None:
            return Reason(UNKNOWN, "qrun does not compute the nodes before it"), False
        if found.cause == UNKNOWN:
            form = _form(want, got)
            part = partial_reason(suspect) if suspect is not None else None
            return Reason(*form) if form else part or found, False
        return _with_rivals(found, got is None or found.cause in SHOWN_BY_ANSWER)
    return Reason(UNKNOWN, "no known computation reproduces these bits"), False


def _reason_of_graph(case: Case, model: Model, name: str, got: Array | None) -> Reason | None:
    """Why an output differs, if the nodes of its graph run in another form; None if no form reproduces it."""
    found = [(told, reason(suspect)) for told, suspect in graph_suspects(case, model, name, got)]
    known = [replace(why, text=told + why.text) for told, why in found if why.cause != UNKNOWN]
    if not known:
        return None
    first, *others = known
    rivals = (f"{why.cause}: {why.text}" for why in others if why.cause != first.cause)
    return replace(first, also=(*first.also, *rivals))


def _with_rivals(found: Reason, seen: bool) -> tuple[Reason, bool]:
    """The reason, and whether it is proved: it reproduces the bits, and no hypothesis of another cause does.

    seen: does the answer alone show the cause? A text with rivals numbers them: ``(1) truncates; or (2) rounds down``.
    """
    rivals = [text for text in found.also if text.partition(":")[0] != found.cause]
    more = len(found.also) - RIVALS
    texts = [found.text, *(rival.partition(": ")[2] for rival in found.also[:RIVALS])]
    parts = _numbered(texts) if len(texts) > 1 else texts
    parts += [f"{more} other explanation{'s' * (more > 1)}"] * (more > 0)
    reproduced = found.explained > 0 or seen
    return replace(found, text="; or ".join(parts)), reproduced and not rivals


def _numbered(texts: Sequence[str]) -> list[str]:
    """Texts with numbers; one that starts with the first text refers to it: ``(2) as (1), and ...``."""
    first = f"{texts[0]},"
    return [f"({i}) {f'as (1),{t.removeprefix(first)}' if t.startswith(first) else t}" for i, t in enumerate(texts, 1)]


def _form(want: Array, got: Array | None) -> tuple[str, str] | None:
    """The cause and text for an answer of another type or shape; None if both are right or there is no answer."""
    if got is None or (got.shape == want.shape and got.dtype == want.dtype):
        return None
    kind = "wrong-shape" if got.shape != want.shape else "wrong-type"
    return kind, f"{describe(got)} instead of {describe(want)}"


def _near(case: Case, name: str, got: Array | None) -> bool:
    """Is every differing element one step away and so near a tie, but not on it, that the arithmetic decides?"""
    want = case.expected[name]
    if got is None or got.shape != want.shape or got.dtype != want.dtype:
        return False
    wrong = difference_mask(got, want)
    with np.errstate(all="ignore"):
        a, b = want.astype(np.float64)[wrong], got.astype(np.float64)[wrong]
    margin = case.margin.get(name)
    if margin is None or not wrong.any() or not is_integral(want.dtype) or np.any(np.abs(a - b) != 1):
        return False
    away = margin[wrong]
    return bool(np.all((away > 0) & (away <= near_tie(want.dtype))))


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
        if got is None or got.shape != want.shape or got.dtype.kind not in NUMERIC:
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
    values = {field.name: getattr(case.info, field.name) for field in fields(CaseHead)}
    values |= {"verdict": verdict, "cause": cause, "proved": proved, "text": text}
    return CaseResult(**values, differing=differing, total=total, elements=elements)
