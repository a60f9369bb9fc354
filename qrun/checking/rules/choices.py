"""Rules on nodes whose results may legally differ between runtimes: ties of average pools, and random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from qrun.checking.rules._rule import Finding, rule, several
from qrun.checking.rules._scope import Scope, ints, nodes, static_shape
from qrun.checking.rules._weights import is_quantized, quantized_source
from qrun.ir import Model, Node

_POOLS = ("AveragePool", "GlobalAveragePool")


@rule(
    "QR605",
    "note",
    spec="QuantizeLinear",
    fix="none needed; when you compare runtimes, allow a difference of 1 here (--lsb 1)",
    applies=_POOLS,
)
def fused_differs(model: Model) -> Iterator[Finding]:
    """The exact results of an average pool often lie halfway between two codes.

    With equal scales and windows of 4 elements, for example, one average in four lies exactly halfway.

    Why is this bad?
        The model is not wrong. Run as written, the average and the quotient are rounded to float32 before the tie is
        rounded. A fused integer operator skips these roundings, and onnxruntime's adds the zero point before it rounds.
        Two runtimes, or two optimization levels of one runtime, therefore differ by 1 in many elements.

    Bad
        main (uint8[1,1,4,4] x) => (uint8[1,1,2,2] y)
        <float s = {0.3}, uint8 z = {127}>
        {
            xf = DequantizeLinear(x, s, z)
            p = AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(xf)
            y = QuantizeLinear(p, s, z)
        }

    Good
        main (uint8[1,1,3,3] x) => (uint8[1,1,1,1] y)
        <float s = {0.3}, uint8 z = {127}>
        {
            xf = DequantizeLinear(x, s, z)
            p = AveragePool<kernel_shape = [3, 3]>(xf)
            y = QuantizeLinear(p, s, z)
        }
    """
    for scope, node in nodes(model, (("", name) for name in _POOLS)):
        if node.inputs and is_quantized(scope.model, node):
            yield from _ties(scope, node)


def _ties(scope: Scope, node: Node) -> Iterator[Finding]:
    x, count, y_scale = quantized_source(scope, node.inputs[0]), _elements(scope, node), _result_scale(scope, node)
    if x is None or x.scale is None or x.scale.size != 1 or not count or y_scale is None:
        return
    x_scale = float(x.scale.reshape(-1)[0])
    if not (0 < x_scale < float("inf") and 0 < y_scale < float("inf")):
        return
    from fractions import Fraction

    step = Fraction(x_scale) / (count * Fraction(y_scale))
    if step.denominator % 2 == 0 and step.denominator <= 4 * count:
        yield Finding(
            f"runtimes differ by 1: averages of {count} elements are ties in about 1 of {step.denominator} cases",
            **scope.at(node, f"{node.outputs[0]} (output 0)"),
            expected="scales whose averages are not ties",
            got=f"steps of {step} of a code: x_scale {x_scale:.6g}, y_scale {y_scale:.6g}, {count} elements",
            why=f"{node.op}-{node.version} in float rounds the average before QuantizeLinear rounds the tie.",
        )


def _elements(scope: Scope, node: Node) -> int:
    """The number of elements that are averaged; 0 if not known."""
    if node.op_type == "GlobalAveragePool":
        shape = static_shape(scope.shape(node.inputs[0]))
        return prod(shape[2:]) if shape and len(shape) > 2 else 0
    kernel = ints(node, "kernel_shape")
    return prod(kernel) if kernel and min(kernel) > 0 else 0


def _result_scale(scope: Scope, node: Node) -> float | None:
    readers = scope.model.consumers.get(node.outputs[0], ()) if node.outputs else ()
    found = next((r for r in readers if r.op_type == "QuantizeLinear" and len(r.inputs) > 1), None)
    scale = scope.value(found.inputs[1]) if found else None
    return float(scale.reshape(-1)[0]) if scale is not None and scale.size == 1 and scale.dtype.kind in "fV" else None


DRAWING = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")


@rule(
    "QR219",
    "note",
    spec="RandomNormal",
    fix="to compare runtimes, generate the numbers outside the model and feed them as an input",
    applies=DRAWING,
)
def random_numbers(model: Model) -> Iterator[Finding]:
    """Nodes draw random numbers. One finding for the model.

    qrun draws them from numpy's MT19937, seeded with the node's seed or else its name, so every run returns the same
    numbers.

    Why is this bad?
        ONNX does not define the generator, even with a seed: onnxruntime draws different numbers, and new ones in every
        run. With a seed, onnx.reference draws the same numbers as qrun. Outputs that depend on the numbers match
        neither another runtime nor a recording.

    Bad
        main (float[4] x) => (float[4] y)
        {
            noise = RandomNormalLike<seed = 1.0>(x)
            y = Add(x, noise)
        }

    Good
        main (float[4] x, float[4] noise) => (float[4] y)
        {
            y = Add(x, noise)
        }
    """
    drawing = list(nodes(model, [("", name) for name in DRAWING]))
    if not drawing:
        return
    scope, node = drawing[0]
    bare = sum("seed" not in node.attributes for _, node in drawing)
    yield Finding(
        f"{several(len(drawing), 'node')} {'draws' if len(drawing) == 1 else 'draw'} random numbers; "
        "qrun's are the same in every run, onnxruntime's are not",
        **scope.at(node),
        expected="numbers that depend only on the inputs",
        got=f"{several(len(drawing), 'node')}, {bare or 'none'} without a seed",
        why=f"{node.op}-{node.version} does not define the generator; qrun uses numpy's MT19937.",
    )
