"""Native Div and Mod of integers are those of Python's integers, wrapped, on every instruction set;
where 0 divides, the reference's."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import edges
from helpers.models import make_model
from helpers.native import ISAS, Array, engine
from helpers.placed import chains, natively, run_placed, same_everywhere, same_runs
from helpers.support import assert_equal, node_model
from helpers.widths import every_width
from onnx import TensorProto, helper

from qrun.native.emit.expression import DIVISIONS
from qrun.native.errors import Undecided
from qrun.native.kernels.elementwise import Elementwise
from qrun.native.machine.operation import Operand

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")
TYPES = [np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]
NODES = {"quotient": ("Div", {}), "remainder": ("Mod", {"fmod": 1}), "modulo": ("Mod", {"fmod": 0})}


def exact(name: str, a: int, b: int) -> int:
    """What Python's integers are divided to."""
    whole = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return whole if name == "quotient" else a - whole * b if name == "remainder" else a % b


def wanted(name: str, a: Array, b: Array) -> Array:
    """The same of each pair, kept to the type."""
    x, y = np.broadcast_arrays(a, b)
    bits, made = (
        8 * a.itemsize,
        [exact(name, i, j) for i, j in zip(x.ravel().tolist(), y.ravel().tolist(), strict=True)],
    )
    return np.array([n % 2**bits for n in made], f"u{a.itemsize}").view(a.dtype).reshape(x.shape)


