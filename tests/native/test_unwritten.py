"""Every byte of a result is written in every run: memory that is not holds poison here, and would show."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.models import make_model, typed
from helpers.native import ISAS, SETS, emulating, engine
from helpers.placed import same_runs
from helpers.poison import POISON, poisoned
from onnx import TensorProto, helper

from qrun.native.kernels.copy import Copy, Move
from qrun.native.machine.operation import Operand
from qrun.native.plan.items import Task
from qrun.native.plan.program import Program
from qrun.native.plan.schedule import Schedule

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")

ZERO_POINTS = (None, 0, 3)
STACKS = [
    (a, b)
    for m, k, n in itertools.product((0, 3), (0, 5), (0, 4))
    for a, b in itertools.product(((m, k), (1, m, k), (2, m, k), (3, m, k)), ((k, n), (1, k, n), (2, k, n), (3, k, n)))
    if len(a) < 3 or len(b) < 3 or a[0] == b[0] or 1 in (a[0], b[0])
]


def _product(form: str, a: tuple[int, ...], b: tuple[int, ...], zero: int | None) -> onnx.ModelProto:
    """MatMulInteger; with Cast and Mul; of what DynamicQuantizeLinear makes."""
    codes, kind = ("codes", TensorProto.FLOAT) if form == "dynamic" else ("a", TensorProto.UINT8)
    tensors: dict[str, Any] = {"b": np.ones(b, np.int8), "half": np.float32(0.5)}
    if form != "dynamic" and zero is not None:
        tensors["zero"] = np.uint8(zero)
    inputs = [codes, "b", *["zero"] * (form == "dynamic" or zero is not None)]
    nodes = [helper.make_node("DynamicQuantizeLinear", ["a"], ["codes", "scale", "zero"])] * (form == "dynamic")
    nodes.append(helper.make_node("MatMulInteger", inputs, ["sums"]))
    if form == "scaled":
        nodes.append(helper.make_node("Cast", ["sums"], ["real"], to=TensorProto.FLOAT))
        nodes.append(helper.make_node("Mul", ["real", "half"], ["y"]))
    result = {"y": None} if form == "scaled" else {"sums": typed(np.int32)}
    return make_model(nodes, {"a": typed(kind, a)}, result, tensors, opset=17)


@emulating
@pytest.mark.parametrize("form", ["plain", "scaled", "dynamic"])
@pytest.mark.parametrize("isa", SETS)
def test_products_of_stacks_with_axes_of_any_length(isa: str, form: str) -> None:
    with poisoned():
        for number, (a, b) in enumerate(STACKS):
            zero = ZERO_POINTS[number % 3]
            model = _product(form, a, b, zero)
            feed: dict[str, Any] = {"a": np.ones(a, np.float32 if form == "dynamic" else np.uint8)}
            same_runs(model, feed, isa=isa, threads=1 + number % 2)


def test_a_program_whose_calls_end_before_the_result_is_refused() -> None:
    x = Operand((4, 8), np.dtype(np.uint8))
    half = Copy(engine(ISAS[0]), (x, x), ("plain", "plain"), [Move(2, 0, 1, 0, 1), Move(8, 1, 1, 1, 1)])
    with pytest.raises(ValueError, match="kernels write 16 of a result's 32 bytes"):
        Schedule(engine(ISAS[0]), [Task(half, ("x",), "y")], {"x": x}, {}, ["y"])


def test_what_no_call_writes_holds_poison() -> None:
    """Rows left out in the middle, which no plan can tell."""
    x = Operand((4, 8), np.dtype(np.uint8))
    some = Copy(engine(ISAS[0]), (x, x), ("plain", "plain"), [Move(2, 0, 3, 0, 3), Move(8, 1, 1, 1, 1)])
    array = np.arange(32, dtype=np.uint8).reshape(4, 8)
    alone = Program.of(Schedule(engine(ISAS[0]), [Task(some, ("x",), "y")], {"x": x}, {}, ["y"]))
    with poisoned():
        for _ in range(2):
            for made in (engine(ISAS[0]).run(some, [array]), _run(alone, array)):
                assert np.array_equal(made[::3], array[::3])
                assert (made[1:3] == POISON).all()


def _run(program: Program, array: np.ndarray[Any, Any]) -> Any:
    from qrun.memory import Budget

    return program.run({"x": array}, lambda item, arrays: (), Budget(None)).values["y"]
