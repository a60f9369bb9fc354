"""Causes in arithmetic: where the formula rounds, where exact ties go, nodes in a different form. Also bounds how far
float32 steps can be from the real value of a node's formula, by the magnitudes of its operands."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from qrun.comparing.causes._cause import TIE, Hypothesis, Suspect, cause, in_known_order, part, recompute
from qrun.comparing.causes._formulas import OFF, UNIT
from qrun.comparing.differences import distances, same
from qrun.comparing.ties import real_operands
from qrun.ir import Array
from qrun.ir.types import NUMBERS, type_name
from qrun.ops import Arith, Context, quantizers, real_operator
from qrun.ops._quantize import is_integer, limits, narrow

_STEPS = 32
"""The number of roundings that the bound assumes for a formula outside its sums."""


def share_of_bound(s: Suspect, made: Array) -> float | None:
    """The largest share of the bound on float32 steps that `made` uses; None if it is beyond, or no bound is known."""
    if made.shape != s.mine.shape or made.dtype != s.mine.dtype:
        return None
    limit = _reach(s)
    if limit is None:
        return None
    apart = _distances(s, made)
    finite = np.isfinite(apart)
    if not (apart[finite] <= np.broadcast_to(limit, apart.shape)[finite]).all():
        return None
    return float(np.max(np.divide(apart, limit, out=np.zeros_like(apart), where=finite & (limit > 0)), initial=0.0))


_BESIDE_TIE = 0.25
"""Distance in steps, far above the error of a float32 product of a code's size."""


def rounds_alike(s: Suspect, made: Array) -> bool:
    """Can float32 steps round the real value of this node to the codes `made`? True if the real value is not known."""
    if s.exact is None or made.shape != s.exact.shape or not is_integer(made.dtype):
        return True
    apart, limit = _distances(s, made), _reach(s)
    beside = np.maximum(_BESIDE_TIE, 0.0 if limit is None else limit)
    return bool((apart[np.isfinite(apart)] <= np.broadcast_to(beside, apart.shape)[np.isfinite(apart)]).all())


def _distances(s: Suspect, made: Array) -> Array:
    """Distances of `made` from the exact result: in steps for integers, in codes for float8, else absolute. If the real
    value is known, integers are measured from it, less the half step of rounding."""
    if is_integer(s.mine.dtype):
        if s.exact is None:
            return np.asarray(np.maximum(np.abs(made.astype(np.float64) - s.mine.astype(np.float64)) - 1, 0))
        low, high = limits(s.mine.dtype)
        return np.asarray(np.maximum(np.abs(made.astype(np.float64) - np.clip(s.exact, low, high)) - 0.5, 0))
    if s.mine.dtype.itemsize == 1:
        return np.asarray(np.maximum(np.abs(made.view(np.int8).astype(float) - s.mine.view(np.int8)) - 1, 0))
    return distances(made, s.mine)


def _reach(s: Suspect) -> Array | None:
    """The bound on float32 steps, in the unit of `_apart`; None if not known."""
    if s.is_op("DequantizeLinear"):
        x, scale, zero = (*s.args, None)[:3]
        if x is None or scale is None:
            return None
        shift = 0.0 if zero is None else np.abs(s.along(zero))
        return np.asarray(_STEPS * UNIT * (np.abs(x.astype(np.float64)) + shift) * np.abs(s.along(scale)))
    if s.is_op("DynamicQuantizeLinear", "QuantizeLinear") and s.mine.dtype.itemsize == 1 and s.exact is None:
        return np.zeros(())
    if s.is_op("DynamicQuantizeLinear"):
        return np.asarray(_STEPS * UNIT * np.abs(s.mine.astype(np.float64)))
    sizes = _sizes(s)
    if sizes is None or not (is_integer(s.mine.dtype) or s.mine.dtype == np.float32):
        return None
    if not is_integer(s.mine.dtype):
        return sizes
    out = next((q for q in quantizers(s.node) if q.is_output and q.scale), None)
    scale = s.args[out.scale.place] if out is not None and out.scale is not None else None
    if scale is None:
        return None
    step = np.abs(s.along(scale))
    return np.asarray((sizes + OFF) / step + _STEPS * UNIT * np.abs(s.zero))


