"""The order in which onnxruntime adds float32 products: `--arith ort` has its bits (numerics.md, A1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from helpers.models import make_model
from helpers.support import MS, node_model
from llvmlite import binding
from onnx import helper, numpy_helper

import qrun
from qrun.comparing.sides import QrunSide, Unit
from qrun.ops._chains import BLOCK, ort_block
from qrun.peers import Nodes, Peer

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytestmark = pytest.mark.skipif(not binding.get_host_cpu_features().get("fma"), reason="this CPU is no x86 with FMA")
f32 = np.float32
Case = tuple[str, Sequence[np.ndarray], Mapping[str, Any], tuple[int, ...]]
"""Operator, inputs, attributes, and places of the inputs that the model stores."""


def made_by_both(case: Case, arith: Any = "ort") -> tuple[np.ndarray, list[np.ndarray]]:
    """What onnxruntime makes of a node, and qrun on both backends."""
    op, inputs, attributes, stored = case
    domain = MS if op == "FusedMatMul" else ""
    proto, feeds = node_model(op, inputs, attributes, opset=17, domain=domain, outputs=(f32,), constants=stored)
    model = qrun.load(proto.SerializeToString())
    data = proto.SerializeToString()
    theirs = Peer(model, "ort", data=data, optimize=False).execute(feeds).outputs["y0"]
    sessions = (qrun.Session(model, backend=b, arith=arith, cache=False) for b in ("reference", "native"))
    return theirs, [session.run(feeds)["y0"] for session in sessions]


def check(case: Case) -> None:
    theirs, ours = made_by_both(case)
    op, inputs, attributes, stored = case
    for mine in ours:
        np.testing.assert_array_equal(
            mine.view(np.int32), theirs.view(np.int32), f"{op} {[x.shape for x in inputs]} {attributes} stored {stored}"
        )


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).normal(size=shape).astype(f32)


PRODUCTS = ((16, 384, 384), (7, 384, 150), (3, 1100, 48), (2, 700, 16), (5, 30, 700), (4, 64, 64), (3, 4, 5), (2, 1, 2))
ROWS = [(1, k, n) for k in (1, 2, 3, 4, 7, 512) for n in (1, 2, 3, 8, 33)]
COLUMNS = [(m, k, 1) for m in (2, 3, 4, 7, 33) for k in (1, 3, 8, 15, 100, 700)]


@pytest.mark.parametrize("stored", [(), (1,)], ids=["fed", "stored"])
@pytest.mark.parametrize(("m", "k", "n"), [*PRODUCTS, *ROWS, *COLUMNS])
def test_matmul(m: int, k: int, n: int, stored: tuple[int, ...]) -> None:
    check(("MatMul", [normal(m, k), normal(k, n)], {}, stored))


@pytest.mark.parametrize("stored", [(), (1,)], ids=["fed", "stored"])
@pytest.mark.parametrize(
    ("a", "b"),
    [((700,), (700, 5)), ((3, 1, 300), (300, 9)), ((2, 3, 300), (300,)), ((300,), (300,)), ((2, 1, 300), (1, 300, 6)),
     ((2, 3, 300), (2, 300, 1)), ((300, 1), (2, 1, 3)), ((300,), (2, 300, 3)), ((2, 1, 5, 400), (3, 400, 7))],
)  # fmt: skip
def test_stacks_and_vectors(a: tuple[int, ...], b: tuple[int, ...], stored: tuple[int, ...]) -> None:
    check(("MatMul", [normal(*a), normal(*b)], {}, stored))


@pytest.mark.parametrize("stored", [(), (1,)], ids=["fed", "stored"])
@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.3, 0.7), (1.0, 0.7), (1.0, 0.0)])
@pytest.mark.parametrize(("m", "k", "n"), [(5, 600, 32), (1, 600, 33), (1, 7, 6), (6, 75, 1), (5, 100, 300)])
def test_gemm(m: int, k: int, n: int, alpha: float, beta: float, turned: int, stored: tuple[int, ...]) -> None:
    b = normal(n, k) if turned else normal(k, n)
    for transposed in (0, 1):
        a = normal(k, m) if transposed else normal(m, k)
        attributes = {"alpha": alpha, "beta": beta, "transA": transposed, "transB": turned}
        check(("Gemm", [a, b, normal(n)], attributes, stored))


CONVOLUTIONS: Mapping[str, tuple[tuple[int, ...], tuple[int, ...], Mapping[str, Any]]] = {
    "first layer": ((1, 3, 40, 40), (16, 3, 3, 3), {"strides": [2, 2], "pads": [0, 0, 1, 1]}),
    "segments": ((1, 64, 20, 20), (8, 64, 3, 3), {"pads": [1] * 4}),
    "few pixels": ((1, 70, 5, 5), (40, 70, 3, 3), {}),
    "point": ((2, 300, 7, 7), (40, 300, 1, 1), {}),
    "one pixel": ((1, 300, 1, 1), (33, 300, 1, 1), {}),
    "whole image": ((2, 16, 5, 7), (35, 16, 5, 7), {}),
    "depthwise": ((1, 12, 14, 14), (12, 1, 3, 3), {"group": 12, "pads": [1] * 4}),
    "depthwise, dilated": ((1, 6, 14, 14), (12, 1, 5, 5), {"group": 6, "dilations": [2, 2], "pads": [4] * 4}),
    "groups": ((2, 32, 9, 9), (24, 16, 3, 3), {"group": 2}),
    "one filter": ((1, 150, 12, 12), (1, 150, 3, 3), {}),
    "whole width": ((1, 6, 20, 20), (6, 1, 5, 20), {"group": 6}),
    "whole width, several filters": ((1, 1, 20, 20), (6, 1, 5, 20), {}),
    "whole height": ((1, 6, 20, 3), (12, 1, 20, 1), {"group": 6}),
    "width 1": ((1, 6, 20, 1), (12, 1, 5, 1), {"group": 6}),
    "1-D": ((1, 100, 40), (30, 100, 3), {"pads": [1, 1]}),
    "1-D, whole": ((1, 4, 40), (4, 1, 40), {"group": 4}),
    "3-D": ((1, 20, 4, 5, 6), (7, 20, 2, 3, 3), {"strides": [1, 2, 1]}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_conv(name: str) -> None:
    x, w, attributes = CONVOLUTIONS[name]
    check(("Conv", [normal(*x), normal(*w), normal(w[0])], attributes, (1, 2)))
    check(("Conv", [normal(*x), normal(*w)], attributes, ()))


def drawn(rng: np.random.Generator) -> Iterator[Case]:
    def values(*shape: int) -> np.ndarray:
        x = rng.normal(size=shape).astype(f32)
        return np.where(rng.random(shape) < 0.1, f32(-0.0), x) if rng.random() < 0.3 else x

    sizes = [1, 1, 2, 3, 4, 5, 8, 17, 31, 64, 100, 129, 300]
    m, k, n = (int(v) for v in rng.choice(sizes, 3))
    stored = (1,) if rng.random() < 0.5 else ()
    yield "MatMul", [values(m, k), values(k, n)], {}, stored
    yield "MatMul", [values(2, m, k), values(*rng.choice([1, 2], 1), k, n)], {}, stored
    turns = {"transA": int(rng.integers(2)), "transB": int(rng.integers(2)), "alpha": float(rng.choice([1, 0.3]))}
    left, right = (k, m) if turns["transA"] else (m, k), (n, k) if turns["transB"] else (k, n)
    yield "Gemm", [values(*left), values(*right)], turns, stored
    yield "FusedMatMul", [values(2, *left), values(*right)], turns, stored
    batch = {"transBatchA": int(rng.integers(2)), "transBatchB": int(rng.integers(2))}
    shapes = [(s[0], 2, s[1]) if batch[f"transBatch{x}"] else (2, *s) for x, s in (("A", left), ("B", right))]
    yield "FusedMatMul", [values(*shape) for shape in shapes], {**turns, **batch}, stored
    rank, group = int(rng.integers(1, 4)), int(rng.choice([1, 1, 2, 4]))
    channels, filters = (int(v) for v in rng.choice([1, 1, 2, 3, 16, 70], 2))
    image = [int(v) for v in rng.choice([1, 2, 3, 5, 9, 14], rank)]
    kernel = [int(min(v, s)) for v, s in zip(rng.choice([1, 1, 2, 3, 14], rank), image, strict=True)]
    pads = [int(v) for v in rng.integers(0, 2, 2 * rank)] if rng.random() < 0.5 else [0] * (2 * rank)
    strides = [int(v) for v in rng.integers(1, 3, rank)] if rng.random() < 0.5 else [1] * rank
    geometry = {"group": group, "pads": pads, "strides": strides}
    yield "Conv", [values(1, group * channels, *image), values(group * filters, channels, *kernel)], geometry, stored


@pytest.mark.parametrize("seed", range(12))
def test_random_products(seed: int) -> None:
    print("seed", seed)
    for case in drawn(np.random.default_rng(seed)):
        check(case)


def test_blocks_of_fed_operands() -> None:
    assert [ort_block(*nk) for nk in ((384, 384), (1536, 384), (48, 600), (16, 768), (9, 1100), (700, 30))] == [
        128, 128, 256, 1024, 1024, 32,
    ]  # fmt: skip


@pytest.mark.parametrize("stored", [(), (1,)])
def test_it_is_another_order_than_the_definition(stored: tuple[int, ...]) -> None:
    """Only a stored right side has the definition's bits: the test above tells the orders apart."""
    theirs, ours = made_by_both(("MatMul", [normal(16, 3 * BLOCK), normal(3 * BLOCK, 384)], {}, stored), "exact")
    assert np.array_equal(theirs, ours[0]) == bool(stored)


def test_a_node_by_itself_reads_the_weights_of_a_constant_node_as_stored() -> None:
    x, w = normal(12, 600), normal(600, 120)
    constant = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(w))
    data = make_model([constant, helper.make_node("MatMul", ["x", "w"], ["y"])], "x", "y").SerializeToString()
    model = qrun.load(data)
    theirs = Peer(model, "ort", data=data, optimize=False).execute({"x": x}).outputs["y"]
    node, read = model.nodes[-1], {"x": x, "w": w}
    alone = QrunSide(model, arith="ort").alone(Unit(node, (node,)), read)["y"]
    for made in (alone, *Nodes(model, data).alone(node, read, "ort")):
        np.testing.assert_array_equal(made, theirs)
