"""Kernels of one node for one shape after another: what they share must not depend on the shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from helpers.models import make_model, typed
from helpers.native import ISAS, OBJECTS, Array, engine, every_isa
from helpers.native_cases import run
from helpers.placed import same_runs
from helpers.support import MS, assert_equal
from onnx import TensorProto, helper

import qrun
from qrun.declare.memo import Memo
from qrun.native.kernels.conv import Conv, Gemm
from qrun.native.proof import fold
from qrun.native.proof.epilogue import Target

F, U8, S8 = np.float32, np.uint8, np.int8
SIZES = [(1, 1, 1), (2, 9, 5), (1, 3, 40), (0, 4, 4), (3, 1, 2), (1, 33, 17), (2, 9, 5)]


def quantized(x: str, scale: float, zero: int, dtype: Any, constants: dict[str, Array]) -> list[str]:
    names = [x, f"{x}_scale", f"{x}_zero"]
    constants |= {names[1]: np.array(scale, F), names[2]: np.array(zero, dtype)}
    return names


def model(nodes: list[onnx.NodeProto], constants: dict[str, Array], shape: tuple[Any, ...]) -> onnx.ModelProto:
    return make_model(nodes, {"x": typed(U8, shape)}, {"y": onnx.TypeProto()}, constants, opset=17)


def convolution(channels: int, outputs: int, group: int, kernel: int, per_channel: bool) -> onnx.ModelProto:
    rng = np.random.default_rng([channels, outputs, group, kernel])
    constants: dict[str, Array] = {}
    inputs = quantized("x", 0.02, 113, U8, constants)
    scale = rng.uniform(0.003, 0.02, outputs if per_channel else ()).astype(F)
    constants |= {"w": rng.integers(-128, 128, (outputs, channels // group, kernel, kernel)).astype(S8)}
    constants |= {"w_scale": scale, "w_zero": np.zeros(scale.shape, S8)}
    inputs += ["w", "w_scale", "w_zero", *quantized("y", 0.31, 7, U8, constants)[1:], "b"]
    constants["b"] = rng.integers(-5000, 5000, outputs).astype(np.int32)
    pads = [kernel // 2] * 4
    node = helper.make_node("QLinearConv", inputs, ["y"], group=group, pads=pads)
    return model([node], constants, ("n", channels, "h", "w"))


def sum_of(shape: tuple[int, ...], op_type: str) -> onnx.ModelProto:
    constants: dict[str, Array] = {"c": np.random.default_rng(shape).integers(0, 256, shape).astype(U8)}
    inputs = [*quantized("x", 0.02, 113, U8, constants), *quantized("c", 0.05, 1, U8, constants)]
    inputs += quantized("y", 0.07, 9, U8, constants)[1:]
    return model([helper.make_node(op_type, inputs, ["y"], domain=MS)], constants, ("n", 8, "h", "w"))


def unary(op_type: str) -> onnx.ModelProto:
    constants: dict[str, Array] = {}
    inputs = [*quantized("x", 0.02, 113, U8, constants), *quantized("y", 1 / 256, 0, U8, constants)[1:]]
    return model([helper.make_node(op_type, inputs, ["y"], domain=MS)], constants, ("n", 8, "h", "w"))


def product() -> onnx.ModelProto:
    constants: dict[str, Array] = {"w": np.random.default_rng(3).integers(0, 256, (40, 21)).astype(U8)}
    inputs = [*quantized("x", 0.02, 113, U8, constants), *quantized("w", 0.01, 130, U8, constants)]
    inputs += quantized("y", 0.4, 100, U8, constants)[1:]
    return model([helper.make_node("QLinearMatMul", inputs, ["y"])], constants, ("n", "h", 40))


MODELS = {
    **{f"conv {c} {m} {g} {k} {p}": convolution(c, m, g, k, p) for c, m, g, k, p in
       ((3, 16, 1, 3, True), (8, 24, 1, 1, False), (8, 8, 8, 3, True), (8, 16, 4, 3, False), (34, 34, 2, 1, True))},
    **{f"{op_type} {list(shape)}": sum_of(shape, op_type) for op_type in ("QLinearAdd", "QLinearMul")
       for shape in ((), (1,), (8, 1, 1), (1, 8, 1, 1))},
    **{op_type: unary(op_type) for op_type in ("QLinearSigmoid", "QLinearLeakyRelu")},
    "QLinearMatMul": product(),
}  # fmt: skip


@pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")
@pytest.mark.parametrize("name", MODELS)
def test_a_session_meets_one_shape_after_another(name: str) -> None:
    made = MODELS[name]
    (x,) = made.graph.input
    channels = [d.dim_value for d in x.type.tensor_type.shape.dim]
    rng = np.random.default_rng(4)
    shapes = [(n, h, 40) if len(channels) == 3 else (n, channels[1], h, w) for n, h, w in [*SIZES, *SIZES[::-1]]]
    same_runs(made, ({"x": rng.integers(0, 256, shape).astype(U8)} for shape in shapes))


@every_isa
def test_weights_are_packed_once(isa: str) -> None:
    """Kernels for other shapes share the packed weights, and give what kernels of their own give."""
    rng, memo = np.random.default_rng(5), Memo()
    w, bias = rng.integers(-128, 128, (70, 40)).astype(S8), rng.integers(-999, 999, 40).astype(np.int32)
    target = Target(F(0.02), rng.uniform(0.003, 0.02, 40).astype(F), F(0.3), "u8", 3, "exact")
    options: dict[str, Any] = {"x_zero_point": np.array(9, U8), "bias": bias, "target": target}
    packed: list[set[int]] = []
    for rows in (1, 7, 64, 300):
        x = rng.integers(0, 256, (rows, 70)).astype(U8)
        shared, own = (Gemm(engine(isa), x.shape, w, memo=k, **options) for k in (memo, None))
        assert_equal(run(shared, x), run(own, x), f"{rows} rows")
        packed.append({section.word("weights*") for section in shared.tight})
    if not engine(isa).isa.tiles and not engine(isa).isa.widens:
        assert packed[0] == packed[1] == packed[2] == packed[3] != set()


@every_isa
def test_what_is_kept_is_of_the_same_sums(isa: str) -> None:
    """Depthwise kernels, tiles and plain ones read activations in ways of their own, from the same weights."""
    rng = np.random.default_rng(6)
    for channels, outputs, group, dtype in (
        (8, 8, 8, U8),
        (8, 8, 8, S8),
        (64, 32, 2, U8),
        (64, 64, 1, S8),
        (3, 8, 1, S8),
    ):
        memo = Memo()
        w = rng.integers(-128, 128, (outputs, channels // group, 3, 3)).astype(S8)
        options: dict[str, Any] = {"x_zero_point": np.array(5, dtype), "group": group, "pads": (1, 1, 1, 1)}
        for size in (1, 2, 5, 12, 30, 5):
            x = rng.integers(0, 128, (1, channels, size, size)).astype(dtype)
            shared, own = (Conv(engine(isa), x.shape, w, memo=k, **options) for k in (memo, None))
            assert_equal(run(shared, x), run(own, x), f"{channels} {group} {size}")


@pytest.mark.parametrize("op_type", ["MatMulInteger", "ConvInteger"])
def test_weights_beside_a_zero_point_of_the_run_are_looked_at_once(
    op_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of them is added up again for another shape."""
    rng, sums, known = np.random.default_rng(7), list[int](), 0
    wide = op_type == "ConvInteger"
    weights = rng.integers(-128, 128, (24, 40, 3, 3) if wide else (40, 24)).astype(S8)
    node = helper.make_node(op_type, ["x", "w", "z"], ["y"])
    made = model([node], {"w": weights}, ("n", 40, "h", "v") if wide else ("n", 40))
    made.graph.input.append(helper.make_tensor_value_info("z", TensorProto.UINT8, []))
    native = qrun.Session(made, backend="native", cache=OBJECTS)
    reference = qrun.Session(made, backend="reference")
    own = fold._total
    monkeypatch.setattr(fold, "_total", lambda w: sums.append(w.size) or own(w))
    for rows in (3, 9, 5, 3, 40):
        fed = {
            "x": rng.integers(0, 256, (rows, 40, 5, rows) if wide else (rows, 40)).astype(U8),
            "z": np.array(rows, U8),
        }
        for _ in range(2):
            assert_equal(native.run(fed)["y"], reference.run(fed)["y"], f"{rows}")
        known = known or len(sums)
    assert 0 < known == len(sums)
