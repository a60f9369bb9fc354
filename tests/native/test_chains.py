"""Chains of elementwise nodes are one kernel each, and give the bits of the nodes one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from helpers.float32 import F, numbers
from helpers.models import make_model, typed
from helpers.native import ISAS, Array, engine
from helpers.placed import chains, run_placed, same_everywhere, same_runs, schedules
from helpers.support import assert_equal
from helpers.widths import every_width
from onnx import ModelProto, NodeProto, TensorProto, helper

from qrun.native.emit.expression import FunctionStep
from qrun.native.kernels.elementwise import Elementwise, Expression
from qrun.native.kernels.rowwise import LayerNorm
from qrun.native.machine.operation import Operand
from qrun.ops.layernorm import layer_normalization

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")
Node = tuple[str, list[str], str]
GELU: list[Node] = [
    ("Div", ["x", "root"], "d"),
    ("Erf", ["d"], "e"),
    ("Add", ["e", "one"], "o"),
    ("Mul", ["x", "o"], "m"),
    ("Mul", ["m", "half"], "y"),
]
NUMBERS = {"root": F(np.sqrt(2)), "one": F(1), "half": F(0.5)}


def network(
    nodes: Sequence[Node],
    inputs: dict[str, Sequence[Any]],
    constants: dict[str, Any],
    outputs: Sequence[str] = ("y",),
    types: dict[str, int] | None = None,
) -> ModelProto:
    """Float32 inputs of these shapes, but for those of `types`."""
    types = types or {}

    def made(op_type: str, names: list[str], output: str) -> NodeProto:
        more: dict[str, Any] = {"to": TensorProto.FLOAT} if op_type == "Cast" else {}
        return helper.make_node(op_type, names, [output], **more)

    return make_model(
        [made(*node) for node in nodes],
        {name: typed(types.get(name, TensorProto.FLOAT), s) for name, s in inputs.items()},
        {name: typed(types.get(name, TensorProto.FLOAT)) for name in outputs},
        constants,
        opset=20,
    )


@pytest.mark.parametrize("threads", [1, 2])
@every_width
def test_the_composed_gelu_is_one_kernel(isa: str, threads: int) -> None:
    rng = np.random.default_rng(30)
    model = network(GELU, {"x": ("N", "M", "K")}, NUMBERS)
    for shape in ((2, 3, 5), (1, 40, 40), (1, 1, 3001), (2, 0, 3), (3, 1, 1)):
        session = same_runs(model, {"x": numbers(rng, int(np.prod(shape))).reshape(shape)}, isa=isa, threads=threads)
        assert chains(session) == ([5] if 0 not in shape else [])


def test_what_somebody_else_reads_stays() -> None:
    x = numbers(np.random.default_rng(31), 600).reshape(2, 300)
    cases: list[tuple[list[Node], list[str], list[int]]] = [
        (GELU, ["y", "e"], [2, 3]),
        (GELU, ["o", "y"], [3, 2]),
        ([*GELU, ("Transpose", ["m"], "t")], ["y", "t"], [4]),
        ([("Exp", ["x"], "a"), ("ReduceSum", ["a"], "s"), ("Div", ["a", "s"], "y")], ["y"], []),
        ([("Add", ["one", "half"], "s"), ("Mul", ["x", "s"], "a"), ("Neg", ["a"], "y")], ["y"], [2]),
    ]
    for nodes, outputs, want in cases:
        session = same_runs(network(nodes, {"x": x.shape}, NUMBERS, outputs), {"x": x})
        assert chains(session) == want, nodes


def test_doubts_inside_a_chain_and_after_others() -> None:
    """sigmoid of 2**-23 is nearly a tie; what follows is made of the reference's value."""
    nodes: list[Node] = [
        ("Mul", ["x", "two"], "a"), ("Sigmoid", ["a"], "b"), ("Sub", ["b", "half"], "c"), ("Mul", ["c", "four"], "d"),
        ("Sigmoid", ["d"], "e"), ("Sub", ["e", "half"], "f"), ("Mul", ["f", "a"], "y"),
    ]  # fmt: skip
    rng = np.random.default_rng(32)
    near = (rng.integers(1, 2**8, 50000) * 2.0**-24 + rng.integers(0, 2, 50000) * 2.0**-47).astype(F)
    for threads in (1, 2):
        model = network(nodes, {"x": (50000,)}, {"two": F(2), "half": F(0.5), "four": F(4)})
        assert chains(same_runs(model, {"x": near}, threads=threads)) == [7]


