"""Elementwise operators of two or more tensors: arithmetic, comparisons, logic, bitwise operations; Shrink, Hardmax and
SwiGLU."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np

from qrun.formulas import wide
from qrun.ir.types import shape_text
from qrun.ops._body import node
from qrun.ops._cast import convert
from qrun.ops._float import axis_in, binary, bounds, broadcast, is_integer, narrow, single, widen, with_zeros
from qrun.ops._functions import in_lanes
from qrun.ops._op import Array, Context, OpDef, Shape, bad_shape, first_place, misfit, one_of, op, refuse
from qrun.ops._signature import Form
from qrun.ops.lowering.float32 import elementwise, elementwise_kernel, function, function_kernel
from qrun.ops.lowering.kernel import Lowering, LoweringContext, NativeKernel, OfShapes, decline_error


def binary_operator(
    op_type: str,
    function: Callable[[Array, Array], Any],
    says: str,
    *,
    since: int,
    form: Form = "",
    native: bool = True,
    compares: bool = False,
) -> OpDef:
    """Declare function(A, B) of tensors that broadcast.

    says: the operator's description. native: whether native/emit/functions.py has the function, under the operator's
    name. compares: the result is bool.
    """

    def made(A: Array, B: Array, *, ctx: Context) -> Array:
        return binary(function, A, B, ctx, itemsize=int(compares))

    what, _, more = says.partition("; ")
    made.__doc__ = f"""{what}, with numpy's broadcasting{"; " if more else ""}{more}.

    Raises OperatorError for shapes that do not broadcast.
    """
    name = re.sub("(?<=[a-z])(?=[A-Z])", "_", op_type).lower()
    return op(op_type, since=since, form=form, native=elementwise(name) if native else None)(made)


def observe_zeros(divisor: Array, name: str, ctx: Context) -> None:
    """Note the zeros of a divisor."""
    if ctx.observing:
        zero = divisor == 0
        count = int(np.count_nonzero(zero))
        if count:
            ctx.observe("division-by-zero", name, count, divisor.size, first_place(zero))


def common_shape(op_type: str, data_0: Sequence[Array], ctx: Context, itemsize: int = 0) -> Shape:
    """The shape to which the inputs of Sum, Mean, Min and Max broadcast; before version 8 they have one shape."""
    if not data_0 or any(x is None for x in data_0):
        raise refuse(f"an input of {op_type} is missing", "data_0", "one tensor or more", "none", code="QR205")
    for index, array in enumerate(data_0):
        if ctx.version < 8 and array.shape != data_0[0].shape:
            raise bad_shape(f"data_0[{index}]", f"one shape: {op_type} broadcasts since opset 8", array)
    return broadcast(ctx, data_0, [f"data_0[{index}]" for index in range(len(data_0))], itemsize)


def total(op_type: str, data_0: Sequence[Array], ctx: Context) -> Array:
    """The sum of floating-point tensors in float64, from left to right."""
    made = np.zeros(common_shape(op_type, data_0, ctx, 8))
    with np.errstate(all="ignore"):
        made += data_0[0]
        for array in data_0[1:]:
            made += array
    return made


add = binary_operator(
    "Add", np.add, "A + B of one type; floating point correctly rounded, integers wrap", since=7, form="broadcast"
)
sub = binary_operator(
    "Sub", np.subtract, "A - B of one type; floating point correctly rounded, integers wrap", since=7, form="broadcast"
)
mul = binary_operator(
    "Mul", np.multiply, "A * B of one type; floating point correctly rounded, integers wrap", since=7, form="broadcast"
)


def _lower_div(site: LoweringContext) -> NativeKernel:
    return elementwise_kernel(site, "quotient" if is_integer(site.inputs[0].dtype) else "div", ("A", "B"))


@op("Div", since=7, form="broadcast", native=OfShapes(_lower_div))
def div(A: Array, B: Array, *, ctx: Context) -> Array:
    """Divide A by B of the same type, with numpy's broadcasting.

    Floating point: correctly rounded, IEEE 754 where B is 0. Integers: truncated toward zero; where B is 0, which the
    page leaves open, the result is 0 and is observed; the smallest number divided by -1 wraps to itself.
    Raises OperatorError for shapes that do not broadcast.
    """
    if not is_integer(A.dtype):
        return binary(np.divide, A, B, ctx)
    observe_zeros(B, "B", ctx)
    return binary(_truncate, A, B, ctx)


def _truncate(a: Array, b: Array) -> Array:
    """The quotient of integers, rounded towards zero."""
    quotient = np.asarray(np.floor_divide(a, b))
    if a.dtype.kind == "i":
        quotient += ((a < 0) != (b < 0)) & (np.remainder(a, b) != 0)
    return quotient


def _variadic_lowering(op_type: str) -> Lowering:
    """The lowering of a variadic operator, such as Sum: one elementwise kernel that reads all inputs."""

    def lower(site: LoweringContext) -> NativeKernel:
        common_shape(op_type, site.inputs, site.ctx)
        return elementwise_kernel(site, op_type.lower(), [f"data_0[{index}]" for index in range(len(site.inputs))])

    return OfShapes(lower)


@op("Sum", since=6, form="broadcast", native=_variadic_lowering("Sum"))
def sum_(*data_0: Array, ctx: Context) -> Array:
    """Add one or more floating-point tensors of one type, with numpy's broadcasting since version 8.

    Added in float64 from left to right and rounded once to the type; float64 stays float64.
    Raises OperatorError for shapes that do not broadcast, or that differ in version 6.
    """
    return narrow(total("Sum", data_0, ctx), data_0[0].dtype)


@op("Mean", since=6, form="broadcast", native=_variadic_lowering("Mean"))
def mean(*data_0: Array, ctx: Context) -> Array:
    """Average one or more floating-point tensors of one type, with numpy's broadcasting since version 8.

    Added in float64 from left to right, divided, and rounded once to the type; float64 stays float64.
    Raises OperatorError for shapes that do not broadcast, or that differ in version 6.
    """
    made = total("Mean", data_0, ctx)
    made /= len(data_0)
    return narrow(made, data_0[0].dtype)


@op("Min", since=6, form="broadcast", native=_variadic_lowering("Min"))
def min_(*data_0: Array, ctx: Context) -> Array:
    """Return the elementwise minimum of one or more tensors of one type, with numpy's broadcasting since version 8.

    Exact; NaN if one of the elements is NaN; -0 is less than +0. Integers since version 12.
    Raises OperatorError for shapes that do not broadcast, or that differ in version 6.
    """
    return _fold("Min", np.minimum, data_0, ctx)


@op("Max", since=6, form="broadcast", native=_variadic_lowering("Max"))
def max_(*data_0: Array, ctx: Context) -> Array:
    """Return the elementwise maximum of one or more tensors of one type, with numpy's broadcasting since version 8.

    Exact; NaN if one of the elements is NaN; -0 is less than +0. Integers since version 12.
    Raises OperatorError for shapes that do not broadcast, or that differ in version 6.
    """
    return _fold("Max", np.maximum, data_0, ctx)


def _fold(op_type: str, choose: Callable[[Array, Array], Any], arrays: Sequence[Array], ctx: Context) -> Array:
    """Combine several arrays by a function of two, such as the maximum."""
    common_shape(op_type, arrays, ctx)
    with np.errstate(all="ignore"):
        return np.asarray(reduce(partial(_choose, choose), arrays))


def _choose(choose: Callable[[Array, Array], Any], a: Array, b: Array) -> Array:
    """Maximum or minimum of two arrays, with the sign of zeros as IEEE 754 has it."""
    made = np.asarray(choose(a, b))
    if is_integer(a.dtype) or (made != 0).all():
        return made
    both = np.logical_and if choose is np.maximum else np.logical_or
    return with_zeros(made, both(np.signbit(a), np.signbit(b)))


@op("Pow", since=7, form="broadcast")
def pow_(X: Array, Y: Array, *, ctx: Context) -> Array:
    """X ** Y in X's type, with numpy's broadcasting. Y may be of another type since version 12.

    X floating point: in float64 and rounded once; if Y is one number other than 0, 2 and 3, as exp(Y * log(|X|)),
    unless X is float64, which stays float64. NaN for a negative number to a fractional power.
    Both integers: exact and wrapping; for a negative Y the fraction is truncated toward zero, and 0 ** Y, which the
    page leaves open, is 0 and observed. X integer, Y floating point: in float64, then as Cast does.
    Raises OperatorError for shapes that do not broadcast.
    """
    names = ("X", "Y")
    if not is_integer(X.dtype):
        power = _power if X.dtype == np.float64 else _narrow_power
        return binary(lambda x, y: narrow(power(widen(x), widen(y)), X.dtype), X, Y, ctx, names, 8)
    if not is_integer(Y.dtype):
        real = binary(lambda x, y: _power(widen(x), widen(y)), X, Y, ctx, names, 8)
        return convert(real, X.dtype, True, "up", ctx)
    if ctx.observing and Y.size and Y.min() < 0:
        observe_zeros(X, "X", ctx)
    return binary(_integer_power, X, Y, ctx, names, 8)


@pow_.native
def _lower_pow(site: LoweringContext) -> NativeKernel:
    x, y = site.inputs
    site.require_constant(1)
    if y.size != 1 or y.ndim > x.ndim:
        raise decline_error("Y is not one exponent for all of X")
    exponent = float(y.reshape(-1)[0])
    if exponent in (2.0, 3.0):
        return function_kernel(site, "square" if exponent == 2.0 else "cube")
    if not exponent or not math.isfinite(exponent) or single(exponent) != exponent:
        raise decline_error("an exponent that is 0, or no finite float32 number")
    return function_kernel(site, power_of(exponent), lambda: [exponent])


def power_of(exponent: float) -> str:
    """The function of qrun/formulas that raises to this exponent, not 0."""
    return "real_power" if exponent % 1 else "odd_power" if exponent % 2 else "even_power"


def _power(x: Array, y: Array) -> Any:
    """X ** Y of float64."""
    if y.size == 1 and y.ndim <= x.ndim:
        if y.reshape(()) == 2:
            return np.square(x)
        if y.reshape(()) == 0.5:  # numpy takes the root, which differs from the power at -0 and -infinity
            return np.where(np.isneginf(x), np.inf, np.sqrt(x) + 0.0)
    return np.power(x, y)


def _narrow_power(x: Array, y: Array) -> Any:
    """X ** Y of narrower types, in float64."""
    exponent = float(y.reshape(-1)[0]) if y.size == 1 and y.ndim <= x.ndim else math.nan
    if exponent == 3:
        return x * x * x
    if exponent in (0, 2) or not math.isfinite(exponent):
        return _power(x, y)
    return in_lanes(getattr(wide, power_of(exponent)), x, exponent)


def _integer_power(x: Array, y: Array) -> Array:
    """x ** y, wrapping: computed modulo 2**64, whose low bits are those of the narrower type."""
    exponent = np.where(y < 0, np.array(0, y.dtype), y).astype(np.uint64)
    power = np.power(x.astype(np.uint64), exponent).astype(x.dtype)
    odd = (y & np.array(1, y.dtype)) != 0
    unit = np.where(x == -1, np.where(odd, -1, 1), x == 1).astype(x.dtype)
    return np.where(y < 0, unit, power)


def _lower_mod(site: LoweringContext) -> NativeKernel:
    fmod = site.attributes["fmod"]
    one_of("fmod", fmod, (0, 1))
    return elementwise_kernel(site, "remainder" if fmod else "modulo", ("A", "B"))


@op("Mod", since=10, form="broadcast", native=OfShapes(_lower_mod))
def mod(A: Array, B: Array, *, fmod: int = 0, ctx: Context) -> Array:
    """A - floor(A / B) * B, of B's sign; with fmod A - trunc(A / B) * B, of A's sign. With numpy's broadcasting.

    Integers: exact; where B is 0, which the page leaves open, the result is 0 and is observed. Floating point: fmod is
    exact; floor, since version 28, is computed in float64 and rounded once. Zeros, infinities and NaN are handled as
    the operator's page says. Raises OperatorError for floating point without fmod before version 28, for an fmod other
    than 0 and 1, and for shapes that do not broadcast.
    """
    one_of("fmod", fmod, (0, 1))
    function = np.fmod if fmod else np.remainder
    if is_integer(A.dtype):
        observe_zeros(B, "B", ctx)
        return binary(function, A, B, ctx)
    if not fmod and ctx.version < 28:
        why = f"Mod-{ctx.version}: with fmod = 0 the inputs are integers; opset 28 lifts this."
        raise refuse("floating point needs fmod", "fmod", "1 for floating point", "0", why=why, code="QR204")
    return binary(lambda a, b: narrow(function(widen(a), widen(b)), A.dtype), A, B, ctx, itemsize=8)


def _lower_p_relu(site: LoweringContext) -> NativeKernel:
    kernel = elementwise_kernel(site, "p_relu", ("X", "slope"))
    if kernel.stages[0].operation.result.shape != site.inputs[0].shape:
        raise decline_error("slope is not of X's shape")
    return kernel


@op("PRelu", since=7, form="broadcast", native=OfShapes(_lower_p_relu))
def p_relu(X: Array, slope: Array, *, ctx: Context) -> Array:
    """slope * X where X < 0, else X; slope broadcasts to X. Floating point: correctly rounded. Integers wrap.

    Raises OperatorError for a slope that does not broadcast to X's shape.
    """
    made = binary(lambda x, s: np.where(x < 0, s * x, x), X, slope, ctx, ("X", "slope"))
    if made.shape != X.shape:
        raise bad_shape("slope", f"a shape that broadcasts to {shape_text(X.shape)}", slope)
    return made


and_ = binary_operator("And", np.logical_and, "A and B of bool tensors", since=7)
or_ = binary_operator("Or", np.logical_or, "A or B of bool tensors", since=7)
xor = binary_operator("Xor", np.logical_xor, "Either A or B of bool tensors", since=7)


@op("Not", since=1, native=elementwise("not", "X"))
def not_(X: Array) -> Array:
    """Negate a bool tensor."""
    return np.asarray(np.logical_not(X))


bitwise_and = binary_operator("BitwiseAnd", np.bitwise_and, "A & B of integers", since=18, native=False)
bitwise_or = binary_operator("BitwiseOr", np.bitwise_or, "A | B of integers", since=18, native=False)
bitwise_xor = binary_operator("BitwiseXor", np.bitwise_xor, "A ^ B of integers", since=18, native=False)


@op("BitwiseNot", since=18)
def bitwise_not(X: Array) -> Array:
    """Invert all bits of integers."""
    return np.asarray(np.invert(X))


@op("BitShift", since=11)
def bit_shift(X: Array, Y: Array, *, direction: str, ctx: Context) -> Array:
    """Shift the bits of X by Y places LEFT or RIGHT, with numpy's broadcasting; signed integers since version 28.

    RIGHT fills with the sign. By a negative or too large Y, all bits leave: -1 for a negative X to the RIGHT, else 0.
    Raises OperatorError for another direction, and for shapes that do not broadcast.
    """
    one_of("direction", direction, ("LEFT", "RIGHT"))
    return binary(np.left_shift if direction == "LEFT" else np.right_shift, X, Y, ctx, ("X", "Y"))


equal = binary_operator(
    "Equal", np.equal, "A = B; NaN equals nothing. Strings since version 19", since=7, compares=True
)
greater = binary_operator("Greater", np.greater, "A > B; False where one is NaN", since=7, compares=True)
greater_or_equal = binary_operator(
    "GreaterOrEqual", np.greater_equal, "A >= B; False where one is NaN", since=12, compares=True
)
less = binary_operator("Less", np.less, "A < B; False where one is NaN", since=7, compares=True)
less_or_equal = binary_operator("LessOrEqual", np.less_equal, "A <= B; False where one is NaN", since=12, compares=True)


@op("IsNaN", since=9, native=function("is_nan"))
def is_nan(X: Array) -> Array:
    """Test whether each element of X is NaN."""
    return np.asarray(np.isnan(X))


@op("IsInf", since=10)
def is_inf(X: Array, *, detect_negative: int = 1, detect_positive: int = 1) -> Array:
    """Test whether each element of X is infinite with a requested sign; False for types without infinities."""
    infinite = np.asarray(np.isinf(X))
    if not detect_negative:
        infinite &= ~np.signbit(X)
    if not detect_positive:
        infinite &= np.signbit(X)
    return infinite


@is_inf.native
def _lower_is_inf(site: LoweringContext) -> NativeKernel:
    def looked_for() -> list[float]:
        wanted = (site.attributes["detect_negative"], site.attributes["detect_positive"])
        return [sign * math.inf if is_wanted else math.nan for sign, is_wanted in zip((-1, 1), wanted, strict=True)]

    return function_kernel(site, "is_inf", looked_for)


@op("Hardmax", since=1)
def hardmax_1(input: Array, *, axis: int = 1, ctx: Context) -> Array:
    """Return 1 at the first largest element over all axes from `axis` on, else 0; as Hardmax-13.
    Source: ONNX operators, Hardmax-11."""
    first = axis_in(axis, input.ndim)
    matrix = input.reshape(math.prod(input.shape[:first]), math.prod(input.shape[first:]))
    return _hardmax(matrix, 1, ctx).reshape(input.shape)


@op("Hardmax", since=13)
def hardmax(input: Array, *, axis: int = -1, ctx: Context) -> Array:
    """Return 1 at the first largest element along one axis, else 0; NaN ranks above every number. Exact.

    Raises OperatorError for an axis outside [-r, r-1].
    """
    return _hardmax(input, axis_in(axis, input.ndim), ctx)


def _hardmax(x: Array, axis: int, ctx: Context) -> Array:
    """1 at the first largest element along an axis, 0 elsewhere."""
    ctx.claim(x.shape, x.itemsize + 4)
    lines = np.moveaxis(x, axis, -1)
    rows = widen(lines).reshape(-1, x.shape[axis]) if x.size else np.zeros((0, 0))
    made = np.zeros(rows.shape, x.dtype)
    if x.size:
        made[np.arange(len(rows)), np.argmax(rows, axis=1)] = 1
    return np.ascontiguousarray(np.moveaxis(made.reshape(lines.shape), -1, axis))


@op("Shrink", since=9, native=function("shrink", "bias", "lambd"))
def shrink(input: Array, *, bias: float = 0.0, lambd: float = 0.5, ctx: Context) -> Array:
    """x + bias below -lambd, x - bias above lambd, else 0; NaN gives 0.

    In float64 and rounded once; integers toward 0, saturating.
    """
    ctx.claim(input.shape, 8)
    with np.errstate(all="ignore"):
        wide, step, limit = widen(input), single(bias), single(lambd)
        made = np.where(wide < -limit, wide + step, np.where(wide > limit, wide - step, 0.0))
        if not is_integer(input.dtype):
            return narrow(made, input.dtype)
        low, high = bounds(input.dtype)
        cut = np.trunc(np.nan_to_num(made, nan=0.0))
        kept = np.where((cut > float(low)) & (cut < float(high)), cut, 0.0).astype(input.dtype)
        return np.asarray(np.where(cut >= float(high), high, np.where(cut <= float(low), low, kept)))


@op("SwiGLU", since=28)
def swiglu(A: Array, B: Array, *, alpha: float = 1.0, ctx: Context) -> Array:
    """Swish(A) * B, as the nodes Swish and Mul of ai.onnx, each rounded. A and B of one shape.

    Raises OperatorError for shapes that differ.
    """
    if A.shape != B.shape:
        raise misfit("B does not fit A", "B", "as A, " + str(list(A.shape)), B)
    return np.asarray(node("Mul", [node("Swish", [A], ctx, alpha=alpha), B], ctx))
