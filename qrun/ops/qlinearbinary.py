"""Elementwise operators of com.microsoft on quantized tensors: QLinearAdd, QLinearMul, QLinearWhere, QLinearSigmoid,
QLinearLeakyRelu; and QLinearConcat. Also Table of qrun's own domain, which replaces a chain of elementwise operators on
an 8-bit tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from qrun.declare.frozen import frozen, replace
from qrun.ir.schema import OWN
from qrun.ir.types import DTYPES, type_name
from qrun.ops._codes import (
    Rounded,
    all_codes,
    binary,
    common_shape,
    encoding,
    lookup,
    parameters,
    requantize,
    scale_param,
    single,
    unary,
    zero_param,
)
from qrun.ops._context import scalar
from qrun.ops._float import axis_in
from qrun.ops._granularity import Grain
from qrun.ops._op import Array, Context, Real, Shape, bad_shape, contrib_op, op, refuse
from qrun.ops._rounding import REACH, decide, fma32, two_product, two_sum
from qrun.ops._shape import same_but
from qrun.ops._signature import InputRecord
from qrun.ops.lowering.kernel import EIGHT, LoweringContext, NativeKernel, decline_error
from qrun.ops.lowering.pointwise import binary_kernel, completeness, concat_kernel, note, table_kernel, unary_kernel
from qrun.shapes import broadcast_shapes

if TYPE_CHECKING:
    from qrun.arithmetics.elementwise import CodeRule
    from qrun.native.proof.fits import CodeProduct, CodeSum

_ADD = "QLinearAdd"


@frozen
class BinaryInputs(InputRecord):
    A: Array
    A_scale: Array
    A_zero_point: Array | None
    B: Array
    B_scale: Array
    B_zero_point: Array | None
    C_scale: Array
    C_zero_point: Array | None = None


@contrib_op(_ADD, computes=Real("Add"), form="broadcast", types={"T": ("int8 uint8", "A B C")})
def qlinear_add(given: BinaryInputs, *, ctx: Context) -> Array:
    """Add two quantized tensors with broadcasting. All have one 8-bit type; scales and zero points are scalars or [1].

        C = saturate(RNE((A_scale * (A - A_zero_point) + B_scale * (B - B_zero_point)) / C_scale) + C_zero_point)

    Exact: the quotient is rounded once, as a real number, and before the zero point is added.
    ``ort``: a chain of float32 multiply-adds that ends with the zero point, rounded after it, as on x86 with FMA;
    values beyond int32 saturate instead of wrapping. onnx.reference has no such operator: ``onnx-ref`` is exact.
    """
    shape = common_shape(_ADD, A=given.A, B=given.B)
    (sa, sb, sc), (za, zb, zc) = parameters(_ADD, given, ctx)
    order = _scalar_side(given.A.shape, given.B.shape)

    def exact(a: Array, b: Array) -> Rounded:
        with np.errstate(all="ignore"):
            both = (a - float(za)) * sa, (b - float(zb)) * sb
            left, right = (np.broadcast_to(x, broadcast_shapes(*(x.shape for x in both))) for x in both)
            return decide((left + right) / sc, lambda at: (two_sum(left[at], right[at]), sc))

    def ort(a: Array, b: Array) -> Rounded:
        with np.errstate(all="ignore"):
            ac, bc = single(sa) / single(sc), single(sb) / single(sc)
            if order == "a":
                a, b, ac, bc = b, a, bc, ac
                fixed = single(zc) - fma32(ac, single(zb), bc * single(za))
            else:
                fixed = single(zc) - fma32(ac, single(za), bc * single(zb))
            total = fma32(a, ac, fma32(b, bc, fixed))
        return np.rint(total).astype(np.float64) - float(zc)

    own = ctx.integer_engine and ctx.integer_engine.add
    rule = partial(_in_integers, own, ((sa, za), (sb, zb), (sc, zc))) if own else ort if ctx.arith == "ort" else exact
    return binary(given.A, given.B, shape, rule, zc, ctx, "C")


def _in_integers(rule: CodeRule, parameters: Sequence[tuple[Array, Array]], a: Array, b: Array) -> Rounded:
    """The sum or product of two codes in an integer engine. parameters: scale and zero point of A, B and C."""
    return rule(a, b, *(encoding(*own) for own in parameters)).astype(np.float64)


def _scalar_side(a: Shape, b: Shape) -> str:
    """Which operand onnxruntime folds into the constant: the one that is a scalar for each inner loop ("a"), else B."""
    pairs = list(zip(reversed(a), reversed(b), strict=False))
    if not a or not b:
        pairs = [((a or (1,))[-1], (b or (1,))[-1])]
    inner = next((p for p in pairs if p != (1, 1)), (1, 1))
    return "a" if inner[0] == 1 != inner[1] else "b"


@qlinear_add.native
def _lower_add(site: LoweringContext) -> NativeKernel:
    return binary_kernel(site, _ADD, _near_sum, _scalar_side)


def _near_sum(sa: np.float64, sb: np.float64, sc: np.float64, za: int, zb: int, zc: int, ort: bool) -> CodeSum:
    """The real function of two codes of QLinearAdd, from scales (s) and zero points (z) of A, B and C."""
    from qrun.native.proof.fits import CodeSum

    return CodeSum(float(sa / sc), float(sb / sc), za, zb, zc, ort)


_MUL = "QLinearMul"


@contrib_op(_MUL, computes=Real("Mul"), form="broadcast", types={"T": ("int8 uint8", "A B C")})
def qlinear_mul(given: BinaryInputs, *, ctx: Context) -> Array:
    """Multiply two quantized tensors with broadcasting.

    All have one 8-bit type; scales and zero points are scalars or [1].

        C = saturate(RNE((A - A_zero_point) * (B - B_zero_point) * A_scale * B_scale / C_scale) + C_zero_point)

    Exact: the quotient is rounded once, as a real number, and before the zero point is added.
    ``ort``: float32 multiplier A_scale * B_scale / C_scale, and the zero point is added before rounding, as on x86;
    values beyond int32 saturate instead of wrapping. onnx.reference has no such operator: ``onnx-ref`` is exact.
    """
    shape = common_shape(_MUL, A=given.A, B=given.B)
    (sa, sb, sc), (za, zb, zc) = parameters(_MUL, given, ctx)

    def exact(a: Array, b: Array) -> Rounded:
        with np.errstate(all="ignore"):
            product = (a - float(za)) * (b - float(zb))
            factor = sa * sb
            return decide(product * (factor / sc), lambda at: (two_product(product[at], factor), sc))

    def ort(a: Array, b: Array) -> Rounded:
        with np.errstate(all="ignore"):
            product = ((a - float(za)) * (b - float(zb))).astype(np.float32)
            total = product * (single(sa) * single(sb) / single(sc)) + single(zc)
        return np.rint(total).astype(np.float64) - float(zc)

    own = ctx.integer_engine and ctx.integer_engine.multiply
    rule = partial(_in_integers, own, ((sa, za), (sb, zb), (sc, zc))) if own else ort if ctx.arith == "ort" else exact
    return binary(given.A, given.B, shape, rule, zc, ctx, "C")


@qlinear_mul.native
def _lower_mul(site: LoweringContext) -> NativeKernel:
    return binary_kernel(site, _MUL, _near_product, lambda a, b: "b")


def _near_product(sa: np.float64, sb: np.float64, sc: np.float64, za: int, zb: int, zc: int, ort: bool) -> CodeProduct:
    """The real function of two codes of QLinearMul, from scales (s) and zero points (z) of A, B and C."""
    from qrun.native.proof.fits import CodeProduct

    return CodeProduct(float(sa * sb / sc), za, zb, zc, ort)


_WHERE = "QLinearWhere"


@frozen
class WhereInputs(InputRecord):
    condition: Array
    X: Array
    x_scale: Array
    x_zero_point: Array
    Y: Array
    y_scale: Array
    y_zero_point: Array
    z_scale: Array
    z_zero_point: Array


@contrib_op(
    _WHERE,
    computes=Real("Where"),
    types={
        "B": ("bool", "condition"),
        "T": ("int8 uint8", "X Y Z"),
    },
)
def qlinear_where(given: WhereInputs, *, ctx: Context) -> Array:
    """Select X where condition is true, else Y, and requantize; the three inputs broadcast.

    X, Y and Z have one 8-bit type and scalar parameters.

        Z = saturate(RNE((V - v_zero_point) * v_scale / z_scale) + z_zero_point),    V = X or Y

    Exact: the quotient is rounded once, as a real number. ``ort``: float32 product and quotient; equal parameters
    copy. onnx.reference has no such operator: ``onnx-ref`` is exact.
    """
    condition, X, Y = given.condition, given.X, given.Y
    shape = common_shape(_WHERE, condition=condition, X=X, Y=Y)
    (xs, ys, zs), (xz, yz, zz) = parameters(_WHERE, given, ctx)
    own = replace(ctx, arith="exact") if ctx.integer_engine else ctx  # no engine's selection is known
    table = np.concatenate(
        [requantize(all_codes(X.dtype), xz, xs, zz, zs, own), requantize(all_codes(Y.dtype), yz, ys, zz, zs, own)]
    )
    ctx.claim(shape, 3)
    index = np.where(condition, X.view(np.uint8), Y.view(np.uint8).astype(np.uint16) + np.uint16(256))
    return lookup((index,), shape, table, zz, ctx, "Z")


_SIGMOID = "QLinearSigmoid"
_DOUBT = 1e-9
_ODD = (4.37031012579801e-11, 1.15627324459942e-07, 6.08574864600143e-05, 8.51377133304701e-03, 2.48287947061529e-01)
_EVEN = (
    6.10247389755681e-13,
    5.76102136993427e-09,
    6.29106785017040e-06,
    1.70198817374094e-03,
    1.16817656904453e-01,
    9.93151921023180e-01,
)


@frozen
class UnaryInputs(InputRecord):
    X: Array
    X_scale: Array
    X_zero_point: Array | None
    Y_scale: Array
    Y_zero_point: Array | None = None


@contrib_op(
    _SIGMOID,
    computes=Real("Sigmoid"),
    form="pointwise",
    native=partial(unary_kernel, zero=4),
    types={"T": ("int8 uint8", "X Y")},
)
def qlinear_sigmoid(given: UnaryInputs, *, ctx: Context) -> Array:
    """Apply the logistic function to a quantized int8 or uint8 tensor with scalar parameters.

        Y = saturate(RNE(1 / (1 + exp(-(X - X_zero_point) * X_scale)) / Y_scale) + Y_zero_point)

    Exact: the real value is rounded once; near a tie it is computed with as many digits as needed. ``ort``: float32
    steps and the rational approximation that onnxruntime evaluates with fused multiply-adds on x86. onnx.reference has
    no such operator: ``onnx-ref`` is exact.
    """
    (xs, ys), (xz, yz) = parameters(_SIGMOID, given, ctx)
    centre = all_codes(given.X.dtype).astype(np.float64) - float(xz)
    return unary(given.X, (_sigmoid_ort if ctx.arith == "ort" else _sigmoid_exact)(centre, xs, ys), yz, ctx, "Y")


def _sigmoid_exact(centre: Array, xs: Array, ys: Array) -> Rounded:
    """Sigmoid of codes without zero point, over the output's scale, rounded exactly."""
    from qrun.ops._functions import nearest_share

    with np.errstate(all="ignore"):
        estimate = 1 / (1 + np.exp(-(centre * xs))) / ys
        rounded = np.rint(estimate)
        doubtful = np.abs(np.abs(estimate - rounded) - 0.5) <= _DOUBT
        doubtful &= np.abs(rounded) <= REACH
    for i in np.nonzero(doubtful)[0]:
        terms = {0: 1, -int(centre[i]): 1} if centre[i] else {0: 2}
        rounded[i] = nearest_share(terms, float(xs), float(ys), float(estimate[i]))
    return np.asarray(rounded)


