"""Attention as one operation, block of rows after block, gives the bits of its nodes one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.models import make_model
from helpers.native import ISAS, Array
from helpers.placed import operations_of
from helpers.sums import assert_bits, operands
from helpers.widths import every_width
from onnx import ModelProto, helper

import qrun
from qrun.native.kernels import attention
from qrun.native.kernels.attention import Attention

F = np.float32
pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")
HEADS = (0, 2, 1, 3)


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "NEAR", 0)


SCALE: list[tuple[str, list[str], str]] = [("Div", ["s", "root"], "x")]
MASK: list[tuple[str, list[str], str]] = [("Mul", ["s", "half"], "t"), ("Add", ["t", "mask"], "x")]


def network(
    shapes: dict[str, tuple[int, ...]],
    between: list[tuple[str, list[str], str]],
    turned: str = "",
    outputs: tuple[str, ...] = ("y",),
) -> ModelProto:
    """softmax(f(a @ b)) @ c, f as `between` says; turned: operands, and y, that transposes move heads of."""
    names = {name: f"t-{name}" if name in turned else name for name in "abcy"}
    nodes = [helper.make_node("Transpose", [name], [names[name]], perm=HEADS) for name in turned if name != "y"]
    nodes.append(helper.make_node("MatMul", [names["a"], names["b"]], ["s" if between else "x"]))
    nodes += [helper.make_node(op, inputs, [output]) for op, inputs, output in between]
    nodes.append(helper.make_node("Softmax", ["x"], ["p"], axis=-1))
    nodes.append(helper.make_node("MatMul", ["p", names["c"]], [names["y"]]))
    if "y" in turned:
        nodes.append(helper.make_node("Transpose", ["t-y"], ["y"], perm=HEADS))
    used = {name for _, reads, _ in between for name in reads}
    numbers = {name: v for name, v in (("root", F(np.sqrt(32))), ("half", F(0.5))) if name in used}
    return make_model(nodes, shapes, dict.fromkeys(outputs), numbers, opset=20)


def numbers(rng: np.random.Generator, shapes: dict[str, tuple[int, ...]]) -> dict[str, Array]:
    return {name: (rng.standard_normal(shape) * 2).astype(F) for name, shape in shapes.items()}


def run(model: ModelProto, feeds: dict[str, Array], **options: Any) -> list[Attention]:
    """Results are those of the reference. The attentions of the program."""
    return [made for made in operations_of(model, feeds, **options) if isinstance(made, Attention)]


@pytest.mark.parametrize("threads", [1, 3])
@every_width
def test_blocks_of_rows(isa: str, threads: int) -> None:
    """Several blocks, the last one overlapping; one; fewer rows than a register block; one row."""
    rng = np.random.default_rng(60)
    for lead, rows, k, columns, n in (
        ((1, 2), 130, 17, 1500, 9),
        ((2, 3), 33, 32, 40, 32),
        ((4,), 3, 5, 37, 1),
        ((3,), 1, 8, 64, 8),
    ):
        shapes = {"a": (*lead, rows, k), "b": (*lead, k, columns), "c": (*lead, columns, n)}
        for between in ([], SCALE):
            (made,) = run(network(shapes, between), numbers(rng, shapes), isa=isa, threads=threads)
            assert made.blocks == (3 if rows == 130 else 1)


@every_width
def test_masks_and_heads_that_lie_apart(isa: str) -> None:
    rng = np.random.default_rng(61)
    batch, rows, heads, k, columns, n = 2, 53, 3, 16, 1400, 8
    shapes = {"a": (batch, rows, heads, k), "b": (batch, k, heads, columns), "c": (batch, columns, heads, n)}
    for mask in ((batch, 1, 1, columns), (rows, columns), (batch, heads, rows, columns), (heads, rows, 1), (columns,)):
        feeds = numbers(rng, shapes | {"mask": mask})
        feeds["mask"] = np.where(feeds["mask"] < -2, F(-np.inf), feeds["mask"])
        (made,) = run(network(shapes | {"mask": mask}, MASK, "abcy"), feeds, isa=isa)
        assert made.blocks == 2


@every_width
def test_keys_that_lie_row_by_row(isa: str) -> None:
    """A transpose in front of the first product is left to it; keys may be queries and values as well."""
    rng = np.random.default_rng(66)
    for rows, k in ((9, 7), (20, 33), (70, 300)):
        shapes = {"a": (2, 3, rows, k), "b": (2, 3, rows, k), "c": (2, 3, rows, 5)}
        model = network(shapes, [])
        model.graph.node.insert(0, helper.make_node("Transpose", ["b"], ["turned"], perm=(0, 1, 3, 2)))
        model.graph.node[1].input[1] = "turned"
        assert run(model, numbers(rng, shapes), isa=isa)
        for node in model.graph.node:
            for place, name in enumerate(node.input):
                node.input[place] = "a" if name in ("b", "c") else name
        del model.graph.input[1:]
        assert run(model, {"a": numbers(rng, shapes)["a"]}, isa=isa)


@every_width
def test_sums_that_cancel_and_shares_in_doubt(isa: str) -> None:
    """Scores of terms of very different sizes; and rows of one share that is a tie nearly."""
    rng = np.random.default_rng(62)
    a, b = operands("cancelling", rng, 14, 130, 40)
    feeds = {"a": np.stack([a] * 3), "b": np.stack([b] * 3), "c": rng.standard_normal((3, 40, 5)).astype(F)}
    for between in ([], SCALE):
        assert run(network({name: array.shape for name, array in feeds.items()}, between), feeds, isa=isa)
    near = np.zeros((2, 4, 1), F)
    near[:, 1] = 1
    feeds = {
        "a": near,
        "b": np.tile(np.array([0, -(2.0**-23)] * 16, F), (2, 1, 1)),
        "c": rng.standard_normal((2, 32, 3)).astype(F),
    }
    assert run(network({name: array.shape for name, array in feeds.items()}, []), feeds, isa=isa)


def test_scores_that_somebody_else_reads_are_made() -> None:
    rng = np.random.default_rng(63)
    shapes = {"a": (2, 20, 8), "b": (2, 8, 30), "c": (2, 30, 4)}
    for seen in ("s", "x", "p"):
        assert not run(network(shapes, SCALE, outputs=("y", seen)), numbers(rng, shapes))
    broad = {"a": (2, 20, 8), "b": (2, 8, 30), "c": (30, 4)}
    assert not run(network(broad, SCALE), numbers(rng, broad))
    alone = {"a": (4, 8), "b": (8, 30), "c": (30, 4)}
    assert not run(network(alone, SCALE), numbers(rng, alone), threads=2)


def test_scores_that_stay_in_the_cache_are_left_there(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(65)
    shapes = {"a": (2, 20, 8), "b": (2, 8, 32), "c": (2, 32, 4)}
    for near, many in ((4 * 2 * 20 * 32, 0), (4 * 2 * 20 * 32 - 1, 1)):
        monkeypatch.setattr(attention, "NEAR", near)
        assert len(run(network(shapes, SCALE), numbers(rng, shapes))) == many


def test_a_program_of_another_process(tmp_path: Path) -> None:
    """What makes rows in doubt is found again."""
    rng = np.random.default_rng(64)
    a, b = operands("cancelling", rng, 14, 130, 40)
    feeds = {"a": np.stack([a] * 3), "b": np.stack([b] * 3), "c": rng.standard_normal((3, 40, 5)).astype(F)}
    model = network({name: array.shape for name, array in feeds.items()}, SCALE)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    want = qrun.Session(path, backend="reference").run(feeds)["y"]
    for _ in range(2):
        session = qrun.Session(path, backend="native", cache=tmp_path / "cache", threads=2)
        for _ in range(3):
            assert_bits(session.run(feeds)["y"], want, "y")
    assert session._runs.kept is not None
    (found,) = session._runs.kept._found.values()
    assert found is not None
    assert len(found.compiled.program.listing.parts) == 1