def _sizes(s: Suspect) -> Array | None:
    """The error bound of the real numbers that the node computes: the same formula on the operands' magnitudes, with
    one rounding per term."""
    function = real_operator(s.node)
    try:
        operands = real_operands(s.node, s.args)
        if function is None or operands is None:
            return None
        last = bool(s.node.attributes.get("channels_last", 0)) and operands[0].ndim > 2
        first = np.moveaxis(operands[0], -1, 1) if last else operands[0]  # weights have their channels first
        real = [np.abs(x).astype(np.float64) for x in (first, *operands[1:])]
        attributes = {k: v for k, v in s.node.attributes.items() if k in function.attributes}
        made, ones = (
            np.asarray(function(*each, **attributes, ctx=Context(observing=False)))
            for each in (real, [np.ones_like(x) for x in real])
        )
    except (ValueError, IndexError, TypeError):
        return None
    made = np.moveaxis(made, 1, -1) if last else made
    bias = s.arg("bias")
    made = made + (np.abs(bias).astype(np.float64) if bias is not None and bias.dtype.kind == "f" else 0.0)
    terms = max(float(ones.max(initial=0)), _window(s))
    return np.asarray(2 * (_STEPS + terms) * UNIT * made) if made.shape == s.mine.shape else None


def _window(s: Suspect) -> float:
    """The number of elements in a pool's window; 1 for other operators without kernel_shape."""
    kernel = s.node.attributes.get("kernel_shape")
    if isinstance(kernel, tuple):
        return float(math.prod(kernel))
    x = s.args[0]
    return x.size / max(s.mine.size, 1) if x is not None and "Pool" in s.node.op_type else 1.0


_PRODUCTS = ("QLinearConv", "QLinearMatMul", "QGemm")
_RUNTIMES: tuple[tuple[Arith, str], ...] = (("ort", "onnxruntime"), ("onnx-ref", "onnx.reference"))
_NUMERICS = "onnxruntime core/mlas/lib/quantize.cpp; onnx/reference/ops/op_qlinear_conv.py"


@cause("reciprocal-floor", rank=28, source="onnxruntime contrib_ops/cpu/quantization/qlinear_softmax.cc")
def reciprocal_floor(s: Suspect) -> Iterator[Hypothesis]:
    """QLinearSoftmax multiplies by floor(1 / y_scale). The result is wrong for every y_scale other than 1/n.

    To confirm: Run qrun compare MODEL -i X --against ort --isolate. Multiplying by floor(1 / y_scale) reproduces all
    elements. With y_scale 1/256 the difference disappears.

    To do: Use y_scale 1/256 and y_zero_point 0 for Softmax, as onnxruntime's quantizer does, or keep the Softmax in
    float.
    """
    scale = s.arg("y_scale")
    if not s.is_op("QLinearSoftmax") or scale is None:
        return
    inverse = np.float32(1) / scale.reshape(())
    made = s.evaluate("ort")
    if made is not None and np.floor(inverse) != inverse:
        yield Hypothesis(made, f"multiplies by floor(1 / y_scale) = {np.floor(inverse):.0f}, not {float(inverse):.7g}")


