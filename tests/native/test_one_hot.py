"""Native OneHot is the definition's, on every instruction set, within its memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.native import ISAS, assert_left, engine
from helpers.placed import run_placed, same_everywhere, same_refusal
from helpers.support import assert_equal, node_model
from helpers.widths import thin_width

from qrun.native.kernels.reduce import ONE_HOT_KINDS, OneHot
from qrun.native.machine.operation import Operand

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")


@pytest.mark.parametrize("threads", [1, 3])
@thin_width(*range(12), name="seed", other=4)
def test_values_at_indices(isa: str, seed: int, threads: int) -> None:
    rng = np.random.default_rng([seed, threads])
    for _ in range(6):
        kind, made = (
            np.dtype(rng.choice(list(ONE_HOT_KINDS))),
            np.dtype(rng.choice(["uint8", "float16", "float32", "int64"])),
        )
        shape = tuple(
            int(n) for n in rng.choice([1, 2, 5, 40, 0], int(rng.integers(0, 4)), p=[0.3, 0.3, 0.25, 0.1, 0.05])
        )
        depth, axis = int(rng.choice([0, 1, 3, 16, 77])), int(rng.integers(0, len(shape) + 1))
        low = 0 if kind.kind == "u" else -depth - 3
        x = np.asarray(rng.integers(low, depth + 3, shape), kind)
        off, on = rng.normal(0, 50, 2)
        values, least = np.array([off, abs(on)]).astype(made), int(rng.choice([0, -depth]))
        want = np.full((*shape[:axis], depth, *shape[axis:]), values[0])
        for place in np.ndindex(*shape):
            index = int(x[place])
            if least <= index < depth:
                want[(*place[:axis], index % depth, *place[axis:])] = values[1]
        operation = OneHot(engine(isa, threads), Operand(shape, kind), axis, depth, values, least)
        assert_equal(
            run_placed(engine(isa, threads), operation, [x], (0, 0)),
            want,
            f"{isa} {kind} {made} {shape} {axis} {depth}",
        )


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.uint8, bool])
@pytest.mark.parametrize("opset", [9, 13])
def test_nodes(dtype: Any, opset: int) -> None:
    x = np.array([[0, 3, -1], [-5, 4, 7]])
    for kind in (np.int64, np.int32):
        for axis in (-1, 0, 1):
            for indices in (x.astype(kind), x[:, :0].astype(kind)):
                values = np.array([0, 1]).astype(dtype)
                model, feeds = node_model(
                    "OneHot",
                    [indices, np.array([5]), values],
                    {"axis": axis},
                    opset=opset,
                    outputs=[dtype],
                    constants=[1, 2],
                )
                for threads in (1, 2):
                    (event,) = same_everywhere(model, feeds, threads=threads).events
                    assert (event.backend, event.why) == ("native", "")


def test_what_is_declined_and_refused() -> None:
    x, values = np.array([1, 2]), np.array([0, 1], np.float32)
    for inputs, constants, why in (
        ([x.astype(np.float32), np.array(3), values], [1, 2], "indices that are float32"),
        ([x, np.array(3), values], [2], "depth is not constant"),
        ([x, np.array(3), values], [1], "values is not constant"),
        ([x, np.array(3), np.array(["a", "b"], object)], [1, 2], "no native copies of string"),
    ):
        model, feeds = node_model("OneHot", inputs, outputs=[inputs[2].dtype], constants=constants)
        assert_left(model, feeds, why)
    for depth, given in ((-1, values), (3, values[:1])):
        same_refusal(*node_model("OneHot", [x, np.array(depth), given], constants=[1, 2]))
