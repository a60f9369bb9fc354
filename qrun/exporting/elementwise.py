"""Layers without weights: sums, products and joins of codes, averages and maxima of windows, limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from qrun.arithmetics import ENGINES, IntegerEngine
from qrun.arithmetics.elementwise import ADD_SHIFT, Encoding, add_21_bits, requantize_8_8, scale_ratios
from qrun.arithmetics.family import Arithmetic, Scales
from qrun.exporting.context import ExportContext
from qrun.exporting.layer import CodeScale, Layer, LayerTensor, NotExported, Rescale
from qrun.exporting.products import rescale_of, rescale_tensors, spatial
from qrun.exporting.ratios import exact, terms
from qrun.ir import Array, Node
from qrun.ops._quantized import Quantizer, operands, quantizers
from qrun.ops._window import PoolGeometry, SlidingWindow
from qrun.passes._evaluate import evaluate

_ROOM = 1 << 28
_BINARY = "output = clip(rescale(rescale_0(a - zero point) + rescale_1(b - zero point)) + zero point)"


def _quantized(node: Node, context: ExportContext) -> tuple[list[Quantizer], list[CodeScale]]:
    """The quantized tensors of a node, the output last. Raises NotExported unless scales and zero points are constant
    numbers."""
    found = [q for _, q in operands(node) if q] + [q for q in quantizers(node) if q.is_output]
    made = []
    for each in found:
        scale = context.constant(each.scale.tensor) if each.scale else None
        zero = context.constant(each.zero_point.tensor) if each.zero_point else np.zeros((), np.uint8)
        if scale is None or zero is None:
            raise NotExported("its scales or zero points are not constant")
        if scale.size != 1 or zero.size != 1 or not 0 < float(scale.item()) < math.inf:
            raise NotExported("a scale is no positive number")
        made.append(CodeScale(scale.astype(np.float32).reshape(1), zero.reshape(1)))
    return found, made


def _ratio(of: CodeScale) -> Fraction:
    return Fraction(float(of.scale.item()))


def _encoding(of: CodeScale) -> Encoding:
    return Encoding(np.float32(of.scale.item()), int(of.zero.item()))


def _engine(context: ExportContext) -> IntegerEngine:
    return ENGINES[context.family.name]


def _rescaled(family: Arithmetic, x: Any, y: Any, w: Any = 1.0) -> Rescale:
    """The rescaling by x * w / y in a family's arithmetic."""
    return rescale_of(family, Scales(*(np.asarray(scale, np.float32) for scale in (x, w, y))))


def add_layer(node: Node, context: ExportContext) -> Layer:
    """The layer of a QLinearAdd."""
    _, (a, b, y) = _quantized(node, context)
    engine, reach = _engine(context), _reach(a, b)
    shift, name = 0, engine.name
    if engine.add is None:
        left, right, divisor = terms(_ratio(a) / _ratio(y), _ratio(b) / _ratio(y), reach)
        parts, name = (Rescale.ratio(left, 1), Rescale.ratio(right, 1), Rescale.ratio(1, divisor)), "exact"
    elif engine.add is add_21_bits:
        ratios, bits = scale_ratios(_encoding(a), _encoding(b), _encoding(y), 20)
        first, second = (round(float(ratio) * 2.0**bits) for ratio in ratios)
        if not 0 <= bits < 62 or (first + second) * reach >= 1 << 62:
            raise NotExported("64 bits do not hold the sum of its scales")
        parts = Rescale.ratio(first, 1), Rescale.ratio(second, 1), _shift(1, bits, "up")
    else:
        assert engine.pairs is not None
        shift = ADD_SHIFT
        twice = np.float32(2) * max(a.scale.item(), b.scale.item())
        parts = (
            _rescaled(engine.pairs, a.scale.item(), twice),
            _rescaled(engine.pairs, b.scale.item(), twice),
            _rescaled(engine.pairs, twice, np.float32(1 << ADD_SHIFT) * y.scale.item()),
        )
    named = dict(zip(("rescale_0_", "rescale_1_", ""), parts, strict=True))
    formula = _BINARY.replace("(a - zero point)", "((a - zero point) << 20)") if shift else _BINARY
    formula = formula.replace("(b - zero point)", "((b - zero point) << 20)") if shift else formula
    return _pair(node, context, "add", (a, b, y), (name, formula, named), {"shift": shift})


