"""The error of a kernel that refuses an input or an attribute."""

from __future__ import annotations

from typing import Any

import numpy as np

from qrun.errors import OperatorError
from qrun.ir.types import shape_text


def refuse(message: str, param: str = "", expected: str = "", got: Any = "", **more: str) -> OperatorError:
    """The error of a kernel that refuses `param`; `got` may be an array, whose shape is then shown."""
    text = shape_text(got.shape) if isinstance(got, np.ndarray) else str(got)
    return OperatorError(message, param=param, expected=expected, got=text, **more)
