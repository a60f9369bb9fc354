"""Products of two operands that come with the run: kernels against exact numbers,
nodes and programs against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import edges
from helpers.models import make_model, typed
from helpers.native import ISAS, Array, codes, engine, every_isa, exact_result, thin
from helpers.placed import reference_nodes, run_placed, same_runs
from helpers.support import assert_equal
from onnx import ModelProto, TensorProto, helper, numpy_helper

from qrun.native.kernels.results import Results, requantization
from qrun.native.kernels.stacked import Pack, RowTerms, Stack, StackProduct
from qrun.native.machine.operation import Operand
from qrun.native.proof.epilogue import Target

F = np.float32
pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")
PROTO = {"u8": TensorProto.UINT8, "s8": TensorProto.INT8}


def operand(array: Array) -> Operand:
    return Operand(array.shape, array.dtype)


def run(native: Any, a: Array, b: Array, zeros: tuple[Any, Any], results: Results, addend: Any, at_end: bool) -> Array:
    """Zero points: arrays that come with the run, or numbers."""
    given = [operand(zero) if isinstance(zero, np.ndarray) else zero for zero in zeros]
    more = [[zero] if isinstance(zero, np.ndarray) else [] for zero in zeros]
    stack = Stack(native, operand(a), operand(b), results)
    packed = run_placed(native, Pack(stack, given[0], addend), [b, *more[0]], (0,) * (2 + len(more[0])), at_end)
    rows = run_placed(
        native, RowTerms(stack, *given), [a, *more[0], *more[1]], (0,) * (2 + len(more[0] + more[1])), at_end
    )
    return run_placed(native, StackProduct(stack, True), [a, packed, rows], (0,) * 4, at_end)


@thin(*range(2 * len(edges.STACKED)), best=1, other=3, name="which", products=True)
def test_sums_and_codes_are_exact(isa: str, which: int) -> None:
    rng = np.random.default_rng(which)
    (left, right), at_end = edges.STACKED[which // 2], bool(which % 2)
    for number in range(4):
        kinds = ("u8", "s8")[number % 2], ("u8", "s8")[number // 2]
        a, b = codes(rng, left, kinds[0]), codes(rng, right, kinds[1])
        zeros = [codes(rng, (1,) * (number % 2), kind) for kind in kinds]
        known = tuple(int(zero.reshape(())) if rng.random() < 0.5 else zero for zero in zeros)
        native = engine(isa, 1 + 2 * (number == 3))
        n = b.shape[-1] if b.ndim > 1 else 1
        addend = rng.integers(-(2**31), 2**31, n).astype(np.int32) if number % 3 == 1 else None
        matrices = (x.astype(np.int64) - int(z.reshape(())) for x, z in zip((a, b), zeros, strict=True))
        sums = np.matmul(*matrices)
        shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2] if a.ndim > 1 else 1, n)
        sums = sums.reshape(shape)
        wide = sums if addend is None else sums + addend
        assert_equal(run(native, a, b, known, Results(None, None), addend, at_end), wide.astype(np.int32))
        reach = 255 * 255 * a.shape[-1]
        target = Target(F(1), np.ones(1, F), F(reach / 300), "u8", 101, "exact")
        results = requantization(native, target, n, -reach, reach)
        want = np.clip(np.rint(sums / np.float64(F(reach / 300))) + 101, 0, 255).astype(np.uint8)
        assert_equal(run(native, a, b, known, results, None, at_end), want)


@every_isa
def test_extreme_codes_and_long_sums(isa: str) -> None:
    """Sums that wrap around int32."""
    a = np.full((2, 33100), 255, np.uint8)
    for value, kind in ((255, np.uint8), (0, np.uint8), (-128, np.int8), (127, np.int8)):
        b = np.full((33100, 3), value, kind)
        for a_zero, b_zero in ((0, 0), (255, 255), (0, -128 if kind == np.int8 else 255)):
            want = np.matmul(a.astype(np.int64) - a_zero, b.astype(np.int64) - b_zero).astype(np.int32)
            assert_equal(run(engine(isa), a, b, (a_zero, b_zero), Results(None, None), None, True), want)


@thin(*[(form, out) for form in ("y32", "x32", "f64", "table", "ort") for out in ("u8", "s8")], other=2, name="case")
def test_every_form_of_requantization(isa: str, case: tuple[str, str]) -> None:
    """What rows add goes before it."""
    (form, out), rng, native = case, np.random.default_rng(6), engine(isa)
    k, far, y_scale, reach = {
        "y32": (8, 15, F(97.3), 2**20), "x32": (200, 77, F(70001), 2**25), "f64": (20000, 77, F(2e7), 2**31),
        "table": (8, 3, F(-41), 2**31), "ort": (8, 15, F(97.3), 2**31),
    }[form]  # fmt: skip
    zero, zeros = 113 if out == "u8" else -7, (90, 77)
    a = codes(rng, (6, k), "u8")
    b = (zeros[1] + np.linspace(-far, far, 21) + np.zeros((k, 1))).astype(np.uint8)
    target = Target(F(1), np.ones(1, F), y_scale, out, zero, "ort" if form == "ort" else "exact")
    results = requantization(native, target, 21, -reach, reach - 1)
    assert results.form(slice(None)) == form or not native.isa.fma
    sums = np.matmul(a.astype(np.int64) - zeros[0], b.astype(np.int64) - zeros[1])
    low, high = (0, 255) if out == "u8" else (-128, 127)
    if form == "ort":
        want = np.clip(np.rint(sums.astype(F) * (F(1) / y_scale)), low - zero, high - zero).astype(np.int64) + zero
    else:
        want = np.array([[exact_result(int(v), 1, 1, y_scale, out, zero) for v in line] for line in sums])
    assert len(np.unique(want)) > 6
    assert_equal(run(native, a, b, zeros, results, None, True), want.astype(np.uint8 if out == "u8" else np.int8))


def node(op: str, kinds: tuple[str, str], zeros: tuple[Any, Any], fed: str) -> ModelProto:
    """One product; the zero points whose letters are in `fed` are inputs."""
    values = [helper.make_tensor_value_info(name, PROTO[kind], None) for name, kind in zip("ab", kinds, strict=True)]
    tensors = []
    for name, kind, zero in zip("ab", kinds, zeros, strict=True):
        if name in fed:
            values.append(helper.make_tensor_value_info(f"{name}z", PROTO[kind], None))
        else:
            tensors.append(numpy_helper.from_array(zero, f"{name}z"))
    names = ["a", "b", "az", "bz"]
    if op == "QLinearMatMul":
        names = ["a", "as", "az", "b", "bs", "bz", "ys", "yz"]
        tensors += [numpy_helper.from_array(np.array(v, F), n) for n, v in (("as", 0.02), ("bs", 0.03), ("ys", 3.3))]
        tensors.append(numpy_helper.from_array(np.array(100, np.uint8), "yz"))
    return make_model(
        [helper.make_node(op, names, ["y"])],
        values,
        {"y": typed(TensorProto.INT32 if op == "MatMulInteger" else TensorProto.UINT8)},
        tensors,
        opset=17,
    )


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("fed", ["", "a", "b", "ab"])
@pytest.mark.parametrize("op", ["MatMulInteger", "QLinearMatMul"])
def test_nodes_whose_shapes_change_from_run_to_run(op: str, fed: str, threads: int) -> None:
    rng = np.random.default_rng(7)
    for kinds in (("u8", "u8"), ("s8", "u8"), ("u8", "s8"), ("s8", "s8")):
        zeros = codes(rng, (), kinds[0]), codes(rng, (), kinds[1])
        model = node(op, kinds, zeros, fed)
        points = [(f"{name}z", kind) for name, kind in zip("ab", kinds, strict=True) if name in fed]
        feeds = (
            {name: codes(rng, shape, kind) for name, shape, kind in zip("ab", shapes, kinds, strict=True)}
            | {name: codes(rng, (), kind) for name, kind in points}
            for shapes in (*edges.STACKED, *edges.STACKED[::-1])
            for _ in range(2)
        )
        assert reference_nodes(same_runs(model, feeds, times=1, threads=threads)) == []


def test_products_without_elements() -> None:
    model = node("MatMulInteger", ("u8", "s8"), (np.uint8(3), np.int8(2)), "")
    shapes = (((2, 0), (0, 3)), ((0, 4), (4, 3)), ((2, 4), (4, 0)), ((0, 2, 4), (1, 4, 3)))
    same_runs(model, ({"a": np.ones(left, np.uint8), "b": np.ones(right, np.int8)} for left, right in shapes))


@every_isa
def test_attention(isa: str) -> None:
    """QDQ with dynamic axes: products, softmax and transposes; no step needs Python, whatever the length of a run."""
    rng = np.random.default_rng(8)
    nodes, tensors = (
        [],
        [numpy_helper.from_array(np.array(s, F), f"s{i}") for i, s in enumerate((0.03, 0.05, 1 / 255, 0.02))],
    )
    tensors += [numpy_helper.from_array(np.array(z, np.uint8), f"z{z}") for z in (0, 119, 128, 131)]

    def made(op: str, inputs: list[str], **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [f"t{len(nodes)}"], **attributes))
        return f"t{len(nodes) - 1}"

    def coded(x: str, scale: str, zero: str) -> str:
        return made("DequantizeLinear", [made("QuantizeLinear", [x, scale, zero]), scale, zero])

    q, k, v = (coded(name, "s0", zero) for name, zero in zip("qkv", ("z119", "z128", "z131"), strict=True))
    scores = coded(made("MatMul", [q, made("Transpose", [k], perm=[0, 1, 3, 2])]), "s1", "z119")
    shares = coded(made("Softmax", [scores], axis=-1), "s2", "z0")
    last = coded(made("MatMul", [shares, v]), "s3", "z131")
    model = make_model(
        nodes, {n: ["B", "H", "S" if n == "q" else "T", 24] for n in "qkv"}, {last: None}, tensors, opset=17
    )
    feeds = (
        {n: rng.normal(0, 1.5, (b, h, s if n == "q" else t, 24)).astype(F) for n in "qkv"}
        for b, h, s, t in ((1, 2, 5, 5), (2, 3, 17, 17), (1, 1, 1, 40), (2, 2, 33, 7))
        for _ in range(2)
    )
    assert reference_nodes(same_runs(model, feeds, times=1, fuse=True, isa=isa, threads=2)) == []
