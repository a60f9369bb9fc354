"""Min and Max."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from qrun.ir import Array
from qrun.ops._context import Context
from qrun.ops._elementwise import common_shape
from qrun.ops._op import op


@op("Min", since=6, form="broadcast")
def min_(*data_0: Array, ctx: Context) -> Array:
    """The least element of one or more tensors of one type, with numpy's broadcasting from version 8 on.

    Exact; NaN if one of the elements is NaN. Integers since version 12.
    Raises OperatorError for shapes that do not broadcast, or that differ in version 6.
    Source: ONNX operators, Min-13.
    """
    return _fold("Min", np.minimum, data_0, ctx)


@op("Max", since=6, form="broadcast")
def max_(*data_0: Array, ctx: Context) -> Array:
    """The greatest element of one or more tensors of one type, with numpy's broadcasting from version 8 on.

    Exact; NaN if one of the elements is NaN. Integers since version 12.
    Raises OperatorError for shapes that do not broadcast, or that differ in version 6.
    Source: ONNX operators, Max-13.
    """
    return _fold("Max", np.maximum, data_0, ctx)


def _fold(op_type: str, choose: Callable[[Array, Array], Any], arrays: Sequence[Array], ctx: Context) -> Array:
    common_shape(op_type, arrays, ctx)
    with np.errstate(all="ignore"):
        return np.asarray(reduce(choose, arrays))
