"""Causes that need no arithmetic: a crash, a refusal, random numbers, a missing output, another shape or type."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.comparing.causes._cause import Hypothesis, Suspect, cause
from qrun.comparing.differences import same
from qrun.ir.types import describe, shape_text, type_name

CRASH = "QR015"
"""The error code of a side that crashed."""
_SPEC = "https://onnx.ai/onnx/operators/"


@cause("crashed", rank=0, source=_SPEC)
def crashed(s: Suspect) -> Iterator[Hypothesis]:
    """The other side's process crashes in this node, although the specification defines its result.

    To confirm: Run the other side alone in a separate process. It dies with the signal shown.

    To do: Avoid this form of the operator, or use the newest version of the runtime. Report the crash to the runtime's
    maintainers, with a model of this one node. If you load models that you do not trust, run this runtime in a separate
    process.
    """
    if s.error is not None and s.error.code == CRASH:
        yield Hypothesis(None, dict(s.error.facts).get("got", s.error.message))


@cause("refused", rank=1, source=_SPEC)
def refused(s: Suspect) -> Iterator[Hypothesis]:
    """The other side refuses the node, or fails while running it. The specification allows the node.

    To confirm: Run the other side alone. It stops with the message shown.

    To do: Convert the model to an opset or form that the other side supports. Until then, compare the other nodes.
    """
    if s.error is not None:
        yield Hypothesis(None, dict(s.error.facts).get("got", s.error.message))


@cause("missing-output", rank=2, source=_SPEC)
def missing_output(s: Suspect) -> Iterator[Hypothesis]:
    """The other side returns no tensor for this output.

    To confirm: Ask the other side for this output alone. It is missing.

    To do: Use the newest version of the runtime, or do without this output. Report the bug to the runtime's
    maintainers.
    """
    if s.error is None and s.theirs is None:
        yield Hypothesis(None, f"no output; expected {describe(s.mine)}")


@cause("random-numbers", rank=6, source="ONNX operators, RandomNormal-22: the generator is left open")
def random_numbers(s: Suspect) -> Iterator[Hypothesis]:
    """The node draws random numbers. The other side uses another generator or another seed.

    To confirm: Run the other side twice in one session. onnxruntime draws different numbers each time.

    To do: Generate the numbers outside the model and feed them as an input. Both sides then read the same numbers.
    """
    drawn = s.definition is not None and s.definition.draws
    if drawn and s.theirs is not None and (s.theirs.shape, s.theirs.dtype) == (s.mine.shape, s.mine.dtype):
        yield Hypothesis(None, "uses a different random generator or seed; ONNX defines neither")


@cause("wrong-shape", rank=3, source=_SPEC)
def wrong_shape(s: Suspect) -> Iterator[Hypothesis]:
    """The values are correct, but the shape is wrong.

    To confirm: Compare the shapes on the line `type`.

    To do: Add a Reshape after the node, or declare the shape in the graph. Report the bug to the runtime's maintainers.
    """
    if s.theirs is not None and s.theirs.shape != s.mine.shape and s.theirs.size == s.mine.size:
        text = f"shape {shape_text(s.theirs.shape)} instead of {shape_text(s.mine.shape)}, same values"
        yield Hypothesis(s.mine.reshape(s.theirs.shape), text)


@cause("wrong-type", rank=4, source=_SPEC)
def wrong_type(s: Suspect) -> Iterator[Hypothesis]:
    """The values are correct, but the element type is wrong.

    To confirm: Compare the element types on the line `type`.

    To do: Add a Cast after the node. Report the bug to the runtime's maintainers.
    """
    if s.theirs is not None and s.theirs.dtype != s.mine.dtype and s.theirs.shape == s.mine.shape:
        back = s.theirs.astype(s.mine.dtype)
        if same(back, s.mine):
            text = f"{type_name(s.theirs.dtype)} instead of {type_name(s.mine.dtype)}, same values"
            yield Hypothesis(s.mine.astype(s.theirs.dtype), text)
