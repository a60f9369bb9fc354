"""Element types that .npy files lack keep their shapes on the way there and back."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from qrun.io.storable import restore, storable


@pytest.mark.parametrize("kind", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4, np.float32])
@pytest.mark.parametrize("shape", [(), (1,), (0, 2), (3, 2)])
def test_there_and_back(kind: type[np.generic], shape: tuple[int, ...]) -> None:
    """The same elements, of the same shape; scalars too."""
    array = np.asarray(np.full(shape, 1.5).astype(kind))
    stored, _ = storable(array)
    assert stored.shape == shape
    back, _ = restore(stored, array.dtype)
    assert back.shape == shape
    assert back.dtype == array.dtype
    assert (back == array).all()
