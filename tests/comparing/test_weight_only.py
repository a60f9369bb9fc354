"""A float model against one whose weights alone are codes, in products that read them in blocks."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.comparing import sheet_text
from helpers.models import make_model
from helpers.support import MS
from onnx import helper

import qrun
from qrun.comparing.accuracy import Accuracy, accuracy
from qrun.report.accuracy import accuracy_sheet, candidates_sheet

f32, u8 = np.float32, np.uint8
DEPTH, BLOCK = (40, 24, 8), 16
RNG = np.random.default_rng(9)
WEIGHTS = [RNG.normal(size=shape).astype(f32) for shape in pairwise(DEPTH)]
BIAS = RNG.normal(size=DEPTH[-1]).astype(f32)
ROWS = RNG.normal(size=(6, DEPTH[0])).astype(f32)


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes along the last axis as bytes, the first in the low bits."""
    each = 8 // bits
    parts = codes.reshape(*codes.shape[:-1], -1, each).astype(np.uint32) << np.arange(each, dtype=np.uint32) * bits
    return parts.sum(-1).astype(u8)


def stored(weights: np.ndarray, bits: int, zeros: str) -> list[np.ndarray]:
    """B, scales and zero_points of MatMulNBits."""
    depth, columns = weights.shape
    blocks, middle = -(-depth // BLOCK), 2 ** (bits - 1)
    padded = np.pad(weights.T, [(0, 0), (0, blocks * BLOCK - depth)]).reshape(columns, blocks, BLOCK)
    scales = (np.abs(padded).max(-1) / (middle - 1)).astype(f32)
    zero = middle + (1 if zeros == "packed" else 0)
    codes = (np.rint(padded / scales[..., None]) + zero).clip(0, 2 * middle - 1).astype(u8)
    shape = (columns, blocks + blocks * bits % 8 // bits if bits < 8 else blocks)
    given = {"packed": packed(np.full(shape, zero), bits), "float": np.full((columns, blocks), zero, f32)}
    return [packed(codes, bits), scales, *([given[zeros]] if zeros else [])]


def network(bits: int = 0, zeros: str = "") -> onnx.ModelProto:
    """Two products, Relu between them and a bias behind them; bits: of the weights' codes, 0 for floats."""
    constants: dict[str, Any] = {"bias": BIAS}
    nodes = [helper.make_node("Relu", ["a"], ["b"], "relu")]
    for name, given, made, weights in (("first", "x", "a", WEIGHTS[0]), ("second", "b", "y", WEIGHTS[1])):
        if bits:
            parts = {f"{name}_{k}": part for k, part in enumerate(stored(weights, bits, zeros))}
            added = [*[""] * (4 - len(parts)), "bias"] if name == "second" else []
            numbers = {"K": len(weights), "N": weights.shape[1], "block_size": BLOCK, "bits": bits}
            nodes.append(helper.make_node("MatMulNBits", [given, *parts, *added], [made], name, domain=MS, **numbers))
            constants |= parts
        else:
            constants[name] = weights
            last = name == "second"
            nodes.append(helper.make_node("MatMul", [given, name], ["product" if last else made], name))
            nodes += [helper.make_node("Add", ["product", "bias"], ["y"], "add")] if last else []
    nodes.sort(key=lambda node: ["a", "b", "product", "y"].index(node.output[0]))
    return make_model(nodes, "x", "y", constants)


def compared(bits: int, zeros: str) -> Accuracy:
    return accuracy(qrun.load(network()), qrun.load(network(bits, zeros)), [{"x": ROWS}])


@pytest.mark.parametrize("zeros", ["", "packed"])
@pytest.mark.parametrize("bits", [4, 8])
def test_products_of_blocks_are_matched_and_ranked(bits: int, zeros: str) -> None:
    found = compared(bits, zeros)
    assert {t.reference for t in found.tensors} == {"x", "a", "b", "product", "y"}
    assert not [one for one in found.left if not one.inside]
    assert {(cost.node.label, cost.node.op_type) for cost in found.costs} == {
        ("first", "MatMulNBits"),
        ("second", "MatMulNBits"),
    }
    said = "weights rounded to 4 bits, " if bits == 4 else "nothing is wrong: weights "
    assert all(cost.why.startswith(said) for cost in found.costs)
    assert (found.quantizing, found.unranked, found.departure) == (2, (), None)
    assert found.suggestion is not None
    assert found.sqnr == pytest.approx(dict(found.suggestion.tried)[0], abs=1e-4)
    assert "does not cover" not in sheet_text(accuracy_sheet(found, None))


def test_what_the_ranking_does_not_cover_is_said() -> None:
    """Zero points that are no integers have no DequantizeLinear."""
    found = compared(4, "float")
    assert [node.label for node in found.unranked] == ["first", "second"]
    said = "the ranking does not cover 2 nodes that read codes of weights directly: first (MatMulNBits), second"
    assert said in sheet_text(accuracy_sheet(found, None))
    several = sheet_text(candidates_sheet([("q.onnx", found)], "m.onnx", None))
    assert re.search(r"q\.onnx .* kB +2 ", several), several
