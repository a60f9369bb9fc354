"""Table of qrun's own domain: what a chain of elementwise operators on an 8-bit tensor becomes."""

from __future__ import annotations

from typing import cast

import numpy as np

from qrun.ir.schema import OWN
from qrun.ir.types import DTYPES, type_name
from qrun.ops._float import axis_in
from qrun.ops._granularity import Grain
from qrun.ops._op import Array, Context, bad_shape, op, refuse
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel
from qrun.ops.lowering.pointwise import table_kernel


@op("Table", since=1, domain=OWN, types={"T1": ("int8 uint8", "x"), "T2": ("int8 uint8", "table")})
def table_(x: Array, table: Array, *, axis: int = 1, input_dtype: int = 0, ctx: Context) -> Array:
    """The entry of `table` for each element of x; x int8 or uint8 of any shape. Exact. Output: table's type.

        y = table[code]            table [256]; code is the element's bits as an unsigned number
        y = table[c, code]         table [C,256]; c is the element's place along `axis`

    input_dtype: x's type as an ONNX number, or 0 for either.
    Raises OperatorError for another table, another type of x, and where axis does not have C elements.
    """
    place = _check(x, table, axis, input_dtype, ctx)
    offsets: Array = np.zeros((), np.intp)
    form = Grain("per-tensor", x.shape)
    if table.ndim == 2:
        offsets, form = np.arange(len(table)) * 256, Grain("per-axis", x.shape, place)
    y = np.empty(x.shape, table.dtype)
    entries, codes = table.reshape(-1), np.ascontiguousarray(x).reshape(x.shape).view(np.uint8)
    for part, out, first, _ in form.views(codes, y, offsets, None):
        out[...] = entries[part + first]
    return y


def _check(x: Array, table: Array, axis: int, input_dtype: int, ctx: Context) -> int:
    """Refuse what does not fit, and claim the output. The axis from 0 on, 0 for a single table."""
    if input_dtype and DTYPES.get(input_dtype) != x.dtype:
        expected = type_name(DTYPES.get(input_dtype))
        raise refuse(f"x is {type_name(x.dtype)}, but the table is for {expected}", "x", expected, type_name(x.dtype))
    if table.ndim not in (1, 2) or table.shape[-1] != 256:
        raise refuse("the table has the wrong shape", "table", "[256], or [C,256]", table)
    place = 0
    if table.ndim == 2:
        place, channels = axis_in(axis, x.ndim), table.shape[0]
        if x.shape[place] != channels:
            raise bad_shape("x", f"{channels} elements along axis {place}, one for each row of the table", x)
    ctx.claim(x.shape, 1)
    return place


@table_.native
def _lower(site: LoweringContext) -> NativeKernel:
    x, table = cast(list[Array], site.inputs)
    place = _check(x, table, site.attributes["axis"], site.attributes["input_dtype"], site.ctx)
    site.require_constants()
    return table_kernel(site, x, table, place)