@cause("division-type", rank=29, source="ONNX operators, QuantizeLinear-23: precision, else the type of y_scale")
def division_type(s: Suspect) -> Iterator[Hypothesis]:
    """The runtime rounds x / y_scale to a different floating-point type before it rounds to an integer, or multiplies
    by the reciprocal of y_scale.

    To confirm: Compute x / y_scale in the way shown, and round. The codes match the other side's.

    To do: Set the attribute precision (opset 23), or store y_scale in float32.
    """
    if not s.is_op("QuantizeLinear"):
        return
    x, scale = s.args[0], s.args[1]
    due = s.node.attributes.get("precision") or (scale.dtype if scale is not None else None)
    for dtype in (np.float32, np.float16, np.float64):
        kind = np.dtype(dtype)
        if kind == due or NUMBERS[kind] == due or x is None or scale is None:
            continue
        quotient = (x.astype(kind) / s.along(scale).astype(kind)).astype(np.float64)
        if quotient.shape != s.mine.shape:
            continue
        made = s.to_codes(np.rint(quotient), s.zero)
        if made is None and s.mine.dtype.itemsize == 1:
            made = narrow(quotient, s.mine.dtype, bool(s.node.attributes.get("saturate", 1)))
        yield from recompute(made, f"divides in {type_name(kind)}")
    if x is not None and scale is not None and x.dtype == scale.dtype == np.float32:
        product = (x * (np.float32(1) / s.along(scale).astype(np.float32))).astype(np.float64)
        made = s.to_codes(np.rint(product), s.zero) if product.shape == s.mine.shape else None
        yield from recompute(made, "multiplies by float32(1 / y_scale)")


@cause("float32-multiplier", rank=42, source=_NUMERICS)
def float32_multiplier(s: Suspect) -> Iterator[Hypothesis]:
    """The runtime combines the scales into one float32 multiplier. Its rounding moves sums that are close to a tie to
    the other side of it.

    To confirm: The line `ties` shows that the elements are within 1e-4 LSB of the midpoint between two codes. With
    --arith ort or --arith onnx-ref, qrun returns the same codes without the other runtime.

    To do: Nothing is wrong with the model. If the target computes this way too, allow --lsb 1, or record the runtime's
    own codes as golden results.
    """
    if s.is_op(*_PRODUCTS):
        start, end = "rounds x_scale * w_scale / y_scale to a float32 multiplier", "times the multiplier"
        yield from recompute(s.evaluate("ort"), f"{start}; float32(sum) {end}, in float32")
        made = s.evaluate("onnx-ref")
        if made is not None:
            text = f"{start}; float64(sum) {end}, zero point added before rounding"
            yield Hypothesis(made, text, implies=("zero-point-before-rounding",))


@cause(
    "float32-arithmetic",
    rank=43,
    source="onnxruntime core/mlas/lib/qladd.cpp, contrib_ops/cpu/quantization; numerics, D2 to D4",
)
def float32_arithmetic(s: Suspect) -> Iterator[Hypothesis]:
    """The runtime computes the node in float32 steps and rounds each. qrun rounds the exact value once. All differences
    are within the rounding-error bound of those steps.

    To confirm: With --arith ort or --arith onnx-ref, qrun returns the same codes without the other runtime.

    To do: Nothing is wrong with the model: allow --lsb 1 for integers, and a relative tolerance (--rtol) for floats.
    """
    if s.is_op("DequantizeLinear"):
        yield from _rounded_codes(s)
    if s.alone and not s.is_op(*_PRODUCTS) and not in_known_order(s):
        for arith, runtime in _RUNTIMES:
            made = s.in_arith(arith)
            share = share_of_bound(s, made) if made is not None and s.is_explained_by(made) else None
            if share is not None:
                start = f"computes in {runtime}'s order of float32 steps"
                text = f"{start}; the largest difference is {part(share)} of the rounding-error bound"
                yield Hypothesis(made, text, implies=("zero-point-before-rounding", "division-type"))


@cause("runtime-arithmetic", rank=50, source="numerics: what `--arith ort` and `--arith onnx-ref` compute")
def runtime_arithmetic(s: Suspect) -> Iterator[Hypothesis]:
    """The runtime uses its own arithmetic. With --arith, qrun returns the same bits, or brings every element within the
    tolerance. The difference is larger than float32 rounding explains, or there is no known bound.

    To confirm: Repeat the comparison with --arith ort (or onnx-ref). This node is then equal, or within the tolerance.

    To do: Nothing is wrong with the model. qrun explain OPERATOR describes the other arithmetic. If the target computes
    this way, run with --arith too. If not, set the attribute that the operator's page names, such as accuracy_level 0.
    """
    for form, text in s.form_results("fused-requantization"):
        if s.is_explained_by(form):
            yield Hypothesis(
                form, f"{text}; the difference is larger than rounding of the exact value explains", tolerant=True
            )
    for arith, runtime in _RUNTIMES if s.alone and not in_known_order(s) else ():
        made = s.in_arith(arith)
        if made is not None:
            told = (
                f"uses {runtime}'s own arithmetic, which --arith {arith} reproduces; see qrun explain {s.node.op_type}"
            )
            yield Hypothesis(made, told, tolerant=True)


