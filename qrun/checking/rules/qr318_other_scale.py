"""QR318 other-scale."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._handed import Difference, Handed, difference, handed
from qrun.checking.rules._parameters import operators
from qrun.checking.rules._rule import Finding, rule
from qrun.ir import Model


@rule(
    "QR318",
    "other-scale",
    level="warning",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html",
    fix="store the scale and the zero point once, and let both nodes read them",
    applies=operators(),
)
def other_scale(model: Model) -> Iterator[Finding]:
    """A quantized tensor is read with another scale or zero point than it was made with.

    The rule compares stored values, also behind operators that only move, choose or limit codes, such as Reshape,
    MaxPool and Relu. Differences below 1e-5, or below one rounding of a float16 scale, pass.

    Why is this bad?
        The codes mean real values only together with their scale and zero point. Another scale at the reader multiplies
        all values, another zero point adds a constant, and no runtime can notice. It is legal, because now and then
        somebody multiplies by a constant in this way; far more often, two inputs were exchanged, or only one of the
        two nodes was calibrated again.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (float[2] x) => (float[2] y)
        <float s = {0.5}, float t = {0.25}, uint8 z = {128}>
        {
            q = QuantizeLinear(x, s, z)
            y = DequantizeLinear(q, t, z)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (float[2] x) => (float[2] y)
        <float s = {0.5}, uint8 z = {128}>
        {
            q = QuantizeLinear(x, s, z)
            y = DequantizeLinear(q, s, z)
        }
    """
    found: dict[tuple[int, str, Difference], list[Handed]] = {}
    for one in handed(model):
        off = difference(one)
        if off is not None:
            found.setdefault((id(one.made.scope.model), one.made.tensor, off), []).append(one)
    begins = {(id(readers[0].read.node), key[2]) for key, readers in found.items()}
    ends = {(id(readers[0].made.node), key[2]) for key, readers in found.items()}
    for (_, _, off), readers in found.items():
        if (id(readers[0].made.node), off) not in begins:
            exchanged = (id(readers[0].read.node), off) in ends
            yield _finding(readers[0], off, len(readers) - 1, exchanged)


def _finding(one: Handed, off: Difference, more: int, exchanged: bool) -> Finding:
    """exchanged: what the reader makes is read with the same difference, so its own two ends took each other's place."""
    made, read = one.made, one.read
    slot = read.q.tensor
    codes = "" if made.tensor == slot.tensor else f", codes of {made.tensor}"
    also = f", and by {more} more" if more else ""
    return Finding(
        f"read with {off.read}, but {made.label} made it with {off.made}",
        **read.scope.at(read.node),
        tensor=f"{slot.tensor} (input {slot.place}, {slot.name}){codes}",
        expected=f"{off.made}, as in {made.label}{made.names(off)}",
        got=f"{off.read} in {read.label}{also}{read.names(off)}",
        why=f"legal ONNX, but what {made.label} means and {read.label} reads differ: {off.effect}.",
        fix="exchange the scales, and the zero points, of this node's input and output"
        if exchanged
        else f"give {made.label} and {read.label} one scale and one zero point; one of the two is wrong",
    )