def _shift(multiplier: int, right: int, ties: str) -> Rescale:
    """A product that a shift rounds."""
    one = np.ones(1, np.int64)
    return Rescale("shift", ties, one * multiplier, 0 * one, one * right, one)


def _reach(*of: CodeScale) -> int:
    """The largest magnitude of a code without its zero point."""
    ends = [(np.iinfo(each.zero.dtype), int(each.zero.item())) for each in of]
    return max(max(int(info.max) - zero, zero - int(info.min)) for info, zero in ends)


def multiply_layer(node: Node, context: ExportContext) -> Layer:
    """The layer of a QLinearMul."""
    _, (a, b, y) = _quantized(node, context)
    engine = _engine(context)
    if engine.multiply is None:
        name, rescale = "exact", exact(_ratio(a) * _ratio(b) / _ratio(y), _reach(a) * _reach(b))
    else:
        assert engine.pairs is not None
        name, rescale = engine.name, _rescaled(engine.pairs, a.scale.item(), y.scale.item(), b.scale.item())
    formula = "output = clip(rescale((a - zero point) * (b - zero point)) + zero point)"
    return _pair(node, context, "multiply", (a, b, y), (name, formula, {"": rescale}), {})


def _pair(
    node: Node,
    context: ExportContext,
    kind: str,
    of: tuple[CodeScale, CodeScale, CodeScale],
    arithmetic: tuple[str, str, Mapping[str, Rescale]],
    numbers: dict[str, int],
) -> Layer:
    """The layer of two operands that broadcast."""
    a, b, y = of
    name, formula, rescales = arithmetic
    out = context.vector("output", node.outputs[0], y)
    operand_names = (node.inputs[0], node.inputs[3])
    tensors = [
        _broadcast(context, f"input_{at}", each, node.outputs[0], own)
        for at, (each, own) in enumerate(zip(operand_names, (a, b), strict=True))
    ]
    tensors += [part for prefix, rescale in rescales.items() for part in rescale_tensors(prefix, rescale)]
    apart = _all_pairs(node, context, operand_names)
    return Layer(node, kind, numbers, (*tensors, out), name, apart, formula, rescales)


def _broadcast(context: ExportContext, role: str, name: str, output: str, of: CodeScale) -> LayerTensor:
    """An operand with as many axes as the output, and in its layout."""
    values = context.run(name)
    rank = len(context.shape(output))
    shaped = [value.reshape((1,) * (rank - value.ndim) + value.shape) for value in values]
    constant = context.constant(name) is not None
    turned = [context.turn(value, output) for value in shaped]
    layout = context.layout_of(output, rank)
    return LayerTensor(role, turned[0] if constant else np.stack(turned), not constant, name, layout, of)


def _all_pairs(node: Node, context: ExportContext, names: Sequence[str]) -> int | None:
    """The largest difference between the engine's codes and the exact ones, over all pairs of codes."""
    shapes = ((256, 1), (1, 256))
    codes: dict[str, Array] = {}
    for name, shape in zip(names, shapes, strict=True):
        codes[name] = np.arange(256, dtype=np.uint8).view(context.dtype(name)).reshape(shape)
    if names[0] == names[1]:
        codes = {names[0]: codes[names[0]].reshape(256)}
    args = [codes.get(name, context.constant(name)) if name else None for name in node.inputs]
    exact_codes = evaluate(node, args, "exact", _ROOM, saturating=True)
    own = evaluate(node, args, context.family.name, _ROOM, saturating=True)
    if exact_codes is None or own is None:
        return None
    return int(np.abs(exact_codes[0].astype(int) - own[0].astype(int)).max(initial=0))