def _sigmoid_ort(centre: Array, xs: Array, ys: Array) -> Rounded:
    """Sigmoid of codes without zero point, over the output's scale, in onnxruntime's arithmetic."""
    with np.errstate(all="ignore"):
        value = logistic32(centre.astype(np.float32) * single(xs))
        return np.asarray(np.rint(value / single(ys)).astype(np.float64))


def logistic32(x: Array, step: Callable[[Any, Any, Any], Array] = fma32) -> Array:
    """The logistic function of float32 values as onnxruntime computes it on x86, bit for bit.

    step: a * b + c in float32, with one rounding on CPUs with FMA.
    """
    with np.errstate(all="ignore"):
        v = np.clip(x, np.float32(-18), np.float32(18))
        square = v * v
        p, q = np.full_like(v, _ODD[0]), np.full_like(v, _EVEN[0])
        for c in _ODD[1:]:
            p = step(p, square, np.float32(c))
        for c in _EVEN[1:]:
            q = step(q, square, np.float32(c))
        return np.asarray(np.clip(p * v / q + np.float32(0.5), np.float32(0), np.float32(1)))


_LEAKY_RELU = "QLinearLeakyRelu"


@contrib_op(
    _LEAKY_RELU,
    computes=Real("LeakyRelu"),
    form="pointwise",
    native=partial(unary_kernel, zero=4),
    types={"T": ("int8 uint8", "X Y")},
)
def qlinear_leaky_relu(given: UnaryInputs, *, alpha: float = 0.01, ctx: Context) -> Array:
    """Apply LeakyRelu to a quantized int8 or uint8 tensor with scalar parameters; alpha is a float32 number.

        v = (X - X_zero_point) * X_scale
        Y = saturate(RNE((v if v >= 0 else alpha * v) / Y_scale) + Y_zero_point)

    Exact: the quotient is rounded once, as a real number. ``ort``: float32 steps. onnx.reference has no such
    operator: ``onnx-ref`` is exact.
    """
    (xs, ys), (xz, yz) = parameters(_LEAKY_RELU, given, ctx)
    centre = all_codes(given.X.dtype).astype(np.float64) - float(xz)
    with np.errstate(all="ignore"):
        slope = np.float64(np.float32(alpha))
    return unary(given.X, (_leaky_ort if ctx.arith == "ort" else _leaky_exact)(centre, xs, slope, ys), yz, ctx, "Y")