def test_results_inside_a_chain_that_the_short_series_of_erf_does_not_decide() -> None:
    """Of so many some thousand are."""
    x = np.random.default_rng(41).normal(0, 1.5, 1 << 20).astype(F)
    model = network([("Erf", ["x"], "e"), ("Mul", ["e", "half"], "y")], {"x": x.shape}, {"half": F(0.5)})
    for isa in ISAS:
        assert chains(same_runs(model, {"x": x}, isa=isa)) == [2]


def test_chains_that_are_too_long_for_one_kernel() -> None:
    """Of its operands, of its functions, of its steps."""
    rng = np.random.default_rng(34)
    x = numbers(rng, 800).reshape(4, 200)
    many = {f"c{n}": numbers(rng, 200) for n in range(20)}
    cases: list[tuple[list[Node], int]] = [
        ([("Add", ["x" if not n else f"v{n - 1}", f"c{n}"], f"v{n}") for n in range(20)], 20),
        ([("Tanh", ["x" if not n else f"v{n - 1}"], f"v{n}") for n in range(15)], 15),
        ([("Neg", ["x" if not n else f"v{n - 1}"], f"v{n}") for n in range(70)], 70),
    ]
    for nodes, count in cases:
        session = same_runs(network(nodes, {"x": x.shape}, many, [f"v{count - 1}"]), {"x": x})
        found = chains(session)
        assert len(found) > 1
        assert sum(found) == count


def test_comparisons_choices_and_integers() -> None:
    rng = np.random.default_rng(35)
    nodes: list[Node] = [
        ("Cast", ["i"], "f"), ("Mul", ["f", "scale"], "g"), ("Add", ["g", "bias"], "x"), ("Greater", ["x", "half"], "a"),
        ("Not", ["a"], "b"), ("Or", ["b", "mask"], "c"), ("Where", ["c", "x", "half"], "d"), ("Cast", ["a"], "e"),
        ("Sub", ["d", "e"], "y"),
    ]  # fmt: skip
    types = {"i": TensorProto.INT32, "mask": TensorProto.BOOL, "c": TensorProto.BOOL}
    feeds = {
        "i": rng.integers(-(2**31), 2**31, (2, 3, 70)).astype(np.int32),
        "mask": rng.integers(0, 2, (3, 70)).astype(bool),
        "scale": np.array([1e-9], F),
    }
    shapes = {name: array.shape for name, array in feeds.items()}
    constants = {"bias": numbers(rng, 70), "half": F(0.5)}
    for outputs, want in ((["y"], [9]), (["y", "c"], [2, 3, 3])):
        for threads in (1, 2):
            model = network(nodes, shapes, constants, outputs, types)
            session = same_runs(model, feeds, threads=threads)
            assert sorted(chains(session)) == want


UNARY = ["Relu", "Abs", "Neg", "Sqrt", "Exp", "Tanh", "Sigmoid", "Erf", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu",
         "Log", "Elu", "Selu", "Softplus", "Mish", "Sin", "Cos", "Atan", "Acosh", "Shrink"]  # fmt: skip
TESTS = ["Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Equal"]