def concat_layer(node: Node, context: ExportContext) -> Layer:
    """The layer of a QLinearConcat."""
    found, (y, *parts) = _join(node, context)
    engine, rescales, worst = _engine(context), dict[str, Rescale](), 0
    tensors: list[LayerTensor] = []
    for at, (quantizer, x) in enumerate(zip(found, parts, strict=True)):
        same = x.scale == y.scale and x.zero == y.zero and x.zero.dtype == y.zero.dtype
        if same or engine.requantize is None:
            rescale = exact(_ratio(x) / _ratio(y), _reach(x))
        elif engine.requantize is requantize_8_8:
            rescale = _shift(round(float(np.float32(x.scale.item() / y.scale.item())) * 256), 8, "up")
        else:
            rescale = _rescaled(engine.family, x.scale.item(), y.scale.item())
        rescales[f"rescale_{at}_"] = rescale
        tensors += [
            context.vector(f"input_{at}", quantizer.tensor.tensor, x),
            *rescale_tensors(f"rescale_{at}_", rescale),
        ]
        worst = max(worst, _one_code(engine, x, y) if not same and engine.requantize else 0)
    out = context.vector("output", node.outputs[0], y)
    rank = len(context.shape(node.outputs[0]))
    given = node.attributes["axis"]
    axis = given % rank if isinstance(given, int) else 0
    if context.is_turned(node.outputs[0]) and rank in (3, 4):
        axis = rank - 1 if axis == 1 else axis - 1 if axis > 1 else 0
    formula = "output = clip(rescale of the input(input - zero point) + zero point)"
    name = engine.name if engine.requantize else "exact"
    return Layer(node, "concat", {"axis": axis}, (*tensors, out), name, worst, formula, rescales)


def _join(node: Node, context: ExportContext) -> tuple[list[Quantizer], list[CodeScale]]:
    """The operands of a QLinearConcat; the output's quantization and those of the operands."""
    values = [context.constant(name) if name else np.zeros((), np.uint8) for name in node.inputs]
    found = [q for q in quantizers(node) if not q.is_output and q.tensor.place > 1]
    made = []
    for scale, zero in (
        (values[0], values[1]),
        *((values[q.tensor.place + 1], values[q.tensor.place + 2]) for q in found),
    ):
        if scale is None or zero is None or scale.size != 1 or zero.size != 1 or not 0 < float(scale.item()) < math.inf:
            raise NotExported("its scales or zero points are no constant numbers")
        made.append(CodeScale(scale.astype(np.float32).reshape(1), zero.reshape(1)))
    return found, made


def _one_code(engine: IntegerEngine, x: CodeScale, y: CodeScale) -> int:
    """The largest difference of an engine's rescaled codes from the exact ones."""
    assert engine.requantize is not None
    info, ends = np.iinfo(x.zero.dtype), np.iinfo(y.zero.dtype)
    codes, zero, ratio = np.arange(info.min, info.max + 1), int(y.zero.item()), _ratio(x) / _ratio(y)
    own = engine.requantize(codes, _encoding(x), _encoding(y)) + zero
    right = [round((int(code) - int(x.zero.item())) * ratio) + zero for code in codes]
    return int(np.abs(np.clip(own, ends.min, ends.max) - np.clip(right, ends.min, ends.max)).max())