def _rounded_codes(s: Suspect) -> Iterator[Hypothesis]:
    """The hypothesis that int32 codes are converted to float32 before the zero point is subtracted."""
    x, scale, zero = (*s.args, None)[:3]
    if x is None or scale is None or x.dtype != np.int32:
        return
    shift = np.float32(0) if zero is None else s.along(zero).astype(np.float32)
    made = (x.astype(np.float32) - shift) * s.along(scale).astype(np.float32)
    text = "rounds the int32 code to float32 before subtracting the zero point"
    yield Hypothesis(np.asarray(made.astype(s.mine.dtype)), text)


@cause("near-tie", rank=44, source="IEEE 754: the quotient as one float32 number")
def near_tie(s: Suspect) -> Iterator[Hypothesis]:
    """The runtime rounds the value twice: first to float32 or float16, then to an integer. Values near a tie become
    ties.

    To confirm: The line `ties` shows that the elements are closer to the midpoint between two codes than float32 can
    resolve.

    To do: Nothing is wrong with the model: allow --lsb 1, or change the scale slightly so that no value is close to a
    tie.
    """
    if s.exact is None or not s.alone:
        return
    single = (s.exact - s.zero).astype(np.float32)
    start, steps = "rounds the value to float32", ("division-type", "float32-multiplier", "float32-arithmetic")
    made = s.to_codes(np.rint(single).astype(np.float64), s.zero)
    if made is not None:
        yield Hypothesis(made, f"{start}, then to an integer", implies=steps)
    made = s.to_codes(np.rint(s.exact.astype(np.float32)).astype(np.float64))
    if made is not None:
        yield Hypothesis(
            made,
            f"{start} with the zero point added, then to an integer",
            implies=(*steps, "zero-point-before-rounding"),
        )
    half = single.astype(np.float16).astype(np.float64)
    made = s.to_codes(np.rint(half), s.zero)
    if made is not None and not same(made, s.mine):
        yield Hypothesis(made, "rounds the value to float16, then to an integer", implies=steps)


@cause(
    "fused-requantization",
    rank=45,
    source="onnxruntime, graph optimizations: QDQ selectors and transformers; qrun.passes.fuse_qdq",
)
def fused_requantization(s: Suspect) -> Iterator[Hypothesis]:
    """One side runs DequantizeLinear, the operator and QuantizeLinear as one integer operator that rounds once. The
    other runs them one by one.

    To confirm: Run qrun compare MODEL -i X --against fused. It shows the same difference without another runtime.

    To do: Find out which form the target runs. qrun run --fuse computes what integer operators give, --no-fuse runs the
    graph as written. Each group may differ by one step, and later groups may enlarge the difference. --lsb 1 --isolate
    allows for one step per group.
    """
    for made, text in s.form_results("fused-requantization"):
        if s.fused_node is None or rounds_alike(s.fused_node, made):
            yield Hypothesis(made, text)


_SPEC = "ONNX operators, QuantizeLinear: rounding to nearest ties to even, of x / y_scale"


@cause("zero-point-before-rounding", rank=30, source=_SPEC)
def zero_point_before_rounding(s: Suspect) -> Iterator[Hypothesis]:
    """The runtime adds the zero point before rounding. If the zero point is odd, ties round the other way.

    To confirm: The line `ties` says that all elements are exact ties, and the zero point is odd.

    To do: Use an even zero point (128 for uint8, 0 for int8), or allow --lsb 1.
    """
    if s.exact is not None and s.alone and np.any(s.zero % 2):
        text = f"adds the odd zero point {_text(s.zero)} before rounding"
        yield from _other_than_nearest(s, s.to_codes(np.rint(_snap(s.exact))), text)