def random_chain(rng: np.random.Generator) -> tuple[ModelProto, dict[str, Array]]:
    """Nodes on values of one shape, or of shapes that broadcast to it; the last ones are outputs."""
    shape = tuple(int(n) for n in rng.choice([1, 2, 3, 5, 16, 17, 40, 130], int(rng.integers(1, 5))))
    while np.prod(shape) > 20000:
        shape = shape[1:]
    small = tuple(n if rng.random() < 0.5 else 1 for n in shape)[int(rng.integers(0, len(shape))) :]
    feeds = {name: numbers(rng, int(np.prod(s))).reshape(s) for name, s in (("x", shape), ("z", shape), ("s", small))}
    constants = {"c": numbers(rng, shape[-1]), "one": F(rng.normal())}
    nodes: list[Node] = []
    values, others = ["x"], ["z", "s", "c", "one"]
    for number in range(int(rng.integers(2, 10))):
        recent = values[-int(rng.integers(1, 4)) :]
        x, y = str(rng.choice(recent)), str(rng.choice([*recent, *others]))
        kind = rng.random()
        if kind < 0.4:
            nodes.append((str(rng.choice(UNARY)), [x], f"v{number}"))
        elif kind < 0.85:
            pair = [x, y] if rng.random() < 0.5 else [y, x]
            nodes.append((str(rng.choice(["Add", "Sub", "Mul", "Div"])), pair, f"v{number}"))
        else:
            nodes.append((str(rng.choice(TESTS)), [x, y], f"t{number}"))
            nodes.append(("Where", [f"t{number}", x, str(rng.choice(recent))], f"v{number}"))
        values.append(f"v{number}")
    wanted = [values[-1], *(v for v in values[1:-1] if rng.random() < 0.15)]
    return network(nodes, {name: array.shape for name, array in feeds.items()}, constants, wanted), feeds


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_chains(first: int) -> None:
    for seed in range(first, first + 20):
        with np.errstate(all="ignore"):
            same_everywhere(*random_chain(np.random.default_rng(seed)), threads=1 + seed % 2)


@every_width
def test_random_chains_on_every_instruction_set(isa: str) -> None:
    start = 1000 + 100 * len(isa)
    for seed in range(start, start + 6):
        with np.errstate(all="ignore"):
            same_everywhere(*random_chain(np.random.default_rng(seed)), isa=isa, threads=1 + seed % 2)


@pytest.mark.parametrize("choice", [("z", "z", "z"), ("z", "z", "a"), ("z", "a", "z"), ("a", "z", "z")])
def test_what_one_choice_reads_as_condition_and_as_value(choice: Sequence[str]) -> None:
    nodes = [("Where", ["a", "b", "c"], "z"), ("Where", [*choice], "y")]
    kinds = dict.fromkeys("abcy", TensorProto.BOOL)
    rng = np.random.default_rng(3)
    model = network(nodes, dict.fromkeys("abc", (3, 19)), {}, types=kinds)
    session = same_runs(model, {name: rng.random((3, 19)) < 0.5 for name in "abc"})
    assert chains(session) == ([2] if choice == ("a", "z", "z") else [])


def test_one_session_with_other_shapes_in_each_run() -> None:
    rng = np.random.default_rng(36)
    model = network(GELU, {"x": ("N", "K")}, NUMBERS)
    shapes = [(2, 30), (3, 17), (2, 30), (2, 30), (0, 4), (3, 17), (3, 17), (1, 5000), (1, 5000), (2, 30)]
    same_runs(model, ({"x": numbers(rng, int(np.prod(shape))).reshape(shape)} for shape in shapes), times=1)


def test_an_elementwise_operation_is_an_expression_of_one_step() -> None:
    operation = Elementwise(engine("generic"), "clip", [Operand((4,), np.dtype(F))], (-1, 1))
    assert (operation.steps, operation.constants) == ((FunctionStep("clip", (0,)),), (-1, 1))


def row_model(rows: str, chain: list[Node], shapes: dict[str, Sequence[Any]], constants: dict[str, Any]) -> ModelProto:
    """A chain that makes v, and an operation on its rows."""
    model = network(chain, shapes, constants)
    inputs = ["v", "scale", "bias"] if rows == "LayerNormalization" else ["v"]
    more: dict[str, Any] = {"axes": [-1]} if rows == "ReduceMean" else {"axis": -1}
    made = helper.make_node(rows, inputs, ["y"], **more)
    model.graph.node.append(made)
    if rows == "ReduceMean":
        del model.opset_import[:]
        model.opset_import.append(helper.make_opsetid("", 17))
    return model