def numbers(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...], zeros: bool = False) -> Array:
    """The ends of the type and their neighbours, small numbers of both signs, and all others."""
    info = np.iinfo(dtype)
    small = np.array([n for n in range(-4, 5) if n >= info.min], dtype)
    ends = np.array([info.min, info.min + 1, info.max - 1, info.max, info.max // 2 + 1], dtype)
    kinds = rng.choice(small, shape), rng.choice(ends, shape), rng.integers(info.min, info.max, shape, dtype, True)
    made = np.choose(rng.integers(0, 3, shape), kinds).astype(dtype)
    return made if zeros else np.where(made == 0, 1, made).astype(dtype)


def test_every_division_is_tested() -> None:
    assert {*NODES} == DIVISIONS


@cache
def broadcasts(name: str, dtype: Any) -> list[tuple[Array, Array, Array]]:
    """Operands of shapes that broadcast in every way, and what they are divided to."""
    rng = np.random.default_rng([51, dtype.itemsize])
    shapes = [pair for a, b in edges.BROADCASTS for pair in ((a, b), (b, a))]
    pairs = [(numbers(rng, dtype, a, zeros=True), numbers(rng, dtype, b)) for a, b in shapes]
    return [(x, y, wanted(name, x, y)) for x, y in pairs]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", NODES)
@every_width
def test_quotients_and_remainders(isa: str, name: str, dtype: Any) -> None:
    for number, (x, y, want) in enumerate(broadcasts(name, dtype)):
        own = engine(isa, 1 + number // 2 % 2)
        operation = Elementwise(own, name, [Operand(v.shape, v.dtype) for v in (x, y)])
        for order in ("plain", "channels") if operation.order == "any" else ("plain",):
            got = run_placed(own, operation.with_layout(order), [x, y], (0, 0, 0))
            assert_equal(np.ascontiguousarray(got).reshape(want.shape), want, f"{x.shape} {y.shape} {order}")


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@every_width
def test_the_nearest_quotients_to_integers(isa: str, dtype: Any) -> None:
    """Multiples of the divisor, and their neighbours: float64 must not reach the next integer."""
    rng, info = np.random.default_rng([52, dtype.itemsize]), np.iinfo(dtype)
    b = np.maximum(numbers(rng, dtype, (4000,)), 1).astype(dtype)
    times = [int(rng.integers(1, info.max // int(n), dtype=np.uint64, endpoint=True)) * int(n) for n in b]
    a = np.array([min(max(n + int(rng.integers(-1, 2)), info.min), info.max) for n in times], dtype)
    operands = [Operand(a.shape, dtype)] * 2
    for name in NODES:
        got = engine(isa).run(Elementwise(engine(isa), name, operands), [a, b])
        assert_equal(got, wanted(name, a, b), name)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@every_width
def test_a_divisor_that_is_0_leaves_the_run_undecided(isa: str, dtype: Any) -> None:
    for count in (1, 5, 40):
        for place in {0, count // 2, count - 1}:
            a, b = np.full(count, np.iinfo(dtype).min, dtype), np.full(count, -1 if dtype.kind == "i" else 7, dtype)
            for name in NODES:
                operation = Elementwise(engine(isa), name, [Operand(a.shape, dtype)] * 2)
                engine(isa).run(operation, [a, b])
                zero = b.copy()
                zero[place] = 0
                with pytest.raises(Undecided):
                    engine(isa).run(operation, [a, zero])


@pytest.mark.parametrize("name", NODES)
def test_nodes(name: str) -> None:
    """What is divided by 0 is found as the reference finds it, in every run."""
    rng, (op_type, attributes) = np.random.default_rng(53), NODES[name]
    for dtype in TYPES:
        for shapes in (((2, 3, 70), (3, 1)), ((2, 3, 7), ()), ((5,), (5,)), ((0, 3), (3,)), ((), ())):
            for zeros in (False, True):
                x, y = numbers(rng, dtype, shapes[0], True), numbers(rng, dtype, shapes[1], zeros)
                for constants in ([], [1]):
                    natively(
                        *node_model(op_type, [x, y], attributes, outputs=[dtype], opset=14, constants=constants),
                        threads=1 + len(constants),
                    )


def test_a_program_meets_zeros_now_and_then() -> None:
    """Among runs without them, between functions that float64 does not decide, and before a softmax."""
    nodes = [
        helper.make_node("Add", ["a", "b"], ["s"]),
        helper.make_node("Div", ["s", "b"], ["q"]),
        helper.make_node("Mod", ["q", "b"], ["m"]),
        helper.make_node("Cast", ["m"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Tanh", ["f"], ["t"]),
        helper.make_node("Exp", ["t"], ["y"]),
        helper.make_node("Softmax", ["f"], ["z"]),
    ]
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, [3, 40]) for n in "ab"]
    for ends in (["y"], ["z"], ["y", "z", "q"]):
        kinds = [TensorProto.INT64 if n == "q" else TensorProto.FLOAT for n in ends]
        outputs = [helper.make_tensor_value_info(n, kind, [3, 40]) for n, kind in zip(ends, kinds, strict=True)]
        own = [n for n in nodes if n.op_type != "Softmax"] if ends == ["y"] else nodes
        own = [n for n in own if n.op_type not in ("Tanh", "Exp")] if ends == ["z"] else own
        model = make_model(own, inputs, outputs, [], opset=17)
        rng = np.random.default_rng(54)
        feeds = []
        for turn in range(8):
            a, b = (numbers(rng, np.dtype(np.int64), (3, 40)) // 2 for _ in range(2))
            b = np.where(b == 0, 1, b)
            b[1, 7] = turn % 3 != 1
            feeds.append({"a": a, "b": b})
        for threads in (1, 2):
            same_runs(model, feeds, times=2, threads=threads)


def random_model(rng: np.random.Generator) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A chain of arithmetic of integers of one type."""
    dtype = TYPES[int(rng.integers(0, len(TYPES)))]
    shape = tuple(int(n) for n in rng.choice([1, 2, 3, 5, 16, 17, 40], int(rng.integers(1, 4))))
    feeds = {"x": numbers(rng, dtype, shape), "z": numbers(rng, dtype, shape), "one": numbers(rng, dtype, ())}
    nodes, values = [], ["x", "z"]
    for number in range(int(rng.integers(2, 9))):
        op_type = str(rng.choice(["Add", "Sub", "Mul", "Div", "Mod", "Mod", "Max"]))
        attributes = {"fmod": int(rng.integers(0, 2))} if op_type == "Mod" else {}
        a, b = str(rng.choice(values[-3:])), str(rng.choice(["x", "z", "one", values[-1]]))
        nodes.append(helper.make_node(op_type, [a, b], [f"v{number}"], **attributes))
        values.append(f"v{number}")
    kind = helper.np_dtype_to_tensor_dtype(dtype)
    inputs = [helper.make_tensor_value_info(name, kind, array.shape) for name, array in feeds.items()]
    wanted = [values[-1], *(v for v in values[2:-1] if rng.random() < 0.15)]
    return make_model(nodes, inputs, [helper.make_tensor_value_info(n, kind, None) for n in wanted], [], 18), feeds


@every_width
def test_random_chains(isa: str) -> None:
    for seed in range(100 * len(isa), 100 * len(isa) + 16):
        model, feeds = random_model(np.random.default_rng(seed))
        try:
            same_everywhere(model, feeds, isa=isa, threads=1 + seed % 2)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error


def test_divisions_are_part_of_chains() -> None:
    nodes = [
        helper.make_node("Add", ["a", "b"], ["s"]),
        helper.make_node("Div", ["s", "b"], ["q"]),
        helper.make_node("Mul", ["q", "a"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(n, TensorProto.INT32, [9, 40]) for n in "aby"]
    rng = np.random.default_rng(55)
    feeds = {n: numbers(rng, np.dtype(np.int32), (9, 40)) for n in "ab"}
    assert chains(same_runs(make_model(nodes, values[:2], values[2:], [], 17), feeds)) == [3]


def test_divisions_are_part_of_chains_with_functions_that_may_be_in_doubt() -> None:
    nodes = [
        helper.make_node("Div", ["a", "b"], ["q"]),
        helper.make_node("Cast", ["q"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Tanh", ["f"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(n, TensorProto.INT32, [9, 40]) for n in "ab"]
    ends = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [9, 40])]
    rng, model = np.random.default_rng(55), make_model(nodes, values, ends, [], 17)
    assert chains(same_runs(model, {n: numbers(rng, np.dtype(np.int32), (9, 40)) for n in "ab"})) == [3]
    same_runs(model, {n: numbers(rng, np.dtype(np.int32), (9, 40), True) for n in "ab"})
