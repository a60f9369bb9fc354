"""Causes that only ``qrun conform`` names, beside those of `qrun.comparing.causes`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from qrun.comparing.causes import Cause, Hypothesis, Suspect

ACCEPTS_INVALID, GARBAGE, ZERO_RANGE = "accepts-invalid", "garbage", "zero-range"


def _accepts_invalid(suspect: Suspect) -> Iterator[Hypothesis]:
    """The runtime gives an answer for a model that the specification forbids, instead of refusing it.

    To confirm: qrun conform --select CASE -v has the model and the sentence that forbids it; qrun check finds the
    defect in a model of your own.

    To do: Do not rely on the runtime to find broken models: run qrun check before. Report the case to the runtime.
    """
    return iter(())


def _garbage(suspect: Suspect) -> Iterator[Hypothesis]:
    """The same model and inputs give other bits from run to run: the runtime reads memory that it has not written, or
    its threads race.

    To confirm: Run the case several times, in one process and in several; with one thread a race does not show.

    To do: Use the runtime's newest version, or do without this form of the operator; report it to the runtime.
    """
    return iter(())


def _zero_range(suspect: Suspect) -> Iterator[Hypothesis]:
    """DynamicQuantizeLinear of nothing but zeros, or of no elements: the formula divides 0 by 0, and the specification
    does not say which scale that gives. Runtimes choose 1, 0 or 1/255.

    To confirm: Run the operator alone on zeros and print its second output, the scale.

    To do: Rely on no scale here: the codes are those of 0 in any case. A scale of 0 makes what divides by it NaN.
    """
    return iter(())


_SPEC = "https://onnx.ai/onnx/operators/"
CAUSES: Mapping[str, Cause] = {
    ACCEPTS_INVALID: Cause(ACCEPTS_INVALID, 0, _SPEC, _accepts_invalid),
    GARBAGE: Cause(GARBAGE, 0, _SPEC, _garbage),
    ZERO_RANGE: Cause(ZERO_RANGE, 0, f"{_SPEC}onnx__DynamicQuantizeLinear.html", _zero_range),
}