def _leaky_exact(centre: Array, xs: Array, slope: np.float64, ys: Array) -> Rounded:
    """LeakyRelu of codes without zero point, over the output's scale, rounded exactly."""
    with np.errstate(all="ignore"):
        factor = np.where(centre * xs < 0, slope * xs, xs)
        return decide(centre * factor / ys, lambda at: (two_product(centre[at], factor[at]), ys))


def _leaky_ort(centre: Array, xs: Array, slope: np.float64, ys: Array) -> Rounded:
    """LeakyRelu of codes without zero point, over the output's scale, in onnxruntime's arithmetic."""
    with np.errstate(all="ignore"):
        value = centre.astype(np.float32) * single(xs)
        value = np.where(value >= 0, value, np.float32(slope) * value)
        return np.asarray(np.rint(value / single(ys)).astype(np.float64))


_NAME = "QLinearConcat"


@contrib_op(_NAME, computes=Real("Concat"), types={"T8": ("int8 uint8", "Y")})
def qlinear_concat(Y_scale: Array, Y_zero_point: Array, *inputs: Array | None, axis: int, ctx: Context) -> Array:
    """Requantize tensors and concatenate them along `axis`. inputs: tensor, scale, zero point, tensor, ...

    Each tensor is int8 or uint8 with its own scalar parameters (an omitted zero point is 0); all have one shape but for
    `axis`. Output: Y_zero_point's type.

        Y = concatenation of saturate(RNE((x - x_zero_point) * x_scale / Y_scale) + Y_zero_point)

    Exact: the quotient is rounded once, as a real number. ``ort``: float32 product and quotient; equal parameters
    copy. onnx.reference has no such operator: ``onnx-ref`` is exact.
    """
    if not inputs or len(inputs) % 3:
        what = f"{_NAME} has {len(inputs)} inputs after Y_zero_point"
        raise refuse(what, "inputs", "three for each tensor: tensor, scale, zero point", len(inputs), code="QR205")
    ys = scale_param(Y_scale, "Y_scale", _NAME, ctx)
    yz = scalar(Y_zero_point, "Y_zero_point", _NAME)
    assert yz is not None
    tensors = []
    for index in range(0, len(inputs), 3):
        x, scale, zero = inputs[index : index + 3]
        _check_part(index, x, scale)
        assert x is not None
        assert scale is not None
        xs = scale_param(scale, f"inputs[{index + 1}]", _NAME, ctx)
        xz = zero_param(zero, x.dtype, f"inputs[{index + 2}] (zero_point)", f"inputs[{index}]", _NAME)
        tensors.append((x, xs, xz))
    places = _check_shapes([x for x, _, _ in tensors], axis)
    ctx.claim((sum(x.size for x, _, _ in tensors),), 2, "parts and output")
    parts = [
        unary(x, requantize(all_codes(x.dtype), xz, xs, yz, ys, ctx), yz, ctx, f"inputs[{3 * i}]")
        for i, (x, xs, xz) in enumerate(tensors)
    ]
    return np.concatenate(parts, axis=places)


