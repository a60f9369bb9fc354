"""Functions whose parameters are zeros, infinities, NaN or subnormal: the bits of the reference kernels."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.float32 import UNARY, numbers
from helpers.native import ISAS
from helpers.placed import same_everywhere
from helpers.support import node_model

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")
SPECIAL = (0.0, -0.0, 1.0, -1.5, 1e-40, 3e38, -3e38, np.inf, -np.inf, np.nan)
WITH_PARAMETERS = [name for name, (_, given) in UNARY.items() if any(isinstance(v, float) for v in given.values())]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("name", WITH_PARAMETERS)
def test_functions_of_numbers_of_all_kinds(name: str, dtype: Any) -> None:
    op_type, given = UNARY[name]
    if op_type == "Shrink" and dtype == ml_dtypes.bfloat16:
        pytest.skip("Shrink takes no bfloat16")
    with np.errstate(all="ignore"):
        x = numbers(np.random.default_rng(12), 700).astype(dtype)
    for values in zip(SPECIAL, SPECIAL[::-1], strict=True):
        attributes = dict(zip(given, values, strict=False))
        same_everywhere(*node_model(op_type, [x], attributes, opset=28, outputs=[x.dtype]))
