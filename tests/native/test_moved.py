"""Products of floats that do what transposes beside them would do give the bits of the nodes one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.models import make_model
from helpers.native import ISAS, Array
from helpers.placed import operations_of
from helpers.widths import every_width
from onnx import ModelProto, helper

from qrun.native.kernels.copy import Copy
from qrun.native.kernels.fma_product import FloatMatmul

F = np.float32
pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")
HEADS = (0, 2, 1, 3)


def network(
    turns: dict[str, tuple[int, ...]], result: tuple[int, ...] | None, outputs: tuple[str, ...] = ("y",), **more: Any
) -> ModelProto:
    """y = the product of a and b, each transposed as `turns` says, transposed; `t-NAME` is what a transpose makes."""
    names = {name: f"t-{name}" if name in turns else name for name in "ab"}
    nodes = [helper.make_node("Transpose", [name], [names[name]], perm=perm) for name, perm in turns.items()]
    nodes.append(helper.make_node("MatMul", [names["a"], names["b"]], ["p" if result else "y"]))
    if result:
        nodes.append(helper.make_node("Transpose", ["p"], ["y"], perm=result))
    nodes += more.get("nodes", [])
    held = {name: more[name] for name in "ab" if name in more}
    return make_model(
        nodes, dict.fromkeys(name for name in "ab" if name not in more), dict.fromkeys(outputs), held, opset=20
    )


def run(model: ModelProto, feeds: dict[str, Array], **options: Any) -> tuple[int, int]:
    """Results are those of the reference. Products and copies that are left in the program."""
    operations = operations_of(model, feeds, **options)
    copies = sum(isinstance(operation, Copy) for operation in operations)
    return sum(isinstance(operation, FloatMatmul) for operation in operations), copies


def numbers(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.standard_normal(shape).astype(F)


@pytest.mark.parametrize("threads", [1, 3])
@every_width
def test_attention(isa: str, threads: int) -> None:
    rng = np.random.default_rng(50)
    for batch, rows, heads, k, n in ((2, 5, 3, 4, 9), (1, 33, 2, 32, 40), (3, 1, 2, 7, 1), (2, 130, 2, 17, 70)):
        feeds = {"a": numbers(rng, (batch, rows, heads, k)), "b": numbers(rng, (batch, k, heads, n))}
        assert run(network({"a": HEADS, "b": HEADS}, HEADS), feeds, isa=isa, threads=threads) == (1, 0)
        turned = feeds | {"b": numbers(rng, (batch, n, heads, k))}
        assert run(network({"a": HEADS, "b": (0, 2, 3, 1)}, HEADS), turned, isa=isa, threads=threads) == (1, 1)


@every_width
def test_sums_of_several_blocks_are_read_and_written_where_they_lie(isa: str) -> None:
    rng = np.random.default_rng(51)
    for rows, k, n in ((14, 257, 20), (1, 600, 33)):
        feeds = {"a": numbers(rng, (1, rows, 3, k)), "b": numbers(rng, (1, k, 3, n))}
        assert run(network({"a": HEADS, "b": HEADS}, HEADS), feeds, isa=isa) == (1, 0)


def test_stacks_of_other_shapes() -> None:
    rng = np.random.default_rng(52)
    one = {"a": numbers(rng, (4, 3, 6)), "b": numbers(rng, (1, 6, 5))}
    assert run(network({"a": (1, 0, 2)}, (1, 0, 2)), one)[0] == 1
    held = numbers(rng, (3, 6, 5))
    assert run(network({"a": (1, 0, 2)}, (1, 0, 2), b=held), {"a": one["a"]}) == (1, 0)
    wide = {"a": numbers(rng, (4, 1, 3, 6)), "b": numbers(rng, (6, 2, 5))}
    assert run(network({"a": (2, 1, 0, 3), "b": (1, 0, 2)}, (3, 2, 1, 0)), wide) == (1, 1)
    deep = {"a": numbers(rng, (2, 3, 4, 2, 6)), "b": numbers(rng, (2, 4, 3, 6, 5))}
    assert run(network({"a": (3, 2, 1, 0, 4)}, (0, 3, 1, 2, 4)), deep) == (1, 0)


def test_what_somebody_else_reads_is_made() -> None:
    rng = np.random.default_rng(53)
    feeds = {"a": numbers(rng, (2, 5, 3, 4)), "b": numbers(rng, (2, 4, 3, 9))}
    turns = {"a": HEADS, "b": HEADS}
    assert run(network(turns, HEADS, ("y", "t-a")), feeds) == (1, 1)
    assert run(network(turns, HEADS, ("y", "p")), feeds) == (1, 1)
    again = [helper.make_node("Neg", ["t-b"], ["z"])]
    assert run(network(turns, HEADS, ("y", "z"), nodes=again), feeds) == (1, 1)
    square = {"a": numbers(rng, (2, 6, 3, 6))}
    twice = network({"a": HEADS}, HEADS)
    twice.graph.node[1].input[1] = "t-a"
    del twice.graph.input[1]
    assert run(twice, square) == (1, 1)