@qlinear_concat.native
def _lower(site: LoweringContext) -> NativeKernel:
    scale, zero, *inputs = site.inputs
    inputs = [] if len(inputs) == 1 and inputs[0] is None else inputs
    codes = [
        all_codes(x.dtype) if index % 3 == 0 and x is not None and x.dtype in EIGHT else x
        for index, x in enumerate(inputs)
    ]
    seen = Context(site.ctx.arith, site.ctx.version)
    tables = qlinear_concat(scale, zero, *codes, axis=0, ctx=seen).reshape(-1, 256)
    note(site, seen)
    complete = [completeness(seen, tables.dtype, zero, f"inputs[{3 * i}]") for i in range(len(tables))]
    tensors = [x for x in inputs[::3] if x is not None]
    axis = _check_shapes(tensors, site.attributes["axis"])
    for index, fixed in enumerate(site.fixed):
        if not fixed and (index < 2 or (index - 2) % 3):
            raise decline_error(f"a parameter of inputs[{max(index - 2, 0) // 3 * 3}] is not constant")
    return concat_kernel(site, range(2, len(site.inputs), 3), axis, list(tables), complete)


def _check_part(index: int, x: Array | None, scale: Array | None) -> None:
    """Raise OperatorError unless an input of QLinearConcat is 8-bit with a float32 scale."""
    if x is None or scale is None or x.dtype not in EIGHT or scale.dtype != np.float32:
        got = ", ".join("nothing" if a is None else type_name(a.dtype) for a in (x, scale))
        what = f"inputs[{index}] and inputs[{index + 1}] are not a quantized tensor and its scale"
        why = f"{_NAME}: inputs are tensor, scale, zero point, tensor, ..."
        raise refuse(what, "inputs", "int8 or uint8, then float32", got, why=why, code="QR203")