def average_layer(node: Node, context: ExportContext) -> Layer:
    """The layer of a QLinearAveragePool or QLinearGlobalAveragePool."""
    _, (x, y) = _quantized(node, context)
    if node.attributes.get("channels_last", 0):
        raise NotExported("channels_last is not exported")
    shape, padded = context.shape(node.inputs[0]), int(bool(node.attributes.get("count_include_pad", 0)))
    if node.op_type == "QLinearAveragePool":
        win = PoolGeometry.of(node.attributes).window(shape[2:])
    else:
        ones, none = (1,) * (len(shape) - 2), (0,) * (len(shape) - 2)
        win = SlidingWindow(shape[2:], ones, ones, none, none, ones)
    numbers = _window_numbers(shape, win)
    most = math.prod(win.kernel)
    if not most or not math.prod(shape):
        raise NotExported("its windows are empty")
    own = bool(_engine(context).codes and x.scale == y.scale and x.zero == y.zero)
    rescales, tensors = dict[str, Rescale](), [context.vector("input_0", node.inputs[0], x)]
    if not own:
        rescales[""] = exact(_ratio(x) / _ratio(y), _reach(x) * most, most)
        tensors += rescale_tensors("", rescales[""])
    formula = (
        "output = the sum of codes / count, half away from zero"
        if own
        else "output = clip(rescale(sum of (input - zero point) / count) + zero point), rounded once"
    )
    numbers |= {"count_padding": padded, "average_codes": int(own)}
    tensors.append(context.vector("output", node.outputs[0], y))
    apart = int(own and most > 1)
    name = context.family.name if own else "exact"
    return Layer(node, "average", numbers, tuple(tensors), name, apart, formula, rescales)


def _window_numbers(shape: tuple[int, ...], win: SlidingWindow) -> dict[str, int]:
    """The sizes of a pool. Raises NotExported for more than two spatial axes."""
    if len(shape) not in (3, 4):
        raise NotExported("it has not one or two spatial axes")
    one = len(shape) == 3

    def two(values: Sequence[int], none: int) -> tuple[int, int]:
        return (none, int(values[0])) if one else (int(values[0]), int(values[1]))

    found = spatial(shape, two(shape[2:], 1), two(win.out, 1))
    for name, values, none in (
        ("kernel", win.kernel, 1),
        ("stride", win.strides, 1),
        ("dilation", win.dilations, 1),
    ):
        found[f"{name}_h"], found[f"{name}_w"] = two(values, none)
    for names, values in ((("pad_top", "pad_left"), win.begin), (("pad_bottom", "pad_right"), win.end)):
        found[names[0]], found[names[1]] = two(values, 0)
    return found


def maximum_layer(node: Node, context: ExportContext) -> Layer:
    """The layer of a MaxPool of codes."""
    if any(node.outputs[1:]):
        raise NotExported("its indices are used")
    given = node.attributes.get("dilations", ())
    shape = context.shape(node.inputs[0])
    win = PoolGeometry.of(node.attributes).window(shape[2:], given if isinstance(given, tuple) else ())
    tensors = context.vector("input_0", node.inputs[0]), context.vector("output", node.outputs[0])
    return Layer(
        node, "maximum", _window_numbers(shape, win), tensors, "", 0, "output = the largest code of the window"
    )


def clip_layer(node: Node, context: ExportContext) -> Layer:
    """The layer of a Clip or Relu of codes."""
    x = context.vector("input_0", node.inputs[0])
    info = np.iinfo(x.array.dtype)
    ends = [info.min, info.max]
    for at, name in enumerate(node.inputs[1:3]):
        value = context.constant(name) if name else np.asarray(ends[at])
        if value is None:
            raise NotExported("its limits are not constant")
        ends[at] = int(value.item())
    numbers = {"low": int(ends[0]), "high": int(ends[1])}
    out = context.vector("output", node.outputs[0])
    return Layer(node, "clip", numbers, (x, out), "", 0, "output = clip(input, low, high)")


MAKERS: Mapping[str, Callable[[Node, ExportContext], Layer]] = {
    "QLinearAdd": add_layer,
    "QLinearMul": multiply_layer,
    "QLinearConcat": concat_layer,
    "QLinearAveragePool": average_layer,
    "QLinearGlobalAveragePool": average_layer,
    "MaxPool": maximum_layer,
    "Clip": clip_layer,
}
