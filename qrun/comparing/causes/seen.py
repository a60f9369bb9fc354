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
    """The other side's process crashes in the node, where the specification demands a result.

    To confirm: Run the other side alone, in a process of its own: it ends with the signal that is shown.

    To do: Do without this form of the operator, or use the runtime's newest version; report it to the runtime with this
    one node as the model. Where models come from strangers, let this runtime run in a process of its own.
    """
    if s.error is not None and s.error.code == CRASH:
        yield Hypothesis(None, dict(s.error.facts).get("got", s.error.message))


@cause("refused", rank=1, source=_SPEC)
def refused(s: Suspect) -> Iterator[Hypothesis]:
    """The other side refuses the node, or fails while running it, although the specification allows it.

    To confirm: Run the other side alone: it ends with the message that is shown.

    To do: Convert the model to an opset or form that the other side has; compare the other nodes meanwhile.
    """
    if s.error is not None:
        yield Hypothesis(None, dict(s.error.facts).get("got", s.error.message))


@cause("missing-output", rank=2, source=_SPEC)
def missing_output(s: Suspect) -> Iterator[Hypothesis]:
    """The other side produces no tensor for this output.

    To confirm: Ask the other side for this output alone: it is absent.

    To do: Use the runtime's newest version, or do without this output; report it to the runtime.
    """
    if s.error is None and s.theirs is None:
        yield Hypothesis(None, f"no output; expected {describe(s.mine)}")


@cause("random-numbers", rank=6, source="ONNX operators, RandomNormal-22: the generator is left open")
def random_numbers(s: Suspect) -> Iterator[Hypothesis]:
    """The node draws random numbers, and the other side draws them from another generator, or from another seed.

    To confirm: Run the other side twice in one session: onnxruntime draws other numbers each time.

    To do: Make the numbers outside of the model and feed them as an input: then both sides read the same.
    """
    drawn = s.definition is not None and s.definition.draws
    if drawn and s.theirs is not None and (s.theirs.shape, s.theirs.dtype) == (s.mine.shape, s.mine.dtype):
        yield Hypothesis(None, "numbers from another generator or seed: ONNX does not define either")


@cause("wrong-shape", rank=3, source=_SPEC)
def wrong_shape(s: Suspect) -> Iterator[Hypothesis]:
    """The values are right, the shape is not.

    To confirm: Print the shape on both sides, as shown at `type`.

    To do: Add a Reshape after the node, or declare the shape in the graph; report it to the runtime.
    """
    if s.theirs is not None and s.theirs.shape != s.mine.shape and s.theirs.size == s.mine.size:
        text = f"shape {shape_text(s.theirs.shape)} instead of {shape_text(s.mine.shape)}, same values"
        yield Hypothesis(s.mine.reshape(s.theirs.shape), text)


@cause("wrong-type", rank=4, source=_SPEC)
def wrong_type(s: Suspect) -> Iterator[Hypothesis]:
    """The values are right, the element type is not.

    To confirm: Print the element type on both sides, as shown at `type`.

    To do: Add a Cast after the node; report it to the runtime.
    """
    if s.theirs is not None and s.theirs.dtype != s.mine.dtype and s.theirs.shape == s.mine.shape:
        back = s.theirs.astype(s.mine.dtype)
        if same(back, s.mine):
            text = f"{type_name(s.theirs.dtype)} instead of {type_name(s.mine.dtype)}, same values"
            yield Hypothesis(s.mine.astype(s.theirs.dtype), text)