@pytest.mark.parametrize("rows", ["LayerNormalization", "Softmax", "ReduceMean"])
@every_width
def test_rows_are_made_where_they_are_read(isa: str, rows: str) -> None:
    rng = np.random.default_rng(37)
    chain: list[Node] = [("Mul", ["x", "factor"], "a"), ("Add", ["a", "z"], "b"), ("Add", ["shift", "b"], "v")]
    for shape, other in (
        ((2, 3, 40), (2, 3, 40)), ((2, 3, 4, 37), (2, 1, 1, 37)), ((2, 3, 4, 37), (1, 1, 4, 37)), ((5, 16), (5, 1)),
        ((2, 3, 4, 33), (3, 4, 1)), ((3, 100), ()), ((40,), (40,)), ((2, 3, 3, 20), (2, 1, 3, 1)), ((9, 300), (9, 1)),
        ((2, 3, 257), (3, 257)),
    ):  # fmt: skip
        feeds = {
            "x": numbers(rng, int(np.prod(shape))).reshape(shape),
            "z": numbers(rng, int(np.prod(other))).reshape(other),
        }
        constants = {
            "factor": F(0.125),
            **{n: rng.normal(0, 1, shape[-1]).astype(F) for n in ("shift", "scale", "bias")},
        }
        model = row_model(rows, chain, {name: array.shape for name, array in feeds.items()}, constants)
        session = same_runs(model, feeds, isa=isa, threads=1 + len(shape) % 2)
        assert chains(session) == []
        (schedule,) = schedules(session)
        assert len(schedule.calls) == 1, (shape, other)
        assert schedule.calls[0].section.spec.prefetch == (shape[-1] >= 256)


def test_rows_that_are_not_made_where_they_are_read() -> None:
    """Of short rows, of operands that change within a row, of axes that are too many."""
    rng = np.random.default_rng(38)
    cases: list[tuple[tuple[int, ...], tuple[int, ...], str]] = [
        ((9, 3), (9, 3), "Neg"), ((2, 3, 2, 3, 20), (2, 1, 2, 1, 20), "Neg"),
    ]  # fmt: skip
    for shape, other, function_of in cases:
        feeds = {
            "x": numbers(rng, int(np.prod(shape))).reshape(shape),
            "z": numbers(rng, int(np.prod(other))).reshape(other),
        }
        chain: list[Node] = [(function_of, ["x"], "a"), ("Add", ["a", "z"], "v")]
        model = row_model("Softmax", chain, {name: array.shape for name, array in feeds.items()}, {})
        (schedule,) = schedules(same_runs(model, feeds))
        assert len(schedule.calls) > 1


@every_width
def test_rows_that_are_made_stay_within_their_memory(isa: str) -> None:
    rng = np.random.default_rng(39)
    for shape, other in (((7, 40), (7, 1)), ((2, 5, 21), (2, 1, 1)), ((1, 16), ()), ((300, 60), (300, 1))):
        scale = rng.normal(0, 1, shape[-1]).astype(F)
        operands = [Operand(s, np.dtype(F)) for s in (shape, other, shape)]
        source = Expression(engine(isa), operands, "ff", [FunctionStep("mul", (0, 1))])
        operation = LayerNorm(engine(isa), shape, scale, None, float(F(1e-5))).fuse_source(source)
        assert operation is not None
        x, z = (rng.normal(0, 1, s).astype(F) for s in (shape, other))
        x.reshape(-1, shape[-1])[::3] = 3
        for at_end in (True, False):
            got = run_placed(engine(isa), operation, [x, np.asarray(z)], (0, 0, 0), at_end)
            assert_equal(got, layer_normalization(x * z, scale)[0], f"{shape}")


@pytest.mark.parametrize("first", range(100, 140, 20))
def test_random_chains_before_rows(first: int) -> None:
    for seed in range(first, first + 20):
        rng = np.random.default_rng(seed)
        model, feeds = random_chain(rng)
        end = model.graph.output[0].name
        model.graph.node.append(helper.make_node("Softmax", [end], ["rows"], axis=-1))
        model.graph.output[0].name = "rows"
        with np.errstate(all="ignore"):
            same_everywhere(model, feeds, threads=1 + seed % 2)