def _check_shapes(tensors: list[Array], axis: int) -> int:
    """The axis of a QLinearConcat. Raises OperatorError for inputs whose shapes differ elsewhere."""
    dim = axis_in(axis, tensors[0].ndim)
    for i, x in enumerate(tensors):
        if not same_but(x.shape, tensors[0].shape, dim):
            raise bad_shape(f"inputs[{3 * i}]", f"that of inputs[0], {list(tensors[0].shape)}, but for axis {dim}", x)
    return dim


@op("Table", since=1, domain=OWN, types={"T1": ("int8 uint8", "x"), "T2": ("int8 uint8", "table")})
def table_(x: Array, table: Array, *, axis: int = 1, input_dtype: int = 0, ctx: Context) -> Array:
    """Look up each element of x in `table`; x is int8 or uint8, of any shape. Exact. The output has table's type.

        y = table[code]            table [256]; code is the element's bits as an unsigned number
        y = table[c, code]         table [C,256]; c is the element's place along `axis`

    input_dtype: x's type as an ONNX number, or 0 for either.
    Raises OperatorError for another table, another type of x, and where axis does not have C elements.
    """
    dim = _check(x, table, axis, input_dtype, ctx)
    offsets: Array = np.zeros((), np.intp)
    form = Grain("per-tensor", x.shape)
    if table.ndim == 2:
        offsets, form = np.arange(len(table)) * 256, Grain("per-axis", x.shape, dim)
    y = np.empty(x.shape, table.dtype)
    entries, codes = table.reshape(-1), np.ascontiguousarray(x).reshape(x.shape).view(np.uint8)
    for part, out, first, _ in form.views(codes, y, offsets, None):
        out[...] = entries[part + first]
    return y


def _check(x: Array, table: Array, axis: int, input_dtype: int, ctx: Context) -> int:
    """Refuse what does not fit, and claim the output. Returns the axis counted from the front, 0 for a single table."""
    if input_dtype and DTYPES.get(input_dtype) != x.dtype:
        expected = type_name(DTYPES.get(input_dtype))
        raise refuse(f"x is {type_name(x.dtype)}, but the table is for {expected}", "x", expected, type_name(x.dtype))
    if table.ndim not in (1, 2) or table.shape[-1] != 256:
        raise refuse("the table has the wrong shape", "table", "[256], or [C,256]", table)
    dim = 0
    if table.ndim == 2:
        dim, channels = axis_in(axis, x.ndim), table.shape[0]
        if x.shape[dim] != channels:
            raise bad_shape("x", f"{channels} elements along axis {dim}, one for each row of the table", x)
    ctx.claim(x.shape, 1)
    return dim


@table_.native
def _lower_table(site: LoweringContext) -> NativeKernel:
    x, table = cast(list[Array], site.inputs)
    dim = _check(x, table, site.attributes["axis"], site.attributes["input_dtype"], site.ctx)
    site.require_constants()
    return table_kernel(site, x, table, dim)
