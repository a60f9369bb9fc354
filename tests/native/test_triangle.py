"""Native Trilu is the definition's, on every instruction set, within its memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.native import ISAS, assert_left, engine
from helpers.placed import run_placed, same_everywhere, same_refusal
from helpers.support import node_model
from helpers.widths import every_width

from qrun.native.kernels.copy import Triangle
from qrun.native.machine.operation import Operand

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")


@pytest.mark.parametrize("upper", [True, False])
@every_width
def test_elements_on_one_side(isa: str, upper: bool) -> None:
    rng = np.random.default_rng(81)
    for dtype in (np.uint8, np.float16, np.float32, np.int64):
        for shape in ((1, 1), (3, 5), (5, 3), (2, 4, 70), (2, 3, 40, 17), (1, 9)):
            x = rng.integers(1, 100, shape).astype(dtype)
            for diagonal in (-60, -3, -1, 0, 1, 2, 16, 70, 2**40):
                for threads in (1, 3):
                    made = Triangle(engine(isa, threads), Operand(shape, x.dtype), diagonal, upper)
                    want = x.copy()
                    for place in np.ndindex(shape):
                        i, j = place[-2:]
                        if upper == (j < i + diagonal):
                            want[place] = 0
                    for at_end in (True, False):
                        got = run_placed(engine(isa, threads), made, [x], (0, 0), at_end)
                        assert got.tobytes() == want.tobytes(), (dtype, shape, diagonal)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, np.int64, np.uint8, np.bool_])
def test_nodes(dtype: Any) -> None:
    rng = np.random.default_rng(82)
    for shape in ((3, 5), (2, 3, 4, 33), (2, 0, 3), (0, 3, 3), (3, 0), (70, 70)):
        x = np.where(rng.random(shape) < 0.2, -0.0, rng.normal(0, 9, shape)).astype(dtype)
        for upper in (0, 1):
            for k in (None, -100, -2, 0, 1, 2**62, -(2**63)):
                given, constants = ([x], []) if k is None else ([x, np.array(k)], [1])
                model, feeds = node_model("Trilu", given, {"upper": upper}, outputs=[dtype], constants=constants)
                (event,) = same_everywhere(model, feeds, threads=1 + upper).events
                assert (event.backend, event.why) == ("native", "")


def test_what_is_left_and_refused() -> None:
    x = np.ones((3, 3), np.float32)
    assert_left(*node_model("Trilu", [x, np.array(1)]), "k is not constant")
    words = x.astype(str).astype(object)
    assert_left(*node_model("Trilu", [words], outputs=[np.dtype(object)]), "no native copies of string")
    same_refusal(*node_model("Trilu", [x[0]]))
    same_refusal(*node_model("Trilu", [x, np.array([1, 2])], constants=[1]))
    with pytest.raises(ValueError, match="has no matrices"):
        Triangle(engine("generic"), Operand((3,), x.dtype), 0, upper=True)
