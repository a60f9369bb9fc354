"""The operators Cast and CastLike."""

from __future__ import annotations

from typing import Any

import numpy as np

from qrun.ir.types import DTYPES, type_name
from qrun.ops._cast import ROUND_MODES, convert, type_of
from qrun.ops._complete import ALWAYS, NEVER, Between, Complete
from qrun.ops._op import Array, Context, one_of, op
from qrun.ops.lowering.copies import view_kernel
from qrun.ops.lowering.float32 import function_kernel
from qrun.ops.lowering.kernel import FLOAT, EveryType, LoweringContext, NativeKernel, decline_error, kernel_of
from qrun.ops.lowering.narrow import NARROW, narrowing_kernel


@op("Cast", since=6, form="pointwise")
def cast(input: Array, *, to: int, saturate: int = 1, round_mode: str = "up", ctx: Context) -> Array:
    """Convert `input`, of any shape, to the ONNX element type `to`. If it has that type, return the same array.

    float to float:     rounded once to nearest, ties to even; overflow to infinity in float16, bfloat16 and wider.
    float8:             out of range as the tables say, by `saturate`; before Cast-24 infinities become NaN in the
                        FNUZ types, whatever `saturate` is.
                        float4, float6: saturate; NaN becomes the largest.
    float8e8m0:         a power of two by `round_mode`, `saturate` at both ends; negative numbers become NaN.
    float to integer:   toward zero. Out of range and NaN are undefined; here as x86 converts: the smallest int32
                        (int64 for int64), whose low bits are kept for narrower types, and 0 for unsigned types
                        above their range. Observed as ``undefined-cast``.
    integer to integer: the low bits. To bool: not zero, and NaN is True.
    to string:          plain digits, as few as give the value back; NaN, INF, -INF. bool: 1 and 0.
    from string:        decimal or scientific notation, inf and nan in any case; toward zero for integers.

    Refuses a type that this version of Cast does not have, and strings that are not numbers or exceed 64 bits.
    """
    dtype = type_of(to, "Cast", "to", f"Cast-{{}} does not cast to type {to}", ctx)
    return convert(input, dtype, bool(saturate), _mode(round_mode), ctx)


@op("CastLike", since=15)
def cast_like(input: Array, target_type: Array, *, saturate: int = 1, round_mode: str = "up", ctx: Context) -> Array:
    """Convert `input` to the element type of `target_type`, as Cast does."""
    return convert(input, np.dtype(target_type.dtype), bool(saturate), _mode(round_mode), ctx)


def _mode(round_mode: str) -> str:
    """The round_mode. Raises OperatorError for unknown ones."""
    one_of("round_mode", round_mode, ROUND_MODES)
    return round_mode


_NAMES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool", "float64")
_TYPES = tuple(map(np.dtype, _NAMES))


def _lower(site: LoweringContext) -> NativeKernel:
    """The kernel of a Cast whose attributes have not been checked yet."""
    from qrun.native.kernels.elementwise import Elementwise
    from qrun.native.machine.operation import Operand

    x, to = site.inputs[0], DTYPES.get(site.attributes["to"])
    if to in NARROW:
        return narrowing_kernel(site, to)
    if to == FLOAT:
        return function_kernel(site, "cast")
    site.reference((np.empty(0, x.dtype),), site.ctx)
    if to is None or to not in _TYPES or x.dtype not in (*_TYPES, FLOAT, *NARROW):
        raise decline_error(f"no native conversion of {type_name(x.dtype)} to {type_name(to)}")
    if x.dtype == to:
        return view_kernel(site)
    operation = Elementwise(site.engine, f"to_{to.name}", [Operand(x.shape, x.dtype)])
    return kernel_of(site, operation, (0,), _completeness(x.dtype, to))


def _completeness(source: np.dtype[Any], to: np.dtype[Any]) -> Complete:
    """A value that does not fit becomes the smallest int32 or int64; other integer types can return any number."""
    if source.kind in "iub" or to.kind in "fb":
        return ALWAYS
    info = np.iinfo(to)
    return Between(int(info.min), int(info.max) + 1) if to in (np.int32, np.int64) else NEVER


cast.native(EveryType(_lower))
