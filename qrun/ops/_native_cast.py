"""The native lowering of Cast."""

from __future__ import annotations

from typing import Any

import numpy as np

from qrun.ir.types import DTYPES, type_name
from qrun.ops._complete import ALWAYS, NEVER, Between, Complete
from qrun.ops._native import LoweringContext, NativeKernel, declined, kernel_of
from qrun.ops._native_copies import view_kernel
from qrun.ops._native_float32 import FLOAT, function_kernel
from qrun.ops._native_narrow import NARROW, narrowing_kernel

_NAMES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool", "float64")
_TYPES = tuple(map(np.dtype, _NAMES))


def cast_kernel(site: LoweringContext) -> NativeKernel:
    """The kernel of a Cast whose attributes are not checked yet."""
    from qrun.native.kernels.elementwise import Elementwise
    from qrun.native.machine.operation import Operand

    x, to = site.inputs[0], DTYPES.get(site.attributes["to"])
    if to in NARROW:
        return narrowing_kernel(site, to)
    if to == FLOAT:
        return function_kernel(site, "cast")
    site.reference((np.empty(0, x.dtype),), site.ctx)
    if to is None or to not in _TYPES or x.dtype not in (*_TYPES, FLOAT, *NARROW):
        raise declined(f"no native conversion of {type_name(x.dtype)} to {type_name(to)}")
    if x.dtype == to:
        return view_kernel(site)
    operation = Elementwise(site.engine, f"to_{to.name}", [Operand(x.shape, x.dtype)])
    return kernel_of(site, operation, (0,), _completeness(x.dtype, to))


def _completeness(source: np.dtype[Any], to: np.dtype[Any]) -> Complete:
    """A number that does not fit becomes the least int32 or int64, and any number of another type."""
    if source.kind in "iub" or to.kind in "fb":
        return ALWAYS
    info = np.iinfo(to)
    return Between(int(info.min), int(info.max) + 1) if to in (np.int32, np.int64) else NEVER