@cause("tie-rounding", rank=31, source=_SPEC)
def tie_rounding(s: Suspect) -> Iterator[Hypothesis]:
    """The runtime rounds ties away from zero, towards zero or up, not to even.

    To confirm: The line `ties` says that all elements are exact ties.

    To do: Allow --lsb 1. Ties are rare if the ratio of the scales is not a power of two.
    """
    if s.exact is None or not s.alone:
        return
    real = _snap(s.exact - s.zero)
    away = np.copysign(np.floor(np.abs(real) + 0.5), real)
    inward = np.copysign(np.ceil(np.abs(real) - 0.5), real)
    up, down = np.floor(real + 0.5), np.ceil(real - 0.5)
    ways = (("away from zero", away), ("up", up), ("towards zero", inward), ("down", down))
    for text, whole in ways:
        yield from _other_than_nearest(s, s.to_codes(whole, s.zero), f"rounds exact ties {text}")


@cause("cast-rounding", rank=27, source="ONNX operators, Cast-28: silent about fractions; numerics, F10")
def cast_rounding(s: Suspect) -> Iterator[Hypothesis]:
    """A Cast to an integer type rounds fractions where qrun truncates them, or saturates where qrun keeps the low bits.
    The specification defines neither.

    To confirm: Feed whole numbers within the range of the type. The difference disappears.

    To do: Put Clip, and Round or Floor, before the Cast. Every runtime then returns the same result.
    """
    x = s.args[0] if s.is_op("Cast") and s.args else None
    if x is None or x.dtype.kind not in "fV" or not is_integer(s.mine.dtype):
        return
    wide = x.astype(np.float64)
    away = np.copysign(np.floor(np.abs(wide) + 0.5), wide)
    ways = {"truncates fractions": np.trunc(wide), "rounds down": np.floor(wide), "rounds ties to even": np.rint(wide)}
    low, high = limits(s.mine.dtype)
    for text, whole in {"rounds to nearest, ties away from zero": away, **ways}.items():
        inside = np.clip(whole, low, high)
        beyond = ", and keeps the low bits of values that are out of range" if np.any(inside != whole) else ""
        yield from recompute(s.evaluate(inputs={"input": whole}), f"{text}{beyond}")
        if beyond:
            yield from recompute(s.evaluate(inputs={"input": inside}), f"{text}, and saturates")


@cause("truncation", rank=32, source=_SPEC)
def truncation(s: Suspect) -> Iterator[Hypothesis]:
    """The runtime drops the fraction instead of rounding to nearest.

    To confirm: Elements differ by one step wherever the fraction is above one half, not only at ties.

    To do: Add half a step before the node, or round before it. Report the bug to the runtime's maintainers.
    """
    if s.exact is None or not s.alone:
        return
    real = s.exact - s.zero
    for text, whole in (("drops the fraction", np.trunc(real)), ("rounds down", np.floor(real))):
        yield from recompute(s.to_codes(whole, s.zero), text)


def _other_than_nearest(s: Suspect, made: Array | None, text: str) -> Iterator[Hypothesis]:
    """Yield the hypothesis if its codes differ from those of rounding to nearest even, as the specification says."""
    assert s.exact is not None
    nearest = s.to_codes(np.rint(_snap(s.exact - s.zero)), s.zero)
    if made is not None and nearest is not None and not same(made, nearest):
        yield Hypothesis(made, text)


def _snap(values: Array) -> Array:
    """Move values within TIE of a rounding tie exactly onto it."""
    tie = np.floor(values) + 0.5
    return np.asarray(np.where(np.abs(values - tie) <= TIE, tie, values))


def _text(zero: Array) -> str:
    """A zero point in words."""
    return f"{int(zero)}" if not zero.ndim else f"of each channel ({int(zero.reshape(-1)[0])}, ...)"
